"""Plots of sites and methods: the communication graph, test errors per site, and bars per method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from elmesh.report.figures import COLORS, TEXT, clean_axes, label_margin, label_point

__all__ = ["draw_bars", "draw_errors", "draw_graph", "format_change", "sign_of_change"]

# With more sites than these, names point outwards, or are left out.
MAX_HORIZONTAL_NAMES, MAX_NAMES = 12, 60


def draw_graph(ax: Axes, graph: Any, change: Mapping[str, float]) -> None:
    """Draw a networkx graph of sites, colored by the change of their error (below zero is better).

    Sites stand on a circle, clockwise from the top, and the hub of a star in the middle, so that no name hides another.
    """
    nodes, positions = list(graph.nodes), _positions(graph)
    for a, b in graph.edges:
        (x0, y0), (x1, y1) = positions[a], positions[b]
        ax.plot([x0, x1], [y0, y1], color=COLORS["muted"], linewidth=1.4, zorder=1)
    points = np.array([positions[node] for node in nodes])
    fill = [_change_color(change[node]) for node in nodes]
    area = float(np.clip(3200 / len(nodes), 30, 320))
    ax.scatter(points[:, 0], points[:, 1], s=area, c=fill, edgecolors=COLORS["surface"], linewidths=2, zorder=2)
    rotated = len(nodes) > MAX_HORIZONTAL_NAMES
    for node in nodes if len(nodes) <= MAX_NAMES else []:
        _label_node(ax, str(node), positions[node], np.sqrt(area) / 2 + 5, rotated)
    ax.set_aspect("equal")
    ax.set_axis_off()
    margin = 0.75 if rotated else 0.25  # for the names outside the circle
    ax.set(xlim=(-1.15 - margin, 1.15 + margin), ylim=(-1 - margin, 1 + margin))
    signs = [sign_of_change(c) for c in change.values()]
    for x, sign, word in ((0.1, -1, "better"), (0.5, 0, "the same"), (0.9, 1, "worse")):
        ax.annotate(
            f"{signs.count(sign)} {word}", (x, 0.0), xycoords="axes fraction", xytext=(0, -12),
            textcoords="offset points", ha="center", va="top", fontsize=TEXT, color=_change_color(sign),
        )  # fmt: skip


def draw_errors(ax: Axes, alone: Mapping[str, float], together: Mapping[str, float]) -> None:
    """Draw the test error of each site in per cent, alone and together; largest gain first, the mean last."""
    order = sorted(alone, key=lambda task: (together[task] - alone[task], -alone[task], str(task)))
    rows = [(str(task), alone[task], together[task]) for task in order]
    rows.append(("mean", float(np.mean(list(alone.values()))), float(np.mean(list(together.values())))))
    for y, (_, a, b) in enumerate(rows):
        color = _change_color(b - a)
        ax.plot([a, b], [y, y], color=color, linewidth=3, solid_capstyle="butt", zorder=2)
        dot_area = 58 if sign_of_change(b - a) else 12
        for x, area, fill, edge in ((a, 58, COLORS["surface"], COLORS["muted"]), (b, dot_area, color, color)):
            # Not clipped, because an error of zero is on the edge of the axes.
            ax.scatter([x], [y], s=area, c=fill, edgecolors=edge, linewidths=1.8, zorder=3, clip_on=False)
        label_margin(ax, format_change(b - a), y, color)

    _, a, b = rows[0]
    left, right = ("together", "alone") if b <= a else ("alone", "together")
    label_point(ax, left, (min(a, b), 0), (6, 14), "right", "center")
    label_point(ax, right, (max(a, b), 0), (-6, 14), "left", "center")
    label_margin(ax, "change", -0.75, COLORS["muted"])
    ax.axhline(len(rows) - 1.5, color=COLORS["muted"], linewidth=0.8)
    clean_axes(ax, grid="x")
    ax.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    ax.set_ylim(len(rows) - 0.4, -1.3)
    ax.set_xlim(0.0, 1.1 * max(1.0, *(max(a, b) for _, a, b in rows)))
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.tick_params(axis="y", length=0, pad=9)
    ax.set_xlabel("test error, %", fontsize=TEXT, color=COLORS["ink"])


def draw_bars(ax: Axes, bars: Sequence[tuple[str, float, str, str]]) -> None:
    """Draw one bar per row from its name, length, text at its end, and color (a key of `COLORS`), without a scale."""
    for y, (_, length, text, color) in enumerate(bars):
        ax.barh(y, length, height=0.62, color=COLORS[color], zorder=2)
        label_point(ax, text, (length, y), (5, 0), "left", "center")
    clean_axes(ax, grid="x")
    ax.spines["bottom"].set_visible(False)
    ax.set_xticks([])
    ax.set_yticks(range(len(bars)), [name for name, *_ in bars])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(bars) - 0.5, -0.5)
    # Room for the text at the end of the longest bar.
    ax.set_xlim(0.0, 1.8 * max(1e-9, *(length for _, length, *_ in bars)))


def format_change(change: float) -> str:
    """Format a change in percentage points with its sign and one decimal.

    >>> format_change(-2.22), format_change(0.0), format_change(0.5)
    ('−2.2', '0', '+0.5')
    """
    if abs(change) < 0.05:
        return "0"
    return f"{change:+.1f}".replace("-", "\N{MINUS SIGN}")


def sign_of_change(change: float) -> int:
    """Return -1, 0 or 1; rounding errors count as no change."""
    return int(np.sign(round(change, 9)))


def _change_color(change: float) -> str:
    return COLORS[("muted", "magenta", "blue")[sign_of_change(change)]]


def _positions(graph: Any) -> dict[Any, tuple[float, float]]:
    """Return positions on a circle, clockwise from the top; the hub of a star is in the middle."""
    hubs = [node for node, degree in graph.degree if degree == graph.number_of_edges() > 2]
    rim = [node for node in graph.nodes if node not in hubs]
    angles = np.pi / 2 - 2 * np.pi * np.arange(len(rim)) / max(1, len(rim))
    rounded = np.round(np.column_stack([np.cos(angles), np.sin(angles)]), 12).tolist()
    return {node: (x, y) for node, (x, y) in zip(rim, rounded, strict=True)} | dict.fromkeys(hubs, (0.0, 0.0))


def _label_node(ax: Axes, name: str, at: tuple[float, float], distance: float, rotated: bool) -> None:
    out = np.array(at if any(at) else (0.0, -1.0))
    side = "center" if abs(out[0]) < 0.2 and not rotated else ("left" if out[0] >= 0 else "right")
    text = label_point(ax, name, at, out * distance, side, "center")
    if rotated:
        angle = float(np.degrees(np.arctan2(out[1], out[0])))
        text.set(rotation=angle if out[0] >= 0 else angle + 180, rotation_mode="anchor", fontsize=TEXT - 2)
