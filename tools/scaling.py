"""Write docs/scaling.md and its figure from the results of `make scaling`: agents on many ranks and on many nodes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pages import RESULTS, ROOT, load, missed_goals, table

PAGE, FIGURE = ROOT / "docs" / "scaling.md", ROOT / "docs" / "images" / "scaling.png"
#: The methods of the committed results: of DMTLELM, and of MeshELM.
WAYS = {"admm": "DMTL-ELM", "varpro": "MeshELM"}
KINDS = {
    "work": "computation",
    "neighbours": "exchange with neighbours",
    "sum": "sum over all agents",
    "figures": "metrics of a round",
}
COLOURS = {"ring": "#0072B2", "grid": "#009E73", "star": "#D55E00"}


def rate(seconds: float) -> str:
    """Return rounds per second, with three digits."""
    value = 1 / seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Return a duration in a suitable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9), ("ps", 1e-12)):
        if seconds >= size:
            return f"{seconds / size:,.0f} {unit}" if seconds >= 100 * size else f"{seconds / size:.2g} {unit}"
    return "0 s"


def rounds_section(result: dict[str, Any]) -> list[str]:
    figures, cores = result["figures"], result["machine"]["cores_for_ranks"]
    left = {way: [metrics_share(row) for row in figures["rounds"] if row["way"] == way] for way in WAYS}
    rows = [
        [
            f"{row['hidden']:,}",
            str(row["agents"]),
            WAYS[row["way"]],
            *(f"{row['rounds_a_second'][name]:,.0f}" for name in ("exchange", "computation", "allowed", "full")),
            f"{row['of_what_is_allowed']:.2f}",
            f"{row['rounds_a_second']['stacked']:,.0f}",
        ]
        for row in figures["rounds"]
    ]
    return [
        "## A round and its parts",
        "",
        f"Agents on a ring, one rank per agent, all ranks on {cores} cores. Tasks have 100 rows with U of 300 x 6, or "
        "200 rows with U of 2,000 x 20. A round is one round of DMTL-ELM (proximal ADMM) or one step of MeshELM "
        "(variable projection), with history, residuals and the stopping rule. *Exchange* is the same messages without "
        "computation, *computation* the same computation without messages (on all ranks at the same time), *both* the "
        "rate if their times add up, and *stacked* all agents in one process without MPI. All columns are rounds per "
        "second, the best of several alternating measurements.",
        "",
        *table(
            ["L", "agents", "method", "exchange", "computation", "both", "whole rounds", "whole / both", "stacked"],
            rows,
        ),
        "",
        "A whole round takes longer than exchange and computation. The metrics of a round, measured alone, explain "
        + " and ".join(
            f"{100 * min(shares):.0f} to {100 * max(shares):.0f} % of the difference with {WAYS[way]}"
            for way, shares in left.items()
        )
        + "; the rest was not analysed. With DMTL-ELM the metrics include the mean of all agents' U, which all ranks "
        f"sum every round. Stacked runs use one core, ranks together {cores}.",
        "",
    ]


def metrics_share(row: dict[str, Any]) -> float:
    """Return the share of the time beyond exchange and computation that the metrics take alone, at most 1."""
    took = row["seconds"]
    beyond = took["full"] - took["exchange"] - took["computation"]
    return min(1.0, took["figures"] / beyond) if beyond > 0 else 1.0


def model_section(result: dict[str, Any]) -> list[str]:
    model = result["model"]
    rows = [
        [
            KINDS[kind],
            ", ".join(f"{duration(value)} {unit(name)}" for name, value in constants.items() if value > 0),
            f"{100 * model['relative errors'][kind]['median']:.0f} %",
            f"{100 * model['relative errors'][kind]['worst']:.0f} %",
            str(model["relative errors"][kind]["measurements"]),
        ]
        for kind, constants in model["seconds for one"].items()
    ]
    sizes = [row["bytes"] for row in result["figures"]["messages"]]
    return [
        "## Cost model",
        "",
        "    T(round) = T(computation) + requests * T(exchange or sum) + T(metrics)",
        "    T(computation) = x * (c0 + a * c1 + multiplications * c2 + numbers read or written * c3)",
        "    T(communication) = turns * t + messages * alpha + bytes * beta + x * a * (c4 + size * c5)  [+ network]",
        "",
        "with a agents per process and x processes per core. Messages and bytes are those of the busiest core, or "
        "those that are sent one after another: an exchange on a ring has two messages per process, and the hub of a "
        "star has all of them; a sum goes up a spanning tree and down again; the metrics of a round are one message "
        "from every process to every other and, with DMTL-ELM, a sum of U over all processes. A turn is the wait of "
        "a process for the x - 1 others on its core. Between nodes, every message that follows another adds the "
        "latency, and messages that enter or leave a node at the same time share its bandwidth.",
        "",
        "The constants are a least-squares fit of relative errors to the parts in the table above and to messages of "
        f"{min(sizes)} bytes to {max(sizes) / 2**20:.0f} MiB on rings and stars of 2 to 16 ranks.",
        "",
        *table(["", "fitted", "error, median", "worst", "measurements"], rows),
        "",
    ]


def unit(name: str) -> str:
    irregular = {"processes": "per process", "agent bytes": "per byte of each agent"}
    return irregular.get(name, f"per {name.removesuffix('s')}")


def largest_section(result: dict[str, Any]) -> list[str]:
    rows = [
        [
            f"{row['agents']:,} on {row['ranks']}",
            f"{row['hidden']} x {row['rank']}",
            row["graph"],
            WAYS[row["way"]],
            f"{1e3 * row['seconds']:.1f}",
            f"{1e3 * row['predicted']['full']:.1f}",
            f"{row['predicted_over_measured']:.2f}",
        ]
        for row in result["largest"]
    ]
    ratios = [row["predicted_over_measured"] for row in result["largest"]]
    whole = [row["predicted"]["full"] / row["seconds"]["full"] for row in result["figures"]["rounds"]]
    return [
        "## Validation of the model",
        "",
        "The largest runs that fit this machine; none of them was used for the fit.",
        "",
        *table(["agents on ranks", "U", "graph", "method", "measured, ms", "predicted, ms", "ratio"], rows),
        "",
        f"The ratio of prediction to measurement is {min(ratios):.2f} to {max(ratios):.2f} here, and {min(whole):.2f} "
        f"to {max(whole):.2f} for the whole rounds above, of which only the parts were used for the fit. All runs were "
        "on one machine: the network terms of the model are assumptions and were not validated. Nearly all ranks "
        "shared a core, so the time of a message includes a context switch; with one core per rank it should be "
        "shorter than predicted.",
        "",
    ]


def prediction_section(result: dict[str, Any]) -> list[str]:
    wires = result["assumed"]
    found = {(p["hidden"], p["graph"], p["way"], p["processes"]): p for p in result["predictions"]}
    agents, nodes = result["predictions"][0]["agents"], result["predictions"][0]["nodes"]
    rows = [
        [f"{hidden:,}", graph, WAYS[way]]
        + [
            f"{rate(one['seconds'][name]['full'])} / {rate(found[hidden, graph, way, nodes]['seconds'][name]['full'])}"
            for name in wires
        ]
        for (hidden, graph, way, processes), one in found.items()
        if processes == agents
    ]
    stated = ", ".join(
        f"{name} {1e6 * wire['latency']:.0f} µs and {wire['bandwidth'] * 8e-9:.0f} Gb/s per node"
        for name, wire in wires.items()
        if wire["bandwidth"] is not None
    )
    return [
        f"## {agents:,} agents on {nodes} nodes",
        "",
        f"Predicted rounds per second for {agents // nodes} agents per node: with one process and one core per agent / "
        "with one process per node and its agents in one array. Cores are as fast and tasks as large as above. "
        f"Assumptions on the network: {stated}; shared memory adds nothing to the cost of a message here.",
        "",
        *table(["L", "graph", "method", *wires], rows),
        "",
        "A sum over a ring passes through half of its agents one after another. MeshELM is therefore faster on graphs "
        "of small diameter, or with one process per node. DMTL-ELM waits only for neighbours and for the metrics.",
        "",
        "![Predicted and measured time per round, and time per round by number of agents](images/scaling.png)",
        "",
    ]


def page() -> str:
    result = load(RESULTS / "mpi.json")
    machine = result["machine"]
    lines = [
        "# Scaling",
        "",
        f"Results of `make scaling` with version {machine['elmesh']} on {machine['cpu']}, {machine['cores']} cores. "
        "`tools/scaling.py` writes this page.",
        "",
        *rounds_section(result),
        *model_section(result),
        *largest_section(result),
        *prediction_section(result),
        "## Goals not reached",
        "",
        *missed_goals(result),
        "",
    ]
    return "\n".join(lines)


def figure() -> Figure:
    result = load(RESULTS / "mpi.json")
    drawn = Figure(figsize=(11, 4.4), layout="constrained")
    FigureCanvasAgg(drawn)
    left, right = drawn.subplots(1, 2)
    groups = [
        (
            "2 to 16 ranks",
            "o",
            [(row["seconds"]["full"], row["predicted"]["full"]) for row in result["figures"]["rounds"]],
        ),
        *(
            (
                f"{agents:,} agents on {ranks} ranks",
                marker,
                [(row["seconds"], row["predicted"]["full"]) for row in result["largest"] if row["agents"] == agents],
            )
            for marker, (agents, ranks) in zip(
                "s^", dict.fromkeys((row["agents"], row["ranks"]) for row in result["largest"]), strict=False
            )
        ),
    ]
    for colour, (label, marker, points) in zip(("#0072B2", "#D55E00", "#009E73"), groups, strict=False):
        x, y = 1e3 * np.array(points).T
        left.loglog(x, y, marker, color=colour, label=label, alpha=0.8)
    ends = 1e3 * np.array([point for _, _, points in groups for point in points])
    line = np.array([ends.min() / 1.5, ends.max() * 1.5])
    left.plot(line, line, color="black", lw=0.8)
    left.fill_between(line, line / 2, line * 2, color="black", alpha=0.06, lw=0, label="within a factor of 2")
    left.set(xlabel="measured, ms per round", ylabel="predicted, ms per round", title="This machine: whole rounds")
    left.legend(frameon=False, fontsize=8)
    wire = "10 Gb Ethernet"
    for graph, colour in COLOURS.items():
        for way, style in (("admm", "-"), ("varpro", "--")):
            rows = [row for row in result["growth"] if (row["graph"], row["way"]) == (graph, way)]
            agents, seconds = zip(*((row["agents"], 1e3 * row["seconds"][wire]) for row in rows), strict=True)
            right.loglog(agents, seconds, style, color=colour, label=f"{graph}, {WAYS[way]}")
    right.set(
        xlabel="agents, ten per node, one core each", ylabel="predicted, ms per round", title=f"{wire}: U of 300 x 6"
    )
    right.legend(frameon=False, fontsize=8)
    return drawn


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    figure().savefig(FIGURE, dpi=110)
    print(f"{PAGE.name} is up to date.", file=sys.stderr)
