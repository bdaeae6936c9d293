"""The manual as a site: ``make site`` builds it into build/site, offline; a broken link fails."""

from __future__ import annotations

import edgeinfer

project = "edgeinfer"
author = "the edgeinfer authors"
version = release = edgeinfer.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
suppress_warnings = ["myst.strikethrough"]

html_theme = "furo"
html_title = f"edgeinfer {version}"
html_copy_source = False
html_show_sphinx = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
