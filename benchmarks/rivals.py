"""Methods that a user would pick instead of elmesh, and elmesh with nothing set, behind one signature.

A method fits training rows and returns predictions for new ones: numbers, or the probability of class 1. Methods called
"pooled" see all rows of all sites in one place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.model_selection import StratifiedKFold

from elmesh import LocalELM, MultiTaskELMClassifier, MultiTaskELMRegressor, Solver

PENALTIES, CS = np.logspace(-3, 4, 15), np.logspace(-3, 2, 8)
COVERAGE = 0.9


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs, targets (numbers, or whole numbers for classes) and sites."""

    X: np.ndarray
    y: np.ndarray
    sites: np.ndarray

    def at(self, site: str) -> Rows:
        """Return the rows of one site."""
        rows = self.sites == site
        return Rows(self.X[rows], self.y[rows], self.sites[rows])

    @property
    def classification(self) -> bool:
        return self.y.dtype.kind == "i"


Method = Callable[[Rows, Rows], np.ndarray]


def linear(train: Rows, new: Rows) -> np.ndarray:
    """Ridge regression with its penalty chosen by leave-one-out, or logistic regression with C chosen by log loss."""
    if not train.classification:
        return np.asarray(RidgeCV(PENALTIES).fit(train.X, train.y).predict(new.X))
    counts = np.bincount(train.y, minlength=2)
    folds = min(5, int(counts.min()))
    if folds < 2:
        return np.full(len(new.y), (counts[1] + 0.5) / (counts.sum() + 1.0))
    # Rows are sorted by site: folds that are not shuffled would leave out whole sites.
    cv = StratifiedKFold(folds, shuffle=True, random_state=0)
    model = LogisticRegressionCV(
        Cs=CS, cv=cv, scoring="neg_log_loss", max_iter=500, l1_ratios=(0.0,), use_legacy_attributes=False
    )
    return np.asarray(model.fit(train.X, train.y).predict_proba(new.X)[:, 1])


def alone_linear(train: Rows, new: Rows) -> np.ndarray:
    """Fit a linear model at each site."""
    predicted = np.empty(len(new.y))
    for site in np.unique(new.sites):
        predicted[new.sites == site] = linear(train.at(site), new.at(site))
    return predicted


def linear_and_site(train: Rows, new: Rows) -> np.ndarray:
    """Fit one linear model to all rows, with an intercept per site."""
    names = np.unique(train.sites)
    return linear(*(replace(rows, X=np.c_[rows.X, rows.sites[:, None] == names]) for rows in (train, new)))


def with_site_numbers(train: Rows, new: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs with the site's number as last column."""
    names = np.unique(train.sites)
    first, second = (np.c_[rows.X, np.searchsorted(names, rows.sites)] for rows in (train, new))
    return first, second


def boosting_and_site(train: Rows, new: Rows) -> np.ndarray:
    """Fit gradient boosting to all rows, with the site as a category."""
    X, X_new = with_site_numbers(train, new)
    make = HistGradientBoostingClassifier if train.classification else HistGradientBoostingRegressor
    model = make(categorical_features=[X.shape[1] - 1], random_state=0).fit(X, train.y)
    return np.asarray(model.predict_proba(X_new)[:, 1] if train.classification else model.predict(X_new))


def lightgbm_and_site(train: Rows, new: Rows) -> np.ndarray:
    """Fit LightGBM to all rows, with the site as a category."""
    from lightgbm import LGBMClassifier, LGBMRegressor  # noqa: PLC0415 (optional)

    X, X_new = with_site_numbers(train, new)
    make = LGBMClassifier if train.classification else LGBMRegressor
    model = make(n_jobs=1, random_state=0, verbose=-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of arrays without names of columns
        model.fit(X, train.y, categorical_feature=[X.shape[1] - 1])
        return np.asarray(model.predict_proba(X_new)[:, 1] if train.classification else model.predict(X_new))


def mixed_model(train: Rows, new: Rows, n_effects: int) -> np.ndarray:
    """Fit a linear mixed model by REML: per site a random intercept, and slopes along leading principal components.

    Components and targets are standardised, and the search is Powell's: L-BFGS ends at a variance of zero, or without
    convergence, on several tables.
    """
    from statsmodels.regression.mixed_linear_model import MixedLM  # noqa: PLC0415 (optional)

    mean, y_mean, y_scale = train.X.mean(axis=0), train.y.mean(), train.y.std()
    _, s, Vt = np.linalg.svd(train.X - mean, full_matrices=False)
    kept = s > 1e-6 * s[0]  # without dummies that add up to a constant
    axes = Vt[kept].T * np.sqrt(len(train.y)) / s[kept]
    Z, Z_new = (np.c_[np.ones(len(rows.y)), (rows.X - mean) @ axes] for rows in (train, new))
    k = min(n_effects, Z.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MixedLM((train.y - y_mean) / y_scale, Z, groups=train.sites, exog_re=Z[:, :k])
        fitted = model.fit(reml=True, method=["powell"], maxiter=200)
        effects = fitted.random_effects
    if not fitted.converged:
        raise ArithmeticError("REML did not converge")
    predicted = Z_new @ fitted.fe_params
    for site, effect in effects.items():
        rows = new.sites == site
        predicted[rows] += Z_new[rows, :k] @ np.asarray(effect)
    return np.asarray(y_mean + y_scale * predicted)


def fit_elmesh(train: Rows, solver: Solver | str = "mesh-elm") -> MultiTaskELMRegressor | MultiTaskELMClassifier:
    """Fit elmesh with nothing set but a solver: by default all sites together."""
    make = MultiTaskELMClassifier if train.classification else MultiTaskELMRegressor
    model = make(solver=solver, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(train.X, train.y, tasks=train.sites)


def predict_elmesh(model: MultiTaskELMRegressor | MultiTaskELMClassifier, new: Rows) -> np.ndarray:
    """Return numbers, or the probability of class 1."""
    if isinstance(model, MultiTaskELMRegressor):
        return np.asarray(model.predict(new.X, tasks=new.sites))
    return np.asarray(model.predict_proba(new.X, tasks=new.sites)[:, list(model.classes_).index(1)])


def alone_elmesh(train: Rows, new: Rows) -> np.ndarray:
    """Fit LocalELM at each site."""
    return predict_elmesh(fit_elmesh(train, LocalELM()), new)


def covered(model: MultiTaskELMRegressor, new: Rows) -> float:
    """Return the share of targets within intervals that should have 90 % of them."""
    predicted, spread = model.predict(new.X, tasks=new.sites, return_std=True)
    return float(np.mean(np.abs(new.y - predicted) <= norm.ppf(0.5 + COVERAGE / 2) * spread))


#: Other methods by their names in results; cheap ones first.
RIVALS: dict[str, Method] = {
    "alone linear": alone_linear,
    "alone elmesh": alone_elmesh,
    "pooled linear": linear,
    "pooled linear and site": linear_and_site,
    "gradient boosting and site": boosting_and_site,
    "LightGBM and site": lightgbm_and_site,
    "mixed model, intercepts": partial(mixed_model, n_effects=1),
    "mixed model, slopes": partial(mixed_model, n_effects=3),
}
REGRESSION_ONLY = ("mixed model, intercepts", "mixed model, slopes")
ALONE = ("alone linear", "alone elmesh")
