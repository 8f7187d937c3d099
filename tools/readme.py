"""Fill the README's figures from what `make demo`, `make bench`, `make ahead` and `make paper` wrote.

`make readme` runs the first two and then this.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
README, RESULTS = ROOT / "README.md", ROOT / "benchmarks" / "results"
DEMO, KEPT, PAPER = ROOT / "elmesh-demo", ROOT / "docs" / "demo.json", ROOT / "docs" / "paper.json"


def load(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def keep_demo() -> None:
    """Keep what the last demo measured, without its histories, and its picture."""
    results = load(DEMO / "results.json")
    results.pop("histories", None)
    KEPT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(DEMO / "overview.png", ROOT / "docs" / "images" / "overview.png")


def demo_block() -> str:
    results = load(KEPT)
    lines = ["| method | test error, % | seconds | rounds | MB sent |", "|---|---|---|---|---|"]
    for method in results["methods"]:
        sent = "all data" if method["pooled"] else f"{method['bytes'] / 1e6:,.3g}"
        lines.append(
            f"| {method['name']} | {method['test_error_percent']:.2f} | {method['seconds']:.1f} | "
            f"{method['rounds']:,} | {sent} |"
        )
    sites, draws = results["sites"], results["draws"]
    alone = sum(draw["alone"] for draw in draws) / len(draws)
    together = sum(draw["together"] for draw in draws) / len(draws)
    lower = sum(draw["together"] < draw["alone"] for draw in draws)
    lines += [
        "",
        f"{sites['better']} sites did better together (DMTL-ELM) than alone, {sites['same']} as well, "
        f"{sites['worse']} worse. Errors are means over {len(draws)} random draws of the sites' digits: {alone:.2f} % "
        f"alone, {together:.2f} % together, lower together in {lower} of them.",
    ]
    return "\n".join(lines)


def bench_block() -> str:
    rounds, growth, fit = (load(RESULTS / f"{name}.json") for name in ("rounds", "growth", "fit"))
    one, two = rounds["figures"]["1 BLAS thread"], rounds["figures"]["2 BLAS threads"]
    machine = rounds["machine"]
    costs = [row["agent_round_seconds"] for row in growth["figures"]["agents"]]
    largest = growth["figures"]["agents"][-1]
    rows = [
        (
            "one DMTL-ELM round of ten agents (L = 300, r = 6, N = 90), against the paper's formula (20)",
            f"{one['kronecker_over_exact']:,.0f} times faster ({1e3 * one['exact_round']:.2f} ms against "
            f"{one['kronecker_round']:.2f} s); {two['kronecker_over_exact']:,.0f} times with two BLAS threads",
        ),
        ("the same, against the two products it cannot avoid", f"{one['exact_over_products']:.1f} times their time"),
        ("a first-order round, against an exact one", f"{one['first_order_over_exact']:.2f} times its time"),
        (
            "one agent's share of a round, from 10 to 10,000 agents",
            f"{1e6 * min(costs):.0f} to {1e6 * max(costs):.0f} µs: flat within {growth['flatness_in_agents']:.2f}",
        ),
        (
            "memory of 10,000 agents",
            f"{largest['peak_bytes'] / 2**30:.1f} GiB at peak, {largest['data_bytes'] / 2**30:.1f} of them data",
        ),
        (
            "`MultiTaskELMClassifier.fit` of ten tasks, against the sum of its parts",
            f"{100 * fit['figures']['overhead']:.0f} % overhead ({fit['figures']['whole']:.2f} s)",
        ),
    ]
    lines = ["| what | measured |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows), ""]
    lines.append(
        f"Measured on {machine['cpu']}, {machine['cores']} cores, {machine['blas']}, Python {machine['python']}, "
        f"NumPy {machine['numpy']}."
    )
    return "\n".join(lines)


def ahead_block() -> str:
    optimum, sent, ways = (load(RESULTS / f"{name}.json") for name in ("optimum", "bytes", "ways"))
    figures = optimum["figures"]
    ratio, after = figures["kronecker_over_varpro"], figures["above_optimum_after_100_exchanges"]
    near, ends = figures["exchanges_to_1e-3"], figures["random_problems"]
    milliseconds = [1e3 * row["varpro"] for row in figures["seconds_to_1e-3_median"].values()]
    rivals = figures["fastest_rival_over_varpro"]
    hundred = figures["ring_of_100_above_optimum_after_500_exchanges"]["worst"]
    others = [
        f"{way} {numbers['above_optimum']:.1e}" for way, numbers in ways["figures"]["ring"].items() if way != "sums"
    ]
    rows = [
        (
            "`MTLELM`: time to within 0.1 % of the certified optimum",
            f"{min(milliseconds):.0f} to {max(milliseconds):.0f} ms; 100 alternations with the paper's formula take "
            f"{min(ratio.values()):,.0f} to {max(ratio.values()):,.0f} times as long, the fastest rival (FISTA) "
            f"{min(rivals):.1f} to {max(rivals):.1f} times",
        ),
        (
            "`DMTLELM()`, ten agents: rounds of messages to within 0.1 % of it, start included (worst of 20)",
            f"{near['star']['worst']:.0f} on the star, {near['ring']['worst']:.0f} on the ring",
        ),
        (
            "the same: above the optimum after 100 rounds (worst of 20)",
            f"{after['star']['worst']:.0e} on the star, {after['ring']['worst']:.0e} on the ring; other ways, each "
            f"with its best setting in hindsight (ring, median): {', '.join(others)}",
        ),
        ("ring of 100 agents: above the optimum after 500 rounds (worst of 10)", f"{hundred:.0e}"),
        (
            f"{sum(ends.values()):,} random problems (2 to 100 agents, scales of 1e-3 to 1e3, every `message_bits`)",
            f"{ends.get('DIVERGED', 0)} diverged; {ends.get('MAX_ITER', 0)} did not meet the tolerance in 1,000 rounds",
        ),
    ]
    names = {"usps": "USPS", "mnist": "MNIST", "school": "School"}
    for name, verdict in sent["verdicts"].items():
        row, default = sent["figures"][name], sent["figures"][name]["defaults"]
        reach = verdict["bytes_to_reach_it"]
        reached = "not reached" if reach is None else f"after {reach / 1e3:.0f} kB"
        rows.append(
            (
                f'{names[name]}: `message_bits="auto"`, error within a standard error of MTL-ELM\'s '
                f"({row['MTL-ELM']['final_error']:.2f} ± {row['MTL-ELM']['final_standard_error']:.2f} %)",
                f"{reached}; DNSP at its best ({verdict['dnsp_best_error']:.2f} %) after "
                f"{verdict['dnsp_bytes_at_its_best'] / 1e3:.0f} kB",
            )
        )
        rows.append(
            (
                f"{names[name]}: error with nothing set at all, against Local ELM with its penalty chosen",
                f"{default['default_error']:.2f} against {default['alone_error']:.2f} %",
            )
        )
    lines = ["| what | measured |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows), ""]
    lines.append(
        "Error of School is 100 less the explained variance. What each method chose from, and where another is ahead: "
        "[docs/ahead.md](docs/ahead.md)."
    )
    return "\n".join(lines)


def paper_block() -> str:
    results = load(PAPER)
    table = results["experiments"]["table1"]
    sets = {data: rows for data, rows in table["numbers"].items() if "paper" in rows["Local ELM"]}
    lines = [
        "| test error, % | " + " | ".join(f"{data} | paper" for data in sets) + " |",
        "|---|" + "---|---|" * len(sets),
    ]
    for method in ("Local ELM", "MTFL", "GO-MTL", "DGSP", "DNSP", "MTL-ELM", "DMTL-ELM", "FO-DMTL-ELM"):
        cells = [
            f"{rows[method]['error']['mean']:.2f} | {rows[method]['paper']['error']:.2f}" for rows in sets.values()
        ]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    verdicts = [claim["verdict"] for entry in results["experiments"].values() for claim in entry["claims"]]
    lines += [
        "",
        f"Of {len(verdicts)} statements {verdicts.count('agrees')} agree, {verdicts.count('differs')} differ and "
        f"{verdicts.count('could not be determined')} could not be determined.",
    ]
    return "\n".join(lines)


def filled(text: str) -> str:
    blocks = {"demo": demo_block, "bench": bench_block, "ahead": ahead_block, "paper": paper_block}
    for name, make in blocks.items():
        block = make()
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = pattern.sub(lambda found, block=block: f"{found[1]}{block}\n{found[2]}", text)
    return text


if __name__ == "__main__":
    if DEMO.exists():
        keep_demo()
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{README.name} is up to date.", file=sys.stderr)
