"""What Fig. 5 shows: test error of the eight methods as the hidden layer grows."""

from __future__ import annotations

from functools import partial

import numpy as np

from elmesh.paper.fig5 import HIDDEN
from elmesh.paper.findings.finding import Finding
from elmesh.paper.findings.inference import Estimate, below, difference, not_above, worst
from elmesh.paper.protocol import DATA_SETS
from elmesh.paper.trials import Numbers, Trials
from elmesh.report import STYLES, Claim, Curve, Figure, Section, Table, draw_curves, figure

__all__ = ["conclude"]

ON_HIDDEN = ("Local ELM", "MTL-ELM", "DMTL-ELM", "FO-DMTL-ELM")
# Points of error that count as nothing.
NOTHING = 0.25
ON_INPUTS = ("MTFL", "GO-MTL", "DGSP", "DNSP")


def conclude(trials: Trials, runs: int) -> Finding:
    """Compare the curves with what the text says of them."""
    case = trials.done[0][0].case
    found, title = trials.of(case), DATA_SETS[case].title
    curves = {name: [Estimate.of(values) for values in _columns(found, name)] for name in (*ON_HIDDEN, *ON_INPUTS)}
    claims = [] if case != "usps" else _claims(found)
    section = Section(
        "Figure 5: test error and hidden units",
        paragraphs=(
            f"{title}, ten tasks of three digits, 90 rows to learn from and 45 to be tested on; the paper's parameters "
            f"for this figure (tau = 10 + d, zeta = 30; first order tau = 20 + d), rank 6, 100 iterations, star graph. "
            f"Means over {runs} draws with 95 % intervals. MTFL, GO-MTL, DGSP and DNSP see the inputs themselves and "
            "do not depend on L.",
            *(() if case == "usps" else (f"USPS is not at hand; {title} stands in for it, so nothing is judged.",)),
        ),
        claims=claims,
        figures=[_figure(curves, title)],
        tables=[_table(curves)],
    )
    numbers = {
        name: {f"L={L}": estimate.to_json() for L, estimate in zip(HIDDEN, curves[name], strict=True)}
        if name in ON_HIDDEN
        else curves[name][0].to_json()
        for name in curves
    }
    return Finding(section, {"data": title, "error": numbers})


def _columns(found: list[Numbers], name: str) -> list[list[float]]:
    """Return a method's errors run by run, for each number of hidden units."""
    rows = [run[name] if name in ON_HIDDEN else [run[name]] * len(HIDDEN) for run in found]
    return [list(column) for column in zip(*rows, strict=True)]


def _claims(found: list[Numbers]) -> list[Claim]:
    columns = {name: _columns(found, name) for name in (*ON_HIDDEN, *ON_INPUTS)}

    def gaps(name: str, other: str, least: int) -> list[tuple[int, Estimate]]:
        pairs = zip(HIDDEN, columns[name], columns[other], strict=True)
        return [(L, difference(a, b)) for L, a, b in pairs if least <= L]

    def told(pairs: list[tuple[int, Estimate]]) -> str:
        return ", ".join(f"{gap.mean:+.2f} at L = {L}" for L, gap in pairs)

    claims = []
    means = {name: [float(np.mean(run[name])) for run in found] for name in ON_HIDDEN}
    for name in ON_HIDDEN[1:]:
        overall = difference(means[name], means["Local ELM"])
        claims.append(
            Claim(
                f"{name} has a lower test error than Local ELM.",
                f"Difference in points: {told(gaps(name, 'Local ELM', HIDDEN[0]))}; mean {overall.signed}.",
                below(overall),
            )
        )
    for name, least in (("MTL-ELM", 150), ("DMTL-ELM", 150), ("FO-DMTL-ELM", 200)):
        for other in ("MTFL", "DNSP"):
            pairs = gaps(name, other, least)
            claims.append(
                Claim(
                    f"{name} has a lower test error than {other} for L of at least {least}.",
                    f"Difference in points: {told(pairs)}.",
                    worst([below(gap) for _, gap in pairs]),
                )
            )
    grown = {name: difference(columns[name][-1], columns[name][0]) for name in ON_HIDDEN}
    claims.append(
        Claim(
            "All methods with a hidden layer improve with L.",
            "From L = 50 to 300, in points: "
            + ", ".join(f"{name} {gap.mean:+.2f}" for name, gap in grown.items())
            + ".",
            worst([below(gap) for gap in grown.values()]),
        )
    )
    alike = difference(columns["DMTL-ELM"][-1], columns["MTL-ELM"][-1])
    worse = difference(columns["DMTL-ELM"][-1], columns["FO-DMTL-ELM"][-1])
    claims += [
        Claim(
            "DMTL-ELM loses next to nothing against MTL-ELM.",
            f"Difference at L = 300: {alike.signed} points; up to {NOTHING} counts as nothing.",
            not_above(alike, NOTHING),
        ),
        Claim(
            "FO-DMTL-ELM is worse than DMTL-ELM after as many iterations.",
            f"DMTL-ELM less FO-DMTL-ELM at L = 300: {worse.signed} points.",
            below(worse),
        ),
    ]
    return claims


def _figure(curves: dict[str, list[Estimate]], title: str) -> Figure:
    lines = [
        Curve(
            name, HIDDEN, [e.mean for e in estimates], **style,
            low=[e.low for e in estimates] if name in ON_HIDDEN and np.isfinite(estimates[0].half) else None,
            high=[e.high for e in estimates] if name in ON_HIDDEN and np.isfinite(estimates[0].half) else None,
        )
        for (name, estimates), style in zip(curves.items(), STYLES, strict=True)
    ]  # fmt: skip
    draw = partial(draw_curves, curves=lines, x_label="hidden units L", y_label="test error, %")
    return Figure(
        "fig-5",
        f"Test error on {title}",
        "Bands are 95 % intervals of the mean over draws; the table has those of all methods.",
        "Eight curves of test error against the number of hidden units.",
        figure(draw, size=(7.5, 5.2)),
    )


def _table(curves: dict[str, list[Estimate]]) -> Table:
    rows = [[name, *map(str, estimates)] for name, estimates in curves.items()]
    return Table("Test error in per cent, mean ± half of a 95 % interval", ("", *(f"L = {L}" for L in HIDDEN)), rows)
