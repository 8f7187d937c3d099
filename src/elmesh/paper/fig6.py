"""Fig. 6: test error of DMTL-ELM on USPS against what it sends, as a multiple of what DNSP sends."""

from __future__ import annotations

from elmesh.paper.methods import FIGURE_WEIGHTS, RANK, Method, graph_methods, on_inputs, score
from elmesh.paper.protocol import DATA_SETS, DataSet, draw, stand_in
from elmesh.paper.trials import Numbers, Trial, repeat

__all__ = ["HIDDEN", "ROUNDS", "SPECTRAL_ROUNDS", "measure", "paper_ratio", "trials"]

NAME = "fig6"
HIDDEN = (100, 150, 200, 250, 300)
ROUNDS = (25, 50, 100)
#: With the spectral start far fewer rounds are of interest.
SPECTRAL_ROUNDS = (1, 2, 5, 10, 25)


def paper_ratio(rounds: int, n_hidden: int, n_inputs: int, rank: int = RANK) -> float:
    """Return 2kL / ((r + 1) n), what DMTL-ELM sends as a multiple of what DNSP sends by the paper's count."""
    return 2 * rounds * n_hidden / ((rank + 1) * n_inputs)


def trials(runs: int, seed: int) -> list[Trial]:
    """Return a draw a run, of USPS or of what stands in for it."""
    return repeat(NAME, [stand_in("usps")], runs, seed)


def measure(trial: Trial) -> Numbers:
    """Test DNSP once and DMTL-ELM for every size and number of rounds, on one draw."""
    data, split = DATA_SETS[trial.case], draw(trial.case, trial.seed)
    numbers: Numbers = {"DNSP": score(on_inputs(data)["DNSP"], split, HIDDEN[0], trial.seed)}
    for init, sizes, schedule in (("random", HIDDEN, ROUNDS), ("spectral", HIDDEN[-1:], SPECTRAL_ROUNDS)):
        numbers[init] = {
            f"{L}": {f"{k}": score(_dmtl_elm(data, k, init), split, L, trial.seed) for k in schedule} for L in sizes
        }
    return numbers


def _dmtl_elm(data: DataSet, rounds: int, init: str) -> Method:
    return graph_methods(data, FIGURE_WEIGHTS, rounds, init)[0]
