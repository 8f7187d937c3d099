"""The built documentation as a reader has it: links between its files, and pages in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from helpers.browser import Browser
from helpers.pages import Reader

#: What a browser made of a page, once its scripts have had time to run.
LOOK = """new Promise(done => setTimeout(() => {
  const wide = [...document.querySelectorAll("main *")].filter(part => {
    for (let box = part; box && box !== document.body; box = box.parentElement)
      if (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(box).overflowX)) return false;
    return part.getBoundingClientRect().right > innerWidth + 1;
  }).map(part => part.tagName + "." + part.className);
  const light = color => color.match(/[\\d.]+/g).slice(0, 3).reduce((sum, x) => sum + Number(x), 0) / 765;
  const style = getComputedStyle(document.body);
  done({
    width: innerWidth, scroll: document.documentElement.scrollWidth, wide: wide.slice(0, 5),
    ground: light(style.backgroundColor), ink: light(style.color),
    broken: [...document.images].filter(image => image.complete && !image.naturalWidth).map(image => image.src),
  });
}, 200))"""
THEME = 'localStorage.setItem("theme", "{0}"); localStorage.setItem("mode", "{0}")'


def html_pages(site: Path) -> list[Path]:
    """Return the pages of a site."""
    return sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)


def broken_links(site: Path) -> list[str]:
    """Return links and resources that lead to no file of the site, or to no element with that id."""
    readers = {path: Reader(path.read_text(encoding="utf-8")) for path in html_pages(site)}
    ids = {path: {tag[1]["id"] for tag in reader.tags if tag[1].get("id")} for path, reader in readers.items()}
    broken = []
    for path, reader in readers.items():
        for _, attributes in reader.tags:
            for link in filter(None, (attributes.get("href"), attributes.get("src"))):
                address = urlsplit(link)
                if address.scheme or address.netloc:
                    continue
                target = (path.parent / unquote(address.path)).resolve() if address.path else path
                missing = not target.exists() or (
                    bool(address.fragment) and target in ids and unquote(address.fragment) not in ids[target]
                )
                if missing:
                    broken.append(f"{path.relative_to(site)}: {link}")
    return broken


def outside_resources(site: Path) -> list[str]:
    """Return what pages would load from another host: scripts, styles, pictures, fonts."""
    found = []
    for path in html_pages(site):
        for tag, attributes in Reader(path.read_text(encoding="utf-8")).tags:
            address = attributes.get("src") or (attributes.get("href") if tag == "link" else None)
            if address and urlsplit(address).netloc and tag != "a":
                found.append(f"{path.relative_to(site)}: {address}")
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8", errors="replace")
        found += [
            f"{style.relative_to(site)}: {url}"
            for url in re.findall(r"(?:url\(|@import )[\"']?(https?:[^)\"']+)", text)
        ]
    return found


def console(browser: Browser) -> list[str]:
    """Return what a page wrote to the console but for the notes of the theme."""
    return [line for line in browser.console if not line.startswith("[PST]: ")]


def look_at(browser: Browser, page: Path, width: int, theme: str) -> tuple[dict, list[str]]:
    """Open a page in a window of a width, light or dark; return what the browser made of it, and its console."""
    browser.load(page.as_uri(), width, before=THEME.format(theme))
    seen = browser.value(LOOK)
    return seen, console(browser)
