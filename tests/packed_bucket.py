"""Packs a real data directory into an object store commit by commit, with the functions that any primary has to use.

It knows nothing of how a server does it: what it reads are the files, as they are between two rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import xxhash

from engine.files.system import SystemFiles
from engine.formats.segment import read_footer
from engine.reader import DirectoryReader, PartitionReader
from engine.remote.catalog import (
    Catalog,
    ObjectRef,
    Page,
    PartitionKey,
    SealedSegment,
    Topic,
    joined,
    pack_page,
)
from engine.remote.cutting import Written, cut, done_with, split
from engine.remote.head import Head
from engine.remote.names import CATALOG, HEAD, PIECES, STATE, SegmentName, Versioned
from engine.remote.piece import Change, Piece, Section, Table, pack_piece, piece_ref, read_table, table_bytes
from engine.remote.state_copy import pack_state
from engine.remote.store import ObjectStore, run
from engine.remote.writes import HeadWriter, create
from engine.state.store import StateReader
from tests.engine_log import SMALL, EngineLog, delete, wait_for_burial
from tests.faulty_store import MemoryStore
from tests.remote_objects import LINEAGE
from tools.checks import check_partition, check_segment

AHEAD = 1000
KINDS = ("head", "page", "state", "delta", "piece", "segment")
DAMAGE = ("flipped", "cut", "missing")
FILES = SystemFiles()
Entries = dict[bytes, bytes]


def no_wait(attempts: int) -> None:
    """For pauses."""


def entries_of(state: StateReader) -> Entries:
    """All keys with what is stored under them."""
    return dict(state._stored(b"", b""))


def entries_in(data_dir: Path) -> Entries:
    """Those of a directory that nobody has open."""
    state = StateReader.open(data_dir / "state")
    try:
        return entries_of(state)
    finally:
        state.close()


def findings(data_dir: Path) -> list[Any]:
    """What is wrong with the files of a directory."""
    reader = DirectoryReader(data_dir)
    found = []
    for topic in reader.topics():
        for index in range(topic.partition_count):
            partition = reader.partition(topic, index)
            found += check_partition(partition, [check_segment(segment) for segment in partition.segments]).findings
    reader.close()
    return found


class Packer:
    """One lineage, and the directory that it is made of."""

    def __init__(
        self,
        data_dir: Path,
        store: ObjectStore,
        entries: Callable[[], Entries],
        *,
        piece_bytes: int = 4 << 20,
        ahead: int = 1000,
        lineage: str = LINEAGE,
    ) -> None:
        self.data_dir = data_dir
        self.store = store
        self.lineage = lineage
        self.unique = count(1)
        self.catalog = Catalog()
        """All that was said so far."""
        self._entries = entries
        self._known: Entries = {}
        self._piece_bytes = piece_bytes
        self._writer = HeadWriter()
        self._ahead = ahead
        self._tables: dict[ObjectRef, Table] = {}

    @classmethod
    def of(cls, engine: EngineLog, store: ObjectStore, **options: int) -> Packer:
        """Of a log that is open in this process."""
        return cls(engine.path, store, lambda: entries_of(engine.log.state), **options)  # type: ignore[arg-type]

    @property
    def head(self) -> Head:
        assert self._writer.head is not None
        return self._writer.head

    @property
    def version(self) -> int:
        """Of the next head."""
        return 1 if self._writer.head is None else self._writer.head.version + 1

    def commit(self) -> Head:
        """A cut of all partitions and of the state, as pieces and a head."""
        reader = DirectoryReader(self.data_dir)
        topics, sections, tails, starts = [], [], {}, {}
        for topic in reader.topics():
            topics.append(Topic(topic.id, topic.name, topic.partition_count, topic.created_ms, topic.config))
            for index in range(topic.partition_count):
                key, partition = PartitionKey(topic.id, index), reader.partition(topic, index)
                found, tail = self._cut(key, partition)
                sections += found
                if tail is not None:
                    tails[key] = tail
                    starts[key] = partition.log_start
        state = self._entries()
        changes = [Change(key, value) for key, value in state.items() if self._known.get(key) != value]
        changes += [Change(key, None) for key in self._known if key not in state]
        self._known = state
        gone = {topic.id for topic in self.catalog.topics} - {topic.id for topic in topics}
        pieces, deltas = self._pieces(reader, sections, tuple(changes))
        new = Catalog(
            topics=tuple(topic for topic in topics if topic not in self.catalog.topics),
            gone=tuple(gone),
            starts={key: start for key, start in starts.items() if start > 1},
            tail=tails,
            pieces=pieces,
            deltas=deltas,
        )
        reader.close()
        return self._move(new)

    def store_segments(self) -> Head:
        """Sealed segments as objects of their own; the pieces that are done."""
        reader, found, known = DirectoryReader(self.data_dir), [], {item.segment_id for item in self.catalog.segments}
        topics = {topic.id: topic for topic in reader.topics()}
        for key, tail in self.catalog.tail.items():
            segments = reader.partition(topics[key.topic], key.partition).segments
            for segment, after in pairwise(segments):
                if segment.header.first_seq < tail.first and segment.header.segment_id not in known:
                    found.append(self._stored(key, segment.path, segment.header.segment_id, after.header.first_seq))
        reader.close()
        new = joined((self.catalog, Catalog(segments=tuple(found))))
        return self._move(Catalog(segments=tuple(found), done=done_with(self._tables.values(), new)))

    def fold(self) -> Head:
        """What the head says goes into a page."""
        name = Versioned(CATALOG, 1, self.version, next(self.unique))
        content = pack_page(Page(self.lineage, 1, self.version, self.head.recent))
        self._make(name, content)
        return self._move(Catalog(), folded=self._ref(name, content))

    def copy_state(self) -> Head:
        """A copy of the state as it is now, and as the last commit has it."""
        name = Versioned(STATE, 1, self.version - 1, next(self.unique))
        content = b"".join(pack_state(self.lineage, name, sorted(self._known.items())))
        self._make(name, content)
        return self._move(Catalog(), state=self._ref(name, content))

    # --- steps

    def _cut(self, key: PartitionKey, partition: PartitionReader):  # type: ignore[no-untyped-def]
        tail = self.catalog.tail.get(key)
        written = []
        for segment in partition.segments:
            header, last = segment.header, segment.header.first_seq - 1
            if segment.footer is not None:
                last = segment.footer.last_seq
            elif segment.end > 72:
                last = partition.committed_seq
            if tail is None or header.first_seq >= tail.first:
                written.append(Written(header.segment_id, header.first_seq, last, segment.end))
        return cut(key, tail, written)

    def _pieces(
        self, reader: DirectoryReader, sections: list[Section], changes: tuple[Change, ...]
    ) -> tuple[tuple[ObjectRef, ...], tuple[ObjectRef, ...]]:
        groups = split(sections, self._piece_bytes) or ([[]] if changes else [])
        refs = []
        for number, group in enumerate(groups):
            name = Versioned(PIECES, 1, self.version, next(self.unique))
            data = tuple(self._bytes(section) for section in group)
            piece = Piece(self.lineage, name, tuple(group), data, changes if not number else ())
            content = pack_piece(piece)
            self._make(name, content)
            refs.append(piece_ref(piece, content))
            self._tables[refs[-1]] = read_table(content[: table_bytes(content, str(name))], str(name), self.lineage)
        return tuple(refs) if sections else (), tuple(refs[:1]) if changes else ()

    def _bytes(self, section: Section) -> bytes:
        directory = self.data_dir / "topics" / str(section.topic) / str(section.partition)
        for path in sorted(directory.glob("*.log")):
            with path.open("rb") as file:
                header = file.read(72)
                if int.from_bytes(header[40:48], "little") == section.segment_id:
                    file.seek(section.begin)
                    return file.read(section.end - section.begin)
        raise AssertionError(f"no file has {section}")

    def _stored(self, key: PartitionKey, path: Path, segment_id: int, next_seq: int) -> SealedSegment:
        content = path.read_bytes()
        fd = FILES.open(path)
        footer = read_footer(FILES, fd, len(content), path)
        FILES.close(fd)
        assert footer is not None
        name = SegmentName(*key, int(path.stem), segment_id)
        run(create(str(name), content, 3), self.store, no_wait)
        return SealedSegment(
            *key,
            name.first,
            next_seq,
            footer[0].records,
            len(content),
            segment_id,
            footer[0].max_timestamp_ms,
            str(name),
            xxhash.xxh3_64_hexdigest(content),
        )

    def _make(self, name: Versioned, content: bytes) -> None:
        run(create(str(name), content, 3), self.store, no_wait)

    @staticmethod
    def _ref(name: Versioned, content: bytes) -> ObjectRef:
        return ObjectRef(name, len(content), xxhash.xxh3_64_hexdigest(content))

    def _move(self, new: Catalog, folded: ObjectRef | None = None, state: ObjectRef | None = None) -> Head:
        self.catalog = joined((self.catalog, new))
        write, version = f"{next(self.unique):032x}", self.version
        if self._writer.head is None:
            reader = DirectoryReader(self.data_dir)
            first = Head(self.lineage, reader.directory_id, 1, 1, write, "one-1", "", 0, 10_000, False, self._ahead)
            after = replace(first, recent=new)
            reader.close()
        else:
            before = self.head
            recent = Catalog() if folded is not None else joined((before.recent, new))
            pages = (*before.catalog, folded) if folded is not None else before.catalog
            after = replace(
                before, version=version, write=write, recent=recent, catalog=pages, state=state or before.state
            )
        run(self._writer.commit(after, 3), self.store, no_wait)
        return after


@dataclass
class Packed:
    """A bucket, and the log that it was made of."""

    store: MemoryStore
    data_dir: Path
    values: dict[str, list[bytes]]
    state: Entries
    packer: Packer

    @property
    def names(self) -> dict[str, str]:
        """One object of each of `KINDS`."""
        head, catalog = self.packer.head, self.packer.catalog
        assert head.state is not None
        deltas = [ref for ref in catalog.deltas if ref.name.version > head.state.name.version]
        return {
            "head": HEAD,
            "page": str(head.catalog[0].name),
            "state": str(head.state.name),
            "delta": str(deltas[0].name),
            "piece": str(next(ref for ref in reversed(catalog.pieces) if ref not in deltas).name),
            "segment": catalog.segments[0].path,
        }

    def damage(self, name: str, how: str) -> None:
        """One of `DAMAGE` to an object."""
        content, tag = self.store.objects.pop(name)
        middle = len(content) // 2
        if how == "flipped":
            self.store.objects[name] = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :], tag
        elif how == "cut":
            self.store.objects[name] = content[:middle], tag

    def change_head(self, **changes: Any) -> None:
        """Another head in the place of the one that is there."""
        head = Head.unpack(self.store.objects[HEAD][0])
        self.store.objects[HEAD] = replace(head, **changes).pack(), "tag"


def make_packed(data_dir: Path) -> Packed:
    """Sealed segments as objects and in pieces, tails, pages, a copy of the state and changes after it, a topic that is
    gone, a transaction, and a log that no longer begins at its beginning."""
    store = MemoryStore()
    with EngineLog(data_dir, topic=SMALL) as engine:
        packer = Packer.of(engine, store, piece_bytes=10_000, ahead=AHEAD)
        for number in range(9):
            engine.append([b"%d" % number + b"." * 4000] * 10)
            engine.append([b"small %d" % number], topic="small")
            if number == 1:
                engine.append([b"gone"], topic="gone")
                engine.append([b"trimmed"] * 5, topic="trimmed")
            if number == 6:
                delete(engine, engine.partition("gone"))
                wait_for_burial(engine, 3)
                engine.partition("trimmed").trim(4)
            if number == 7:
                transaction = engine.log.transaction()
                for topic in ("t", "small"):
                    transaction.append(engine.partition(topic), b"both")
                done: list[Any] = []
                transaction.commit(done.append)
                engine.inbox.run_until(lambda done=done: bool(done))  # type: ignore[misc]
            packer.commit()
            if number == 3:
                packer.store_segments()
                packer.copy_state()
            if number in (4, 6):
                packer.fold()
        values = {topic: engine.values(topic) for topic in ("t", "small", "trimmed")}
    return Packed(store, data_dir, values, dict(packer._known), packer)
