"""The card of a saved model: what it predicts, for whom, how well, and how confidential it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from elmesh.estimators.gains import SiteGains, format_error
from elmesh.estimators.model import MultiTaskModel
from elmesh.privacy.report import NOT_PRIVATE, PrivacyReport
from elmesh.tables import TableSchema
from elmesh.text import count
from elmesh.version import __version__

__all__ = ["confidentiality", "model_card"]

# Most names that are listed.
_MOST_NAMES = 40

_STATISTICS = (
    "`statistics/` contains rows, or sums over rows, for `elmesh update` and `elmesh forget`. Only the owner of the "
    "folder can read it. Predictions do not need it: delete it before you give the model to others."
)


def model_card(
    model: MultiTaskModel,
    table: TableSchema | None,
    description: Mapping[str, Any],
    privacy: PrivacyReport | None = None,
    gains: SiteGains | None = None,
    notes: Sequence[str] = (),
    *,
    statistics: bool = False,
) -> str:
    """Return the card in Markdown.

    Parameters
    ----------
    model, table, description
        The model, how the columns of its table become numbers, and the parameters of the estimator.
    privacy : PrivacyReport, optional
        What a private fit promises.
    gains : SiteGains, optional
        Errors on rows left out, if they were measured.
    notes : sequence of str
        What is to be checked about the table that the model was learned from.
    statistics : bool
        Whether the folder contains what is kept of the rows.
    """
    targets = ["y"] if table is None else [column.name for column in table.target_columns]
    tasks = list(model.heads)
    lines = [
        "# A model made by elmesh",
        "",
        f"- **Predicts** {_names(targets)} ({model.kind}{_classes(model)}).",
        f"- **For** {count(len(tasks), 'site')}: {_names(tasks)}."
        + (" Rows of other sites are predicted by what these have in common." if model.common is not None else ""),
        f"- **From** {_inputs(model, table)}.",
        f"- **Method**: {description['solver']['solver']}; `model.json` has all parameters.",
        *_scores(gains),
        *(["", "## To check", ""] if notes else []),
        *(f"- {_escaped(note)}" for note in notes),
        "",
        "## Confidential",
        "",
        confidentiality(model, privacy),
        "",
        "## Files",
        "",
        "`model.json` and `weights.safetensors` are the model; `elmesh.load`, `elmesh predict` and `elmesh evaluate` "
        f"read them. They were written by elmesh {__version__}.",
        *([""] if statistics else []),
        *([_STATISTICS] if statistics else []),
        "",
    ]
    return "\n".join(lines)


def _names(names: list[Any]) -> str:
    shown = ", ".join(f"`{_plain(name)}`" for name in names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"


def _escaped(text: str) -> str:
    """Return a text on one line, in which Markdown and HTML mean nothing."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", " ".join(text.split()))


def _plain(name: object) -> str:
    """Return a name without what would end its quotation or its line."""
    return " ".join(str(name).replace("`", "'").split())


def _classes(model: MultiTaskModel) -> str:
    known = {name for head in model.heads.values() if head.classes is not None for name in head.classes.tolist()}
    return f" of the classes {_names(sorted(known))}" if known else ""


def _inputs(model: MultiTaskModel, table: TableSchema | None) -> str:
    if table is None:
        return f"{count(model.layer.n_inputs, 'column')} of an array"
    names = [column.name for column in table.features]
    return f"{count(len(names), 'column')}: {_names(names)}"


def _scores(gains: SiteGains | None) -> list[str]:
    if gains is None:
        return []
    one = gains.overall
    alone, together, _ = (format_error(error, gains.unit) for error in one.errors)
    return [
        f"- **Error** on {count(one.rows, 'row')} left out ({gains.unit}): {together} with this model, {alone} with "
        f"a model of each site alone. {gains.sentence()}"
    ]


def confidentiality(model: MultiTaskModel, privacy: PrivacyReport | None = None) -> str:
    """Return who may learn what from a model."""
    if privacy is not None:
        return f"{privacy.sentence()} {NOT_PRIVATE}"
    if model.common is not None and model.common.private:
        return f"What the sites have in common was learned with differential privacy. {NOT_PRIVATE}"
    return (
        "This model was learned from rows without differential privacy. Whoever has it can learn about these rows, for "
        "instance whether a known row was among them: keep it as confidential as the rows."
    )
