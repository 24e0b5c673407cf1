"""One defect, and how it is put into the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect: `new` instead of `old` in the function `at`; `tests` must fail."""

    name: str
    at: str
    """``file::Class.function``; only ``file``: what occurs once in the file."""
    old: str
    """As little as occurs once in the function. White space counts as one blank, however the code is laid out."""
    new: str
    """``pass`` takes a statement out."""
    tests: str
    """Arguments of pytest."""
    seeds: int = 0
    """Crashes of the power cut test, if that is to find it."""
    pure: bool = False
    """The tests run without the compiled modules."""

    @property
    def file(self) -> str:
        return self.at.partition("::")[0]

    @property
    def function(self) -> str:
        return self.at.partition("::")[2]

    def changed(self, text: str) -> str:
        """The text of the file with the defect in it.

        Raises ValueError: the function or the text is not there, or the text is there more than once; SyntaxError: the
        result is no Python, which any test would find.
        """
        first, end = self._place(text)
        pattern = re.compile(r"\s+".join(re.escape(word) for word in self.old.split()))
        found = list(pattern.finditer(text, first, end))
        if len(found) != 1:
            raise ValueError(f"{self.name!r}: {self.at} has {self.old!r} {len(found)} times, not once")
        begin, behind = found[0].span()
        line = text.rfind("\n", 0, begin) + 1
        indent = text[line : len(text) - len(text[line:].lstrip(" "))]
        result = text[:begin] + self.new.replace("\n", "\n" + indent) + text[behind:]
        ast.parse(result, self.name)
        return result

    def _place(self, text: str) -> tuple[int, int]:
        """Where the function begins and ends in the text, decorators included."""
        if not self.function:
            return 0, len(text)
        found = [node for name, node in _functions(ast.parse(text)) if name == self.function]
        if len(found) != 1:
            raise ValueError(f"{self.name!r}: {self.file} has {len(found)} functions {self.function}, not one")
        node = found[0]
        first = min(each.lineno for each in (node, *node.decorator_list))
        lines = text.splitlines(keepends=True)
        return sum(map(len, lines[: first - 1])), sum(map(len, lines[: node.end_lineno]))


def _functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All functions with their qualified names, those in functions included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{inside}.{node.name}" if inside else node.name
            if not isinstance(node, ast.ClassDef):
                yield name, node
            yield from _functions(node, name)
        else:
            yield from _functions(node, inside)


def problem(mutant: Mutant, root: Path) -> str | None:
    """What is wrong with a mutant: its code is not there, or its tests are not."""
    try:
        mutant.changed((root / mutant.file).read_text())
    except (OSError, ValueError, SyntaxError) as error:
        return str(error)
    paths = [word.partition("::")[0] for word in mutant.tests.split() if word.startswith("tests/")]
    missing = [path for path in paths if not (root / path).exists()]
    return f"{mutant.name!r}: there is no {', '.join(missing)}" if missing or not paths else None
