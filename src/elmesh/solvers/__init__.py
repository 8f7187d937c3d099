"""The methods, one per file. A solver is a scikit-learn estimator of its parameters; subclassing registers it."""

from __future__ import annotations

import importlib
import pkgutil

from elmesh.solvers.base import Solver, make_solver, solver_classes

__all__ = ["Solver", "make_solver", "solver_classes"]

# A solver is registered when its class is defined, so every file of this folder is imported: a new method is one file.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
