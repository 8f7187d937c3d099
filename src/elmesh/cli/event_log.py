"""The log of an agent or a router on standard error: sentences, or one JSON object per line.

It never contains keys, rows, targets or coefficients: events are names, numbers and reasons. Connections that TLS
rejects come from the log of zenoh, which writes it to standard output only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from elmesh.cli.console import plain
from elmesh.comm.network.zenoh_session import import_zenoh

__all__ = ["EventLog", "capture_zenoh_log"]

# Anyone can try to connect, so the log must not grow with every attempt: so many events at once, then one per interval
# in seconds.
_BURST, _INTERVAL = 20.0, 1.0
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_REJECTED = re.compile(r"WARN.*zenoh_link_tls[^:]*(?:::\w+)*:\s*(.*?)(?:\. Hint:.*)?$")

_SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "neighbor": lambda f: f"{f['name']} is {'present' if f['present'] else 'absent'}.",
    "stranger": lambda f: (
        f'Ignored: {f["address"]} has the certificate of "{f["name"]}", which is not a neighbour of this agent.'
    ),
    "rejected": lambda f: (
        f"A connection was rejected: {f['reason']}" + (f", and {f['more']} before it." if "more" in f else ".")
    ),
    "refused": lambda f: f"A message from {f['name']} was refused: {f['reason']}.",
    "resumed": lambda f: f"Resuming from the checkpoint of round {f['round']}.",
    "lost": lambda f: f"Lost: {f['reason']}",
    "evicted": lambda f: f"{f['name']} continues without {', '.join(f['names'])}.",
    "restarted": lambda f: _restarted(**f),
    "estimate": lambda f: f["text"],
    "undeclared classes": lambda f: (
        f"The network file of {f['network']} declares no classes, so a class of the same name may differ from agent to "
        "agent: there is no common part. Add classes = [...] to [target] at every agent to learn one."
    ),
    "keys": lambda f: f"Keys of all sites: {f['fingerprint']}; compare them with the other sites'.",
    "replaced logs": lambda f: (
        f"The log of releases of {', '.join(f['names'])} is not that of an earlier run, or lines were removed; "
        "ask that site why."
    ),
    "dropped": lambda f: f"Dropped, in the name of {f['name']}: {f['reason']}.",
    "confirmation": lambda f: f"Waiting for elmesh network confirm. {f['text']}",
    "statistics": lambda f: f"Sent for the scaling of {', '.join(f['columns'])}: {f['sent']}.",
    "checkpoint": lambda f: (
        "The checkpoint can be written again."
        if f["problem"] is None
        else f"The checkpoint in {f['folder']} cannot be written ({f['problem'].lower()}); trying again."
    ),
    "round": lambda f: f"Round {f['round']} of {f['rounds']}, consensus gap {f['gap']:.2g}.",
    "open": lambda f: (
        f"Agent {f['agent']} of {f['network']} at {f['address']}, neighbours {', '.join(f['neighbors'])}."
    ),
    "saved": lambda f: f"Saved in {f['out']}; staying until the neighbours have what they need.",
    "unconfirmed": lambda f: f"Leaving, although {', '.join(f['names'])} did not confirm the end of the run.",
    "certificate": lambda f: f"The certificate of {f['agent']} expires in {f['days']:.0f} days; renew it in time.",
}


def _restarted(evicted: list[str], parts: list[list[str]], rest: list[str]) -> str:
    text = f"Starting again without {', '.join(evicted)}"
    if len(parts) > 1:
        named = "; ".join(", ".join(part) for part in parts)
        return f"{text}. This cuts the network into {len(parts)} parts, which continue separately: {named}."
    return f"{text}, with {', '.join(rest) or 'no other agent'}."


class EventLog:
    """Writes the events of an agent, as JSON or as sentences; events without a sentence are then left out."""

    def __init__(self, agent: str, as_json: bool, quiet: bool) -> None:
        self._agent, self._json, self._quiet = agent, as_json, quiet
        self._lock = threading.Lock()

    def __call__(self, event: str, **fields: Any) -> None:
        """Write an event."""
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


@contextmanager
def capture_zenoh_log(log: Callable[..., None]) -> Iterator[None]:
    """Log connections that TLS rejects.

    Inside, what Python writes goes to the original standard output, and file descriptor 1 is read here.
    """
    sys.stdout.flush()
    original = os.dup(1)
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(writing)
    before, sys.stdout = sys.stdout, os.fdopen(os.dup(original), "w", encoding=sys.stdout.encoding, buffering=1)

    def read() -> None:
        allowed, last, left_out = _BURST, time.monotonic(), 0
        with os.fdopen(reading, "r", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                found = _REJECTED.search(_COLOR.sub("", line.rstrip("\n")))
                if not found:
                    continue
                now = time.monotonic()
                allowed, last = min(allowed + (now - last) / _INTERVAL, _BURST), now
                if allowed < 1:
                    left_out += 1
                    continue
                log("rejected", reason=found[1], **({"more": left_out} if left_out else {}))
                allowed, left_out = allowed - 1, 0

    threading.Thread(target=read, name="elmesh-zenoh-log", daemon=True).start()
    try:
        import_zenoh().init_log_from_env_or("zenoh_link_tls=warn")
        yield
    finally:
        sys.stdout.flush()
        sys.stdout.close()
        sys.stdout = before
        os.dup2(original, 1)  # which ends the reader's pipe, unless zenoh has a copy of its own
        os.close(original)
