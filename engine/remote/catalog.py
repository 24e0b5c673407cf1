"""What is stored of a log: topics, sealed segments, pieces, log starts, tails, lost numbers.

A `Catalog` is a set of changes to those before it. The head carries the newest one; when it has grown, it is folded
into an immutable page, which is a document of its own (`pack_page`), and the head names the pages, the oldest first.
`joined` makes one of several, so that few pages are needed. Rows of segments are those of an archive's manifest.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from engine.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_ID_MAX, TOPIC_NAME_BYTES_MAX
from engine.remote.documents import Fields, pack_document, unpack_document
from engine.remote.limits import (
    CATALOG_BYTES_MAX,
    CATALOG_ROWS_MAX,
    CONFIG_BYTES_MAX,
    CONFIG_ITEMS_MAX,
    EPOCH_MAX,
    OBJECT_NAME_BYTES_MAX,
    PIECE_BYTES_MAX,
    U64_MAX,
)
from engine.remote.names import PIECES, SegmentName, Versioned, parse_segment, parse_versioned

_PARTITION_KEY = re.compile(r"(0|[1-9][0-9]{0,18})/(0|[1-9][0-9]{0,4})")


class PartitionKey(NamedTuple):
    """A partition of a topic, by its id. As text, ``12/0``."""

    topic: int
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with its own settings, as text."""

    id: int
    name: bytes
    partitions: int
    created_ms: int
    config: dict[str, str]


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A sealed segment: the numbers `first`..`next` - 1 of a partition are in it or nowhere."""

    topic: int
    partition: int
    first: int
    next: int
    records: int
    size_bytes: int
    segment_id: int
    max_timestamp_ms: int
    path: str
    """Its object's name."""
    hash: str
    """xxh3-64 of the whole file, 16 hexadecimal digits."""

    @property
    def key(self) -> PartitionKey:
        """Its partition."""
        return PartitionKey(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Tail:
    """Where a partition's active segment stands."""

    segment: int
    """Segment id."""
    first: int
    """Its first number."""
    committed: int
    """Last number that is stored; `first` - 1 when the segment has none."""
    position: int
    """Bytes of the segment that are stored."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Numbers `first`..`last` of a partition that were given out by a primary before and never came here."""

    topic: int
    partition: int
    first: int
    last: int

    @property
    def key(self) -> PartitionKey:
        """Its partition."""
        return PartitionKey(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """An object by name, with what is to be found under it."""

    name: Versioned
    size_bytes: int
    hash: str
    """xxh3-64 of its content, 16 hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class Done:
    """Pieces made for the heads of the versions `first`..`last`: all their records are in sealed segments."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Catalog:
    """What changed; see the module's docstring."""

    topics: tuple[Topic, ...] = ()
    """By id: new ones, and those whose settings changed."""
    gone: tuple[int, ...] = ()
    """Ids of topics that were deleted, with all that is stored of them."""
    segments: tuple[SealedSegment, ...] = ()
    starts: dict[PartitionKey, int] = field(default_factory=dict)
    """First number that may be read, where retention has moved it."""
    tail: dict[PartitionKey, Tail] = field(default_factory=dict)
    lost: tuple[Lost, ...] = ()
    pieces: tuple[ObjectRef, ...] = ()
    """With records, in the order of their making."""
    done: tuple[Done, ...] = ()
    """Pieces that are no longer needed for their records."""
    deltas: tuple[ObjectRef, ...] = ()
    """Pieces with changes of the state, in the order of their making. They count after the newest copy of it."""


@dataclass(frozen=True, slots=True)
class Page:
    """A catalog as an object of its own, with the version of the head that it was made for."""

    lineage: str
    epoch: int
    version: int
    catalog: Catalog


def pack_page(page: Page) -> bytes:
    """The object's content. Raises TooLarge."""
    values = {"lineage": page.lineage, "epoch": page.epoch, "version": page.version}
    return pack_document(values | catalog_values(page.catalog), CATALOG_BYTES_MAX)


def unpack_page(content: bytes | memoryview, name: str) -> Page:
    """The reverse of `pack_page`. Raises Corrupt, UnsupportedFormat."""
    fields = unpack_document(content, name, CATALOG_BYTES_MAX)
    page = Page(
        fields.hexadecimal("lineage", 32),
        fields.number("epoch", 1, EPOCH_MAX),
        fields.number("version", 1),
        read_catalog(fields),
    )
    fields.end()
    return page


def joined(catalogs: Iterable[Catalog]) -> Catalog:
    """One catalog that says what several say one after the other, the oldest first.

    Segments that lie below their partition's start are left out, and all of topics that are gone; and pieces that are
    done.
    """
    topics: dict[int, Topic] = {}
    gone: dict[int, None] = {}
    segments: dict[str, SealedSegment] = {}
    starts: dict[PartitionKey, int] = {}
    tail: dict[PartitionKey, Tail] = {}
    lost: dict[Lost, None] = {}
    pieces: dict[ObjectRef, None] = {}
    done: dict[Done, None] = {}
    deltas: dict[ObjectRef, None] = {}
    for catalog in catalogs:
        topics.update((topic.id, topic) for topic in catalog.topics)
        gone.update(dict.fromkeys(catalog.gone))
        segments.update((segment.path, segment) for segment in catalog.segments)
        starts.update(catalog.starts)
        tail.update(catalog.tail)
        lost.update(dict.fromkeys(catalog.lost))
        pieces.update(dict.fromkeys(catalog.pieces))
        done.update(dict.fromkeys(catalog.done))
        deltas.update(dict.fromkeys(catalog.deltas))
    ranges = _united(done)
    return Catalog(
        tuple(topic for topic in topics.values() if topic.id not in gone),
        tuple(gone),
        tuple(
            segment
            for segment in segments.values()
            if segment.topic not in gone and segment.next > starts.get(segment.key, 0)
        ),
        {key: start for key, start in starts.items() if key.topic not in gone},
        {key: end for key, end in tail.items() if key.topic not in gone},
        tuple(numbers for numbers in lost if numbers.topic not in gone and numbers.last >= starts.get(numbers.key, 0)),
        tuple(piece for piece in pieces if not _is_done(piece, ranges)),
        ranges,
        tuple(deltas),
    )


def _united(done: Iterable[Done]) -> tuple[Done, ...]:
    """Ranges in order, those that touch as one."""
    found: list[Done] = []
    for item in sorted(done, key=lambda item: item.first):
        if found and item.first <= found[-1].last + 1:
            found[-1] = Done(found[-1].first, max(found[-1].last, item.last))
        else:
            found.append(item)
    return tuple(found)


def _is_done(piece: ObjectRef, ranges: tuple[Done, ...]) -> bool:
    at = bisect_right(ranges, piece.name.version, key=lambda item: item.first) - 1
    return at >= 0 and piece.name.version <= ranges[at].last


def catalog_values(catalog: Catalog) -> dict[str, Any]:
    """A catalog as fields of a document."""
    return {
        "topics": [_values(topic) | {"name": topic.name.hex()} for topic in catalog.topics],
        "gone": [{"topic": topic} for topic in catalog.gone],
        "segments": [_values(segment) for segment in catalog.segments],
        "starts": {str(key): {"first": first} for key, first in catalog.starts.items()},
        "tail": {str(key): _values(tail) for key, tail in catalog.tail.items()},
        "lost": [_values(numbers) for numbers in catalog.lost],
        "pieces": [ref_values(ref) for ref in catalog.pieces],
        "done": [_values(versions) for versions in catalog.done],
        "deltas": [ref_values(ref) for ref in catalog.deltas],
    }


def read_catalog(fields: Fields) -> Catalog:
    """The reverse of `catalog_values`. Raises Corrupt."""
    return Catalog(
        tuple(_topic(row) for row in fields.objects("topics", CATALOG_ROWS_MAX)),
        tuple(_gone(row) for row in fields.objects("gone", CATALOG_ROWS_MAX)),
        tuple(_segment(row) for row in fields.objects("segments", CATALOG_ROWS_MAX)),
        {key: _start(row) for key, row in _by_partition(fields, "starts").items()},
        {key: _tail(row) for key, row in _by_partition(fields, "tail").items()},
        tuple(_lost(row) for row in fields.objects("lost", CATALOG_ROWS_MAX)),
        read_refs(fields, "pieces", PIECES, CATALOG_ROWS_MAX, PIECE_BYTES_MAX),
        tuple(_done(row) for row in fields.objects("done", CATALOG_ROWS_MAX)),
        read_refs(fields, "deltas", PIECES, CATALOG_ROWS_MAX, PIECE_BYTES_MAX),
    )


def _values(item: Topic | SealedSegment | Tail | Lost | Done | ObjectRef) -> dict[str, Any]:
    """The fields of a row; `dataclasses.asdict` does the same with copies of everything in it."""
    return {name: getattr(item, name) for name in item.__slots__}


def ref_values(ref: ObjectRef) -> dict[str, Any]:
    """The name of an object as fields of a document."""
    return _values(ref) | {"name": str(ref.name)}


def read_ref(row: Fields, kind: str, size_max: int) -> ObjectRef:
    """The reverse of `ref_values`. Raises Corrupt."""
    name = parse_versioned(row.text("name", OBJECT_NAME_BYTES_MAX))
    if name is None or name.kind != kind:
        row.refuse(f"a name is not one in {kind}")
    ref = ObjectRef(name, row.number("size_bytes", 1, size_max), row.hexadecimal("hash", 16))
    row.end()
    return ref


def read_refs(fields: Fields, name: str, kind: str, count_max: int, size_max: int) -> tuple[ObjectRef, ...]:
    """A list of objects in the order of their making. Raises Corrupt."""
    found = tuple(read_ref(row, kind, size_max) for row in fields.objects(name, count_max))
    versions = [ref.name.version for ref in found]
    if versions != sorted(versions) or len({ref.name for ref in found}) != len(found):
        fields.refuse(f"{name} is not in order")
    return found


def _by_partition(fields: Fields, name: str) -> dict[PartitionKey, Fields]:
    """An object whose names are partitions."""
    found: dict[PartitionKey, Fields] = {}
    for text, row in fields.named_objects(name, CATALOG_ROWS_MAX).items():
        match = _PARTITION_KEY.fullmatch(text)
        if match is None or not _is_partition(int(match[1]), int(match[2])):
            fields.refuse(f"{name} has {text[:40]!r}, which is no partition")
        found[PartitionKey(int(match[1]), int(match[2]))] = row
    return found


def _is_partition(topic: int, index: int) -> bool:
    return 0 < topic <= TOPIC_ID_MAX and index < PARTITIONS_PER_TOPIC_MAX


def _topic(row: Fields) -> Topic:
    name = bytes.fromhex(row.hexadecimal("name", digits_max=2 * TOPIC_NAME_BYTES_MAX))
    topic = Topic(
        row.number("id", 1, TOPIC_ID_MAX),
        name,
        row.number("partitions", 1, PARTITIONS_PER_TOPIC_MAX),
        row.number("created_ms"),
        row.texts("config", CONFIG_ITEMS_MAX, CONFIG_BYTES_MAX),
    )
    row.end()
    return topic


def _gone(row: Fields) -> int:
    topic = row.number("topic", 1, TOPIC_ID_MAX)
    row.end()
    return topic


def _segment(row: Fields) -> SealedSegment:
    segment = SealedSegment(
        row.number("topic", 1, TOPIC_ID_MAX),
        row.number("partition", 0, PARTITIONS_PER_TOPIC_MAX - 1),
        row.number("first", 0, U64_MAX),
        row.number("next", 0, U64_MAX),
        row.number("records"),
        row.number("size_bytes", 1),
        row.number("segment_id", 0, U64_MAX),
        row.number("max_timestamp_ms", 0, U64_MAX),
        row.text("path", OBJECT_NAME_BYTES_MAX),
        row.hexadecimal("hash", 16),
    )
    row.end()
    named = SegmentName(segment.topic, segment.partition, segment.first, segment.segment_id)
    if parse_segment(segment.path) != named or segment.next < segment.first:
        row.refuse("a segment's name or numbers contradict each other")
    return segment


def _done(row: Fields) -> Done:
    done = Done(row.number("first", 1), row.number("last", 1))
    row.end()
    if done.last < done.first:
        row.refuse("a range of versions ends before it begins")
    return done


def _start(row: Fields) -> int:
    first = row.number("first", 0, U64_MAX)
    row.end()
    return first


def _tail(row: Fields) -> Tail:
    tail = Tail(
        row.number("segment", 0, U64_MAX),
        row.number("first", 1, U64_MAX),
        row.number("committed", 0, U64_MAX),
        row.number("position"),
    )
    row.end()
    if tail.committed < tail.first - 1:
        row.refuse("a tail ends before it begins")
    return tail


def _lost(row: Fields) -> Lost:
    lost = Lost(
        row.number("topic", 1, TOPIC_ID_MAX),
        row.number("partition", 0, PARTITIONS_PER_TOPIC_MAX - 1),
        row.number("first", 1, U64_MAX),
        row.number("last", 1, U64_MAX),
    )
    row.end()
    if lost.last < lost.first:
        row.refuse("lost numbers end before they begin")
    return lost
