"""The manual as a site: ``make site`` builds it into build/site, offline; a dead link fails."""

from __future__ import annotations

import re
from typing import Any

import edgeinfer

_LINK_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)([^)]+)\)")
"""A link out of this folder: the site has no such file."""

project = "edgeinfer"
author = "the edgeinfer authors"
version = release = edgeinfer.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]

html_theme = "furo"
html_title = f"edgeinfer {version}"
html_show_sphinx = False
html_extra_path = ["llms.txt"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def _on_the_site(app: Any, name: str, source: list[str]) -> None:
    """Lead links to files of the checkout to their page, or to their text where they have none."""
    text = source[0]
    for path, page in {"SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}.items():
        text = text.replace(f"](../{path}", f"]({page}").replace(f"]({path}", f"]({page}")
    text = text.replace("](docs/", "](")
    source[0] = _LINK_OUTSIDE.sub(r"\1 (`\2`)", text)


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("source-read", _on_the_site)
    app.connect("include-read", lambda app, path, document, source: _on_the_site(app, "", source))
