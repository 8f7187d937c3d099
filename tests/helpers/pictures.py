"""Whether a picture can be read: no two texts overlap, and none is cut off."""

import itertools

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Affine2D


def outside_ticks(ax):
    """Labels of ticks beyond the limits: Matplotlib has them but does not draw them."""
    for axis, labels in ((ax.xaxis, ax.get_xticklabels()), (ax.yaxis, ax.get_yticklabels())):
        low, high = sorted(axis.get_view_interval())
        for place, label in zip(axis.get_majorticklocs(), labels, strict=True):
            if not low <= place <= high or not ax.axison:
                yield label
        yield from axis.get_minorticklabels()


def visible_texts(fig):
    FigureCanvasAgg(fig)
    fig.draw_without_rendering()
    texts = [t for t in fig.findobj(Text) if t.get_visible() and t.get_text().strip()]
    ticks = {id(t) for ax in fig.findobj(lambda a: hasattr(a, "get_xticklabels")) for t in outside_ticks(ax)}
    return [t for t in texts if id(t) not in ticks]


def outline(text):
    """The rectangle that a text fills, turned as the text is; a pixel of padding at each side may touch."""
    angle = text.get_rotation()
    if text.get_rotation_mode() != "anchor":
        return Path(text.get_window_extent().padded(-1).corners()[[0, 1, 3, 2]], closed=False)
    text.set_rotation(0)
    corners = text.get_window_extent().padded(-1).corners()[[0, 1, 3, 2]]
    anchor = text.get_transform().transform(text.get_position())
    text.set_rotation(angle)
    return Path(Affine2D().rotate_deg_around(*anchor, angle).transform(corners), closed=False)


def assert_legible(fig):
    texts = visible_texts(fig)
    boxes = [outline(text) for text in texts]
    assert len(boxes) > 3
    extents, frame = [box.get_extents() for box in boxes], fig.bbox.padded(1)
    for text, extent in zip(texts, extents, strict=True):
        assert frame.contains(*extent.min), text
        assert frame.contains(*extent.max), text
    for i, j in itertools.combinations(range(len(boxes)), 2):
        # Of most pairs not even the upright rectangles around them overlap.
        if extents[i].overlaps(extents[j]):
            assert not boxes[i].intersects_path(boxes[j], filled=True), (texts[i], texts[j])
