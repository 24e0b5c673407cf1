"""Positions (`engine.positions`) as the type of an option."""

from __future__ import annotations

from typing import Any

import click

from engine.positions import Position, parse


class PositionType(click.ParamType[Position]):
    """`Position` as the type of an option."""

    name = "position"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        """Called by click. Fails with its usage error."""
        if isinstance(value, Position):
            return value
        try:
            return parse(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


POSITION = PositionType()
