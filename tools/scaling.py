"""Write docs/scaling.md and its picture from what `make scaling` measured: agents on many ranks, and on many nodes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from readme import RESULTS, ROOT, load

PAGE, PICTURE = ROOT / "docs" / "scaling.md", ROOT / "docs" / "images" / "scaling.png"
WAYS = {"admm": "ADMM", "varpro": "projection"}
KINDS = {
    "work": "computation",
    "neighbours": "exchange with neighbours",
    "sum": "sum over all agents",
    "figures": "figures of a round",
}
COLOURS = {"ring": "#0072B2", "grid": "#009E73", "star": "#D55E00"}


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)]


def rate(seconds: float) -> str:
    """Say how many rounds there are in a second, in three figures."""
    value = 1 / seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Say how long something takes, in a unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9), ("ps", 1e-12)):
        if seconds >= size:
            return f"{seconds / size:,.0f} {unit}" if seconds >= 100 * size else f"{seconds / size:.2g} {unit}"
    return "0 s"


def rounds_section(result: dict[str, Any]) -> list[str]:
    figures, cores = result["figures"], result["machine"]["cores_for_ranks"]
    left = {way: [followed(row) for row in figures["rounds"] if row["way"] == way] for way in WAYS}
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
        "## A round, and what it is made of",
        "",
        f"Agents on a ring, a rank each, all of them on {cores} cores; tasks of 100 rows with U of 300 x 6, and of 200 "
        "rows with U of 2,000 x 20. A round is one of proximal ADMM, or one step of variable projection, as users have "
        "it: history, residuals and stopping included. Beside it the same messages with nothing worked out, the same "
        "work with no messages (on all ranks at once), what these two allow together, and all agents in one process "
        "without MPI (stacked). All in rounds a second, best of several taken in turns.",
        "",
        *table(
            ["L", "agents", "method", "exchange", "computation", "both allow", "whole rounds", "share", "stacked"], rows
        ),
        "",
        "Of what a whole round takes longer than both, the figures that a run is followed by explain "
        + " and ".join(
            f"{100 * min(shares):.0f} to {100 * max(shares):.0f} % with {WAYS[way]}" for way, shares in left.items()
        )
        + ", measured alone; the rest was not taken apart. With ADMM the figures include the mean of all agents' U, "
        f"which goes through all ranks every round. Stacked has one core, ranks together have {cores}.",
        "",
    ]


def followed(row: dict[str, Any]) -> float:
    """Return how much of the time beyond exchange and computation the figures would take alone, at most all of it."""
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
        "## A model of it",
        "",
        "    T(round) = T(computation) + requests * T(exchange or sum) + T(figures)",
        "    T(computation) = x * (c0 + a * c1 + multiplications * c2 + numbers passed over * c3)",
        "    T(talk) = turns * t + messages * alpha + bytes * beta + x * a * (c4 + size * c5)  [+ wire]",
        "",
        "with a agents a process and x processes a core. Messages and bytes are those of the busiest core, or those "
        "that follow one another: an exchange on a ring has two messages a process, the hub of a star has all of them; "
        "a sum goes up a spanning tree and down again; a round's figures are one message from every process to every "
        "other and, with ADMM, a sum of U over all processes. A turn is what a process waits for the x - 1 others of "
        "its core. Between nodes every message that follows another adds the latency, and what enters or leaves a node "
        "at once shares its bandwidth.",
        "",
        "The constants are the least squares of relative errors over the parts in the table above and over messages of "
        f"{min(sizes)} bytes to {max(sizes) / 2**20:.0f} MiB on rings and stars of 2 to 16 ranks.",
        "",
        *table(["", "fitted", "error, median", "worst", "measurements"], rows),
        "",
    ]


def unit(name: str) -> str:
    irregular = {"processes": "a process", "agents": "an agent", "agent bytes": "a byte of each agent"}
    return irregular.get(name, f"a {name.removesuffix('s')}")


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
        "## Against runs that it has not seen",
        "",
        "The largest that this machine has memory and patience for; none of them was used for the fit.",
        "",
        *table(["agents on ranks", "U", "graph", "method", "measured, ms", "predicted, ms", "ratio"], rows),
        "",
        f"Prediction over measurement is {min(ratios):.2f} to {max(ratios):.2f} here, and {min(whole):.2f} to "
        f"{max(whole):.2f} for the whole rounds above, of which the fit knows the parts only. "
        "Nothing here had a network in it: what the model adds for wires is assumed, not checked. And nearly all ranks "
        "here shared a core, so that what a message takes includes switching from one to the other; where each has a "
        "core of its own it should take less than predicted.",
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
        f"{name} {1e6 * wire['latency']:.0f} µs and {wire['bandwidth'] * 8e-9:.0f} Gb/s a node"
        for name, wire in wires.items()
        if wire["bandwidth"] is not None
    )
    return [
        f"## {agents:,} agents on {nodes} nodes",
        "",
        f"Rounds a second, for {agents // nodes} agents a node: with a process and a core for each agent / with one "
        "process a node that has them all in one array. Cores are as fast as here, tasks as large as above. "
        f"Assumed of the wires: {stated}; shared memory stands for no wire at all, every message as dear as here.",
        "",
        *table(["L", "graph", "method", *wires], rows),
        "",
        "A sum over a ring goes through half of its agents one after another, so variable projection wants a graph "
        "that is not deep, or one process a node; ADMM waits for its neighbours only, and for the figures.",
        "",
        "![Predicted against measured seconds a round, and how a round grows with agents](images/scaling.png)",
        "",
    ]


def page() -> str:
    result = load(RESULTS / "mpi.json")
    machine = result["machine"]
    missed = [f"- {goal}" for goal, met in result["goals"].items() if not met]
    lines = [
        "# Scaling",
        "",
        f"What `make scaling` measured on {machine['cpu']}, {machine['cores']} cores. This page is written by it.",
        "",
        *rounds_section(result),
        *model_section(result),
        *largest_section(result),
        *prediction_section(result),
        "## What was aimed at and not reached",
        "",
        *(missed or ["Nothing."]),
        "",
    ]
    return "\n".join(lines)


def picture() -> Figure:
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
    left.set(xlabel="measured, ms a round", ylabel="predicted, ms a round", title="Here: whole rounds")
    left.legend(frameon=False, fontsize=8)
    wire = "10 Gb Ethernet"
    for graph, colour in COLOURS.items():
        for way, style in (("admm", "-"), ("varpro", "--")):
            rows = [row for row in result["growth"] if (row["graph"], row["way"]) == (graph, way)]
            agents, seconds = zip(*((row["agents"], 1e3 * row["seconds"][wire]) for row in rows), strict=True)
            right.loglog(agents, seconds, style, color=colour, label=f"{graph}, {WAYS[way]}")
    right.set(xlabel="agents, ten a node, a core each", ylabel="predicted, ms a round", title=f"{wire}: U of 300 x 6")
    right.legend(frameon=False, fontsize=8)
    return drawn


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    picture().savefig(PICTURE, dpi=110)
    print(f"{PAGE.name} is up to date.", file=sys.stderr)
