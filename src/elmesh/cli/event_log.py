"""The log of an agent or a router, on standard error or in a file: sentences, or one JSON object per line.

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
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elmesh.cli.console import plain
from elmesh.comm.network.zenoh_session import import_zenoh

__all__ = ["ONE_RUN", "EventLog", "capture_zenoh_log"]

#: What a schedule does in a network that sums without noise.
ONE_RUN = (
    "Without differential privacy totals of changed rows are released once: after one run with the network this site "
    "learns alone from new rows. A network with --epsilon learns together as long as the budget lasts."
)

# Anyone can try to connect, so the log must not grow with every attempt: so many events at once, then one per interval
# in seconds.
_BURST, _INTERVAL = 20.0, 1.0
# Sentences that are kept for status files.
_RECENT = 30
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]+")
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
    "warm start": lambda f: (
        f"Starting from the basis of {f['earlier']}."
        if f["found"]
        else f"The model in {f['earlier']} has other features or another rank, so this run starts from the common seed."
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
    "expires": lambda f: f["text"],
    "one run": lambda _: ONE_RUN,
    "scheduled": lambda f: f"Next run: {datetime.fromtimestamp(f['next']).astimezone():%Y-%m-%d %H:%M:%S %Z}.",
    "missed": lambda f: f"This run is skipped, because not all sites have come: {f['reason']}",
    "failed": lambda f: f"The run has ended: {f['reason']}",
    "run failed": lambda f: f"This run has no result: {f['reason']}",
    "alone": lambda f: f"The network cannot run again now, so this site learns alone: {f['reason']}",
    "unchanged": lambda _: "No new rows since the last version, so that there is nothing to learn.",
    "not compared": lambda f: f"The new model is not compared with the former one: {f['reason']}",
    "version": lambda f: f"{f['text']} {f['warning']}".strip(),
}


def _restarted(evicted: list[str], parts: list[list[str]], rest: list[str]) -> str:
    text = f"Starting again without {', '.join(evicted)}"
    if len(parts) > 1:
        named = "; ".join(", ".join(part) for part in parts)
        return f"{text}. This cuts the network into {len(parts)} parts, which continue separately: {named}."
    return f"{text}, with {', '.join(rest) or 'no other agent'}."


class EventLog:
    """Writes the events of an agent, as JSON or as sentences; events without a sentence are then left out.

    With ``file`` they are appended to that file, which is opened for every event: it may be moved, truncated or removed
    at any time, and whoever rotates it need not signal the agent.
    """

    def __init__(self, agent: str, as_json: bool, quiet: bool, file: Path | None = None) -> None:
        self._agent, self._json, self._quiet, self._file = agent, as_json, quiet, file
        if file is not None:
            _append(file, "")  # an error is one of the command, before it does anything
        # Two locks: whoever asks for the last events does not wait for a reader of standard error.
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._recent: deque[tuple[float, str]] = deque(maxlen=_RECENT)

    def __call__(self, event: str, **fields: Any) -> None:
        """Write an event."""
        now = datetime.now(UTC)
        sentence = _SENTENCES[event](fields) if event in _SENTENCES else None
        if sentence is not None:
            with self._lock:
                self._recent.append((now.timestamp(), _CONTROL.sub(" ", sentence)))
        if self._quiet:
            return
        if self._json:
            head = {"time": now.isoformat(), "agent": self._agent, "event": event}
            line = json.dumps(plain(head | {name: value for name, value in fields.items() if name not in head}))
        elif sentence is not None:
            line = f"{now.astimezone():{'%Y-%m-%d ' if self._file is not None else ''}%H:%M:%S} {sentence}"
        else:
            return
        line = _CONTROL.sub(" ", line) + "\n"
        with self._writing, contextlib.suppress(OSError, ValueError):
            if self._file is not None:
                _append(self._file, line)
            else:
                sys.stderr.write(line)
                sys.stderr.flush()

    def recent(self) -> list[tuple[float, str]]:
        """Return the times and sentences of the last events."""
        with self._lock:
            return list(self._recent)


def _append(file: Path, text: str) -> None:
    """Append to a file that only this user can read."""
    with open(file, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
        stream.write(text)


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
