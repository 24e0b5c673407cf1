"""The files of a checkout with their syntax trees, for tests that read them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("engine", "netserver", "tools")
CODE = (*PACKAGES, "tests", "bench")
TEXT_SUFFIXES = {".py", ".pxd", ".md", ".toml", ".txt", ".sh", ""}


@dataclass(frozen=True, slots=True)
class Source:
    """One source file: its path below the root, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.path.split("/", 1)[0]

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def at(self, node: ast.AST, text: str) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}: {text}"


def parse(path: str, text: str) -> Source:
    return Source(path, text, ast.parse(text, path))


@cache
def sources() -> tuple[Source, ...]:
    paths = [
        *sorted(path for package in CODE for path in (ROOT / package).rglob("*.py")),
        ROOT / "setup.py",
        ROOT / "build_modules.py",
    ]
    gc.disable()  # all of it stays: to look for circles in it again and again would take four times as long as to parse
    try:
        return tuple(parse(str(path.relative_to(ROOT)), path.read_text()) for path in paths)
    finally:
        gc.freeze()
        gc.enable()


@cache
def text_files() -> tuple[Path, ...]:
    folders = [ROOT / name for name in (*CODE, "docs", ".ci") if (ROOT / name).is_dir()]
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    found += [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")]
    return tuple(
        path
        for path in sorted(found)
        if path.suffix in TEXT_SUFFIXES
        and "__pycache__" not in path.parts
        and path.relative_to(ROOT).parts[:2] != ("tests", "data")
    )


@cache
def walked(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes: each rule looks at them, and to find them takes longest."""
    return tuple(ast.walk(tree))


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in walked(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """Every absolute module name that a file imports, anywhere in it, with names of ``from`` imports appended."""
    for node in walked(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = source.module.split(".")
                parts = parts if source.path.endswith("__init__.py") else parts[:-1]
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            for alias in node.names:
                yield node, f"{base}.{alias.name}"
