"""The command ``elmesh`` with a short version of Fig. 3."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from elmesh.cli import main
from elmesh.paper.convergence import measure_fig3
from elmesh.paper.reproduction import EXPERIMENTS

if __name__ == "__main__":
    EXPERIMENTS["fig3"] = replace(EXPERIMENTS["fig3"], measure=partial(measure_fig3, rounds=40))
    main()
