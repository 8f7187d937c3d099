"""Write the figures of benchmarks/results/network.json into docs/network.md."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE, KEPT = ROOT / "docs" / "network.md", ROOT / "benchmarks" / "results" / "network.json"


def table(result: dict[str, Any]) -> str:
    """Return what the benchmark found, in words."""
    figures, machine = result["figures"], result["machine"]
    lines = [
        "| agents | bare zenoh, rounds/s | the runtime's exchange | of bare | computation alone | computation and bare "
        "zenoh | whole rounds | of that | of bare |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in figures["speed"]:
        each = row["rounds_a_second"]
        lines.append(
            f"| {row['agents']} | {each['bare']:,.0f} | {each['exchange']:,.0f} | {row['exchange_of_bare']:.2f} | "
            f"{each['computation']:,.0f} | {each['computation_and_bare']:,.0f} | {each['full']:,.0f} | "
            f"{row['full_of_computation_and_bare']:.2f} | {row['full_of_bare']:.2f} |"
        )
    rejoin, memory = figures["rejoining"], figures["memory"]
    start = max(rejoin["process_start"])
    size = figures["speed"][0]["message_bytes"]
    lines += [
        "",
        f"Rings at L = 300, r = 6: messages of {size:,} bytes, all agents on {machine['cores']} cores. "
        "Bare zenoh is the same bytes by the same sessions with nothing made of them; computation is that of all "
        "agents at the same time; the third is both, in the same loop; whole rounds are computed, exchanged, checked, "
        "kept in the journal and followed. With more agents than cores, who computes keeps others from hearing.",
        "",
        f"Rejoining after kill -9, {rejoin['kills']} times: {min(rejoin['rejoined']):.2f} to {rejoin['longest']:.2f} s "
        "from its first word until it is further than its journal was; the start of the process before that took up to "
        f"{start:.1f} s.",
        "",
        f"Memory of an agent over {memory['rounds']:,} rounds: {memory['resident'][1][1] / 1e6:.0f} MB after "
        f"{memory['resident'][1][0]:,} rounds, {memory['resident'][-1][1] / 1e6:.0f} MB after "
        f"{memory['resident'][-1][0]:,} ({100 * memory['share']:+.1f} %).",
        "",
        "Not met: " + "; ".join(goal for goal, met in result["goals"].items() if not met) + "."
        if not all(result["goals"].values())
        else "All of this meets its goals: " + "; ".join(result["goals"]) + ".",
        "",
        f"Measured on {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}.",
    ]
    return "\n".join(lines)


def filled(text: str) -> str:
    """Return the page with the committed figures."""
    found = table(json.loads(KEPT.read_text(encoding="utf-8")))
    return re.sub(
        r"<!-- network -->\n.*?<!-- /network -->",
        lambda _: f"<!-- network -->\n{found}\n<!-- /network -->",
        text,
        flags=re.DOTALL,
    )


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    new = filled(text)
    PAGE.write_text(new, encoding="utf-8")
    print(f"{PAGE.name} is up to date.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
