"""Sphinx settings of the site: `make docs` builds docs/_build/html, which needs no server and no network."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from elmesh.version import __version__ as release  # noqa: E402, F401

project = "elmesh"
author = "The elmesh authors"
copyright = author

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "mathml",
    "page_titles",
    "reference",
]
exclude_patterns = ["_build", "paper-joss", "**/sg_execution_times.rst", "sg_execution_times.rst"]
templates_path = ["_templates"]

# Pages in Markdown.
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 4
myst_all_links_external = False

# Reference.
autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "groupwise"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

# Gallery.
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "within_subsection_order": "gallery_style.ReaderOrder",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "plot_gallery": "True",
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "reset_modules": ("matplotlib", "gallery_style.apply_style"),
    "copyfile_regex": r"^$",
}
warnings.filterwarnings("ignore", module="sphinx_gallery")

# HTML. Nothing is loaded from another host.
html_theme = "pydata_sphinx_theme"
html_title = "elmesh"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_css_files = ["elmesh.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_search_summary = False  # a summary is fetched, which browsers refuse for files
html_theme_options = {
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "navbar_persistent": ["search-button"],
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": [],
    "footer_center": [],
    "footer_end": [],
    "show_prev_next": True,
    "navigation_depth": 2,
    "show_toc_level": 2,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "contribute/changelog": []}
