"""A process with a heart, for the tests: it does as it is told, line by line, and says what it hears.

It knows its rank, how many there are, and the seconds from beat to beat. The module is loaded by its file alone, for
the whole package takes seconds to start.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
from typing import Any


def say(**words: Any) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def gather(notes: Any) -> list[Any]:
    """Collect everybody's notes through whoever has started all of them."""
    say(notes=notes)
    return json.loads(sys.stdin.readline())


def main() -> None:
    file, rank, size, beat = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("heartbeat", file)
    heartbeat = importlib.util.module_from_spec(spec)
    sys.modules["heartbeat"] = heartbeat
    spec.loader.exec_module(heartbeat)
    heartbeat._BEAT = float(beat)

    counted = threading.Condition()
    beats, to_beat = 0, heartbeat.Heartbeat._beat

    def counting(self: Any, value: int) -> None:
        nonlocal beats
        to_beat(self, value)
        with counted:
            beats += 1
            counted.notify()

    heartbeat.Heartbeat._beat = counting
    heart = heartbeat.Heartbeat(int(rank), int(size), gather)
    if "ELMESH_TEST_WORDS" not in os.environ:
        heart.tell = lambda loss: say(lost=[loss.rank, loss.how, loss.round])
    say(up=True)
    for line in sys.stdin:
        order, _, number = line.strip().partition(" ")
        if order == "round":
            heart.round = int(number)
        elif order == "count":
            with counted:
                start = beats
                counted.wait_for(lambda: beats >= start + int(number))  # noqa: B023
        elif order == "stop":
            heart.stop()
        say(done=line.strip())


if __name__ == "__main__":
    main()
