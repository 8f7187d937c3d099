"""Many sites, small related data sets, no pooling: each gets a model better than it could learn alone.

The methods are those of *Decentralized Multi-Task Learning Based on Extreme Learning Machines* (Ye, Xiao, Skoglund).
"""

from elmesh.data.stacking import stack_tasks
from elmesh.errors import ElmeshError
from elmesh.estimators.classifier import MultiTaskELMClassifier
from elmesh.estimators.loading import load
from elmesh.estimators.regressor import MultiTaskELMRegressor
from elmesh.solvers import (
    DGSP,
    DMTLELM,
    DNSP,
    FODMTLELM,
    GOMTL,
    MTFL,
    MTLELM,
    DifAltGDmin,
    FedRep,
    LocalELM,
    TraceNorm,
)
from elmesh.version import __version__

__all__ = [
    "DGSP",
    "DMTLELM",
    "DNSP",
    "FODMTLELM",
    "GOMTL",
    "MTFL",
    "MTLELM",
    "DifAltGDmin",
    "ElmeshError",
    "FedRep",
    "LocalELM",
    "MultiTaskELMClassifier",
    "MultiTaskELMRegressor",
    "TraceNorm",
    "__version__",
    "load",
    "stack_tasks",
]
