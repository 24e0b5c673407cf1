"""Looks whether what a head names is there, is what it should be, and is all of the log.

Each problem is told with the object's name, and the rest is looked at all the same: one damaged piece costs its own
bytes. The short form reads head and pages and compares names and sizes with the store's list; the full one reads every
byte, puts segments together as a restore does, and follows the numbers of each partition from its start to its tail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from engine.errors import Corrupt
from engine.formats.segment import HEADER_BYTES, parse_header
from engine.remote.catalog import PartitionKey
from engine.remote.cutting import Assembly
from engine.remote.names import CATALOG, PIECES, SEGMENTS, STATE
from engine.remote.objects import Objects, Wanted
from engine.remote.piece import Change, Piece, unpack_piece
from engine.remote.snapshot import Snapshot, read_snapshot
from engine.remote.store import Absent
from engine.remote.stored_state import copied
from engine.state.store import unpack_value

OnFinding = Callable[[Corrupt], None]


class Span(NamedTuple):
    """The numbers of one segment."""

    first: int
    begins: int
    """From here up to `first` nothing was stored."""
    next: int
    """The number after the last one."""
    segment_id: int


@dataclass(slots=True)
class Verified:
    """What was looked at."""

    snapshot: Snapshot | None = None
    """None: the head itself is damaged."""
    objects: int = 0
    unnamed: int = 0
    """Objects that the head does not name: on their way into it, or on their way out."""
    unnamed_bytes: int = 0


class Verifier:
    """Looks at one bucket.

    Raises (`run`): NoLog, Unclear, Denied, LimitReached, UnsupportedFormat.
    """

    def __init__(self, objects: Objects, on_finding: OnFinding) -> None:
        self._objects = objects
        self._on_finding = on_finding
        self._bad: set[str] = set()
        """Objects that were told of."""
        self._spans: dict[PartitionKey, list[Span]] = {}
        self.verified = Verified()

    def run(self, *, full: bool, on_total: Callable[[int], None] = lambda _: None) -> Verified:
        """`on_total` is told how many bytes will be read, beside head and pages."""
        with self._contained():
            self.verified.snapshot = snapshot = read_snapshot(self._objects, on_problem=self._tell)
            self._compare_list(snapshot)
            if full:
                on_total(snapshot.size_bytes)
                self._read_state(snapshot)
                self._read_pieces(snapshot)
                self._read_segments(snapshot)
            else:
                for segment in snapshot.catalog.segments:
                    self._span(segment.key, Span(segment.first, segment.first, segment.next, segment.segment_id))
            self._follow_numbers(snapshot, full=full)
        return self.verified

    def _tell(self, problem: Corrupt) -> None:
        if str(problem.path) not in self._bad:
            self._bad.add(str(problem.path))
            self._on_finding(problem)

    @contextmanager
    def _contained(self) -> Iterator[None]:
        try:
            yield
        except Corrupt as problem:
            self._tell(problem)

    # --- names and sizes

    def _compare_list(self, snapshot: Snapshot) -> None:
        """Every object that is named, in the list of the store. A list may be older than the head: it is asked again
        for what is missing there."""
        listed: dict[str, int] = {}
        for folder in (CATALOG, STATE, PIECES, SEGMENTS):
            for found in self._objects.patiently(lambda folder=folder: self._objects.store.list_below(folder)):  # type: ignore[misc]
                listed[found.name] = found.size_bytes
        for wanted in _named(snapshot):
            self.verified.objects += 1
            size_bytes = listed.pop(wanted.name, None)
            if size_bytes != wanted.size_bytes and wanted.name not in self._bad:
                with self._contained():
                    self._describe(wanted)
        self.verified.unnamed = len(listed)
        self.verified.unnamed_bytes = sum(listed.values())

    def _describe(self, wanted: Wanted) -> None:
        try:
            found = self._objects.patiently(lambda: self._objects.store.describe(wanted.name))
        except Absent:
            raise Corrupt(wanted.name, None, "the object is missing from the bucket") from None
        if found.size_bytes != wanted.size_bytes:
            text = f"the object has {found.size_bytes} bytes, it should have {wanted.size_bytes}"
            raise Corrupt(wanted.name, None, text)

    # --- every byte

    def _whole(self, wanted: Iterable[Wanted]) -> Iterator[tuple[Wanted, Iterator[bytes]]]:
        """Those of which nothing was told yet."""
        return self._objects.each(item for item in wanted if item.name not in self._bad)

    def _read_state(self, snapshot: Snapshot) -> None:
        state = snapshot.head.state
        if state is not None and str(state.name) not in self._bad:
            with self._contained():
                for entries in copied(self._objects, state, snapshot.head.lineage):
                    _check_values(entries, str(state.name))

    def _read_pieces(self, snapshot: Snapshot) -> None:
        assembly = Assembly(snapshot.catalog, self._tell)
        refs = dict.fromkeys((*snapshot.catalog.pieces, *snapshot.deltas))
        records = {str(ref.name) for ref in snapshot.catalog.pieces}
        for wanted, blocks in self._whole(map(Wanted.of, refs)):
            with self._contained():
                piece = unpack_piece(b"".join(blocks), wanted.name, snapshot.head.lineage)
                _check_values(piece.changes, wanted.name)
                if wanted.name in records:
                    self._note_sections(piece, assembly.add(piece.name, piece.sections))
        assembly.end()

    def _note_sections(self, piece: Piece, needed: list[int]) -> None:
        for index in needed:
            section = piece.sections[index]
            key, name = PartitionKey(section.topic, section.partition), str(piece.name)
            spans = self._spans.setdefault(key, [])
            if not section.begin:
                header = parse_header(bytes(piece.data[index][:HEADER_BYTES]), Path(name))
                if (header.topic_id, header.partition, header.segment_id) != (*key, section.segment_id):
                    raise Corrupt(name, None, f"the header of a segment of partition {key} says that it is another one")
                spans.append(Span(header.first_seq, header.begins, section.last + 1, section.segment_id))
            elif spans and spans[-1].segment_id == section.segment_id:
                spans[-1] = spans[-1]._replace(next=max(spans[-1].next, section.last + 1))

    def _read_segments(self, snapshot: Snapshot) -> None:
        rows = {segment.path: segment for segment in snapshot.catalog.segments}
        for wanted, blocks in self._whole(map(Wanted.of, rows.values())):
            with self._contained():
                first = next(blocks)
                for _ in blocks:
                    pass
                row, header = rows[wanted.name], parse_header(first[:HEADER_BYTES], Path(wanted.name))
                found = (header.topic_id, header.partition, header.segment_id, header.first_seq)
                if found != (*row.key, row.segment_id, row.first):
                    raise Corrupt(wanted.name, 0, "the header of the segment says that it is another one")
                self._span(row.key, Span(row.first, header.begins, row.next, row.segment_id))

    def _span(self, key: PartitionKey, span: Span) -> None:
        self._spans.setdefault(key, []).append(span)

    # --- numbers

    def _follow_numbers(self, snapshot: Snapshot, *, full: bool) -> None:
        """From the start of each partition to its tail: none twice and, with all segments at hand, none missing."""
        lost = snapshot.catalog.lost
        for key, tail in sorted(snapshot.catalog.tail.items()):
            expected = start = snapshot.catalog.starts.get(key, 1)
            gone = [(numbers.first, numbers.last) for numbers in lost if numbers.key == key]
            before = 0
            for span in sorted(self._spans.get(key, ())):
                if span.first < before:
                    self._tell_numbers(key, span.first, min(before, span.next) - 1, "are in two segments")
                if full and not _are_lost(expected, span.begins - 1, gone):
                    self._tell_numbers(key, expected, span.begins - 1, "are in no segment")
                before = span.next
                expected = max(expected, span.next)
            if full and tail.committed >= max(tail.first, start):
                if expected <= tail.committed:
                    self._tell_numbers(key, expected, tail.committed, "are in no segment")
                elif expected > tail.committed + 1:
                    self._tell_numbers(key, tail.committed + 1, expected - 1, "are behind the end of the tail")

    def _tell_numbers(self, key: PartitionKey, first: int, last: int, what: str) -> None:
        self._tell(Corrupt(f"partition {key}", None, f"numbers {first} to {last} {what}"))


def _named(snapshot: Snapshot) -> Iterator[Wanted]:
    state = () if snapshot.head.state is None else (snapshot.head.state,)
    refs = dict.fromkeys((*snapshot.head.catalog, *state, *snapshot.deltas, *snapshot.catalog.pieces))
    yield from map(Wanted.of, refs)
    yield from map(Wanted.of, snapshot.catalog.segments)


def _check_values(changes: Iterable[Change], name: str) -> None:
    for change in changes:
        if change.value is not None:
            unpack_value(change.key, change.value, name)


def _are_lost(first: int, last: int, ranges: list[tuple[int, int]]) -> bool:
    """Whether all of first..last is in ranges that a primary before gave out and did not store."""
    for begin, end in sorted(ranges):
        if begin <= first:
            first = max(first, end + 1)
    return first > last
