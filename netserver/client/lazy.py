"""Lazy exports of a protocol's package: the server uses the package without its client."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def exported_from(package: str, *modules: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: the names of its ``__all__``, each of the first of its modules that has it."""

    def __getattr__(name: str) -> Any:
        if name in import_module(package).__all__:
            for module in modules:
                found = import_module(f"{package}.{module}")
                if hasattr(found, name):
                    return getattr(found, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__
