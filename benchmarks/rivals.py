"""The methods of the arena: elmesh with nothing set, and what a user would pick instead.

A method fits training rows and returns predictions for new ones: numbers, or the probability of class 1. Methods called
"pooled" see all rows of all sites in one place. Most are those of the package; here boosting has its defaults.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.stats import norm

from elmesh import LocalELM, MultiTaskELMClassifier, MultiTaskELMRegressor
from elmesh.evaluation import rivals
from elmesh.evaluation.rivals import CS, Predict, fit_elmesh
from elmesh.evaluation.rows import Inputs, Rows

__all__ = [
    "ALONE", "CS", "REGRESSION_ONLY", "RIVALS", "Method", "Rows", "alone_elmesh", "alone_linear", "covered",
    "fit_elmesh", "linear", "predict_elmesh",
]  # fmt: skip

COVERAGE = 0.9
Method = Callable[[Rows, Inputs], np.ndarray]


def of_class_1(method: Predict) -> Method:
    """Return a method whose predictions are numbers, or the probability of class 1."""

    def predict(train: Rows, new: Inputs) -> np.ndarray:
        predicted = method(train, new)
        return predicted[:, 1] if train.classification else predicted

    return predict


linear = of_class_1(rivals.linear)
alone_linear = of_class_1(rivals.alone(rivals.linear))


def alone_elmesh(train: Rows, new: Inputs) -> np.ndarray:
    """Fit LocalELM at each site."""
    return predict_elmesh(fit_elmesh(train, LocalELM()), new)


def lightgbm_and_site(train: Rows, new: Inputs) -> np.ndarray:
    """Fit LightGBM to all rows, with the site as a category."""
    from lightgbm import LGBMClassifier, LGBMRegressor  # noqa: PLC0415 (optional)

    train, new = rivals.with_site_codes(train, new)
    make = LGBMClassifier if train.classification else LGBMRegressor
    model = make(n_jobs=1, random_state=0, verbose=-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of arrays without names of columns
        model.fit(train.X, train.y, categorical_feature=list(train.categorical))
        return np.asarray(model.predict_proba(new.X)[:, 1] if train.classification else model.predict(new.X))


def predict_elmesh(model: MultiTaskELMRegressor | MultiTaskELMClassifier, new: Inputs) -> np.ndarray:
    """Return numbers, or the probability of class 1."""
    predicted = rivals.predict_elmesh(model, new)
    return predicted if isinstance(model, MultiTaskELMRegressor) else predicted[:, 1]


def covered(model: MultiTaskELMRegressor, new: Rows) -> float:
    """Return the share of targets within intervals that should have 90 % of them."""
    predicted, spread = model.predict(new.X, tasks=new.sites, return_std=True)
    return float(np.mean(np.abs(new.y - predicted) <= norm.ppf(0.5 + COVERAGE / 2) * spread))


#: Other methods by their names in results; cheap ones first.
RIVALS: dict[str, Method] = {
    "alone linear": alone_linear,
    "alone elmesh": alone_elmesh,
    "pooled linear": linear,
    "pooled linear and site": of_class_1(rivals.linear_and_site),
    "gradient boosting and site": of_class_1(rivals.boosting_and_site),
    "LightGBM and site": lightgbm_and_site,
    "mixed model, intercepts": partial(rivals.mixed_model, n_effects=1),
    "mixed model, slopes": partial(rivals.mixed_model, n_effects=3),
}
REGRESSION_ONLY = ("mixed model, intercepts", "mixed model, slopes")
ALONE = ("alone linear", "alone elmesh")
