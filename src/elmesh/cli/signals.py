"""Signals that ask a command to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from elmesh.cli.console import Output

__all__ = ["StopRequest", "act_on_signal", "handle_signals", "print_stopping", "stop_on_interrupt"]


@dataclass
class StopRequest:
    """Whether a signal has asked to stop."""

    asked: bool = False

    def ask(self, *_: object) -> None:
        """Ask to stop; this may be the handler of a signal."""
        self.asked = True


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], None], *numbers: int) -> Iterator[None]:
    """Handle signals inside. SIGHUP stays ignored if it is, as ``nohup`` requires."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    for number, current in before.items():
        if number != signal.SIGHUP or current is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, current in before.items():
            signal.signal(number, current)


def print_stopping(output: Output, when: str = "after this round") -> None:
    """Acknowledge the first Ctrl-C, from a signal handler."""
    if not output.quiet:
        # Directly to the descriptor: the handler may have interrupted a buffered write to the same stream.
        os.write(2, f"\nStopping {when}; press Ctrl-C again to abort.\n".encode())


@contextmanager
def act_on_signal(action: Callable[[], None], *numbers: int) -> Iterator[None]:
    """Act on the first signal, and abort on the second."""
    received = False

    def handle(*_: object) -> None:
        nonlocal received
        if received:
            raise KeyboardInterrupt
        received = True
        action()

    with handle_signals(handle, *numbers):
        yield


@contextmanager
def stop_on_interrupt(output: Output, when: str = "after this round") -> Iterator[StopRequest]:
    """Record the first Ctrl-C, and abort on the second; ``when`` is part of the acknowledgement."""
    request = StopRequest()

    def stop() -> None:
        request.ask()
        print_stopping(output, when)

    with act_on_signal(stop, signal.SIGINT):
        yield request
