"""Pages as a reader of HTML and a browser have them."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser

import pytest


class Reader(HTMLParser):
    """All tags with their attributes, and all text that is shown."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.hidden = [], [], 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.hidden += tag in ("style", "script")

    def handle_endtag(self, tag):
        self.hidden -= tag in ("style", "script")

    def handle_data(self, data):
        if not self.hidden:
            self.words.append(data)

    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words).replace("\N{NO-BREAK SPACE}", " "))


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on the path")
#: The width of the window and of what can be scrolled to, and width, height and right end of parts of the page.
BOXES = """(() => {
  const boxes = {};
  for (const part of document.querySelectorAll("figure, figure svg, h1, table")) {
    const box = part.getBoundingClientRect();
    boxes[part.closest("figure")?.id + " " + part.tagName.toLowerCase()] = [box.width, box.height, box.right];
  }
  return [innerWidth, document.documentElement.scrollWidth, boxes];
})()"""


def measure(browser, page, tmp_path, width):
    """Open a page in a browser; return the width of the window and of what can be scrolled to, and boxes of its parts.

    The page writes nothing to the console.
    """
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    browser.load(path.as_uri(), width)
    boxes = browser.value(BOXES)
    assert browser.console == []
    return boxes
