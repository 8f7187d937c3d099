"""Methods that a user would pick instead of elmesh, and elmesh with nothing set, behind one signature.

A method fits training rows and returns predictions for new ones, whose targets it does not have: numbers, or for
classes a probability of each. What has to be chosen, it chooses by cross-validation within the training rows: boosting
the learning rate, the size of trees and their number, ridge and logistic regression the penalty. elmesh, and the mixed
model, which is fitted by restricted maximum likelihood (REML), have nothing to choose.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from elmesh.estimators.classifier import MultiTaskELMClassifier
from elmesh.estimators.regressor import MultiTaskELMRegressor
from elmesh.evaluation.rows import Inputs, Rows, encoded, fold_numbers
from elmesh.math.calibration import log_losses
from elmesh.solvers import Solver
from elmesh.solvers.local_elm import LocalELM
from elmesh.solvers.mesh_elm import MeshELM
from elmesh.typing import FloatArray

__all__ = [
    "CS", "METHODS", "MOST_TREES", "OWN", "Method", "Predict", "alone", "alone_elmesh", "boosting", "boosting_and_site",
    "fit_elmesh", "linear", "linear_and_site", "losses", "mixed_model", "predict_elmesh", "with_site_codes",
]  # fmt: skip

Predict = Callable[[Rows, Inputs], FloatArray]

PENALTIES, CS = np.logspace(-3, 4, 15), np.logspace(-3, 2, 8)
# Settings of boosting to choose from; the most trees, by how many they are added, how often without gain; folds.
_BOOSTING = tuple(
    {"learning_rate": rate, "max_leaf_nodes": leaves, "min_samples_leaf": least}
    for rate in (0.1, 0.05)
    for leaves, least in ((4, 5), (12, 10), (31, 20))
)
MOST_TREES, _TREES, _PATIENCE, _FOLDS = 300, 25, 2, 3
# Boosting takes at most so many categories.
_MOST_CATEGORIES = 255


def class_shares(train: Rows, new: Inputs) -> FloatArray:
    """Return the share of each class in the training rows, for every new row; a class that they lack is possible."""
    counts = np.bincount(train.y, minlength=train.n_classes)
    return np.tile((counts + 1 / train.n_classes) / (counts.sum() + 1), (len(new), 1))


def _per_class(model: Any, X: FloatArray, n_classes: int) -> FloatArray:
    """Return the probability of every class, zero for those that the model was not fitted on."""
    probabilities = np.zeros((len(X), n_classes))
    probabilities[:, model.classes_] = model.predict_proba(X)
    return probabilities


def linear(train: Rows, new: Inputs) -> FloatArray:
    """Ridge regression with its penalty chosen by leave-one-out, or logistic regression with C chosen by log loss."""
    if not train.classification:
        return np.asarray(RidgeCV(PENALTIES).fit(train.X, train.y).predict(new.X))
    counts = np.bincount(train.y)
    common = train.take(counts[train.y] > 1)  # a class of one row cannot be in two folds
    if len(np.unique(common.y)) < 2:
        return class_shares(train, new)
    # Rows are sorted by site: folds that are not shuffled would leave out whole sites.
    folds = StratifiedKFold(min(5, int(counts[counts > 1].min())), shuffle=True, random_state=0)
    model = GridSearchCV(LogisticRegression(max_iter=500), {"C": CS}, cv=folds, scoring="neg_log_loss")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _per_class(model.fit(common.X, common.y), new.X, train.n_classes)


def linear_and_site(train: Rows, new: Inputs) -> FloatArray:
    """Fit one linear model to all rows, with an intercept per site."""
    names = np.unique(train.sites)
    X, X_new = (np.c_[rows.X, rows.sites[:, None] == names] for rows in (train, new))
    return linear(replace(train, X=X), replace(new, X=X_new))


def alone(method: Predict) -> Predict:
    """Return a method that is fitted at each site by itself."""

    def predict(train: Rows, new: Inputs) -> FloatArray:
        predicted = np.empty((len(new), train.n_classes) if train.classification else len(new))
        for site in np.unique(new.sites):
            predicted[new.sites == site] = method(train.at(site), new.at(site))
        return predicted

    return predict


def boosting(train: Rows, new: Inputs, candidates: Sequence[Mapping[str, Any]] = ({},)) -> FloatArray:
    """Fit gradient boosting with the settings that are best in cross-validation, or with the only ones given."""
    if train.classification and len(np.unique(train.y)) < 2:
        return class_shares(train, new)
    settings = candidates[0] if len(candidates) == 1 else _choose_boosting(train, candidates)
    return _boosted(_make_boosting(train, **settings), train, new)


def _make_boosting(rows: Rows, **settings: Any) -> Any:
    make = HistGradientBoostingClassifier if rows.classification else HistGradientBoostingRegressor
    return make(categorical_features=list(rows.categorical) or None, random_state=0, **settings)


def _boosted(model: Any, train: Rows, new: Inputs) -> FloatArray:
    if train.classification and len(np.unique(train.y)) < 2:
        return class_shares(train, new)
    model.fit(train.X, train.y)
    return _per_class(model, new.X, train.n_classes) if train.classification else np.asarray(model.predict(new.X))


def _choose_boosting(train: Rows, candidates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return settings and a number of trees by the loss on rows left out of the training rows.

    Trees are added until they bring no gain. Settings under which no tree can be split are left out.
    """
    fits = [settings for settings in candidates if 2 * settings["min_samples_leaf"] <= len(train) * (1 - 1 / _FOLDS)]
    fold = fold_numbers(train, _FOLDS, seed=0)
    parts = [(train.take(fold != k), train.take(fold == k)) for k in range(_FOLDS)]
    least, chosen = np.inf, {**candidates[0], "max_iter": _TREES}
    for settings in fits:
        models = [_make_boosting(train, early_stopping=False, warm_start=True, **settings) for _ in parts]
        lowest, since = np.inf, 0
        for trees in range(_TREES, MOST_TREES + 1, _TREES):
            found = [
                losses(_boosted(model.set_params(max_iter=trees), inner, rest), rest.y)
                for model, (inner, rest) in zip(models, parts, strict=True)
            ]
            loss = float(np.mean(np.concatenate(found)))
            since = 0 if loss < lowest else since + 1
            lowest = min(lowest, loss)
            if loss < least:
                least, chosen = loss, {**settings, "early_stopping": False, "max_iter": trees}
            if since == _PATIENCE:
                break
    return chosen


def losses(predicted: FloatArray, y: NDArray[Any]) -> FloatArray:
    """Return the squared error of each row, or its log loss if probabilities are given."""
    return log_losses(predicted[np.arange(len(y)), y]) if predicted.ndim > 1 else (predicted - y) ** 2


def with_site_codes(train: Rows, new: Inputs) -> tuple[Rows, Inputs]:
    """Return the rows with the site as a further category; of very many sites, with means of their targets instead."""
    names, width = np.unique(train.sites), train.X.shape[1]
    if len(names) <= _MOST_CATEGORIES:
        codes = [pd.Categorical(rows.sites, categories=names).codes for rows in (train, new)]
        X, X_new = (np.c_[rows.X, np.where(c < 0, np.nan, c)] for rows, c in zip((train, new), codes, strict=True))
        categorical = (*train.categorical, width)
        return replace(train, X=X, categorical=categorical), replace(new, X=X_new, categorical=categorical)
    X, X_new = _site_means(train, new)
    return replace(train, X=np.c_[train.X, X]), replace(new, X=np.c_[new.X, X_new])


def _site_means(train: Rows, new: Inputs) -> tuple[FloatArray, FloatArray]:
    """Return the mean target of each row's site, or its shares of classes; of training rows, those of other folds."""
    Y = np.eye(train.n_classes)[train.y] if train.classification else train.y[:, None]

    def means(rows: NDArray[np.bool_], sites: NDArray[Any]) -> FloatArray:
        found = pd.DataFrame(Y[rows]).groupby(train.sites[rows]).agg(["sum", "count"])
        sums, counts = (found.xs(name, axis=1, level=1).reindex(sites, fill_value=0.0) for name in ("sum", "count"))
        return np.asarray((sums + Y[rows].mean(axis=0)) / (counts + 1))  # as if there were one row more, an average one

    fold, own = fold_numbers(train, _FOLDS, seed=0), np.empty(Y.shape)
    for k in range(_FOLDS):
        own[fold == k] = means(fold != k, train.sites[fold == k])
    return own, means(fold >= 0, new.sites)


def boosting_and_site(train: Rows, new: Inputs, candidates: Sequence[Mapping[str, Any]] = ({},)) -> FloatArray:
    """Fit gradient boosting to all rows, with the site as a category."""
    return boosting(*with_site_codes(train, new), candidates)


def mixed_model(train: Rows, new: Inputs, n_effects: int) -> FloatArray:
    """Fit a linear mixed model by REML: per site a random intercept, and slopes along leading principal components.

    Components and targets are standardised, and the search is Powell's: L-BFGS ends at a variance of zero, or without
    convergence, on several tables.
    """
    from statsmodels.regression.mixed_linear_model import MixedLM  # noqa: PLC0415 (optional)

    mean, y_mean, y_scale = train.X.mean(axis=0), train.y.mean(), train.y.std()
    _, s, Vt = np.linalg.svd(train.X - mean, full_matrices=False)
    kept = s > 1e-6 * s[0]  # without dummies that add up to a constant
    axes = Vt[kept].T * np.sqrt(len(train)) / s[kept]
    Z, Z_new = (np.c_[np.ones(len(rows)), (rows.X - mean) @ axes] for rows in (train, new))
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make(solver=solver, column_types=train.types, random_state=0)
        return model.fit(train.X if train.table is None else train.table, train.y, tasks=train.sites)


def predict_elmesh(
    model: MultiTaskELMRegressor | MultiTaskELMClassifier, new: Inputs, n_classes: int = 2
) -> FloatArray:
    """Return numbers, or the probability of each class."""
    inputs = new.X if new.table is None else new.table
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(model, MultiTaskELMRegressor):
            return np.asarray(model.predict(inputs, tasks=new.sites))
        probabilities = np.zeros((len(new), n_classes))
        probabilities[:, model.classes_] = model.predict_proba(inputs, tasks=new.sites)
        return probabilities


def elmesh(train: Rows, new: Inputs, solver: Solver | str = "mesh-elm") -> FloatArray:
    """Fit elmesh and predict."""
    return predict_elmesh(fit_elmesh(train, solver), new, train.n_classes)


def alone_elmesh(train: Rows, new: Inputs) -> FloatArray:
    """Fit LocalELM at each site; a site with one class alone predicts by shares of classes."""
    if not train.classification:
        return elmesh(train, new, LocalELM())
    single = [site for site in np.unique(new.sites) if len(np.unique(train.at(site).y)) < 2]
    few, few_new = (np.isin(rows.sites, single) for rows in (train, new))
    predicted = np.empty((len(new), train.n_classes))
    if few.any():
        predicted[few_new] = alone(class_shares)(train.take(few), new.take(few_new))
    if not few.all():
        predicted[~few_new] = elmesh(train.take(~few), new.take(~few_new), LocalELM())
    return predicted


@dataclass(frozen=True)
class Method:
    """A method to compare with: its title, how it predicts, and what to do if it is the best."""

    title: str
    predict: Predict
    advice: str
    pooled: bool = False  # whether all rows must be in one place
    regression_only: bool = False
    package: str = ""  # that must be installed

    @property
    def installed(self) -> bool:
        """Whether the package that it needs is installed."""
        return not self.package or find_spec(self.package) is not None


def _on_encoded(method: Predict) -> Predict:
    return lambda train, new: method(*encoded(train, new))


_POOL = "use it if rows may be pooled"


def _mixed(title: str, n_effects: int) -> Method:
    predict = _on_encoded(partial(mixed_model, n_effects=n_effects))
    return Method(title, predict, _POOL, pooled=True, regression_only=True, package="statsmodels")


OWN = "elmesh"
#: Methods by name; the first is the one that others are compared with.
METHODS = {
    OWN: Method("elmesh together", elmesh, "use it"),
    "elmesh-alone": Method("elmesh alone", alone_elmesh, "fit each site by itself, with --solver local-elm"),
    "elmesh-common": Method(
        "one elmesh model for all sites", partial(elmesh, solver=MeshELM(private=False, rank=0)),
        "fit it with --parts common",
    ),
    "boosting-alone": Method(
        "gradient boosting alone", alone(partial(boosting, candidates=_BOOSTING)), "use it at each site"
    ),
    "boosting-pooled": Method(
        "gradient boosting pooled", partial(boosting_and_site, candidates=_BOOSTING), _POOL, pooled=True
    ),
    "linear-pooled": Method("linear model pooled", _on_encoded(linear_and_site), _POOL, pooled=True),
    "mixed-intercepts": _mixed("mixed model with intercepts", 1),
    "mixed-slopes": _mixed("mixed model with slopes", 3),
}  # fmt: skip
