"""Makes ``docs/limits.md`` from the ``limits.py`` modules: ``python -m tools.limits_page >docs/limits.md``."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("engine", "netserver", "tools")
UNIT_NAMES = {"KIB", "MIB", "GIB"}
INTRODUCTION = """# Limits

Every bound that does not depend on the configuration, made from the modules named in the headings (`make docs`). What
can be configured is in [configuration.md](configuration.md). A length that a peer or a file states is checked against
its limit before memory is taken for it.
"""


def limits_modules() -> list[Path]:
    """All modules of limits, the engine's first."""
    return sorted(
        (path for package in PACKAGES for path in (ROOT / package).rglob("limits.py")),
        key=lambda path: (PACKAGES.index(path.relative_to(ROOT).parts[0]), len(path.parts), path),
    )


def limits_of(path: Path) -> list[tuple[str, Any, str]]:
    """(name, value, reason) of each limit in a module.

    The reason is the text that stands after a limit, or after the last of several on consecutive lines; else empty.
    """
    tree = ast.parse(path.read_text())
    namespace: dict[str, Any] = {}
    exec(compile(tree, str(path), "exec"), namespace)  # our own modules, by their path
    found: list[tuple[str, Any, str]] = []
    reason, reaches = "", 0
    for node in reversed(tree.body):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            reason, reaches = " ".join(str(node.value.value).split()), node.lineno
            continue
        name = _assigned_name(node)
        if name is None or name.startswith("_") or name in UNIT_NAMES:
            continue
        if node.end_lineno != reaches - 1:
            reason = ""
        reaches = node.lineno
        found.append((name, namespace[name], reason))
    return found[::-1]


def _assigned_name(node: ast.stmt) -> str | None:
    target: ast.expr | None = None
    if isinstance(node, ast.AnnAssign):
        target = node.target
    elif isinstance(node, ast.Assign):
        target = node.targets[0]
    return target.id if isinstance(target, ast.Name) else None


def shown(name: str, value: object) -> str:
    """A value in the unit that its name ends with."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if "BYTES" in name.split("_") and isinstance(value, int):
        for unit, size in (("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value >= size and value % size == 0:
                return f"{value // size:,} {unit}"
        return f"{value:,} B"
    if name.endswith(("_MS", "_MS_MIN", "_MS_MAX")) and isinstance(value, int) and value % 86_400_000 == 0:
        return f"{value // 86_400_000:,} days"
    for ending, unit in (("_MS", "ms"), ("_S", "s"), ("_US", "us"), ("_NS", "ns")):
        if re.search(rf"{ending}(_MIN|_MAX)?$", name):
            return f"{value:,} {unit}"
    return f"{value:,}"


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for path in limits_modules():
        parts.append(f"\n## {path.relative_to(ROOT)}\n\n| limit | value | why |\n|---|---|---|\n")
        for name, value, reason in limits_of(path):
            escaped = reason.replace("|", "\\|")
            parts.append(f"| `{name}` | {shown(name, value)} | {escaped} |\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
