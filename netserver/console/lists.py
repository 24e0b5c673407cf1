"""One page of a long list, found without sorting all of it: a slice at a time, the rows before and behind a place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from netserver.admin.slices import sliced
from netserver.console.limits import CONSOLE_SCAN

if TYPE_CHECKING:
    from engine.slices import Slices


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a list that is in order.

    Attributes:
        first: number of the first one in the whole list, from 1 on.
        total: of the whole list.
        before, after: where the part before and the one behind are asked for; None: there is none.
    """

    keys: list[bytes]
    first: int
    total: int
    before: bytes | None
    after: bytes | None


async def part_of(slices: Slices, keys: Iterable[bytes], rows: int, after: bytes | None, before: bytes | None) -> Part:
    """The first `rows` keys behind `after`, or the last ones before `before`, or the first of all.

    Args:
        keys: in any order, each once.
    """
    found: list[bytes] = []
    total = earlier = 0
    source = iter(keys)
    async for piece in sliced(slices, iter(lambda: list(islice(source, CONSOLE_SCAN)), [])):
        total += len(piece)
        if before is not None:
            wanted = [key for key in piece if key < before]
            found = sorted(found + wanted)[-rows:]
            earlier += len(wanted)
        else:
            wanted = [key for key in piece if after is None or key > after]
            found = sorted(found + wanted)[:rows]
            earlier += len(piece) - len(wanted)
    if before is not None:
        earlier -= len(found)
    has_more = earlier + len(found) < total
    return Part(
        found,
        earlier + 1,
        total,
        found[0] if found and earlier else None,
        found[-1] if found and has_more else None,
    )
