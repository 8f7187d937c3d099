"""Imported by the process that agents are forked from, which so does once what all of them do in the same way.

These are imports within functions, and caches of types and signatures.
"""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

from typer.testing import CliRunner

from elmesh import MultiTaskELMClassifier
from elmesh.cli import app
from elmesh.netconfig.config import NetworkConfig
from helpers.network import make_config, rows_of


def _prepare(folder: Path) -> None:
    CliRunner().invoke(app, ["agent", str(folder / "absent.toml"), "--data", "x", "--target", "y", "--out", "m"])
    NetworkConfig.parse(make_config().to_toml(), "network.toml")
    frame = rows_of("north")
    tasks = ["a", "b"] * (len(frame) // 2) + ["a"] * (len(frame) % 2)
    model = MultiTaskELMClassifier(5, random_state=0).fit(frame.drop(columns="y"), frame["y"], tasks=tasks)
    model.save(folder / "model")


with tempfile.TemporaryDirectory() as _folder:
    _prepare(Path(_folder))
# Forked processes share these objects as long as they do not search them for garbage.
gc.collect()
gc.freeze()
