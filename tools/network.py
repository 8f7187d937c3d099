"""Write the measurements of benchmarks/results/network.json into docs/network.md."""

from __future__ import annotations

import sys
from typing import Any

from pages import RESULTS, ROOT, fill, load, table

PAGE = ROOT / "docs" / "network.md"


def block(result: dict[str, Any]) -> str:
    """Return the measurements as Markdown."""
    figures, machine = result["figures"], result["machine"]
    rows = []
    for row in figures["speed"]:
        rate = row["rounds_a_second"]
        rows.append(
            [
                str(row["agents"]),
                f"{rate['bare']:,.0f}",
                f"{rate['exchange']:,.0f}",
                f"{row['exchange_of_bare']:.2f}",
                f"{rate['computation']:,.0f}",
                f"{rate['computation_and_bare']:,.0f}",
                f"{rate['full']:,.0f}",
                f"{row['full_of_computation_and_bare']:.2f}",
                f"{row['full_of_bare']:.2f}",
            ]
        )
    rejoin, memory = figures["rejoining"], figures["memory"]
    (early, early_bytes), (late, late_bytes) = memory["resident"][1], memory["resident"][-1]
    missed = [goal for goal, met in result["goals"].items() if not met]
    lines = [
        *table(
            ["agents", "bare zenoh (a)", "exchange of the runtime (b)", "b / a", "computation",
             "computation and bare zenoh (c)", "whole rounds (d)", "d / c", "d / a"],
            rows,
        ),
        "",
        f"Rounds per second on rings with L = 300 and r = 6, messages of {figures['speed'][0]['message_bytes']:,} "
        f"bytes, all agents on {machine['cores']} cores. (a) sends the same bytes over the same zenoh sessions without "
        "processing them; (b) is the exchange between agents with numbering, checks and acknowledgements; computation "
        "is that of all agents at the same time, without messages; (c) is both in one loop; (d) also includes metrics "
        "and checkpoints. There are more agents than cores, so the computation of one agent delays the messages of "
        "others.",
        "",
        f"Rejoining after kill -9, {rejoin['kills']} times: {min(rejoin['rejoined']):.2f} to {rejoin['longest']:.2f} s "
        "from the connection until the agent is past the round of its checkpoint. The start of the process takes up "
        f"to {max(rejoin['process_start']):.1f} s before that.",
        "",
        f"Memory of an agent over {memory['rounds']:,} rounds: {early_bytes / 1e6:.0f} MB after {early:,} rounds, "
        f"{late_bytes / 1e6:.0f} MB after {late:,} ({100 * memory['share']:+.1f} %).",
        "",
        f"Goals not reached: {'; '.join(missed) or 'none'}.",
        "",
        f"Measured with version {machine['elmesh']} on {machine['cpu']}, {machine['cores']} cores, Python "
        f"{machine['python']}.",
    ]  # fmt: skip
    return "\n".join(lines)


def filled(text: str) -> str:
    """Return the page with the committed measurements."""
    return fill(text, "network", block(load(RESULTS / "network.json")))


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE.name} is up to date.", file=sys.stderr)
