"""Configuration of Sphinx: ``sphinx-build -W docs docs/_build``. Needs no network."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

import sklearn_acl  # noqa: E402

project = "sklearn_acl"
author = "the authors of sklearn_acl"
copyright = author
version = release = sklearn_acl.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "mathml",
    "project_files",
]
exclude_patterns = ["_build", "_ext"]
default_role = "literal"  # as the docstrings use single backticks
nitpicky = True
nitpick_ignore = [("py:class", "sklearn.utils.Bunch")]

myst_heading_anchors = 3  # links to sections of Markdown pages
autosummary_generate = False  # the tables link to entries on the same page
autodoc_preserve_defaults = True
autodoc_typehints = "none"  # the docstrings say more
autodoc_member_order = "bysource"
maximum_signature_line_length = 80
numpydoc_show_class_members = False
html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = f"sklearn_acl {release}"
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {
    name: [] for name in ("index", "install", "results", "citation", "changelog")
}
html_theme_options = {
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
}


def skip_member(app, what, name, obj, skip, options):
    """Leave out the methods by which scikit-learn routes metadata."""
    return True if name.endswith("_request") else None


def setup(app):
    """Connect to autodoc."""
    app.connect("autodoc-skip-member", skip_member)
