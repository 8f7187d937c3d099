"""The gallery: the order of its examples, and the style of their pictures, which is that of the reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from cycler import cycler

from elmesh.report.figures import COLORS

#: Examples that users need first; others follow by name.
FIRST = ("parts", "different_site", "plants", "schools", "rare_class", "new_site", "intervals", "privacy", "graphs")


class ReaderOrder:
    """Sort key of the examples in a folder."""

    def __init__(self, src_dir: str) -> None:
        self.src_dir = src_dir

    def __call__(self, filename: str) -> tuple[int, str]:
        """Return the place of an example."""
        name = Path(filename).stem.removeprefix("plot_")
        return (FIRST.index(name) if name in FIRST else len(FIRST), name)

    def __repr__(self) -> str:
        return "<ReaderOrder>"


def apply_style(gallery_conf: dict[str, Any], script: str | Path) -> None:
    """Set matplotlib's defaults before an example runs."""
    names = ("blue", "orange", "green", "magenta", "violet", "olive", "red")
    plt.rcParams.update(
        {
            "axes.prop_cycle": cycler(color=[COLORS[name] for name in names]),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": "medium",
            "figure.constrained_layout.use": True,
            "figure.dpi": 100,
            "savefig.dpi": 150,
            "font.size": 10,
            "legend.frameon": False,
        }
    )
