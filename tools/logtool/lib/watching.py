"""`--watch`: a command that only looks, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from tools.logtool.cli import Settings


def watchable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the option; between two tables is an empty line."""

    @click.option("--watch", type=click.FloatRange(0.1), metavar="S", help="Again every S seconds, until interrupted.")
    @wraps(function)
    def wrapped(watch: float | None, **rest: Any) -> None:
        settings = click.get_current_context().find_object(Settings)
        assert settings is not None
        while True:
            function(**rest)
            settings.output.flush()
            if watch is None:
                return
            time.sleep(watch)
            if settings.output.form == "table":
                settings.output.write(b"\n")

    return wrapped
