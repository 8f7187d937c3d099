"""Reproduction of the evaluation of *Decentralized Multi-Task Learning Based on Extreme Learning Machines*.

:mod:`~elmesh.paper.convergence`, :mod:`~elmesh.paper.classification` and :mod:`~elmesh.paper.misprints` measure;
:mod:`elmesh.paper.analysis` derives the claims, figures and tables. :mod:`~elmesh.paper.methods` has the methods with
the paper's parameters, :mod:`~elmesh.paper.trials` runs trials in parallel and saves their numbers, and
:mod:`~elmesh.paper.reproduction` lists the experiments and writes a folder with the report.
"""
