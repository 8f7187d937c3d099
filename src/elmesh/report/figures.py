"""Drawings of tasks and methods from plain data.

Each ``draw_…`` function draws one idea into given axes, so that it can stand alone
(:func:`~elmesh.report.sheet.figure`) or beside others. Curves are in :mod:`~elmesh.report.curves`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from elmesh.report.style import COLOURS, TEXT, beside, label, plain

__all__ = ["draw_agents", "draw_bars", "draw_errors", "signed"]


def draw_agents(ax: Axes, graph: Any, change: Mapping[str, float] | None = None) -> None:
    """Draw who sends to whom, each agent coloured by whether its error fell, rose or stayed.

    Agents stand on a circle, the first at the top, so that no name hides another; the hub of a star stands in
    the middle. Many names are turned to point outwards, very many are left out.

    Parameters
    ----------
    ax : Axes
    graph : networkx.Graph
        Nodes are the tasks' labels.
    change : mapping, optional
        Error together less error alone, a task; below zero is better.
    """
    change = change or {}
    turned = len(graph) > 12
    nodes, place = list(graph.nodes), _places(graph)
    points = np.array([place[node] for node in nodes])
    for a, b in graph.edges:
        (x0, y0), (x1, y1) = place[a], place[b]
        ax.plot([x0, x1], [y0, y1], color=COLOURS["muted"], linewidth=1.4, zorder=1)
    fill = [_verdict_colour(change.get(node, 0.0)) for node in nodes]
    area = float(np.clip(3200 / len(nodes), 30, 320))
    ax.scatter(points[:, 0], points[:, 1], s=area, c=fill, edgecolors=COLOURS["surface"], linewidths=2, zorder=2)
    for node, (x, y) in zip(nodes if len(nodes) <= 60 else [], points, strict=False):
        out = np.array([x, y]) if x or y else np.array([0.0, -1.0])
        _name_node(ax, str(node), (x, y), out, np.sqrt(area) / 2 + 5, turned=turned)
    ax.set_aspect("equal")
    ax.set_axis_off()
    # Room for the names outside the circle.
    room = 0.75 if turned else 0.25
    ax.set(xlim=(-1.15 - room, 1.15 + room), ylim=(-1 - room, 1 + room))
    if change:
        signs = [_sign(c) for c in change.values()]
        for x, sign, word in ((0.1, -1, "better"), (0.5, 0, "the same"), (0.9, 1, "worse")):
            ax.annotate(
                f"{signs.count(sign)} {word}", (x, 0.0), xycoords="axes fraction", xytext=(0, -12),
                textcoords="offset points", ha="center", va="top", fontsize=TEXT, color=_verdict_colour(sign),
            )  # fmt: skip


def draw_errors(ax: Axes, alone: Mapping[str, float], together: Mapping[str, float]) -> None:
    """Draw each task's error alone and together, joined; largest gain first, the mean at the foot.

    Parameters
    ----------
    ax : Axes
    alone, together : mapping
        Test error in per cent, a task; the same tasks in both.
    """
    order = sorted(alone, key=lambda task: (together[task] - alone[task], -alone[task], str(task)))
    rows = [(str(task), alone[task], together[task]) for task in order]
    rows.append(("mean", float(np.mean(list(alone.values()))), float(np.mean(list(together.values())))))
    for y, (_, a, b) in enumerate(rows):
        colour = _verdict_colour(b - a)
        same = _sign(b - a) == 0
        ax.plot([a, b], [y, y], color=colour, linewidth=3, solid_capstyle="butt", zorder=2)
        ring, dot = ((58, COLOURS["surface"], COLOURS["muted"]), (12 if same else 58, colour, colour))
        for x, (area, fill, edge) in ((a, ring), (b, dot)):
            # Not clipped: an error of nought lies on the edge.
            ax.scatter([x], [y], s=area, c=fill, edgecolors=edge, linewidths=1.8, zorder=3, clip_on=False)
        beside(ax, signed(b - a), y, colour)

    _, a, b = rows[0]
    left, right = ("together", "alone") if b <= a else ("alone", "together")
    label(ax, left, (min(a, b), 0), (6, 14), "right", "center")
    label(ax, right, (max(a, b), 0), (-6, 14), "left", "center")
    beside(ax, "change", -0.75, COLOURS["muted"])
    ax.axhline(len(rows) - 1.5, color=COLOURS["muted"], linewidth=0.8)
    plain(ax, grid="x")
    ax.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    ax.set_ylim(len(rows) - 0.4, -1.3)
    ax.set_xlim(0.0, 1.1 * max(1.0, *(max(a, b) for _, a, b in rows)))
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.tick_params(axis="y", length=0, pad=9)
    ax.set_xlabel("test error, %", fontsize=TEXT, color=COLOURS["ink"])


def draw_bars(ax: Axes, bars: Sequence[tuple[str, float, str, str]]) -> None:
    """Draw one bar a row; what it stands for is written at its end, so there is no scale.

    Parameters
    ----------
    ax : Axes
    bars : sequence of (str, float, str, str)
        Name, length, what is written at the end of the bar, and colour (a key of `COLOURS`).
    """
    for y, (_, length, text, colour) in enumerate(bars):
        ax.barh(y, length, height=0.62, color=COLOURS[colour], zorder=2)
        label(ax, text, (length, y), (5, 0), "left", "center")
    plain(ax, grid="x")
    ax.spines["bottom"].set_visible(False)
    ax.set_xticks([])
    ax.set_yticks(range(len(bars)), [name for name, *_ in bars])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(bars) - 0.5, -0.5)
    # Four fifths more than the longest bar: the words at its end are inside the axes.
    ax.set_xlim(0.0, 1.8 * max(1e-9, *(length for _, length, *_ in bars)))


def signed(change: float) -> str:
    """Write a change in percentage points with its sign, one place after the point.

    Examples
    --------
    >>> signed(-2.22), signed(0.0), signed(0.5)
    ('−2.2', '0', '+0.5')
    """
    if abs(change) < 0.05:
        return "0"
    return f"{change:+.1f}".replace("-", "\N{MINUS SIGN}")


def _sign(change: float) -> int:
    return int(np.sign(round(change, 9)))


def _verdict_colour(change: float) -> str:
    return COLOURS[("muted", "magenta", "blue")[_sign(change)]]


def _places(graph: Any) -> dict[Any, tuple[float, float]]:
    """Put agents on a circle, clockwise from the top; the hub of a star in the middle."""
    hubs = [node for node, degree in graph.degree if degree == graph.number_of_edges() > 2]
    rim = [node for node in graph.nodes if node not in hubs]
    angles = np.pi / 2 - 2 * np.pi * np.arange(len(rim)) / max(1, len(rim))
    rounded = np.round(np.column_stack([np.cos(angles), np.sin(angles)]), 12).tolist()
    return {node: (x, y) for node, (x, y) in zip(rim, rounded, strict=True)} | dict.fromkeys(hubs, (0.0, 0.0))


def _name_node(
    ax: Axes, name: str, at: tuple[float, float], out: NDArray[np.float64], away: float, *, turned: bool
) -> None:
    side = "center" if abs(out[0]) < 0.2 and not turned else ("left" if out[0] >= 0 else "right")
    text = label(ax, name, at, out * away, side, "center")
    if turned:
        angle = float(np.degrees(np.arctan2(out[1], out[0])))
        text.set(rotation=angle if out[0] >= 0 else angle + 180, rotation_mode="anchor", fontsize=TEXT - 2)
