"""The site is the tree's own Markdown, so nothing is written twice: `make docs` builds it in build/site.

The pages can be read as they are, too. So what only the site needs is added here while Sphinx reads them: its
navigation comes from the tables of docs/README.md.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from netserver.version import product_version

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "docs" / "README.md"

project = "Quintlog"
version = release = product_version()
root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.md"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click", "sphinx_copybutton"]
exclude_patterns = [".*", "build", "data", "dist"]
default_role = "literal"  # `name` in docstrings
napoleon_use_ivar = True
myst_heading_anchors = 4  # as on the pages themselves: links to `#a-heading` work
autodoc_member_order = "bysource"
autodoc_typehints = "description"
# Console blocks show prompts and answers: a copy takes the commands.
copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = f"Quintlog {release}"
html_copy_source = False
html_show_sourcelink = False
html_permalinks_icon = "#"


def navigation(index: str) -> str:
    """Tables of the index as tables of contents: the head of each is the title of a part."""
    parts = []
    for title, rows in re.findall(r"^\| ([^|]+) \| \|\n\|---\|---\|\n((?:\|.*\n)+)", index, re.M):
        pages = [f"docs/{page}" for page in re.findall(r"^\| \[.*?\]\((.*?)\.md\)", rows, re.M)]
        parts.append("\n".join(["```{toctree}", ":hidden:", f":caption: {title.capitalize()}", *pages, "```"]))
    rest = "```{toctree}\n:hidden:\n:caption: The project\ndocs/README\nCONTRIBUTING\nCHANGELOG\n```"
    return "\n\n".join(["", *parts, rest, ""])


def add_navigation(_app: Any, name: str, source: list[str]) -> None:
    """Sphinx's source-read: adds the navigation to the first page."""
    if name == root_doc:
        source[0] += navigation(INDEX.read_text())


def load_lazy_exports() -> None:
    """Autodoc lists what a module has; our clients' packages load what they export at its first use."""
    for protocol in ("figg", "tank", "blipmq", "fujin", "reliably"):
        package = import_module(f"netserver.{protocol}")
        vars(package).update({name: getattr(package, name) for name in package.__all__})


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry point for what a configuration adds."""
    load_lazy_exports()
    app.connect("source-read", add_navigation)
    return {"parallel_read_safe": True}
