"""Calling of callbacks that belong to different people: one that raises costs no other its call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack


def call_each(callbacks: Sequence[Callable[[], object]]) -> None:
    """Calls all of them, in order. What one raises is raised when all were called."""
    with ExitStack() as stack:
        for callback in reversed(callbacks):
            stack.callback(callback)
