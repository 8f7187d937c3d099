"""Write docs/arena.md from the results of `make arena`: all tables and cases, also those in which others are better."""

from __future__ import annotations

import sys
from statistics import median
from typing import Any

from pages import RESULTS, ROOT, load, missed_goals, table

PAGE = ROOT / "docs" / "arena.md"
OWN = "elmesh"


def overlap(tables: dict[str, Any]) -> str:
    """Return why standard errors are larger than those over splits, and by how much."""
    factors = [one["best_other"]["standard_error"] / one["best_other"]["over_splits"] for one in tables.values()]
    return (
        "Splits of a table have many of their rows in common, so that the usual standard error over splits is too "
        f"small: those here are corrected for it (Nadeau and Bengio 2003), and {min(factors):.1f} to "
        f"{max(factors):.1f} times as large."
    )


def with_error(figure: dict[str, Any]) -> str:
    return f"{figure['mean']:.4f} ± {figure['standard_error']:.4f}"


def signed(figure: dict[str, Any]) -> str:
    return f"{figure['mean']:+.4f} ± {figure['standard_error']:.4f}"


def standing(tables: dict[str, Any]) -> str:
    """Return on how many tables elmesh is best, level and below."""
    verdicts = [one["verdict"] for one in tables.values()]
    ahead = sum(one["best_other"]["mean"] > 0 for one in tables.values())
    counts = ", ".join(f"{word} on {verdicts.count(word)}" for word in ("best", "level", "below"))
    return f"elmesh is {counts}; its mean is the highest on {ahead} of {len(tables)}"


def tables_section(result: dict[str, Any]) -> list[str]:
    tables = result["tables"]
    methods = list(dict.fromkeys(method for one in tables.values() for method in one["scores"]))
    return [
        "## Twelve real tables",
        "",
        f"Means over {result['splits']} random splits, none of which was looked at while defaults were chosen (other "
        "splits of the same tables were), on rows not trained on: R2 over all rows; for verbagg, of two classes, "
        "the mean over sites of the area under the ROC curve. elmesh has default parameters and "
        "exchanges sums; *alone* methods see the rows of one site, all others see all rows in one place. Penalties of "
        "linear models are chosen by cross-validation; the other methods have their default parameters.",
        "",
        *table(
            ["table", *methods],
            [
                [name, *(f"{one['scores'][m]['mean']:.4f}" if m in one["scores"] else "" for m in methods)]
                for name, one in tables.items()
            ],
        ),
        "",
        "Paired differences of elmesh from the best other method and from the better of the two alone, with their "
        f"standard errors. {overlap(tables)} Best means that the 95 % interval of the difference is above zero, below "
        "that it is below zero, level that it contains zero. The best other method is the one with the highest mean "
        f"over the same splits, which favours it. {standing(tables)}.",
        "",
        *table(
            ["table", OWN, "best other", "difference", "verdict", "against alone"],
            [
                [
                    name, with_error(one["scores"][OWN]), one["best_other"]["other"], signed(one["best_other"]),
                    one["verdict"], signed(one["alone"]),
                ]
                for name, one in tables.items()
            ],
        ),
        "",
    ]  # fmt: skip


def federated_section(result: dict[str, Any]) -> list[str]:
    tables = result["tables"]
    methods = list(next(iter(tables.values()))["scores"])
    times = median(one["bytes"][OWN] / one["bytes"]["federated ridge"] for one in tables.values())
    return [
        "## Methods that pool no rows",
        "",
        f"The same tables and scores, {result['splits']} of the same splits, with the kB that a site sends on average. "
        "Federated ridge sends products of features and targets once; with a private residual each site fits a ridge "
        "regression of its own to what is left. FedAvg averages a linear model, or a network with 16 hidden units; in "
        "FedPer the output layer is each site's own. What they have to choose (penalty, step, number of rounds) they "
        "choose on a fifth of the training rows, and messages have the fewest bits that cost them no score. Linear "
        "models are on the inputs, with an intercept per site. Standard errors and verdicts are as above.",
        "",
        *table(
            ["table", *methods, "best other", "difference", "verdict"],
            [
                [
                    name,
                    *(f"{one['scores'][m]['mean']:.4f} ({one['bytes'][m] / 1e3:,.0f} kB)" for m in methods),
                    one["best_other"]["other"],
                    signed(one["best_other"]),
                    one["verdict"],
                ]
                for name, one in tables.items()
            ],
        ),
        "",
        f"{standing(tables)}. It sends {times:,.0f} times the bytes of federated ridge (median over tables).",
        "",
    ]


def costs_section(result: dict[str, Any]) -> list[str]:
    tables = result["tables"]
    covered = {name: one["coverage"] for name, one in tables.items() if "coverage" in one}
    losses = [
        f"On {name} the log losses are: "
        + ", ".join(f"{method} {value:.4f}" for method, value in sorted(one["log_loss"].items(), key=lambda x: x[1]))
        + "."
        for name, one in tables.items()
        if "log_loss" in one
    ]
    losses += [
        f"There, elmesh's log loss is {signed(one['log_loss_above_logistic'])} above that of pooled logistic "
        "regression with site intercepts."
        for one in tables.values()
        if "log_loss" in one
    ]
    return [
        "## Time, bytes and intervals",
        "",
        "CPU time of fit and prediction on one thread, elmesh over the other method, within one run:",
        "",
        *table(
            ["", "median over tables", "worst", "table"],
            [
                [method, f"{one['median']:.2f}", f"{one['worst']:.2f}", one["worst_table"]]
                for method, one in result["seconds_ratio"].items()
            ],
        ),
        "",
        "Bytes sent by the busiest site, and the share of targets within intervals that should contain 90 % of them:",
        "",
        *table(
            ["table", "MB", "coverage, %"],
            [
                [name, f"{one['bytes'] / 1e6:.2f}", f"{100 * covered[name]:.1f}" if name in covered else ""]
                for name, one in tables.items()
            ],
        ),
        "",
        *losses,
        "",
    ]


def cases_section(result: dict[str, Any]) -> list[str]:
    return [
        "## Adversarial cases",
        "",
        f"Twelve sites, {result['seeds']} seeds. The error of a site is its squared error over the variance of its "
        "targets, for classes its error rate; the mean is over sites, without the large and the loud site. The ratio "
        "is elmesh's error over that of the better of LocalELM and a linear model alone with its penalty chosen; for "
        f"identical sites, over that of a ridge on all rows in one place. The goal is at most {result['goal']}. "
        "Defaults were chosen with these cases in view: they are not held out.",
        "",
        *table(
            ["case", OWN, "others", "ratio"],
            [
                [
                    name,
                    f"{case['errors'][OWN]:.4g}",
                    ", ".join(f"{m} {value:.4g}" for m, value in case["errors"].items() if m != OWN),
                    f"{case['ratio']:.3f} ± {case['standard_error']:.3f}",
                ]
                for name, case in result["cases"].items()
            ],
        ),
        "",
    ]


def growth_section(result: dict[str, Any]) -> list[str]:
    rows = [
        [
            name, f"{size['sites']:,}", f"{size['rows']:,}", f"{size['seconds']:.3g}",
            f"{(size['peak_bytes'] - result['base_bytes']) / 1e6:,.0f}",
        ]
        for name, sweep in result["sweeps"].items()
        for size in sweep
    ]  # fmt: skip
    return [
        "## Growth",
        "",
        "A fit with nothing set on random data with six inputs: CPU seconds on one thread, and peak memory above that "
        "of a fit of a hundred rows, which is nearly all imports. "
        + " ".join(
            f"With the last tenfold increase in {name}, time grows {10 * one['seconds']:.1f}-fold and memory "
            f"{10 * one['memory']:.1f}-fold."
            for name, one in result["growth"].items()
        ),
        "",
        *table(["more", "sites", "rows in all", "seconds", "MB"], rows),
        "",
    ]


def digits_section(result: dict[str, Any]) -> list[str]:
    return [
        "## Digits, with and without class names in common",
        "",
        f"The paper's protocol: ten sites with three of ten classes each, means over {result['draws']} draws. If class "
        "names are not shared (`shared_classes=False`), MeshELM is the paper's problem with automatic penalties. The "
        "last column is the paired change by shared names. The treatment of classes was developed on draws of the same "
        "data sets: they are not held out.",
        "",
        *table(
            ["test error, %", *next(iter(result["figures"].values()))["errors"], "change by names"],
            [
                [
                    name,
                    *(f"{e['mean']:.2f} ± {e['standard_error']:.2f}" for e in one["errors"].values()),
                    f"{one['change']['mean']:+.2f} ± {one['change']['standard_error']:.2f}",
                ]
                for name, one in result["figures"].items()
            ],
        ),
        "",
    ]


def page() -> str:
    arena, adversarial = load(RESULTS / "arena.json"), load(RESULTS / "adversarial.json")
    growth, digits = load(RESULTS / "fit_growth.json"), load(RESULTS / "digits.json")
    federated = load(RESULTS / "federated.json")
    machine = arena["machine"]
    lines = [
        "# The arena: real tables, adversarial cases and growth",
        "",
        f"Results of `make arena` on {machine['cpu']}, {machine['cores']} cores. `tools/arena.py` writes this page.",
        "",
        *tables_section(arena),
        *federated_section(federated),
        *costs_section(arena),
        *cases_section(adversarial),
        *digits_section(digits),
        *growth_section(growth),
        "## Goals not reached",
        "",
        *missed_goals(arena, adversarial, growth, digits, federated),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.name} is up to date.", file=sys.stderr)
