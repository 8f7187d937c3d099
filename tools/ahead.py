"""Write docs/ahead.md from the results of `make ahead`: all comparisons, including those in which others are better."""

from __future__ import annotations

import sys
from typing import Any

from pages import DATASETS, RESULTS, ROOT, load, load_bytes, missed_goals, table

PAGE = ROOT / "docs" / "ahead.md"


def amount(value: float | None, scale: float = 1.0) -> str:
    return "never" if value is None or value == float("inf") else f"{value * scale:,.0f}"


def optimum_section(result: dict[str, Any]) -> list[str]:
    figures = result["figures"]
    seconds = figures["seconds_to_1e-3_median"]
    methods = {
        "varpro": "MeshELM", "fista": "TraceNorm (FISTA)", "alternating": "alternating, rank 20",
        "fedrep": "FedRep, rank 20", "dif_altgdmin": "Dif-AltGDmin, rank 20",
    }  # fmt: skip
    return [
        "## The optimum in one place",
        "",
        "Milliseconds until the weights are within 0.1 % of the certified optimum over all ranks (medians; ten seeds "
        "for the first two methods, two for the others; one BLAS thread). MeshELM has `graph=None`. Alternating is "
        "`MTLELM` as it was up to version 0.4, with inexact U steps; since then its steps are exact. FedRep and "
        "Dif-AltGDmin minimise another objective, so the table has the objective of the best factorisation of their "
        f"weights. The duality gap of the optimum itself is at most {figures['largest_optimum_gap']:.0e}.",
        "",
        *table(
            ["", *methods.values()],
            [[setting, *(amount(row[m], 1e3) for m in methods)] for setting, row in seconds.items()],
        ),
        "",
        "100 alternations with the paper's formula (9), rank 6, took "
        + " and ".join(
            f"{value:.0f} s on {DATASETS[name]} ({figures['kronecker_over_varpro'][name]:,.0f} times MeshELM's time)"
            for name, value in figures["kronecker_100_alternations"].items()
        )
        + ".",
        "",
        "## The optimum over a graph",
        "",
        "`MeshELM()` with default parameters, ten agents, USPS and MNIST, ten seeds each. Rounds are rounds of "
        "messages, including those of the start.",
        "",
        *table(
            ["", "rounds to 0.1 %, median", "worst", "above the optimum after 100, median", "worst"],
            [
                [
                    graph,
                    amount(figures["exchanges_to_1e-3"][graph]["median"]),
                    amount(figures["exchanges_to_1e-3"][graph]["worst"]),
                    f"{figures['above_optimum_after_100_exchanges'][graph]['median']:.1e}",
                    f"{figures['above_optimum_after_100_exchanges'][graph]['worst']:.1e}",
                ]
                for graph in ("star", "ring")
            ],
        ),
        "",
        "On a ring of 100 agents (USPS, 54 rows each) the objective is at most "
        f"{figures['ring_of_100_above_optimum_after_500_exchanges']['worst']:.1e} above the optimum after 500 rounds. "
        "With one program per agent and sums mixed between neighbours, the agents' U differ by at most "
        f"{max(figures['real_agents_apart'].values()):.0e} of the largest entry (on random problems, by at most "
        f"{figures['real_agents_apart_on_random_problems']['worst']:.0e}). After 100 rounds proximal ADMM "
        "(`DMTLELM(rank=16)`) is above the optimum by "
        + ", ".join(
            f"{row['above_optimum']:.1e} ({DATASETS[row['data']]}, {row['graph']}, consensus gap "
            f"{row['consensus']:.0e})"
            for row in figures["admm_above_optimum_after_100_exchanges"]
        )
        + ".",
        "",
        f"Stop reasons of random problems: {', '.join(f'{n} {end}' for end, n in figures['random_problems'].items())}.",
        "",
    ]


def ways_section(result: dict[str, Any]) -> list[str]:
    rows = [
        [way, *(f"{ends[way][key]:.1e}" for ends in result["figures"].values() for key in ("above_optimum", "apart"))]
        for way in result["figures"]["star"]
    ]
    return [
        "## Ways to agree on U",
        "",
        "Four ways from the same start, after 100 rounds of messages; medians over USPS and MNIST, three seeds each. "
        "The first one is that of MeshELM. The others have the best of 6 to 24 settings in hindsight, chosen per run.",
        "",
        *table(["", "star: above the optimum", "consensus gap", "ring: above the optimum", "consensus gap"], rows),
        "",
    ]


def bytes_section(result: dict[str, Any]) -> list[str]:
    lines = [
        "## Error against bytes",
        "",
        "All methods on a star. Every method chose among twelve settings by five-fold cross-validation on the training "
        "rows of two draws; errors are test errors over ten draws (School: 100 minus the explained variance). Bytes "
        "are the sum over all agents. MeshELM has `message_bits='auto'`, mostly two bits per number, and eight in "
        "short messages. The other methods send doubles; in single precision they would send half as many bytes.",
        "",
    ]
    for name, rows in result["figures"].items():
        verdict, default = result["verdicts"][name], rows["defaults"]
        body = [
            [
                method,
                ", ".join(f"{key} {value:g}" if key != "hidden" else ("hidden layer" if value else "inputs")
                          for key, value in row["setting"].items()),
                f"{row['final_error']:.2f} ± {row['final_standard_error']:.2f}",
                amount(row["bytes"][-1], 1e-3),
                f"{row['best_error']:.2f}",
                amount(row["bytes_at_best"], 1e-3),
            ]
            for method, row in rows.items()
            if method != "defaults"
        ]  # fmt: skip
        lower = [
            f"{method} at {n} of {verdict['budgets']} budgets, from {low / 1e3:,.0f} to {high / 1e3:,.0f} kB"
            for method, (low, high, n) in verdict["budgets_at_which_another_is_lower"].items()
        ]
        lines += [
            f"### {DATASETS[name]}",
            "",
            *table(["", "setting", "final error, %", "kB", "lowest error of any round, %", "kB until then"], body),
            "",
            "The error of MeshELM in one place plus one standard error is "
            f"{verdict['error_to_reach']:.2f} %. MeshELM stays below it after "
            f"{amount(verdict['bytes_to_reach_it'], 1e-3)} kB. DNSP has its lowest error, "
            f"{verdict['dnsp_best_error']:.2f} %, after "
            f"{amount(verdict['dnsp_bytes_at_its_best'], 1e-3)} kB "
            f"({amount(verdict['dnsp_bytes_in_single_precision'], 1e-3)} in single precision).",
            "",
            "Methods with a lower error than MeshELM and than Local ELM, which sends nothing, by more than a standard "
            "error of the difference: " + ("; ".join(lower) or "none") + ".",
            "",
            f"With default parameters the error of MeshELM is {default['default_error']:.2f} %, that of Local ELM with "
            f"the chosen penalty {default['alone_error']:.2f} %: "
            f"{default['difference']:+.2f} ± {default['standard_error']:.2f}.",
            "",
        ]
    return lines


def page() -> str:
    optimum, sent, ways = load(RESULTS / "optimum.json"), load_bytes(), load(RESULTS / "ways.json")
    machine = optimum["machine"]
    lines = [
        "# Comparison with the optimum and with other methods",
        "",
        f"Results of `make ahead` on {machine['cpu']}, {machine['cores']} cores. `tools/ahead.py` writes this page. "
        "The benchmarks were run with versions 0.1 and 0.2, which had other names: the first figure calls MeshELM "
        "DMTL-ELM, and DMTL-ELM proximal ADMM.",
        "",
        *optimum_section(optimum),
        "![Objective above the optimum, by rounds of messages](../benchmarks/results/optimum.png)",
        "",
        *ways_section(ways),
        *bytes_section(sent),
        "![Test error by bytes sent](../benchmarks/results/bytes.png)",
        "",
        "## Goals not reached",
        "",
        *missed_goals(optimum, sent, ways),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.name} is up to date.", file=sys.stderr)
