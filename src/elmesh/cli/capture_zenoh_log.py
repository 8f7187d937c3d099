"""Connections that TLS rejects, from the log of zenoh, which writes it to standard output only."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from elmesh.comm.network.zenoh_session import import_zenoh

__all__ = ["capture_zenoh_log"]

# Anyone can try to connect, so the log must not grow with every attempt: so many events at once, then one per interval
# in seconds.
_BURST, _INTERVAL = 20.0, 1.0
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_REJECTED = re.compile(r"WARN.*zenoh_link_tls[^:]*(?:::\w+)*:\s*(.*?)(?:\. Hint:.*)?$")


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
