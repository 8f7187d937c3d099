"""What was asked of ``elmesh fit``, and the estimator that it makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from elmesh import MultiTaskELMClassifier, MultiTaskELMRegressor
from elmesh.cli.console import Output, check_writable
from elmesh.data.features import weight_scale
from elmesh.errors import ElmeshError
from elmesh.run import checkpointing
from elmesh.solvers import Solver, make_solver
from elmesh.tables import FILE_TASK, ProblemKind

__all__ = ["Wish", "build_solver", "check_kind", "weight_scale"]


@dataclass(frozen=True)
class Wish:
    """The options of ``elmesh fit``, None where nothing was said."""

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
        """Make the solver."""
        runtime = {} if self.runtime == "stacked" else {"runtime": self.runtime}
        return build_solver(self.solver, self.mu, **self.parameters, **runtime)

    def make_estimator(self, kind: ProblemKind, n_columns: int) -> MultiTaskELMClassifier | MultiTaskELMRegressor:
        """Make the estimator, for a table of so many columns once it is encoded."""
        make = MultiTaskELMClassifier if kind == "classification" else MultiTaskELMRegressor
        return make(
            self.hidden, weight_scale=weight_scale(n_columns), solver=self.make_solver(), random_state=self.seed
        )

    def check_kind(self) -> ProblemKind | None:
        """Return the kind, if one was asked for."""
        return check_kind(self.kind)

    def check_task(self) -> None:
        """Refuse one file whose rows nobody can tell apart."""
        if self.task is None and self.data.is_file():
            raise ElmeshError(
                f"{self.data} is one file, so --task must name the column that holds the task; or give a folder with "
                "one file for each task."
            )

    def check_checkpoint(self) -> None:
        """Refuse a folder for checkpoints that cannot be one, before the work and not in the middle of it."""
        if self.checkpoint is not None:
            check_writable(self.checkpoint / "checkpoint.json", force=True)

    def fields(self) -> dict[str, Any]:
        """Return what was asked for, by option, in plain JSON."""
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "parameters"} | self.parameters
        named = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
        return {name: str(value) if isinstance(value, Path) else value for name, value in named.items()}

    @contextmanager
    def keeping(self, output: Output, tell: Any = None) -> Iterator[None]:
        """Keep checkpoints inside, if they were asked for; ``tell`` hears the round of each."""
        begun = False

        def have(k: int) -> None:
            nonlocal begun
            if not begun and k >= 0 and resumed:
                output.note(f"Going on from the checkpoint of round {k} in {self.checkpoint}.")
            begun = True
            if tell is not None:
                tell(k)

        resumed = self.checkpoint is not None and (self.checkpoint / "checkpoint.json").exists()
        with nullcontext() if self.checkpoint is None else checkpointing(self.checkpoint, self.every, have):
            yield

    def arguments(self) -> list[str]:
        """Return the command line that asks for the same, and for events."""
        words = ["fit", "--events", "--out", str(self.out), "--solver", self.solver, "--runtime", self.runtime]
        words += ["--hidden", str(self.hidden), "--seed", str(self.seed), "--every", str(self.every)]
        for flag, values in (("--target", self.target), ("--drop", self.drop)):
            words += [word for value in values for word in (flag, value)]
        single = {"task": self.task, "kind": self.kind, "mu": self.mu, "checkpoint": self.checkpoint, **self.parameters}
        for name, value in single.items():
            if value is not None:
                words += [f"--{name.replace('_', '-')}", repr(value) if isinstance(value, float) else str(value)]
        # A name may begin with a dash.
        return words + ["--gather"] * self.gather + ["--force"] * self.force + ["--", str(self.data)]


def check_kind(kind: str | None) -> ProblemKind | None:
    """Return the kind that --kind asks for, if it does."""
    if kind is None:
        return None
    if kind not in ("classification", "regression"):
        raise ElmeshError(f'--kind must be classification or regression, not "{kind}".')
    return "classification" if kind == "classification" else "regression"


def build_solver(name: str, mu: float | None, **options: object) -> Solver:
    """Make a solver from what was asked for on the command line.

    Parameters
    ----------
    name
        Its short name.
    mu
        Its penalty or penalties, if asked for.
    **options
        Other parameters by name, None where not asked for.

    Examples
    --------
    >>> build_solver("mtl-elm", 0.5, rank=3, graph=None)
    MTLELM(mu1=0.5, mu2=0.5, rank=3)
    """
    solver = make_solver(name)
    known = solver.get_params()
    if mu is not None:
        options |= {key: mu for key in ("mu", "mu1", "mu2") if key in known}
    asked = {key: value for key, value in options.items() if value is not None}
    for key in asked:
        if key not in known:
            raise ElmeshError(f"--{key.replace('_', '-')} has no meaning for {name}; leave it out.")
    return make_solver(solver.set_params(**asked))
