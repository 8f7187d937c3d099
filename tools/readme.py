"""Write the results of `make demo`, `make bench`, `make ahead` and `make paper` into the README and pages that sum up.

`make readme` runs the first two and then this script.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from statistics import median

from pages import DATASETS, RESULTS, ROOT, fill, load, table

README = ROOT / "README.md"
DEMO, DEMO_RESULTS, PAPER_RESULTS = ROOT / "elmesh-demo", ROOT / "docs" / "demo.json", ROOT / "docs" / "paper.json"


def save_demo() -> None:
    """Copy the results of the last demo and its picture."""
    results = load(DEMO / "results.json")
    DEMO_RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(DEMO / "overview.png", ROOT / "docs" / "images" / "overview.png")


def demo_block() -> str:
    results = load(DEMO_RESULTS)
    sites, unit, draws, training = results["sites"], results["unit"], results["draws"], results["training"]
    order = sorted(results["by_site"], key=lambda site: site["change"] / site["alone"])
    rows = [
        [
            site["name"],
            str(site["rows"]),
            *(f"{site[method]:.2f}" for method in ("alone", "pooled", "together")),
            {-1: "better", 0: "undecided", 1: "worse"}[site["clear"]],
            *(f"{100 * share:.0f}" for share in site["shares"].values()),
        ]
        for site in order
    ]
    errors = [f"{results['errors'][method]:.2f}" for method in ("alone", "pooled", "together")]
    rows.append(["mean", "", *errors, "", "", "", ""])
    higher = [site["name"] for site in results["by_site"] if site["change"] > 0]
    covered = sum(site["covered_90"] for site in order) / len(order)
    head = ["clinic", "rows", "alone", "pooled", "together", "together against alone"]
    lines = [
        *table([*head, "common, %", "shared, %", "private, %"], rows),
        "",
        f"Errors are root mean squares in {unit} on new rows, means over {draws} random draws of the patients. "
        f"Together compared with alone, {sites['better']} of {len(order)} clinics are clearly better (95 % interval "
        f"over the draws), {sites['worse'] or 'none'} clearly worse and {sites['undecided']} undecided; the mean error "
        f"is higher together at {', '.join(higher) or 'no clinic'}. Pooling everything into one model is clearly "
        f"better than learning together at {', '.join(results['pooled_better']) or 'no clinic'}. A shared part was "
        f"confirmed in {results['shared_draws']} of {draws} draws. Of new rows, {100 * covered:.0f} % are within "
        f"the 90 % interval of their prediction. The first fit sent {training['bytes'] / 1e6:.0f} MB in all, in "
        f"{training['exchanges']:,} message rounds.",
    ]
    return "\n".join(lines)


def arena_block() -> str:
    arena = load(RESULTS / "arena.json")
    rows = [
        [
            name,
            f"{one['scores'][one['alone']['other']]['mean']:.3f}",
            f"{one['scores'][one['best_other']['other']]['mean']:.3f} ({one['best_other']['other']})",
            f"{one['scores']['elmesh']['mean']:.3f}",
            f"{one['best_other']['mean']:+.4f} ± {one['best_other']['standard_error']:.4f}",
        ]
        for name, one in arena["tables"].items()
    ]
    verdicts = [one["verdict"] for one in arena["tables"].values()]
    ahead = sum(one["best_other"]["mean"] > 0 for one in arena["tables"].values())
    missed = [goal for goal, met in arena["goals"].items() if not met]
    boosting = arena["seconds_ratio"]["gradient boosting and site"]
    federated = load(RESULTS / "federated.json")
    sent = median(one["bytes"]["elmesh"] / one["bytes"]["federated ridge"] for one in federated["tables"].values())
    behind = [
        f"{one['best_other']['other']} on {name}, by {-one['best_other']['mean']:.4f} ± "
        f"{one['best_other']['standard_error']:.4f}"
        for name, one in federated["tables"].items()
        if one["best_other"]["mean"] < 0
    ]
    better = f"these have a higher mean: {'; '.join(behind)}" if behind else "none has a higher mean"
    lines = [
        *table(["table", "best alone", "best other method", "elmesh", "difference"], rows),
        "",
        "Scores are R2, the share of the variance that is predicted (verbagg: area under the ROC curve), on rows not "
        f"trained on, means over {arena['splits']} random splits. Defaults were chosen on other splits of the same "
        "tables. The difference is elmesh minus the best other method, with its standard error, corrected for rows "
        "that splits have in common. *Alone* methods see the rows of one site, all others see all rows in one place. "
        f"elmesh has the highest mean on {ahead} tables; the 95 % interval of the difference is above zero on "
        f"{verdicts.count('best')}, contains zero on {verdicts.count('level')} and is below it on "
        f"{verdicts.count('below')}.",
        "",
        f"**What it costs.** A fit takes {boosting['median']:.1f} times as long as gradient boosting (median), "
        f"{boosting['worst']:.1f} times at worst ({boosting['worst_table']}). Its sites send {sent:,.0f} times the "
        "bytes of one exchange of a ridge regression (median). Among methods that do not pool rows either "
        f"({federated['splits']} splits; FedAvg: sites average models in many rounds) {better}. "
        f"Goals that were missed: {'; '.join(missed) or 'none'}.",
    ]
    return "\n".join(lines)


def bench_block() -> str:
    rounds, growth, fit, start = (load(RESULTS / f"{name}.json") for name in ("rounds", "growth", "fit", "startup"))
    one, two = rounds["figures"]["1 BLAS thread"], rounds["figures"]["2 BLAS threads"]
    machine = rounds["machine"]
    costs = [row["agent_round_seconds"] for row in growth["figures"]["agents"]]
    largest = growth["figures"]["agents"][-1]
    rows = [
        [
            "one DMTL-ELM round of ten agents (L = 300, r = 6, N = 90), compared with the paper's formula (20)",
            f"{one['kronecker_over_exact']:,.0f} times faster ({1e3 * one['exact_round']:.2f} ms instead of "
            f"{one['kronecker_round']:.2f} s); {two['kronecker_over_exact']:,.0f} times with two BLAS threads",
        ],
        [
            "the same, compared with the two matrix products that it needs at least",
            f"{one['exact_over_products']:.1f} times their time",
        ],
        [
            "a round with first-order steps, compared with exact steps",
            f"{one['first_order_over_exact']:.2f} times the time",
        ],
        [
            "time per agent and round, for 10 to 10,000 agents",
            f"{1e6 * min(costs):.0f} to {1e6 * max(costs):.0f} µs: constant within {growth['flatness_in_agents']:.2f}",
        ],
        [
            "memory of 10,000 agents",
            f"{largest['peak_bytes'] / 2**30:.1f} GiB at peak, {largest['data_bytes'] / 2**30:.1f} of it data",
        ],
        [
            "`MultiTaskELMClassifier.fit` of ten tasks, compared with the sum of its parts",
            f"{100 * fit['figures']['overhead']:.0f} % overhead ({fit['figures']['whole']:.2f} s)",
        ],
        [
            "CPU time of a start, compared with `python -c pass`",
            ", ".join(
                f"`{name}` {ratio:,.0f} times ({start['seconds'][name]:.2f} s)"
                for name, ratio in start["ratios"].items()
            ),
        ],
    ]
    lines = [
        *table(["measurement", "result"], rows),
        "",
        f"Measured on {machine['cpu']}, {machine['cores']} cores, {machine['blas']}, Python {machine['python']}, "
        f"NumPy {machine['numpy']}.",
    ]
    return "\n".join(lines)


def ahead_block() -> str:
    optimum, sent, ways = load(RESULTS / "optimum.json"), load(RESULTS / "bytes.json"), load(RESULTS / "ways.json")
    figures = optimum["figures"]
    ratio, after = figures["kronecker_over_varpro"], figures["above_optimum_after_100_exchanges"]
    near, ends = figures["exchanges_to_1e-3"], figures["random_problems"]
    milliseconds = [1e3 * row["varpro"] for row in figures["seconds_to_1e-3_median"].values()]
    fastest = figures["fastest_rival_over_varpro"]
    hundred = figures["ring_of_100_above_optimum_after_500_exchanges"]["worst"]
    others = [
        f"{way} {numbers['above_optimum']:.1e}" for way, numbers in ways["figures"]["ring"].items() if way != "sums"
    ]
    rows = [
        [
            "`MeshELM(graph=None)`: time to within 0.1 % of the certified optimum",
            f"{min(milliseconds):.0f} to {max(milliseconds):.0f} ms; 100 alternations with the paper's formula take "
            f"{min(ratio.values()):,.0f} to {max(ratio.values()):,.0f} times as long, the fastest other method (FISTA) "
            f"{min(fastest):.1f} to {max(fastest):.1f} times",
        ],
        [
            "`MeshELM()`, ten agents: rounds of messages to within 0.1 % of it, including the start (worst of 20)",
            f"{near['star']['worst']:.0f} on the star, {near['ring']['worst']:.0f} on the ring",
        ],
        [
            "the same: distance from the optimum after 100 rounds (worst of 20)",
            f"{after['star']['worst']:.0e} on the star, {after['ring']['worst']:.0e} on the ring; other ways to agree "
            f"on U, each with its best setting in hindsight (ring, median): {', '.join(others)}",
        ],
        ["ring of 100 agents: distance from the optimum after 500 rounds (worst of 10)", f"{hundred:.0e}"],
        [
            f"{sum(ends.values()):,} random problems (2 to 100 agents, scales of 1e-3 to 1e3, every `message_bits`)",
            f"{ends.get('DIVERGED', 0)} diverged; {ends.get('MAX_ITER', 0)} did not converge within 1,000 rounds",
        ],
    ]
    for name, figures in sent["figures"].items():
        default = figures["defaults"]
        rows.append(
            [
                f"{DATASETS[name]}: error with default parameters, and of Local ELM with a chosen penalty",
                f"{default['default_error']:.2f} and {default['alone_error']:.2f} %",
            ]
        )
    methods = ("MeshELM", "DNSP", "DNSP by coefficients")
    margin, counted, wins = sent["margins"]["compared"], [], []
    for name, verdict in sent["verdicts"].items():
        for account, words in (("all", "all bytes"), ("without figures", "without the numbers")):
            ends, reached = verdict[account]["stopped"], verdict[account]["reached"]
            cells = [
                f"{ends[m]['bytes'] / 1e3:.1f} kB, {ends[m]['above']:+.2f} ± {ends[m]['above_standard_error']:.2f}"
                for m in methods
            ]
            first = min(reached, key=lambda m: ends[m]["bytes"], default="none")
            counted.append([f"{DATASETS[name]}, {words}", *cells, first])
            if account == "all":
                wins.append(f"{DATASETS[name]} {first}")
    lines = [
        *table(["measurement", "result"], rows),
        "",
        "The error of School is 100 minus the explained variance.",
        "",
        "**Bytes.** What each method sends at its best bits and round, all with the same codec, and its error minus "
        f"that of MTL-ELM in one place, of which {margin:g} points are allowed; once counting all that is sent, and "
        "once without the numbers by which a run is followed. DNSP by coefficients is a version of our own, with "
        f"messages that were made for few bytes. Fewest bytes within the margin: {', '.join(wins)}.",
        "",
        *table(["", *methods, "fewest bytes within the margin, of all methods"], counted),
        "",
        "The settings, all other methods, and where another method is better: [ahead.md](../ahead.md).",
    ]
    return "\n".join(lines)


def paper_block() -> str:
    results = load(PAPER_RESULTS)
    numbers, leak = (results["experiments"][name]["numbers"] for name in ("table1", "leak"))
    methods = ("Local ELM", "MTFL", "GO-MTL", "DGSP", "DNSP", "MTL-ELM", "DMTL-ELM", "FO-DMTL-ELM")
    rows = [
        [method]
        + [
            f"{value:.2f}"
            for found in numbers.values()
            for value in (
                next(iter(found.values()))[method]["paper"]["error"],
                *(own[method]["error"]["mean"] for own in found.values()),
            )
        ]
        for method in methods
    ]
    verdicts = [claim["verdict"] for entry in results["experiments"].values() for claim in entry["claims"]]
    titles = [title for data, found in numbers.items() for title in (f"{data}, paper", *found)]
    gains = "; ".join(
        f"on {data} {own['share_of_seen_test_rows']['share']:.0f} % of the test rows, with DMTL-ELM minus Local ELM "
        f"{gain['seen']['mean']:+.1f} points on them, {gain['unseen']['mean']:+.1f} on the others, and "
        f"{gain['no leak']['mean']:+.1f} on all if no task trains on test rows"
        for data, own in leak.items()
        for gain in [own["minus_local"]["DMTL-ELM"]]
    )
    runs = {name: results["experiments"][name]["runs"] for name in ("table1", "leak")}
    rest = " ".join(text for text in results["experiments"]["leak"]["paragraphs"] if text.startswith("On "))
    lines = [
        *table(["test error, %", *titles], rows),
        "",
        f"Protocol “{results['protocol']['name']}”, {runs['table1']} draws. With independent draws a test row of a "
        f"task can be a training row of another ({runs['leak']} draws): {gains}. {rest} Of {len(verdicts)} claims "
        f"{verdicts.count('agrees')} agree, {verdicts.count('differs')} differ and "
        f"{verdicts.count('could not be determined')} could not be determined.",
    ]
    return "\n".join(lines)


def joss_block() -> str:
    arena, kept = load(RESULTS / "arena.json"), load(RESULTS / "private_arena.json")["not_below_alone"]
    federated = load(RESULTS / "federated.json")["tables"].values()
    verdicts = [one["verdict"] for one in arena["tables"].values()]
    none = [one["verdict"] for one in federated]
    boosting = arena["seconds_ratio"]["gradient boosting and site"]
    missed = [goal for goal, met in arena["goals"].items() if not met]
    pooled, apart = (
        ", ".join(f"{word} on {n}" for word, n in one.items()) for one in (counted(verdicts), counted(none))
    )
    sentences = [
        f"On {len(verdicts)} public tables with sites in them elmesh, with nothing set, is compared on new rows with "
        "the best of gradient boosting, linear and mixed models that see all rows in one place:",
        f"{pooled} (95 % intervals). Defaults were chosen on other splits of these tables.",
        f"Compared with the best of the methods that pool no rows it is {apart}.",
        f"A fit takes {boosting['median']:.1f} times as long as gradient boosting (median).",
        "With differential privacy at epsilon 1 and declared ranges of columns it is better than sites alone, or "
        f"level, on {kept['usual']} of them, and on {kept['found']} if ranges are found privately; settings were "
        "chosen on these tables.",
        f"Not reached: {'; '.join(missed) or 'none of the goals'}.",
    ]
    return " ".join(sentences)


def counted(verdicts: list[str]) -> dict[str, int]:
    """Return on how many tables elmesh is better, level and worse."""
    words = {"best": "better", "level": "level", "below": "worse"}
    return {word: verdicts.count(verdict) for verdict, word in words.items()}


#: Blocks of every page, by the names of their markers.
PAGES = {
    README: {"arena": arena_block},
    ROOT / "docs" / "measured" / "demo.md": {"demo": demo_block},
    ROOT / "docs" / "measured" / "speed.md": {"bench": bench_block},
    ROOT / "docs" / "measured" / "rivals.md": {"ahead": ahead_block},
    ROOT / "docs" / "understand" / "paper.md": {"paper": paper_block},
    ROOT / "docs" / "paper-joss" / "paper.md": {"joss": joss_block},
}


def filled(page: Path) -> str:
    """Return a page with the committed results."""
    text = page.read_text(encoding="utf-8")
    for name, block in PAGES[page].items():
        text = fill(text, name, block())
    return text


if __name__ == "__main__":
    if DEMO.exists():
        save_demo()
    for page in PAGES:
        page.write_text(filled(page), encoding="utf-8")
        print(f"{page.relative_to(ROOT)} is up to date.", file=sys.stderr)
