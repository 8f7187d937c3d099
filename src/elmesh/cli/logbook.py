"""What an agent tells while it runs: sentences, or a JSON object a line, on standard error.

No key, row, target or coefficient ever gets here: events are names, numbers and reasons.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from elmesh.cli.console import plain
from elmesh.comm.network.zenoh_session import need_zenoh

__all__ = ["Logbook", "overhearing"]

_SENTENCES = {
    "neighbour": lambda f: f"{f['name']} is {'here' if f['here'] else 'away'}.",
    "stranger": lambda f: (
        f'Not answered: {f["address"]} has a certificate of "{f["name"]}", who is no neighbour of this agent.'
    ),
    "turned away": lambda f: _turned_away(**f),
    "refused": lambda f: f"A message from {f['name']} was refused: {f['reason']}.",
    "resumed": lambda f: f"Going on from the journal, at round {f['round']}.",
    "lost": lambda f: f"Lost: {f['reason']}",
    "gone": lambda f: f"{f['name']} goes on without {', '.join(f['names'])}.",
    "regrouped": lambda f: _regrouped(**f),
    "statistics": lambda f: f"Sent for scaling, of {', '.join(f['columns'])}: {f['sent']}.",
    "journal": lambda f: (
        "The journal can be written again."
        if f["problem"] is None
        else f"The journal in {f['folder']} cannot be written ({f['problem'].lower()}); trying again."
    ),
    "round": lambda f: f"Round {f['round']} of {f['rounds']}, {f['gap']:.2g} from the neighbours.",
    "open": lambda f: (
        f"Agent {f['agent']} of {f['network']} at {f['address']}, neighbours {', '.join(f['neighbours'])}."
    ),
    "saved": lambda f: f"Saved in {f['out']}; staying until the neighbours have what they need.",
    "late": lambda f: f"Leaving, though {', '.join(f['names'])} did not say that they have what they need.",
    "certificate": lambda f: f"The certificate of {f['agent']} ends in {f['days']:.0f} days; renew it in time.",
}


def _turned_away(reason: str, more: int = 0) -> str:
    before = f"; {more} others were before it" if more else ""
    return f"A connection was turned away: {reason}{before}."


def _regrouped(gone: list[str], parts: list[list[str]], rest: list[str]) -> str:
    text = f"Going on without {', '.join(gone)}, from the start"
    if len(parts) > 1:
        named = "; ".join(", ".join(part) for part in parts)
        return f"{text}. That cuts the network into {len(parts)} parts, which go on by themselves: {named}."
    return f"{text}, with {', '.join(rest) or 'nobody'}."


class Logbook:
    """Where an agent's events go.

    Parameters
    ----------
    agent : str
        Its name, for lines of JSON.
    as_json : bool
        Whether lines are JSON.
    quiet : bool
        Whether to leave them out.
    """

    def __init__(self, agent: str, as_json: bool, quiet: bool) -> None:
        self._agent, self._json, self._quiet = agent, as_json, quiet
        self._lock = threading.Lock()

    def __call__(self, event: str, **fields: Any) -> None:
        """Tell of an event."""
        if self._quiet:
            return
        now = datetime.now(UTC)
        if self._json:
            line = json.dumps(plain({"time": now.isoformat(), "agent": self._agent, "event": event, **fields}))
        elif event in _SENTENCES:
            line = f"{now.astimezone():%H:%M:%S} {_SENTENCES[event](fields)}"
        else:
            return
        with self._lock, contextlib.suppress(OSError, ValueError):
            sys.stderr.write(re.sub(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]+", " ", line) + "\n")
            sys.stderr.flush()


# Anybody can knock at the door, so a log must not grow with every knock: so many are told of at once, and then one in
# so many seconds.
_AT_ONCE, _EVERY = 20.0, 1.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TURNED_AWAY = re.compile(r"WARN.*zenoh_link_tls[^:]*(?:::\w+)*:\s*(.*?)(?:\. Hint:.*)?$")


@contextlib.contextmanager
def overhearing(log: Logbook) -> Iterator[None]:
    """Have connections that TLS turns away told of, which zenoh says on its standard output alone.

    Inside, what Python writes goes to the true standard output, and file descriptor 1 leads here.
    """
    sys.stdout.flush()
    true_out = os.dup(1)
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(writing)
    before, sys.stdout = sys.stdout, os.fdopen(os.dup(true_out), "w", encoding=sys.stdout.encoding, buffering=1)

    def listen() -> None:
        room, last, left_out = _AT_ONCE, time.monotonic(), 0
        with os.fdopen(reading, "r", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                found = _TURNED_AWAY.search(_COLOUR.sub("", line.rstrip("\n")))
                if not found:
                    continue
                now = time.monotonic()
                room, last = min(room + (now - last) / _EVERY, _AT_ONCE), now
                if room < 1:
                    left_out += 1
                    continue
                log("turned away", reason=found[1], **({"more": left_out} if left_out else {}))
                room, left_out = room - 1, 0

    listener = threading.Thread(target=listen, name="elmesh-overhearing", daemon=True)
    listener.start()
    try:
        need_zenoh().init_log_from_env_or("zenoh_link_tls=warn")
        yield
    finally:
        sys.stdout.flush()
        sys.stdout.close()
        sys.stdout = before
        os.dup2(true_out, 1)  # which ends the listener's pipe, unless zenoh has a copy of its own
        os.close(true_out)
