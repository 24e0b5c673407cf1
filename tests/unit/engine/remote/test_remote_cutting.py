"""Cuts of a log, and files put together from them: the same bytes, whatever happens between."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from engine.errors import Corrupt
from engine.remote import cutting
from engine.remote.catalog import Catalog, Done, PartitionKey, Tail, joined
from engine.remote.cutting import Part, Written, cut, done_with, put_together, split
from engine.remote.names import PIECES, Versioned
from engine.remote.piece import Piece, Section, Table, pack_piece, piece_ref, read_table, unpack_piece
from tests.remote_objects import LINEAGE, segment

KEY = PartitionKey(12, 0)


def test_a_new_partition_is_cut_from_its_beginning() -> None:
    sections, tail = cut(KEY, None, [Written(5, 1, 10, 500)])
    assert sections == [Section(12, 0, 5, 0, 500, 1, 10)]
    assert tail == Tail(5, 1, 10, 500)
    assert cut(KEY, None, []) == ([], None)


def test_a_cut_goes_on_from_the_tail_and_through_new_segments() -> None:
    tail = Tail(5, 1, 10, 500)
    assert cut(KEY, tail, [Written(5, 1, 10, 500)]) == ([], tail)
    assert cut(KEY, tail, [Written(5, 1, 12, 600), Written(6, 13, 12, 72)]) == (
        [Section(12, 0, 5, 500, 600, 11, 12), Section(12, 0, 6, 0, 72, 13, 12)],
        Tail(6, 13, 12, 72),
    )


@pytest.mark.parametrize("segments", [[], [Written(6, 1, 10, 500)], [Written(5, 1, 9, 500)], [Written(5, 1, 10, 499)]])
def test_a_log_that_has_less_than_what_is_stored_is_not_cut(segments: list[Written]) -> None:
    with pytest.raises(ValueError, match="partition 12/0"):
        cut(KEY, Tail(5, 1, 10, 500), segments)


def test_sections_are_split_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    sections = [Section(12, 0, 5, 10, 35, 1, 9), Section(12, 1, 6, 0, 5, 4, 4), Section(12, 2, 7, 0, 3, 1, 1)]
    assert split(sections, 10) == [
        [Section(12, 0, 5, 10, 20, 1, 0)],
        [Section(12, 0, 5, 20, 30, 1, 0)],
        [Section(12, 0, 5, 30, 35, 1, 9), Section(12, 1, 6, 0, 5, 4, 4)],
        [Section(12, 2, 7, 0, 3, 1, 1)],
    ]
    assert split(sections, 1000) == [sections]
    assert split([], 10) == []
    monkeypatch.setattr(cutting, "PIECE_SECTIONS_MAX", 2)
    assert [len(group) for group in split(sections, 1000)] == [2, 1]


def table(version: int, *sections: Section, nonce: int = 1) -> Table:
    name = Versioned(PIECES, 1, version, nonce)
    data = tuple(bytes(section.end - section.begin) for section in sections)
    return read_table(pack_piece(Piece(LINEAGE, name, sections, data)), str(name), LINEAGE)


def test_pieces_are_done_when_all_their_segments_are_whole() -> None:
    of_77 = replace(Section(12, 0, 77, 0, 5, 1, 2))
    tables = [
        table(1, of_77),
        table(2, of_77, Section(12, 1, 6, 0, 5, 1, 2)),
        table(3, of_77, Section(9, 1, 8, 0, 5, 1, 2)),
        table(4, of_77),
        table(4, Section(12, 1, 6, 0, 5, 1, 2), nonce=2),
    ]
    assert done_with(tables, Catalog(segments=(segment(),), gone=(9,))) == (Done(1, 1), Done(3, 3))


def test_a_hole_is_told() -> None:
    first, last = table(1, Section(12, 0, 5, 0, 5, 1, 2)), table(3, Section(12, 0, 5, 8, 9, 3, 3))
    tails = {KEY: Tail(5, 1, 3, 9)}
    with pytest.raises(
        Corrupt, match=r"0000000003-.*: bytes 5 to 8 of segment 0{15}5 of partition 12/0 are in no piece"
    ):
        put_together([first, last], Catalog(tail=tails))
    with pytest.raises(Corrupt, match=r"head: bytes 5 to 9 of segment 0{15}5 of partition 12/0 are in no piece"):
        put_together([first], Catalog(tail=tails))
    with pytest.raises(Corrupt, match=r"bytes 0 to 5 .* are in several pieces"):
        put_together([first, first], Catalog())
    assert put_together([first], Catalog(gone=(12,))) == {}
    assert put_together([], Catalog(tail={KEY: Tail(5, 1, 0, 0)})) == {}


def test_a_hole_below_the_start_of_a_log_is_none() -> None:
    """Its segment was stored whole, which let go of its first piece, and is below the start by now."""
    tables = [
        table(2, Section(12, 0, 5, 5, 8, 3, 4), Section(12, 1, 6, 0, 5, 1, 2)),
        table(3, Section(12, 0, 5, 8, 9, 5, 5), Section(12, 0, 7, 0, 4, 6, 6)),
    ]
    tails = {KEY: Tail(7, 6, 6, 4), PartitionKey(12, 1): Tail(6, 1, 2, 5)}
    found = put_together(tables, Catalog(tail=tails, starts={KEY: 6}))
    assert {key: list(segments) for key, segments in found.items()} == {KEY: [7], PartitionKey(12, 1): [6]}
    with pytest.raises(Corrupt, match=r"bytes 0 to 5 of segment 0{15}5 .* in no piece"):
        put_together(tables, Catalog(tail=tails, starts={KEY: 5}))
    with pytest.raises(Corrupt, match=r"bytes 0 to 5 of segment 0{15}5 .* in no piece"):
        put_together(tables[:1], Catalog(tail={KEY: Tail(5, 1, 5, 9)}, starts={KEY: 9}))


class Log:
    """Two partitions that grow at random, and what a bucket has of them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.files: dict[PartitionKey, dict[int, bytearray]] = {KEY: {}, PartitionKey(12, 1): {}}
        self.written: dict[PartitionKey, list[Written]] = {key: [] for key in self.files}
        self.catalog = Catalog()
        self.objects: dict[str, bytes] = {}
        self.ids = iter(range(1, 1 << 30))

    def grow(self) -> None:
        key = self.random.choice(list(self.files))
        segments = self.written[key]
        if not segments or self.random.random() < 0.2:
            first = segments[-1].last + 1 if segments else 1
            segments.append(Written(next(self.ids), first, first - 1, 72))
            self.files[key][segments[-1].segment_id] = bytearray(self.random.randbytes(72))
        now = segments[-1]
        more, records = self.random.randrange(1, 50), self.random.randrange(1, 4)
        segments[-1] = replace(now, last=now.last + records, end=now.end + more)
        self.files[key][now.segment_id] += self.random.randbytes(more)

    def ship(self, version: int) -> None:
        """One commit: a cut of all partitions in pieces of 40 bytes."""
        sections, tails = [], {}
        for key, segments in self.written.items():
            tail = self.catalog.tail.get(key)
            at = next((i for i, item in enumerate(segments) if tail and item.segment_id == tail.segment), 0)
            found, after = cut(key, tail, segments[at:])
            sections += found
            tails |= {key: after} if after else {}
        refs = []
        for nonce, group in enumerate(split(sections, 40)):
            data = tuple(
                bytes(self.files[PartitionKey(part.topic, part.partition)][part.segment_id][part.begin : part.end])
                for part in group
            )
            piece = Piece(LINEAGE, Versioned(PIECES, 1, version, nonce), tuple(group), data)
            self.objects[str(piece.name)] = pack_piece(piece)
            refs.append(piece_ref(piece, self.objects[str(piece.name)]))
        self.catalog = joined([self.catalog, Catalog(tail=tails, pieces=tuple(refs))])

    def seal(self) -> None:
        """Stores a segment whole that nothing is added to, and lets go of the pieces that are done."""
        key = self.random.choice(list(self.files))
        tail = self.catalog.tail.get(key)
        for item in self.written[key]:
            if tail is None or item.segment_id == tail.segment:
                break
            whole = replace(segment(item.first, item.last + 1, *key), segment_id=item.segment_id, path=str(item))
            self.catalog = joined([self.catalog, Catalog(segments=(whole,))])
        self.catalog = joined([self.catalog, Catalog(done=done_with(self.tables(), self.catalog))])

    def tables(self) -> list[Table]:
        return [read_table(self.objects[str(ref.name)], str(ref.name), LINEAGE) for ref in self.catalog.pieces]

    def check(self) -> None:
        """What is committed in the bucket are the first bytes of the files, and whole ones need no piece."""
        found = put_together(self.tables(), self.catalog)
        for key, segments in found.items():
            for segment_id, parts in segments.items():
                content = b"".join(self.read(part) for part in parts)
                assert self.files[key][segment_id].startswith(content)
        whole = {item.segment_id for item in self.catalog.segments}
        for key, tail in self.catalog.tail.items():
            for item in self.written[key]:
                if item.segment_id not in whole:
                    parts = found.get(key, {}).get(item.segment_id, [])
                    stored = sum(part.end - part.begin for part in parts)
                    is_before = item.first < tail.first
                    assert stored == (
                        item.end if is_before else tail.position if item.segment_id == tail.segment else 0
                    )

    def read(self, part: Part) -> bytes:
        content = self.objects[str(part.piece)]
        unpack_piece(content, str(part.piece), LINEAGE)
        return content[part.begin : part.end]


@pytest.mark.parametrize("seed", range(4))
def test_what_was_cut_is_put_together_again(seed: int) -> None:
    random = Random(seed)
    log = Log(random)
    for version in range(1, 25):
        for _ in range(random.randrange(4)):
            log.grow()
        log.ship(version)
        if random.random() < 0.3:
            log.seal()
        log.check()
    assert log.catalog.segments
    assert log.catalog.done
