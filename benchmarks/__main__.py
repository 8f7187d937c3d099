"""Run the benchmarks named on the command line, by default those of speed; results are printed and saved."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

# Speed on random data; comparisons on USPS, MNIST and School; MPI; messages; networks; real tables, hard cases.
SPEED, AHEAD, RANKS = ("startup", "rounds", "growth", "fit"), ("optimum", "bytes", "ways", "diffusion"), ("mpi",)
LARGE = ("stream",)  # ten million rows, which take 2 GB of disk
JUDGE = ("judge",)  # needs another Python
PRIVACY, NETWORK = ("basis", "totals", "site_weights", "audit", "private_arena"), ("network", "masks")
ARENA = ("arena", "adversarial", "fit_growth", "digits", "gains", "compare", "tune", "federated")
RESULTS = Path(__file__).parent / "results"


def main(names: list[str]) -> int:
    known = SPEED + LARGE + AHEAD + RANKS + PRIVACY + NETWORK + ARENA + JUDGE
    unknown = set(names) - set(known)
    if unknown:
        print(f"Unknown benchmark: {', '.join(sorted(unknown))}; there are {', '.join(known)}.", file=sys.stderr)
        return 2
    RESULTS.mkdir(exist_ok=True)
    missed = []
    for name in names or SPEED:
        print(f"{name} ...", file=sys.stderr)
        result = importlib.import_module(f"benchmarks.{name}").run(RESULTS)
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
        print(json.dumps(result), flush=True)
        missed += [f"{name}: {goal}" for goal, met in result["goals"].items() if not met]
    for line in missed:
        # The pages list them, too.
        print(f"not met: {line}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
