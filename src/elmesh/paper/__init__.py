"""Reproduction of the evaluation of *Decentralized Multi-Task Learning Based on Extreme Learning Machines*.

One module per figure or table defines its measurements (``measure``); the module of the same name in
:mod:`elmesh.paper.analysis` derives the claims, figures and tables. :mod:`~elmesh.paper.methods` builds and runs all
solvers, :mod:`~elmesh.paper.parallel` runs trials in parallel, :mod:`~elmesh.paper.trials` saves their results, and
:mod:`~elmesh.paper.reproduction` writes a folder with the report.
"""
