"""The two applications that run on sessions, and how their states and messages are stored.

===============  ==================================  =============================================================
application      state                               messages
===============  ==================================  =============================================================
numbers          [0, count left, value, checksum]    4 bytes each, big-endian; 4 more: the checksum after the last
records          [1, topic id, offset, count left]   runs of offsets: [first, how many, first, how many ...]
===============  ==================================  =============================================================

The records of a topic are in the log already: a session keeps which record each id stands for, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, overload

from netserver.reliably.values import Numbers, NumbersState

NUMBERS: Final = 0
RECORDS: Final = 1


@dataclass(frozen=True, slots=True)
class RecordsState:
    """Where the stream of a topic's records is.

    Attributes:
        topic_id: the topic; one that is made again under its name is another.
        offset: of the last record that became a message; at first, the one after which to begin.
        left: how many messages are left, or None: there is no end.
    """

    topic_id: int
    offset: int
    left: int | None


State: TypeAlias = NumbersState | RecordsState
Message: TypeAlias = dict[str, int] | int
"""A number's data, or the offset of a record."""


class Offsets(Sequence[int]):
    """Rising offsets as runs (first, how many)."""

    __slots__ = ("_count", "runs")

    def __init__(self, runs: Sequence[tuple[int, int]]) -> None:
        self.runs = runs
        self._count = sum(count for _, count in runs)

    @classmethod
    def of(cls, offsets: Iterable[int]) -> Offsets:
        """The runs of single offsets."""
        runs: list[tuple[int, int]] = []
        for offset in offsets:
            if runs and runs[-1][0] + runs[-1][1] == offset:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((offset, 1))
        return cls(runs)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for first, count in self.runs:
            yield from range(first, first + count)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Offsets: ...

    def __getitem__(self, index: int | slice) -> int | Offsets:
        if isinstance(index, int):
            return self[range(self._count)[index] :].runs[0][0]
        start, stop, step = index.indices(self._count)
        if step != 1:
            raise ValueError("offsets are cut in one piece only")
        runs = []
        for first, count in self.runs:
            low, high = max(start, 0), min(stop, count)
            if low < high:
                runs.append((first + low, high - low))
            start -= count
            stop -= count
        return Offsets(runs)


class ApplicationCodec:
    """The ``SessionCodec`` of both applications."""

    def pack_state(self, state: State) -> Any:
        if isinstance(state, NumbersState):
            return [NUMBERS, state.count, state.value, state.crc]
        return [RECORDS, state.topic_id, state.offset, state.left]

    def unpack_state(self, stored: Any) -> State:
        kind, *fields = stored
        return NumbersState(*fields) if kind == NUMBERS else RecordsState(*fields)

    def pack_messages(self, messages: Sequence[Message]) -> Any:
        if isinstance(messages, Numbers):
            return messages.values if messages.crc is None else messages.values + messages.crc.to_bytes(4, "big")
        assert isinstance(messages, Offsets)
        return [number for run in messages.runs for number in run]

    def unpack_messages(self, stored: Any, count: int) -> Sequence[Message]:
        if isinstance(stored, bytes):
            size_bytes = 4 * count
            crc = int.from_bytes(stored[size_bytes:], "big") if len(stored) > size_bytes else None
            return Numbers(stored[:size_bytes], crc)
        return Offsets(list(zip(stored[::2], stored[1::2], strict=True)))
