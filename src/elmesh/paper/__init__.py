"""The evaluation of *Decentralized Multi-Task Learning Based on Extreme Learning Machines*, run again.

A file a figure or table says what is run (``trials``, ``measure``); its namesake in :mod:`elmesh.paper.findings` says
what is made of it. :mod:`~elmesh.paper.trials` runs them in parallel and remembers, :mod:`~elmesh.paper.reproduction`
puts everything into a folder.
"""
