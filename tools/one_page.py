"""All pages as one Markdown file, to read without a browser: ``python -m tools.one_page >quintlog.md`` in a checkout.

The order is that of the index, docs/README.md. Links between pages lead to their titles in the file.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LEFT_OUT = ("commands.md", "python.md")  # made from the code, and only where the site is made
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(#[^)\s]*)?\)")
BLOCK = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def one_page(root: Path) -> str:
    """The text of all pages below a checkout."""
    index = (root / "docs" / "README.md").read_text()
    named = [name for name in re.findall(r"^\| \[.*?\]\(([\w-]+\.md)\)", index, re.M) if name not in LEFT_OUT]
    pages = [root / "README.md", *(root / "docs" / name for name in named), root / "CHANGELOG.md"]
    texts = {page.resolve(): page.read_text() for page in pages}
    titles = {page: _anchor(text.partition("\n")[0].removeprefix("# ")) for page, text in texts.items()}
    return "\n".join(["# Quintlog, all pages\n", *(_part(page, text, titles) for page, text in texts.items())])


def _part(page: Path, text: str, titles: dict[Path, str]) -> str:
    def inside(link: re.Match[str]) -> str:
        path, place = link[1], link[2]
        title = titles.get((page.parent / path).resolve()) if path else None
        return f"]({place or '#' + title})" if title is not None else link[0]

    pieces = BLOCK.split(LINK.sub(inside, text))  # every second one is a block, where # begins a comment
    pieces[::2] = [re.sub(r"^#", "##", piece, flags=re.M) for piece in pieces[::2]]  # the file has one title
    return "".join(pieces)


def _anchor(title: str) -> str:
    """As GitHub, pandoc and MyST make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


if __name__ == "__main__":
    sys.stdout.write(one_page(Path.cwd()))
