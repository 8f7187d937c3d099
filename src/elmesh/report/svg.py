"""A Matplotlib figure as an ``<svg>`` element that a page can hold.

Each colour of :data:`~elmesh.report.style.COLOURS` becomes a CSS variable of the same name, so that one
drawing serves a light and a dark page. Words are outlines: it looks the same whatever fonts a reader has.
"""

from __future__ import annotations

import io
import re
from html import escape

import matplotlib as mpl
from matplotlib.figure import Figure

from elmesh.report.style import COLOURS

__all__ = ["to_svg"]


def to_svg(fig: Figure, *, prefix: str, title: str, description: str) -> str:
    """Write a figure as an ``<svg>`` element for a page.

    Parameters
    ----------
    fig : Figure
    prefix : str
        Put before every id, so that figures of one page do not share any.
    title, description : str
        What a reader who cannot see it is told.

    Returns
    -------
    str
        One element without a size of its own (the page decides), with colours as CSS variables. The same
        figure gives the same text.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": prefix}):
        fig.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    # A page's own style sheet says what this one says, and it would hold for the whole page.
    text = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{prefix}-", text)
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{name}, {colour})")
    head, body = text.split(">", 1)
    head = re.sub(r'\s(?:width|height|version)="[^"]*"', "", head)
    names = f'role="img" aria-labelledby="{prefix}-title {prefix}-description"'
    told = (
        f'<title id="{prefix}-title">{escape(title)}</title>'
        f'<desc id="{prefix}-description">{escape(description)}</desc>'
    )
    return f"{head} {names}>{told}{body}"
