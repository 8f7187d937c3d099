"""Pages as a reader of HTML and a browser have them."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
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
PROBE = """addEventListener("load", () => {
  const boxes = {};
  for (const part of document.querySelectorAll("figure, figure svg, h1, table")) {
    const box = part.getBoundingClientRect();
    boxes[part.closest("figure")?.id + " " + part.tagName.toLowerCase()] = [box.width, box.height, box.right];
  }
  document.body.dataset.boxes = JSON.stringify([innerWidth, document.documentElement.scrollWidth, boxes]);
});"""


def browse(path, tmp_path, width=1200, wait=None):
    """Open a page; return the document as the browser has it, and what it wrote to the console.

    ``wait`` lets so many milliseconds of the page's own time pass first, for scripts that need it.
    """
    flags = (
        "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
        "disable-component-update disable-sync enable-logging=stderr v=0 dump-dom"
    )
    done = subprocess.run(
        [
            BROWSER,
            *(f"--{flag}" for flag in flags.split()),
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},900",
            *([] if wait is None else [f"--virtual-time-budget={wait}"]),
            path if isinstance(path, str) else path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def measure(page, tmp_path, width):
    """Open a page; return the width of the window and of what can be scrolled to, and the boxes of its parts.

    The page keeps its policy, which allows the script that measures by its digest, and writes nothing to the console.
    """
    path = tmp_path / "report.html"
    digest = base64.b64encode(hashlib.sha256(PROBE.encode()).digest()).decode()
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="[^"]*', page).group()
    assert page.count(policy) == 1
    allowed = page.replace(policy, f"{policy}; script-src 'sha256-{digest}'")
    path.write_text(allowed.replace("</body>", f"<script>{PROBE}</script></body>"), encoding="utf-8")
    document, console = browse(path, tmp_path, width)
    assert console == []
    return json.loads(html.unescape(re.search(r'data-boxes="([^"]*)"', document).group(1)))
