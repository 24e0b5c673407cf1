"""Heads, pages and pieces for tests: whole ones with every field in use, and any ones for properties."""

from __future__ import annotations

from hypothesis import strategies as st

from engine.remote.catalog import (
    Catalog,
    Done,
    Lost,
    ObjectRef,
    PartitionKey,
    SealedSegment,
    Tail,
    Topic,
)
from engine.remote.head import Head
from engine.remote.names import CATALOG, PIECES, STATE, SegmentName, Versioned
from engine.remote.piece import Change, Piece, Section

LINEAGE = "00112233445566778899aabbccddeeff"
U64 = (1 << 64) - 1
NUMBER = (1 << 63) - 1


def ref(kind: str = PIECES, version: int = 6, epoch: int = 2, nonce: int = 0xABC, size_bytes: int = 4096) -> ObjectRef:
    """A reference."""
    return ObjectRef(Versioned(kind, epoch, version, nonce), size_bytes, "0123456789abcdef")


def segment(first: int = 1, after: int = 101, topic: int = 12, partition: int = 0) -> SealedSegment:
    """A sealed segment of the numbers first..after - 1."""
    path = str(SegmentName(topic, partition, first, 77))
    return SealedSegment(topic, partition, first, after, after - first, 8192, 77, 1_795_822_592_000, path, "f" * 16)


def catalog() -> Catalog:
    """A catalog with something of everything."""
    return Catalog(
        topics=(Topic(12, b"orders\xff", 1, 1_795_773_600_000, {"retention_ms": "7d"}),),
        gone=(9,),
        segments=(segment(),),
        starts={PartitionKey(12, 0): 1},
        tail={PartitionKey(12, 0): Tail(U64, 101, 150, 72_000)},
        lost=(Lost(12, 0, 90, 95),),
        pieces=(ref(version=5, epoch=1), ref(version=6)),
        done=(Done(1, 4),),
        deltas=(ref(version=6),),
    )


def head() -> Head:
    """A head with every field in use."""
    return Head(
        lineage=LINEAGE,
        directory_id=123_456_789,
        epoch=2,
        version=7,
        write="a" * 32,
        owner="one-4711",
        address="one.example:9000",
        beat=3,
        ttl_ms=10_000,
        released=False,
        ahead=1 << 24,
        catalog=(ref(CATALOG, 3, 1),),
        state=ref(STATE, 4, 1, size_bytes=1 << 40),
        recent=catalog(),
    )


def piece() -> Piece:
    """A piece with two sections and two changes of the state."""
    return Piece(
        LINEAGE,
        Versioned(PIECES, 2, 7, 0xDEADBEEF),
        (Section(12, 0, U64, 72, 77, 101, 102), Section(12, 1, 5, 0, 3, 1, 0)),
        (b"hello", b"abc"),
        (Change(b"t/\0", b"value"), Change(b"r/x", None)),
    )


# --- any ones ---

u64 = st.integers(0, U64)
numbers = st.one_of(st.integers(0, 5), st.integers(0, NUMBER))
topic_ids = st.one_of(st.integers(1, 3), st.integers(1, NUMBER))
indexes = st.one_of(st.integers(0, 2), st.integers(0, 65_534))
keys = st.builds(PartitionKey, topic_ids, indexes)
hashes = st.from_regex("[0-9a-f]{16}", fullmatch=True)
versions = st.one_of(st.integers(1, 9), st.integers(1, NUMBER))


def refs_of(kind: str, version_max: int) -> st.SearchStrategy[tuple[ObjectRef, ...]]:
    """References of objects up to a version, in order."""
    names = st.builds(Versioned, st.just(kind), st.just(1), st.integers(1, version_max), u64)
    one = st.builds(ObjectRef, names, st.integers(1, 1 << 24), hashes)
    return st.lists(one, max_size=4, unique_by=lambda item: item.name).map(
        lambda found: tuple(sorted(found, key=lambda item: item.name))
    )


def ranges(first: st.SearchStrategy[int], high: int) -> st.SearchStrategy[tuple[int, int]]:
    """Two numbers in order."""
    return st.tuples(first, numbers).map(lambda pair: (pair[0], min(pair[0] + pair[1], high)))


@st.composite
def segments(draw: st.DrawFn) -> SealedSegment:
    """A sealed segment."""
    key, (first, after), segment_id = draw(keys), draw(ranges(numbers, U64)), draw(u64)
    path = str(SegmentName(key.topic, key.partition, first, segment_id))
    size = draw(st.integers(1, NUMBER))
    return SealedSegment(*key, first, after, draw(numbers), size, segment_id, draw(u64), path, draw(hashes))


topics = st.builds(
    Topic,
    topic_ids,
    st.binary(max_size=12),
    st.integers(1, 65_535),
    numbers,
    st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
)
tails = st.tuples(u64, ranges(st.integers(1, NUMBER), U64), numbers).map(
    lambda parts: Tail(parts[0], parts[1][0], parts[1][1] - 1, parts[2])
)
losses = st.tuples(keys, ranges(st.integers(1, NUMBER), U64)).map(lambda parts: Lost(*parts[0], *parts[1]))


def catalogs(version_max: int = NUMBER) -> st.SearchStrategy[Catalog]:
    """Any catalog."""
    return st.builds(
        Catalog,
        st.lists(topics, max_size=3).map(tuple),
        st.lists(topic_ids, max_size=3).map(tuple),
        st.lists(segments(), max_size=3).map(tuple),
        st.dictionaries(keys, u64, max_size=3),
        st.dictionaries(keys, tails, max_size=3),
        st.lists(losses, max_size=3).map(tuple),
        refs_of(PIECES, version_max),
        st.lists(ranges(versions, NUMBER).map(lambda pair: Done(*pair)), max_size=3).map(tuple),
        refs_of(PIECES, version_max),
    )


@st.composite
def heads(draw: st.DrawFn) -> Head:
    """Any head that may be written."""
    version = draw(versions)
    state = draw(refs_of(STATE, version))
    return Head(
        draw(st.from_regex("[0-9a-f]{32}", fullmatch=True)),
        draw(numbers),
        draw(st.integers(1, (1 << 32) - 1)),
        version,
        draw(st.from_regex("[0-9a-f]{32}", fullmatch=True)),
        draw(st.text(max_size=16)),
        draw(st.text(max_size=30)),
        draw(numbers),
        draw(st.integers(100, 86_400_000)),
        draw(st.booleans()),
        draw(numbers),
        draw(refs_of(CATALOG, version)),
        state[0] if state else None,
        draw(catalogs(version)),
    )


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    """Any piece."""
    data = tuple(draw(st.lists(st.binary(min_size=1, max_size=40), max_size=4)))
    sections = []
    for part in data:
        begin, (first, after) = draw(st.integers(0, 1 << 40)), draw(ranges(st.integers(1, NUMBER), U64))
        sections.append(Section(*draw(keys), draw(u64), begin, begin + len(part), first, after - 1))
    changes = st.builds(Change, st.binary(min_size=1, max_size=20), st.none() | st.binary(max_size=40))
    name = Versioned(PIECES, draw(st.integers(0, (1 << 32) - 1)), draw(numbers), draw(u64))
    return Piece(LINEAGE, name, tuple(sections), data, tuple(draw(st.lists(changes, max_size=4))))
