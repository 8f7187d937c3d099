"""Write the measured part of docs/updates.md from the benchmark `stream`."""

from __future__ import annotations

import sys

from pages import RESULTS, ROOT, fill, load

PAGE = ROOT / "docs" / "updates.md"


def block() -> str:
    result = load(RESULTS / "stream.json")
    size, found, machine = result["size"], result["figures"], result["machine"]
    missed = [goal for goal, met in result["goals"].items() if not met]
    lines = [
        f"`python -m benchmarks stream` fits {size['rows']:,} rows of {size['columns']} columns and {size['sites']} "
        f"sites with {size['hidden']} hidden units on {machine['cpu']}, {machine['cores']} cores. The fit takes "
        f"{found['fit_seconds']:.0f} s, {found['fit_over_products']:.1f} times as long as the bare matrix products "
        f"that it needs ({found['products_seconds']:.0f} s); with gains, explanation and page the command takes "
        f"{found['command_seconds']:.0f} s. It has at most {found['gigabytes']:.2f} GB in memory.",
    ]
    if missed:
        lines.append(f"Not reached: {'; '.join(missed)}.")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), "stream", block()), encoding="utf-8")
    print(f"{PAGE.name} is up to date.", file=sys.stderr)
