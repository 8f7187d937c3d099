"""Figures from plot functions, as files and as SVG elements for a page.

A plot function draws into the axes it is given. Nothing here uses pyplot or its global state.
"""

from __future__ import annotations

import io
import re
import string
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from elmesh.files import atomic_write
from elmesh.report.style import COLORS, TEXT
from elmesh.typing import StrPath

__all__ = ["figure", "panels", "save_figure", "to_svg"]

PlotFunction = Callable[[Axes], object]


def figure(draw: PlotFunction, size: tuple[float, float] = (5.0, 3.9)) -> Figure:
    """Return a figure of one plot; ``size`` is in inches."""
    fig = Figure(figsize=size, layout="constrained")
    draw(fig.add_subplot())
    return fig


def panels(draws: Sequence[PlotFunction]) -> Figure:
    """Return a figure of several plots in two columns, row by row, each with its letter and 5 by 3.5 inches."""
    rows = -(-len(draws) // 2)
    fig = Figure(figsize=(10.0, 3.5 * rows), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
    for i, draw in enumerate(draws):
        ax = fig.add_subplot(rows, 2, i + 1)
        draw(ax)
        height = ax.transAxes + ax.titleOffsetTrans  # type: ignore[attr-defined]  # missing in Matplotlib's stubs
        ax.annotate(
            f"({string.ascii_lowercase[i]})", (0.0, 1.0), xycoords=height, xytext=(-7, 0),
            textcoords="offset points", ha="right", fontsize=TEXT + 1, fontweight="bold", color=COLORS["ink"],
        )  # fmt: skip
    return fig


def save_figure(fig: Figure, path: StrPath) -> tuple[Path, Path]:
    """Write a figure as PNG and as SVG, and return the two files; the same figure gives the same bytes.

    ``path`` has no suffix. Its folder is created. Text in the SVG is text that can be searched and edited.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # The suffix is appended, because the name itself may contain a dot.
    png, svg = (Path(f"{path}.{suffix}") for suffix in ("png", "svg"))
    for target, metadata in ((png, {"Software": None}), (svg, {"Date": None, "Creator": None})):
        buffer = io.BytesIO()
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "elmesh"}):
            fig.savefig(buffer, format=target.suffix[1:], dpi=150, facecolor=COLORS["surface"], metadata=metadata)
        atomic_write(target, buffer.getvalue())
    return png, svg


def to_svg(fig: Figure, *, prefix: str, title: str, description: str) -> str:
    """Return a figure as an ``<svg>`` element for a page; the same figure gives the same text.

    The element has no size of its own. Colors are CSS variables named after the keys of
    :data:`~elmesh.report.style.COLORS`, so that one figure serves light and dark pages. Text is outlines, which do not
    depend on fonts. ``prefix`` precedes every id, so that the figures of a page share none; ``title`` and
    ``description`` are for screen readers.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": prefix}):
        fig.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    # The style element would apply to the whole page; the page has a style sheet with the same rules.
    text = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{prefix}-", text)
    for name, color in COLORS.items():
        text = text.replace(color, f"var(--{name}, {color})")
    head, body = text.split(">", 1)
    head = re.sub(r'\s(?:width|height|version)="[^"]*"', "", head)
    return (
        f'{head} role="img" aria-labelledby="{prefix}-title {prefix}-description">'
        f'<title id="{prefix}-title">{escape(title)}</title>'
        f'<desc id="{prefix}-description">{escape(description)}</desc>{body}'
    )
