"""A process with a failure detector, for the tests: it follows commands line by line, and reports in JSON.

Its arguments are the file of the detector, its rank, the number of ranks, the seconds between heartbeats, and whether
it prints failures as usual. The module is loaded by its file alone: the whole package takes seconds to start.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from typing import Any


def report(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def allgather(content: Any) -> list[Any]:
    """Collect the content of all processes through the test, which has started them."""
    report(content=content)
    return json.loads(sys.stdin.readline())


def main() -> None:
    file, rank, size, interval, prints = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("failure_detector", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["failure_detector"] = module
    spec.loader.exec_module(module)

    beat = threading.Condition()
    beats = 0

    def count() -> None:
        nonlocal beats
        with beat:
            beats += 1
            beat.notify()

    timing = module.HeartbeatTiming(interval=float(interval))
    detector = module.FailureDetector(int(rank), int(size), allgather, timing, on_beat=count)
    if prints == "no":
        detector.on_failure = lambda failure: report(lost=[failure.rank, failure.how, failure.round])
    report(started=True)
    for line in sys.stdin:
        command, _, number = line.strip().partition(" ")
        if command == "round":
            detector.round = int(number)
        elif command == "beats":
            with beat:
                start = beats
                beat.wait_for(lambda: beats >= start + int(number))  # noqa: B023
        elif command == "stop":
            detector.stop()
        report(done=line.strip())


if __name__ == "__main__":
    main()
