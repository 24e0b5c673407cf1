"""What is stored of a log, as its one writer knows it, and the head that says a little more. No I/O.

The head carries what is new; when that has grown it goes into pages of the catalog, and when these have become many,
all that is stored is written into new ones.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import xxhash

from engine.remote.catalog import (
    Catalog,
    Done,
    Lost,
    ObjectRef,
    Page,
    PartitionKey,
    SealedSegment,
    Tail,
    Topic,
    catalog_values,
    joined,
    pack_page,
)
from engine.remote.cutting import cut as cut_partition
from engine.remote.documents import pack_document
from engine.remote.head import Head
from engine.remote.limits import NUMBER_MAX
from engine.remote.names import CATALOG, Versioned
from engine.remote.piece import Section, Table
from engine.remote.store import StoreError
from engine.shipping.changes import PartitionCut
from engine.shipping.limits import PAGE_BYTES, PAGE_ROWS, PAGES_MAX, PIECES_KEPT, RECENT_BYTES, RECENT_PIECES

Place = tuple[PartitionKey, int]
"""A segment by its partition and id."""
_ROW_BYTES = 300


class Behind(StoreError):
    """The log has less than what is stored of it, or something else: it is not the log that was stored."""


@dataclass(frozen=True, slots=True)
class Step:
    """A head to be written, and the pages that it names, which have to be there before."""

    head: Head
    pages: tuple[tuple[Versioned, bytes], ...] = ()


@dataclass(slots=True)
class Manifest:
    """See the module's docstring. One thread only.

    Attributes:
        head: the one that is stored.
        segments: sealed ones that are stored whole, by partition and id.
    """

    head: Head
    topics: dict[int, Topic] = field(default_factory=dict)
    starts: dict[PartitionKey, int] = field(default_factory=dict)
    tails: dict[PartitionKey, Tail] = field(default_factory=dict)
    segments: dict[PartitionKey, dict[int, SealedSegment]] = field(default_factory=dict)
    deltas: list[ObjectRef] = field(default_factory=list)
    _lost: tuple[Lost, ...] = ()
    _pieces: dict[int, list[ObjectRef]] = field(default_factory=dict)
    """By version: those that are still needed for their records."""
    _needs: dict[int, dict[Place, Section]] = field(default_factory=dict)
    """By version: the segments of which its pieces have bytes that are nowhere else."""
    _users: dict[PartitionKey, dict[int, set[int]]] = field(default_factory=dict)
    """The reverse: by partition and segment id, the versions."""
    _is_done_open: bool = False
    """Something has ended since it was last said which pieces are done."""

    @classmethod
    def of(cls, head: Head, pages: Iterable[Catalog], tables: Iterable[Table]) -> Manifest:
        """As it is stored; `tables` are those of all pieces that are named, in any order."""
        found = cls(head)
        whole = joined((*pages, head.recent))
        by_name = {table.name: table for table in tables}
        found._take(whole, {ref.name: by_name[ref.name].sections for ref in whole.pieces})
        found._lost = whole.lost
        if head.state is not None:
            found._drop_deltas(head.state.name.version)
        return found

    # --- what is to be stored

    def sections(self, partition: PartitionCut) -> tuple[list[Section], Tail | None]:
        """What is to be added of a partition, and its tail afterwards. Raises Behind."""
        tail, written = self.tails.get(partition.key), partition.written()
        if tail is None:
            stored = self.segments.get(partition.key, {})
            while len(written) > 1 and written[0].segment_id in stored:
                del written[0]
        else:
            at = next((at for at, one in enumerate(written) if one.segment_id == tail.segment), None)
            if at is not None:
                written = written[at:]
            elif tail.committed < partition.log_start:  # retention took it before it was whole
                tail = None
        try:
            return cut_partition(partition.key, tail, written)
        except ValueError as error:
            raise Behind(str(error)) from error

    def missing(self, partition: PartitionCut) -> list[int]:
        """Indexes of its sealed segments that are not stored whole, the oldest first."""
        stored = self.segments.get(partition.key, {})
        return [at for at, one in enumerate(partition.sealed) if one.segment_id not in stored]

    def is_ended(self, row: SealedSegment) -> bool:
        """Whether nobody may read a segment any more."""
        return row.topic not in self.topics or row.next <= self.starts.get(row.key, 1)

    def unfinished(self) -> frozenset[PartitionKey]:
        """Partitions of which segments before the tail are in pieces only."""
        return frozenset(
            key
            for key, its in self._users.items()
            if any(not self._is_whole(key, one) and not self._is_tail(key, one) for one in its)
        )

    def _is_tail(self, key: PartitionKey, segment_id: int) -> bool:
        tail = self.tails.get(key)
        return tail is not None and tail.segment == segment_id

    def named(self) -> Iterator[ObjectRef]:
        """Every object that is named, but for sealed segments."""
        yield from self.head.named()
        yield from self.deltas
        for refs in self._pieces.values():
            yield from refs

    def start_of(self, partition: PartitionCut) -> dict[PartitionKey, int]:
        """Its start, if that is not stored yet."""
        known = self.starts.get(partition.key, 1)
        return {partition.key: partition.log_start} if partition.log_start > known else {}

    def forget(self, gone: Collection[int], live: Iterable[tuple[PartitionKey, frozenset[int]]]) -> None:
        """No byte is needed any more of these topics, and of segments that are below the start of their partition.

        Args:
            live: of partitions, the ids of all segments that the log has.
        """
        dead = [(key, one) for key, ids in live for one in self._users.get(key, ()) if one not in ids]
        if gone:
            dead += [(key, one) for key, its in self._users.items() if key.topic in gone for one in its]
        for place in dead:
            self._forget_place(place)
        self._is_done_open |= bool(dead)

    def done_after(self, more: Catalog, merged: Iterable[int] = ()) -> tuple[Done, ...]:
        """Versions of which no piece is needed any more after a change, which merges these."""
        whole = {(one.key, one.segment_id) for one in more.segments}
        versions = set(merged)
        self._is_done_open |= bool(whole)
        if self._is_done_open:
            versions |= {
                version
                for version, needs in self._needs.items()
                if all(one in whole or self._is_whole(*one) for one in needs)
            }
        return tuple(Done(version, version) for version in sorted(versions))

    def _is_whole(self, key: PartitionKey, segment_id: int) -> bool:
        return segment_id in self.segments.get(key, {})

    def _forget_place(self, place: Place) -> None:
        """No byte of a segment is needed any more."""
        key, segment_id = place
        its = self._users[key]
        for version in its.pop(segment_id):
            del self._needs[version][place]
        if not its:
            del self._users[key]

    def mergeable(self, size_max: int, paths: Container[int]) -> tuple[list[Section], list[int]]:
        """The newest pieces, where they are many and small: their bytes, and the versions that need no others then.

        Without this a segment that grows slowly would be in a million of them.

        Args:
            size_max: bytes of all of them together.
            paths: ids of segments whose files are known.
        """
        if len(self._pieces) <= PIECES_KEPT:
            return [], []
        versions: list[int] = []
        size = 0
        for version in sorted(self._pieces, reverse=True):
            size += sum(ref.size_bytes for ref in self._pieces[version])
            needed = [place for place in self._needs[version] if not self._is_whole(*place)]
            if size > size_max or any(segment_id not in paths for _, segment_id in needed):
                break
            versions.insert(0, version)
        if len(versions) < PIECES_KEPT // 2:
            return [], []
        merged: dict[Place, Section] = {}
        for version in versions:
            for place, section in self._needs[version].items():
                if not self._is_whole(*place):
                    merged[place] = _united(merged.get(place), section)
        return list(merged.values()), versions

    # --- the next head

    def step(self, more: Catalog, state: ObjectRef | None, *, fold: bool = False) -> Step:
        """The head that says `more`, with a new copy of the state if there is one; `fold`: in a page in any case."""
        head = replace(
            self.head, version=self.head.version + 1, write=secrets.token_hex(16), state=state or self.head.state
        )
        copied = head.state.name.version if head.state is not None else -1
        recent = joined((self.head.recent, more))
        recent = replace(recent, deltas=tuple(ref for ref in recent.deltas if ref.name.version > copied))
        size = len(pack_document(catalog_values(recent), NUMBER_MAX))
        if not fold and size <= RECENT_BYTES and len(recent.pieces) + len(recent.deltas) <= RECENT_PIECES:
            return Step(replace(head, recent=recent))
        kept = self.head.catalog
        if len(kept) >= PAGES_MAX:
            kept, recent = (), joined((self.whole(), more))
            recent = replace(
                recent, gone=(), done=(), deltas=tuple(r for r in recent.deltas if r.name.version > copied)
            )
        pages = [self._page(head, part) for part in _parts(recent)]
        refs = [ObjectRef(name, len(content), xxhash.xxh3_64_hexdigest(content)) for name, content in pages]
        return Step(replace(head, catalog=(*kept, *refs), recent=Catalog()), tuple(pages))

    @staticmethod
    def _page(head: Head, part: Catalog) -> tuple[Versioned, bytes]:
        name = Versioned(CATALOG, head.epoch, head.version, secrets.randbits(64))
        return name, pack_page(Page(head.lineage, head.epoch, head.version, part))

    def whole(self) -> Catalog:
        """All that is stored, in one catalog."""
        return Catalog(
            topics=tuple(self.topics.values()),
            segments=tuple(one for its in self.segments.values() for one in its.values()),
            starts=dict(self.starts),
            tail=dict(self.tails),
            lost=self._lost,
            pieces=tuple(ref for version in sorted(self._pieces) for ref in self._pieces[version]),
            deltas=tuple(self.deltas),
        )

    # --- what was stored

    def stored(
        self, step: Step, more: Catalog, sections: Mapping[Versioned, Sequence[Section]]
    ) -> list[Versioned | str]:
        """A step was done: the names of objects that nothing needs any more, once their readers are gone."""
        before, self.head, self._is_done_open = self.head, step.head, False
        dropped: list[Versioned | str] = [ref.name for ref in before.catalog if ref not in step.head.catalog]
        if before.state is not None and before.state != step.head.state:
            dropped.append(before.state.name)
        before_refs = {ref for refs in (*self._pieces.values(), self.deltas) for ref in refs}
        paths = self._take(more, sections)
        if step.head.state is not None:
            self._drop_deltas(step.head.state.name.version)
        after_refs = {ref for refs in (*self._pieces.values(), self.deltas) for ref in refs}
        return [*dropped, *paths, *(ref.name for ref in before_refs - after_refs)]

    def _drop_deltas(self, copied: int) -> None:
        self.deltas = [ref for ref in self.deltas if ref.name.version > copied]

    def _take(self, more: Catalog, sections: Mapping[Versioned, Sequence[Section]]) -> list[str]:
        """Takes a change over; paths of sealed segments that it ends."""
        paths: list[str] = []
        self.topics.update((topic.id, topic) for topic in more.topics)
        self.starts.update(more.starts)
        self.tails.update(more.tail)
        for one in more.segments:
            self.segments.setdefault(one.key, {})[one.segment_id] = one
        for ref in more.pieces:
            self._pieces.setdefault(ref.name.version, []).append(ref)
            needs = self._needs.setdefault(ref.name.version, {})
            for section in sections[ref.name]:
                place = PartitionKey(section.topic, section.partition), section.segment_id
                needs[place] = _united(needs.get(place), section)
                self._users.setdefault(place[0], {}).setdefault(place[1], set()).add(ref.name.version)
        self.deltas += more.deltas
        for topic_id in more.gone:
            paths += self._forget_topic(topic_id)
        for key, start in more.starts.items():
            its = self.segments.get(key, {})
            ended = [one for one in its.values() if one.next <= start]
            paths += [one.path for one in ended]
            for one in ended:
                del its[one.segment_id]
        for done in more.done:
            for version in [version for version in self._needs if done.first <= version <= done.last]:
                self._forget_version(version)
        return paths

    def _forget_topic(self, topic_id: int) -> list[str]:
        self.topics.pop(topic_id, None)
        keys = [key for key in {*self.starts, *self.tails, *self.segments} if key.topic == topic_id]
        paths = [one.path for key in keys for one in self.segments.get(key, {}).values()]
        for key in keys:
            self.starts.pop(key, None)
            self.tails.pop(key, None)
            self.segments.pop(key, None)
        return paths

    def _forget_version(self, version: int) -> None:
        self._pieces.pop(version, None)
        for key, segment_id in self._needs.pop(version, ()):
            its = self._users[key]
            its[segment_id].discard(version)
            if not its[segment_id]:
                del its[segment_id]
            if not its:
                del self._users[key]


def _united(one: Section | None, other: Section) -> Section:
    """Two sections of a segment, of which one begins where the other ends, as one."""
    if one is None:
        return other
    begin, end = min(one.begin, other.begin), max(one.end, other.end)
    return replace(one, begin=begin, end=end, first=min(one.first, other.first), last=max(one.last, other.last))


def _parts(catalog: Catalog) -> Iterator[Catalog]:
    """A catalog as several that say the same one after the other, none of them large."""
    rows: list[tuple[str, Sequence[object]]] = [
        (name, getattr(catalog, name)) for name in ("topics", "gone", "segments", "lost", "pieces", "done", "deltas")
    ]
    rows += [("starts", list(catalog.starts.items())), ("tail", list(catalog.tail.items()))]
    for name, its in rows:
        for part in _chunks(its):
            yield Catalog(**{name: dict(part) if name in ("starts", "tail") else tuple(part)})  # type: ignore[arg-type]


def _chunks(rows: Sequence[object]) -> Iterator[list[object]]:
    chunk: list[object] = []
    size = 0
    for row in rows:
        if chunk and (size >= PAGE_BYTES or len(chunk) >= PAGE_ROWS):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += _ROW_BYTES
        if isinstance(row, Topic):
            size += 2 * len(row.name) + sum(len(name) + len(text) for name, text in row.config.items())
    if chunk:
        yield chunk
