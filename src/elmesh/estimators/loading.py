"""From a saved folder back to a fitted estimator."""

from __future__ import annotations

import os
from pathlib import Path

from elmesh.errors import ElmeshError
from elmesh.estimators.classifier import MultiTaskELMClassifier
from elmesh.estimators.model import MultiTaskModel
from elmesh.estimators.parameters import restore
from elmesh.estimators.regressor import MultiTaskELMRegressor
from elmesh.estimators.storage import document_digest, statistics_folder

__all__ = ["load"]


def load(path: str | os.PathLike[str]) -> MultiTaskELMClassifier | MultiTaskELMRegressor:
    """Read a model that :meth:`MultiTaskELMClassifier.save` wrote.

    Parameters
    ----------
    path : path-like
        The folder.

    Returns
    -------
    estimator
        Fitted; its predictions are identical to the bit to those of the estimator that was saved.

    Raises
    ------
    ElmeshError
        If the folder is missing, cut short, altered, or of a newer version.
    """
    digest = document_digest(Path(path)) if (Path(path) / "model.json").is_file() else ""
    model, description, extra = MultiTaskModel.load(Path(path))
    kind = MultiTaskELMClassifier if model.kind == "classification" else MultiTaskELMRegressor
    try:
        estimator = kind(**restore(description))
    except (TypeError, LookupError, AttributeError) as error:
        raise ElmeshError(f"The model in {path} describes an estimator that this version does not know.") from error
    estimator._adopt(model, model.layer.n_inputs, extra)
    folder = statistics_folder(Path(path))
    estimator._statistics_source = None if folder is None else (folder, digest)
    return estimator
