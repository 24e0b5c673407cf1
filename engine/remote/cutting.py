"""Which bytes of a log one commit adds, and how they are put together again.

A cut is taken between two rounds: of each partition all that is committed, and nothing else. It goes on where the tail
in the head ends, through every segment that was begun since. `put_together` is the reverse, for the segments that are
not stored whole: where their bytes are among the pieces, without a hole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from engine.errors import Corrupt
from engine.remote.catalog import Catalog, Done, PartitionKey, Tail
from engine.remote.limits import PIECE_SECTIONS_MAX
from engine.remote.names import Versioned
from engine.remote.piece import Section, Table


@dataclass(frozen=True, slots=True)
class Written:
    """A segment of a log as far as it is committed."""

    segment_id: int
    first: int
    """First number that it may hold."""
    last: int
    """Last one that is committed; first - 1: none."""
    end: int
    """Position after the last committed batch."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a segment's file in a piece: `begin`..`end` - 1 of the object."""

    piece: Versioned
    begin: int
    end: int


def cut(key: PartitionKey, tail: Tail | None, segments: Sequence[Written]) -> tuple[list[Section], Tail | None]:
    """What is to be added of a partition, and its tail afterwards.

    Args:
        tail: as the head has it; None: nothing of the partition is stored yet.
        segments: from that of the tail on, the oldest first.

    Raises:
        ValueError: they do not go on from the tail, so what is stored is not what the log has.
    """
    if tail is not None and (not segments or segments[0].segment_id != tail.segment):
        raise ValueError(f"partition {key} does not have the segment any more that its tail is in")
    sections: list[Section] = []
    begin, known = (tail.position, tail.committed) if tail is not None else (0, None)
    for segment in segments:
        known = segment.first - 1 if known is None else known
        if segment.end < begin or segment.last < known:
            raise ValueError(f"partition {key} has less than what is stored of it")
        if segment.end > begin:
            sections.append(Section(*key, segment.segment_id, begin, segment.end, known + 1, segment.last))
        tail = Tail(segment.segment_id, segment.first, segment.last, segment.end)
        begin, known = 0, None
    return sections, tail


def split(sections: Iterable[Section], size_max: int) -> list[list[Section]]:
    """Sections in groups of up to `size_max` bytes: one piece each, of the same head. A section may be split at any
    byte; its numbers go with the last part."""
    groups: list[list[Section]] = []
    room = 0
    for section in sections:
        begin = section.begin
        while begin < section.end:
            if not room or len(groups[-1]) == PIECE_SECTIONS_MAX:
                groups.append([])
                room = size_max
            end = min(section.end, begin + room)
            last = section.last if end == section.end else section.first - 1
            groups[-1].append(replace(section, begin=begin, end=end, last=last))
            room -= end - begin
            begin = end
    return groups


def done_with(tables: Iterable[Table], catalog: Catalog) -> tuple[Done, ...]:
    """The versions of which no piece is needed for its records any more: their segments are stored whole, or their
    topics are gone. `tables` are those of all pieces that the catalog names."""
    whole = {segment.segment_id for segment in catalog.segments}
    gone = set(catalog.gone)
    needed: dict[int, bool] = {}
    for table in tables:
        is_needed = any(section.segment_id not in whole and section.topic not in gone for section in table.sections)
        needed[table.name.version] = needed.get(table.name.version, False) or is_needed
    return tuple(Done(version, version) for version in sorted(needed) if not needed[version])


def put_together(tables: Iterable[Table], catalog: Catalog) -> dict[PartitionKey, dict[int, list[Part]]]:
    """By partition and segment id, the oldest first: where the bytes are of the segments that are not stored whole.

    Args:
        tables: of all pieces that the catalog names, in its order.

    Raises:
        Corrupt: a byte below a tail is in no piece, or in two.
    """
    found: dict[PartitionKey, dict[int, list[Part]]] = {}
    assembly = Assembly(catalog)
    for table in tables:
        for index in assembly.add(table.name, table.sections):
            section = table.sections[index]
            part = Part(table.name, table.places[index], table.places[index + 1])
            key = PartitionKey(section.topic, section.partition)
            found.setdefault(key, {}).setdefault(section.segment_id, []).append(part)
    assembly.end()
    return found


class Assembly:
    """How far each segment that is not stored whole has come, piece by piece in the order of the catalog.

    A segment below the start of its log is in no catalog any more, and some of its pieces may be gone while others are
    still needed for what else is in them: a hole in it is none.

    Args:
        on_hole: is told of a byte that is in no piece, or in two; without it Corrupt is raised.
    """

    def __init__(self, catalog: Catalog, on_hole: Callable[[Corrupt], None] | None = None) -> None:
        self._catalog = catalog
        self._on_hole = on_hole
        self._whole = {segment.segment_id for segment in catalog.segments}
        self._gone = set(catalog.gone)
        self._ends: dict[tuple[PartitionKey, int], int] = {}
        self._holes: dict[tuple[PartitionKey, int], Corrupt] = {}
        self._lasts: dict[tuple[PartitionKey, int], int] = {}
        """Last numbers of the segments with a hole."""

    def add(self, name: Versioned, sections: Iterable[Section]) -> list[int]:
        """Which of the sections of the next piece are needed."""
        needed: list[int] = []
        for index, section in enumerate(sections):
            key = PartitionKey(section.topic, section.partition)
            if section.segment_id in self._whole or section.topic in self._gone:
                continue
            segment = (key, section.segment_id)
            at = self._ends.get(segment, 0)
            if section.begin != at:
                self._holes.setdefault(segment, _hole(name, *segment, at, section.begin))
            if segment in self._holes:
                self._lasts[segment] = max(section.last, self._lasts.get(segment, 0))
                continue
            self._ends[segment] = section.end
            needed.append(index)
        return needed

    def end(self) -> None:
        """To be called after the last piece: nothing may be missing, up to the end of every tail. Raises Corrupt."""
        tails = {(key, tail.segment): tail for key, tail in self._catalog.tail.items()}
        for segment, hole in self._holes.items():
            if segment in tails or self._lasts[segment] >= self._catalog.starts.get(segment[0], 0):
                self._refuse(hole)
        for segment, tail in tails.items():
            at = self._ends.get(segment, 0)
            if tail.segment not in self._whole and at != tail.position and segment not in self._holes:
                self._refuse(_hole("head", *segment, at, tail.position))

    def _refuse(self, hole: Corrupt) -> None:
        if self._on_hole is None:
            raise hole
        self._on_hole(hole)


def _hole(name: Versioned | str, key: PartitionKey, segment_id: int, at: int, begin: int) -> Corrupt:
    what = f"{min(at, begin)} to {max(at, begin)} of segment {segment_id:016x} of partition {key}"
    return Corrupt(str(name), None, f"bytes {what} are in {'no piece' if at < begin else 'several pieces'}")
