"""The two estimators: scikit-learn on the outside, a solver and a runtime on the inside.

A fit is: rows to tasks, the shared hidden layer, each task reduced by itself, the solver run over all of them, and a
head a task put together from what came out.
"""
