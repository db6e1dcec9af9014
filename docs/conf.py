"""Settings of the documentation: `make docs` writes it to `build/docs`.

The source folder is the repository, so that pages can link to reports of benchmarks and to the
files beside the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import draftlens

project = "draftlens"
author = "The draftlens authors"
copyright = author
version = draftlens.__version__
release = version

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "hub/README.md",
    "docs/**",
    "benchmarks/README.md",
    "benchmarks/near_sighted/README.md",
    "benchmarks/results/*.md",
    "draftlens/embedded/README.md",
    "lab/draftlens_lab/reader/README.md",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
]
exclude_patterns = ["docs/img/**"]
# Reports are linked from the pages that quote them, and their sections are written one by one.
suppress_warnings = ["toc.not_included", "myst.header"]

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

# Options and JSON are copied from pages: quotes stay as they are typed.
smartquotes = False

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"draftlens {version}"
html_static_path: list[str] = []
html_copy_source = False

_FIRST_PAGE = f"""<!doctype html>
<meta charset="utf-8">
<title>{html_title}</title>
<meta http-equiv="refresh" content="0; url={root_doc}.html">
<a href="{root_doc}.html">{html_title}</a>
"""


def write_first_page(app: Any, error: Exception | None) -> None:
    """Lead from `index.html` to the first page, which lies in `docs` as its source does."""
    if error is None:
        (Path(app.outdir) / "index.html").write_text(_FIRST_PAGE, encoding="utf-8")


def setup(app: Any) -> None:
    """Sphinx calls this when it starts."""
    app.connect("build-finished", write_first_page)
