"""The options of ``elmesh fit``, and the estimator and the run that they describe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from elmesh.cli.console import Output, check_writable
from elmesh.cli.errors import check_option
from elmesh.data.features import weight_scale
from elmesh.errors import ElmeshError
from elmesh.estimators.classifier import MultiTaskELMClassifier
from elmesh.estimators.regressor import MultiTaskELMRegressor
from elmesh.run import Backend, CheckpointConfig, Progress, RunConfig
from elmesh.solvers import Solver, make_solver
from elmesh.tables import FILE_TASK, ProblemKind

__all__ = ["FitOptions", "check_kind"]


@dataclass(frozen=True)
class FitOptions:
    """The options of ``elmesh fit``; None where an option is not given."""

    data: Path
    target: list[str]
    out: Path
    task: str | None
    kind: str | None
    drop: list[str]
    solver: str
    mu: float | None
    parameters: dict[str, Any]
    hidden: int
    seed: int
    force: bool
    runtime: str
    gather: bool
    checkpoint: Path | None
    every: int

    @property
    def column(self) -> str:
        """The column that holds the task."""
        return self.task or FILE_TASK

    def make_solver(self) -> Solver:
        """Return the solver; ``mu`` is for all its penalties, and the graph "none" means all data in one place."""
        solver = make_solver(self.solver)
        known = solver.get_params()
        given = {name: value for name, value in self.parameters.items() if value is not None}
        for name in given:
            if name not in known:
                raise ElmeshError(f"{_option(name)} has no meaning for {self.solver}; leave it out.")
        if self.mu is not None:
            given |= {name: self.mu for name in ("mu", "mu1", "mu2") if name in known}
        if given.get("graph") == "none":
            given["graph"] = None
        return make_solver(solver.set_params(**given))

    def make_estimator(self, kind: ProblemKind, n_columns: int) -> MultiTaskELMClassifier | MultiTaskELMRegressor:
        """Return the estimator for so many encoded columns."""
        make = MultiTaskELMClassifier if kind == "classification" else MultiTaskELMRegressor
        return make(
            self.hidden, weight_scale=weight_scale(n_columns), solver=self.make_solver(), random_state=self.seed
        )

    def check_task(self) -> None:
        """Raise if the rows of a single file have no task."""
        if self.task is None and self.data.is_file():
            raise ElmeshError(
                f"{self.data} is one file, so --task must name the column that holds the task; or give a folder with "
                "one file for each task."
            )

    def check_checkpoint(self) -> None:
        """Raise if the folder for checkpoints cannot be written: before the work."""
        if self.checkpoint is not None:
            check_writable(self.checkpoint / "checkpoint.json", force=True)

    def by_option(self) -> dict[str, Any]:
        """Return all values by the names of the options, in plain JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "parameters"} | self.parameters
        named = {_option(name): value for name, value in values.items()}
        return {name: str(value) if isinstance(value, Path) else value for name, value in named.items()}

    def run_config(
        self,
        output: Output,
        callback: Callable[[Progress], bool | None],
        backend: str | Backend = "local",
        on_checkpoint: Callable[[int], None] = lambda k: None,
    ) -> RunConfig:
        """Return how the fit runs; the first checkpoint of a resumed fit is noted."""
        if self.checkpoint is None:
            return RunConfig(backend, callback)
        pending = (self.checkpoint / "checkpoint.json").exists()

        def note_checkpoint(k: int) -> None:
            nonlocal pending
            if pending and k >= 0:
                output.note(f"Resuming from the checkpoint of round {k} in {self.checkpoint}.")
            pending = False
            on_checkpoint(k)

        return RunConfig(backend, callback, CheckpointConfig(self.checkpoint, self.every, note_checkpoint))

    def arguments(self) -> list[str]:
        """Return the arguments of the same command for each rank, which reports events."""
        words = ["fit", "--events"]
        for name, value in self.by_option().items():
            if value is True:
                words.append(name)
            elif name != "--data" and value is not None and value is not False:
                words += [
                    word for item in (value if isinstance(value, list) else [value]) for word in (name, str(item))
                ]
        return [*words, "--", str(self.data)]  # a name may begin with a dash


def check_kind(kind: str | None) -> ProblemKind | None:
    """Return the value of --kind, if it is given."""
    if kind is not None:
        check_option("--kind", kind, "classification", "regression")
    return cast("ProblemKind | None", kind)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
