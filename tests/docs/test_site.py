"""The documentation as a site: all links lead somewhere, nothing is loaded from elsewhere, and it fits every screen.

Building it takes minutes: the slow tests do so, or take the site that ELMESH_SITE names (`make docs-site-check`).
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import sys
from pathlib import Path

import pytest

import elmesh
import reference
from helpers.browser import Browser
from helpers.code_blocks import run
from helpers.pages import needs_browser
from helpers.site import broken_links, console, html_pages, look_at, outside_resources

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = "reference/api/generated/elmesh.MultiTaskELMClassifier"
#: Pages that people have written, and examples.
WRITTEN = sorted(
    [str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md") if "paper-joss" not in path.parts]
    + [f"gallery/{path.stem}" for path in (ROOT / "examples" / "gallery").glob("plot_*.py")]
)
SCREENS = [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")]


def build(folder: Path) -> Path:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q"]
    run([*command, "-d", str(folder / "doctrees"), str(DOCS), str(folder / "html")], folder)
    return folder / "html"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site."""
    given = os.environ.get("ELMESH_SITE")
    return ROOT / given if given else build(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def check_screen(browser, page, width, theme):
    seen, messages = look_at(browser, page, width, theme)
    assert messages == []
    assert seen["width"] == width
    assert seen["scroll"] <= width
    assert seen["wide"] == []
    assert seen["broken"] == []
    dark = theme == "dark"
    assert (seen["ground"] < 0.3) == dark
    assert (seen["ink"] > 0.6) == dark


def test_the_checks_find_a_broken_link_a_missing_heading_and_a_foreign_script(tmp_path):
    (tmp_path / "a.html").write_text('<h1 id="top">A</h1><a href="b.html"></a><a href="#top"></a><a href="#no"></a>')
    (tmp_path / "b.html").write_text('<a href="a.html#top"></a><a href="a.html#not"></a><img src="c.png">')
    (tmp_path / "c.html").write_text(
        '<script src="https://example.org/x.js"></script><a href="https://example.org"></a>'
    )
    assert broken_links(tmp_path) == ["a.html: #no", "b.html: a.html#not", "b.html: c.png"]
    assert outside_resources(tmp_path) == ["c.html: https://example.org/x.js"]


@needs_browser
@pytest.mark.thorough
def test_the_checks_find_a_page_that_is_too_wide_and_an_error_in_the_console(browser, tmp_path):
    page = tmp_path / "a.html"
    page.write_text(
        '<html><head></head><body><main><p style="width: 700px">A</p></main><script>x()</script></body></html>'
    )
    seen, messages = look_at(browser, page, 390, "light")
    assert (seen["width"], seen["scroll"] > 700, seen["wide"]) == (390, True, ["P."])
    assert any("x is not defined" in line for line in messages)


@pytest.mark.slow
def test_formulas_are_mathml(site):
    text = (site / "understand" / "evidence.html").read_text(encoding="utf-8")
    assert "<mfrac>" in text
    assert "$" not in re.sub(r"<script.*?</script>|<pre.*?</pre>", "", text, flags=re.DOTALL)


@pytest.mark.slow
def test_links_show_titles_and_not_names_of_files(site):
    text = (site / "understand" / "evidence.html").read_text(encoding="utf-8")
    assert '<a class="reference internal" href="../model.html">' in text
    assert "model.md" not in text


@needs_browser
@pytest.mark.slow
def test_the_search_works_without_a_server(browser, site):
    browser.load((site / "search.html").as_uri() + "?q=colluders", 1280)
    browser.until_value("document.body.innerHTML.includes('security.html')", True)
    assert console(browser) == []


def test_the_reference_has_every_public_module():
    public = {"elmesh"}
    for module in pkgutil.iter_modules(elmesh.__path__, "elmesh."):
        if module.ispkg and hasattr(importlib.import_module(module.name), "__all__"):
            public.add(module.name)
    public.remove("elmesh.cli")  # the command, which --help describes
    assert public <= reference.MODULES.keys()


def test_the_reference_lists_every_public_name(tmp_path):
    reference.write_pages(tmp_path)
    for module in reference.MODULES:
        text = (tmp_path / f"{module}.rst").read_text(encoding="utf-8")
        names = importlib.import_module(module).__all__
        listed = {line.strip() for line in text.splitlines() if line.startswith("   ")}
        elsewhere = {name.rsplit(".", 1)[1] for name in re.findall(r":py:obj:`([^`]+)`", text)}
        assert set(names) <= listed | elsewhere


@pytest.mark.slow
def test_every_public_name_has_a_page(site):
    for names in reference.public_pages().values():
        for _, full in names:
            assert (site / "reference" / "api" / "generated" / f"{full}.html").is_file(), full


@pytest.mark.slow
def test_every_example_has_a_page_with_a_picture(site):
    for example in (ROOT / "examples" / "gallery").glob("plot_*.py"):
        text = (site / "gallery" / f"{example.stem}.html").read_text(encoding="utf-8")
        assert f"sphx_glr_{example.stem}_001.png" in text


@pytest.mark.slow
def test_all_links_of_the_site_lead_somewhere_and_nothing_is_loaded_from_elsewhere(site):
    assert len(html_pages(site)) > 25
    assert broken_links(site) == []
    assert outside_resources(site) == []


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), SCREENS)
@pytest.mark.parametrize("page", ["index", "arena", "understand/paper", "gallery/plot_own_solver", REFERENCE])
def test_a_page_of_the_site_fits_every_screen(browser, site, page, width, theme):
    check_screen(browser, site / f"{page}.html", width, theme)


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("page", WRITTEN)
def test_every_page_fits_a_phone_in_the_dark_and_a_desktop(browser, site, page):
    for width, theme in ((390, "dark"), (1280, "light")):
        check_screen(browser, site / f"{page}.html", width, theme)
