"""The two estimators, and the model that a fit produces.

A fit groups rows by task, maps them by the shared hidden layer, reduces each task, runs a solver on all of them, and
makes one head per task from the solution.
"""
