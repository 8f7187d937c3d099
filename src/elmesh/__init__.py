"""Many sites, small related data sets, no pooling: each gets a model better than it could learn alone.

The methods are those of *Decentralized Multi-Task Learning Based on Extreme Learning Machines* (Ye, Xiao, Skoglund).
Names are imported when they are first used, so that ``import elmesh`` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from elmesh.errors import ElmeshError
from elmesh.version import __version__

if TYPE_CHECKING:
    from elmesh.data.stacking import stack_tasks
    from elmesh.estimators.classifier import MultiTaskELMClassifier
    from elmesh.estimators.loading import load
    from elmesh.estimators.regressor import MultiTaskELMRegressor
    from elmesh.estimators.tuned import MultiTaskELMClassifierCV, MultiTaskELMRegressorCV
    from elmesh.evaluation.compare import compare
    from elmesh.privacy.budget import Privacy
    from elmesh.report.displays import (
        ConvergenceDisplay,
        EffectDisplay,
        ImportanceDisplay,
        SiteGainDisplay,
        SiteMapDisplay,
    )
    from elmesh.run.config import CheckpointConfig, RunConfig
    from elmesh.run.mpi_backend import MPIBackend
    from elmesh.solvers.base import Solver
    from elmesh.solvers.dif_altgdmin import DifAltGDmin
    from elmesh.solvers.dmtl_elm import DMTLELM
    from elmesh.solvers.fed_avg import FedAvg
    from elmesh.solvers.fed_avg_network import FedAvgNetwork
    from elmesh.solvers.fed_per import FedPer
    from elmesh.solvers.federated_ridge import FederatedRidge
    from elmesh.solvers.fedrep import FedRep
    from elmesh.solvers.fo_dmtl_elm import FODMTLELM
    from elmesh.solvers.go_mtl import GOMTL
    from elmesh.solvers.local_elm import LocalELM
    from elmesh.solvers.mesh_elm import MeshELM
    from elmesh.solvers.mtfl import MTFL
    from elmesh.solvers.mtl_elm import MTLELM
    from elmesh.solvers.subspace_pursuit import DGSP, DNSP
    from elmesh.solvers.trace_norm import TraceNorm

_MODULES = {
    "CheckpointConfig": "run.config",
    "ConvergenceDisplay": "report.displays",
    "DGSP": "solvers.subspace_pursuit",
    "DMTLELM": "solvers.dmtl_elm",
    "DNSP": "solvers.subspace_pursuit",
    "DifAltGDmin": "solvers.dif_altgdmin",
    "EffectDisplay": "report.displays",
    "FODMTLELM": "solvers.fo_dmtl_elm",
    "FedAvg": "solvers.fed_avg",
    "FedAvgNetwork": "solvers.fed_avg_network",
    "FedPer": "solvers.fed_per",
    "FedRep": "solvers.fedrep",
    "FederatedRidge": "solvers.federated_ridge",
    "GOMTL": "solvers.go_mtl",
    "ImportanceDisplay": "report.displays",
    "LocalELM": "solvers.local_elm",
    "MPIBackend": "run.mpi_backend",
    "MTFL": "solvers.mtfl",
    "MTLELM": "solvers.mtl_elm",
    "MeshELM": "solvers.mesh_elm",
    "MultiTaskELMClassifier": "estimators.classifier",
    "MultiTaskELMClassifierCV": "estimators.tuned",
    "MultiTaskELMRegressor": "estimators.regressor",
    "MultiTaskELMRegressorCV": "estimators.tuned",
    "Privacy": "privacy.budget",
    "RunConfig": "run.config",
    "SiteGainDisplay": "report.displays",
    "SiteMapDisplay": "report.displays",
    "Solver": "solvers.base",
    "TraceNorm": "solvers.trace_norm",
    "compare": "evaluation.compare",
    "load": "estimators.loading",
    "stack_tasks": "data.stacking",
}

__all__ = [
    "DGSP",
    "DMTLELM",
    "DNSP",
    "FODMTLELM",
    "GOMTL",
    "MTFL",
    "MTLELM",
    "CheckpointConfig",
    "ConvergenceDisplay",
    "DifAltGDmin",
    "EffectDisplay",
    "ElmeshError",
    "FedAvg",
    "FedAvgNetwork",
    "FedPer",
    "FedRep",
    "FederatedRidge",
    "ImportanceDisplay",
    "LocalELM",
    "MPIBackend",
    "MeshELM",
    "MultiTaskELMClassifier",
    "MultiTaskELMClassifierCV",
    "MultiTaskELMRegressor",
    "MultiTaskELMRegressorCV",
    "Privacy",
    "RunConfig",
    "SiteGainDisplay",
    "SiteMapDisplay",
    "Solver",
    "TraceNorm",
    "__version__",
    "compare",
    "load",
    "stack_tasks",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'elmesh' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"elmesh.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
