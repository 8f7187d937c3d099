"""Fig. 5: test error of all eight methods on USPS against the number of hidden units."""

from __future__ import annotations

from elmesh.paper.methods import FIGURE_WEIGHTS, central, graph_methods, local, on_inputs, score
from elmesh.paper.protocol import DATA_SETS, draw, stand_in
from elmesh.paper.trials import Numbers, Trial, repeat

__all__ = ["HIDDEN", "measure", "trials"]

NAME = "fig5"
HIDDEN = (50, 100, 150, 200, 250, 300)


def trials(runs: int, seed: int) -> list[Trial]:
    """Return a draw a run, of USPS or of what stands in for it."""
    return repeat(NAME, [stand_in("usps")], runs, seed)


def measure(trial: Trial) -> Numbers:
    """Test the methods on one draw: those on the inputs once, those on the hidden layer for each size."""
    data, split = DATA_SETS[trial.case], draw(trial.case, trial.seed)
    numbers: Numbers = {
        method.title: score(method, split, HIDDEN[-1], trial.seed)["error"] for method in on_inputs(data).values()
    }
    for method in (local(data), central(data), *graph_methods(data, FIGURE_WEIGHTS)):
        numbers[method.title] = [score(method, split, L, trial.seed)["error"] for L in HIDDEN]
    return numbers
