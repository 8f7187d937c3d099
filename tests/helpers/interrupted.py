"""A command that a test interrupts: forked (:mod:`helpers.forked`), within a fit that does not end."""

from __future__ import annotations

import time
from pathlib import Path

from elmesh.evaluation.rivals import METHODS
from helpers.forked import run_command


def run_hanging(argv: list[str], out: str, errors: str, folder: str) -> None:
    """Run ``elmesh compare``, in which the fit of a site alone writes the file `hanging` and takes an hour."""

    def hang(*_: object) -> None:
        Path("hanging").touch()
        time.sleep(3600)

    object.__setattr__(METHODS["elmesh-alone"], "predict", hang)
    run_command(argv, out, errors, folder)
