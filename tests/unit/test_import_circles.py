"""No circle of imports between packages, and none above two modules; what is imported for types only counts."""

from __future__ import annotations

import pytest

from tests.source_files import PACKAGES, ROOT, Source, imported, sources

pytestmark = pytest.mark.skipif(not (ROOT / "engine").is_dir(), reason="looks at a checkout, not at an installation")


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected modules: each can be reached from each other one (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for other in graph[module]:
            if other not in order:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], order[other])
        if low[module] == order[module]:
            at = stack.index(module)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for module in graph:
        if module not in order:
            visit(module)
    return [circle for circle in found if len(circle) > 1]


def import_graph(of: tuple[Source, ...]) -> dict[str, set[str]]:
    """Module of ours -> those that it imports, for types only as well."""
    modules = {source.module for source in of if source.package in PACKAGES}
    graph: dict[str, set[str]] = {}
    for source in of:
        if source.module in modules:
            names = {name if name in modules else name.rpartition(".")[0] for _, name in imported(source)}
            graph[source.module] = (names & modules) - {source.module}
    return graph


def test_circles_of_imports_are_small() -> None:
    """Two modules of one package may know each other, as a client and its subscription do."""
    large = [
        circle
        for circle in circles(import_graph(sources()))
        if len(circle) > 2 or len({module.rpartition(".")[0] for module in circle}) > 1
    ]
    assert not large


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
