"""Draw docs/images/parts.png, the picture that explains the parts of a model, by its example in the gallery."""

from __future__ import annotations

import runpy

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from pages import ROOT

PICTURE = ROOT / "docs" / "images" / "parts.png"

if __name__ == "__main__":
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    runpy.run_path(str(ROOT / "examples" / "gallery" / "plot_parts.py"))
    plt.gcf().savefig(PICTURE, dpi=150, metadata={"Software": None})
