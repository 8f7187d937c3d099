"""What a model is worth, beside it in its folder: the page ``report.html`` and the scores on its card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmesh.cli.console import Output
from elmesh.estimators.gains import SiteGains
from elmesh.estimators.storage import CARD, REPORT
from elmesh.files import atomic_write

if TYPE_CHECKING:
    from elmesh.report import Table

__all__ = ["measure_gains", "write_model_report"]


def measure_gains(model: Any, output: Output, *, pooled: bool = True) -> SiteGains | None:
    """Return what each task gains by learning together; None if the model has nothing to compare."""
    fitted = model.model_
    if fitted.common is None or (pooled and len(fitted.heads) < 2):
        return None
    with output.bar("Measuring gains") as show:
        show(0, 1, "rows left out of each site")
        gains: SiteGains = model.site_gains(pooled=pooled)
        show(1, 1, "")
    return gains


def write_model_report(
    model: Any, folder: Path, summary: dict[str, Any], output: Output
) -> tuple[SiteGains, Table] | None:
    """Measure who gains and what predictions depend on, from the rows that the model has kept.

    Write the page and the card into the model's folder, and add what was found to the summary. Return the gains and
    their table, if they can be measured.
    """
    gains = measure_gains(model, output)
    with output.bar("Explaining") as show:
        show(0, 1, "columns shuffled")
        explanation = model.explain()
        show(1, 1, "")
    summary["explanation"] = explanation.to_json()
    from elmesh.report import gains_page, gains_table, page_without_gains, render  # noqa: PLC0415 (slow: Matplotlib)

    if gains is None:
        page = page_without_gains(summary, explanation, output.notes)
    else:
        page = gains_page(gains, summary, explanation, output.notes)
    atomic_write(folder / REPORT, render(page).encode())
    summary["report"] = str(folder / REPORT)
    if gains is None:
        return None
    atomic_write(folder / CARD, model.model_card(gains, notes=output.notes).encode())
    summary["gains"] = gains.to_json()
    return gains, gains_table(gains)
