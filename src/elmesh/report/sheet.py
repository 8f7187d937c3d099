"""A figure from drawings, one or several, and the figure as files.

A drawing is a function that is given axes. Nothing here touches pyplot or its global state.
"""

from __future__ import annotations

import io
import os
import secrets
import string
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from elmesh.report.style import COLOURS, TEXT

__all__ = ["figure", "panels", "save"]

Draw = Callable[[Axes], object]


def figure(draw: Draw, size: tuple[float, float] = (5.0, 3.9)) -> Figure:
    """Make a figure of one drawing.

    Parameters
    ----------
    draw : callable
        Draws into the axes it is given.
    size : pair of float
        Width and height in inches.

    Examples
    --------
    >>> len(figure(lambda ax: ax.plot([1, 2])).axes)
    1
    """
    fig = Figure(figsize=size, layout="constrained")
    draw(fig.add_subplot())
    return fig


def panels(draws: Sequence[Draw], *, columns: int = 2, size: tuple[float, float] | None = None) -> Figure:
    """Make a figure of several drawings, row by row, each with its letter.

    Parameters
    ----------
    draws : sequence of callable
        Each draws into the axes it is given; up to 26.
    columns : int, default=2
        Fewer where there are fewer drawings.
    size : pair of float, optional
        Width and height in inches; 5 by 3.5 for each panel unless told.

    Examples
    --------
    >>> fig = panels([lambda ax: ax.plot([1, 2])] * 3)
    >>> [text.get_text() for ax in fig.axes for text in ax.texts]
    ['(a)', '(b)', '(c)']
    """
    columns = max(1, min(columns, len(draws)))
    rows = -(-len(draws) // columns)
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    fig = Figure(figsize=size or (5.0 * columns, 3.5 * rows), layout=layout)
    for i, draw in enumerate(draws):
        ax = fig.add_subplot(rows, columns, i + 1)
        draw(ax)
        height = ax.transAxes + ax.titleOffsetTrans  # type: ignore[attr-defined]  # Matplotlib's stubs lack it
        ax.annotate(
            f"({string.ascii_lowercase[i]})", (0.0, 1.0), xycoords=height, xytext=(-7, 0),
            textcoords="offset points", ha="right", fontsize=TEXT + 1, fontweight="bold", color=COLOURS["ink"],
        )  # fmt: skip
    return fig


def save(fig: Figure, path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write a figure as PNG and as SVG; the same figure gives the same bytes.

    Each file appears whole or not at all. Words in the SVG are words, to be found and edited.

    Parameters
    ----------
    fig : Figure
    path : str or path
        Without suffix. Folders above it are made where needed.

    Returns
    -------
    png, svg : Path
    """
    written = []
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        buffer = io.BytesIO()
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "elmesh"}):
            fig.savefig(buffer, format=suffix, dpi=150, facecolor=COLOURS["surface"], metadata=metadata)
        # A name may have a dot of its own, so nothing is taken off.
        target = Path(f"{os.fspath(path)}.{suffix}")
        beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        try:
            beside.write_bytes(buffer.getvalue())
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
        written.append(target)
    return written[0], written[1]
