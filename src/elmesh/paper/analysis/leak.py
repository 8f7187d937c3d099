"""Analysis of the leak: errors on test rows that another task trains on, on the others, and without such rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from elmesh.paper.analysis.estimates import PACKAGE, Analysis, Results, at_once, difference, estimate, values
from elmesh.paper.classification import VARIANT_METHODS
from elmesh.paper.protocol import DATASETS, INDEPENDENT, NO_LEAK, parse_case
from elmesh.report import Wording

__all__ = ["analyze_leak"]

LOCAL, *TOGETHER = VARIANT_METHODS
#: The test rows of a column of the tables, and the draw they belong to.
ROWS = {key: (INDEPENDENT, key) for key in ("seen", "unseen", "all")} | {NO_LEAK: (NO_LEAK, "all")}


def analyze_leak(results: Results, runs: int) -> Analysis:
    """Compare methods on seen and unseen rows, and on the same test rows with and without the leak."""
    wording = Wording(PACKAGE, "leak", runs=runs)
    more, tables = [], []
    numbers: dict[str, Any] = {}
    for case, found in results.items():
        data = DATASETS[parse_case(case)[0]].title
        errors = {(name, key): estimate(found, d, name, r) for name in VARIANT_METHODS for key, (d, r) in ROWS.items()}
        gains = {
            (name, key): difference(values(found, drawing, name, rows), values(found, drawing, LOCAL, rows))
            for name in TOGETHER
            for key, (drawing, rows) in ROWS.items()
        }
        effects = {
            name: difference(values(found, INDEPENDENT, name, "all"), values(found, NO_LEAK, name, "all"))
            for name in VARIANT_METHODS
        }
        errors, gains, effects = (at_once(own, len(results)) for own in (errors, gains, effects))
        shares = 100 * np.array(values(found, "shares"))
        span = {"share": shares.mean(), "low": shares.min(), "high": shares.max()}
        own = {key: gains["DMTL-ELM", key] for key in ROWS}
        without, whole = own[NO_LEAK], own["all"]
        more.append(wording.text("gain", data=data, **span, gains=own, without=without, effects=effects))
        rest = "lower" if without.high < 0 else "higher" if without.low > 0 else "undecided"
        more.append(wording.text(f"rest_{rest}", data=data, part=1 - without.mean / whole.mean))
        tables += [
            wording.table(
                "errors",
                [[name, *(str(errors[name, key]) for key in ROWS), effects[name].signed] for name in VARIANT_METHODS],
                data=data, n=len(errors) * len(results), n_effects=len(effects) * len(results),
            ),
            wording.table(
                "gains",
                [[f"{name} minus {LOCAL}", *(gains[name, key].signed for key in ROWS)] for name in TOGETHER],
                data=data, n=len(gains) * len(results),
            ),
        ]  # fmt: skip
        numbers[data] = {
            "share_of_seen_test_rows": span,
            "error": {name: {key: errors[name, key].to_json() for key in ROWS} for name in VARIANT_METHODS},
            "minus_local": {name: {key: gains[name, key].to_json() for key in ROWS} for name in TOGETHER},
            "effect_of_the_leak": {name: effect.to_json() for name, effect in effects.items()},
        }
    return Analysis(wording.section(more, tables=tables), numbers)
