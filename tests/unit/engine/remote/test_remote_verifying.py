"""Verifying a bucket: every kind of damage is named, and the rest is looked at all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import xxhash

from engine.errors import Corrupt
from engine.remote import objects as reading
from engine.remote.catalog import Catalog, Lost, ObjectRef, Page, PartitionKey, Tail, pack_page
from engine.remote.names import CATALOG, HEAD, PIECES, SegmentName, Versioned
from engine.remote.objects import Objects
from engine.remote.piece import Change, pack_piece, piece_ref, unpack_piece
from engine.remote.snapshot import NoLog
from engine.remote.store import Described
from engine.remote.verifying import Verified, Verifier
from tests.faulty_store import MemoryStore
from tests.packed_bucket import DAMAGE, KINDS, Packed

KEY = PartitionKey(1, 0)


def looked_at(store: MemoryStore, *, full: bool) -> tuple[Verified, list[Corrupt]]:
    found: list[Corrupt] = []
    with Objects(store, wait=lambda _: None) as objects:
        return Verifier(objects, found.append).run(full=full), found


def told(store: MemoryStore, *, full: bool = True) -> list[str]:
    return [str(problem) for problem in looked_at(store, full=full)[1]]


@pytest.mark.parametrize("full", [False, True])
def test_a_whole_bucket(packed: Packed, full: bool) -> None:
    packed.store.put_if_absent(str(Versioned(PIECES, 1, 99, 1)), b"orphan")
    verified, found = looked_at(packed.store, full=full)
    assert found == []
    assert verified.snapshot is not None
    assert verified.snapshot.version == packed.packer.head.version
    assert verified.objects == len(packed.store.objects) - 2
    assert (verified.unnamed, verified.unnamed_bytes) == (1, 6)


def test_how_much_is_read(made: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_BLOCK_BYTES", 7000)
    totals: list[int] = []
    read: list[int] = []
    with Objects(made.store, read.append) as objects:
        verified = Verifier(objects, lambda problem: None).run(full=True, on_total=totals.append)
    assert verified.snapshot is not None
    pages = sum(ref.size_bytes for ref in verified.snapshot.head.catalog)
    assert totals == [sum(read) - pages]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(packed: Packed, kind: str, damage: str) -> None:
    name = packed.names[kind]
    packed.damage(name, damage)
    if (kind, damage) == ("head", "missing"):
        with pytest.raises(NoLog, match="no object named head"):
            told(packed.store)
        return
    found = told(packed.store)
    assert found[0].startswith(name)
    assert sum(text.startswith(name) for text in found) == 1
    if kind == "state":
        assert len(found) == 1
    if kind == "segment":
        assert found[1:] == ["partition 1/0: numbers 1 to 10 are in no segment"]
    short = told(packed.store, full=False)
    assert bool(short) == (damage != "flipped" or kind in ("head", "page"))
    assert all(text.startswith(name) for text in short[:1])


def test_all_damage_is_named_at_once(packed: Packed) -> None:
    names = [packed.names[kind] for kind in ("state", "delta", "piece", "segment")]
    for name in names:
        packed.damage(name, "flipped")
    found = told(packed.store)
    assert [name for name in names if any(text.startswith(name) for text in found)] == names


def test_a_list_that_is_behind_is_not_believed(made: Packed) -> None:
    class Behind(MemoryStore):
        def list_below(self, folder: str) -> list[Described]:
            return super().list_below(folder)[:-1]

    behind = Behind()
    behind.objects, behind.modified = made.store.objects, made.store.modified
    assert told(behind, full=False) == []


# --- documents that contradict what is there


def say(packed: Packed, **changes: Any) -> None:
    """A catalog that says something else."""
    head = packed.packer.head
    catalog = replace(packed.packer.catalog, **changes)
    name = Versioned(CATALOG, 1, head.version, 77)
    content = pack_page(Page(head.lineage, 1, head.version, catalog))
    packed.store._put(str(name), content)
    ref = ObjectRef(name, len(content), xxhash.xxh3_64_hexdigest(content))
    packed.change_head(catalog=(ref,), recent=Catalog())


def test_numbers_that_are_missing_or_there_twice(packed: Packed) -> None:
    rows = [row for row in packed.packer.catalog.segments if row.key == KEY]
    last = rows[-1]
    assert [row.first for row in rows[:2]] == [1, 11]
    tail = Tail(last.segment_id, last.first, last.next - 1, 9999)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"segments": rows}, ""),
        ({"segments": rows[1:]}, "numbers 1 to 10 are in no segment"),
        ({"segments": rows[1:], "starts": {KEY: 11}}, ""),
        ({"segments": rows[1:], "lost": (Lost(*KEY, 50, 60), Lost(*KEY, 5, 10), Lost(*KEY, 1, 4))}, ""),
        ({"segments": rows[1:], "lost": (Lost(*KEY, 2, 10),)}, "numbers 1 to 10 are in no segment"),
        ({"segments": rows[1:], "lost": (Lost(*KEY, 1, 4),)}, "numbers 1 to 10 are in no segment"),
        ({"segments": [replace(rows[0], next=15), *rows[1:]]}, "numbers 11 to 14 are in two segments"),
        ({"segments": rows, "tail": replace(tail, committed=last.next - 2)}, "are behind the end of the tail"),
        ({"segments": rows, "tail": replace(tail, committed=last.next)}, "are in no segment"),
    ]
    for changes, reason in cases:
        more = {"segments": tuple(changes["segments"]), "tail": {KEY: changes.get("tail", tail)}}
        say(packed, pieces=(), **{"starts": {}, **changes, **more})
        found = told(packed.store)
        assert len(found) == bool(reason), found
        assert reason in "".join(found)
    say(packed, segments=(replace(rows[0], next=15), *rows[1:]))
    assert "numbers 11 to 14 are in two segments" in told(packed.store, full=False)[0]


def test_a_segment_that_is_another_one(packed: Packed) -> None:
    row, *others = packed.packer.catalog.segments
    name = SegmentName(row.topic, row.partition, row.first, row.segment_id ^ 1)
    packed.store.put_if_absent(str(name), packed.store.objects[row.path][0])
    say(packed, segments=(replace(row, path=str(name), segment_id=name.segment_id), *others))
    assert any(text.startswith(str(name)) and "another one" in text for text in told(packed.store))


def test_a_page_of_another_lineage_or_version(packed: Packed) -> None:
    head = packed.packer.head
    for lineage, version, reason in (("f" * 32, head.version, "two buckets"), (head.lineage, 1, "is of version 1")):
        name = Versioned(CATALOG, 1, head.version, 78)
        content = pack_page(Page(lineage, 1, version, packed.packer.catalog))
        packed.store._put(str(name), content)
        ref = ObjectRef(name, len(content), xxhash.xxh3_64_hexdigest(content))
        packed.change_head(catalog=(ref,))
        assert reason in told(packed.store, full=False)[0]


def test_values_and_headers_in_a_piece(packed: Packed) -> None:
    """The object is what the catalog says; what is in it is not."""
    catalog, lineage = packed.packer.catalog, packed.packer.head.lineage
    reasons = ("header of a segment", "checksum of the value", "segment header is damaged")
    for number, reason in enumerate(reasons):
        at = next(
            at
            for at, ref in enumerate(catalog.pieces)
            if unpack_piece(packed.store.objects[str(ref.name)][0], str(ref.name), lineage).sections[0].begin == 0
        )
        ref = catalog.pieces[at]
        piece = unpack_piece(packed.store.objects[str(ref.name)][0], str(ref.name), lineage)
        if number == 2:
            flipped = bytes(piece.data[0][:20]) + b"x" + bytes(piece.data[0][21:])
            wrong = replace(piece, data=(flipped, *piece.data[1:]))
        elif number:
            wrong = replace(piece, changes=(Change(b"c/x", b"12345678x"), Change(b"c/y", None)))
        else:
            wrong = replace(piece, sections=(replace(piece.sections[0], partition=9), *piece.sections[1:]))
        content = pack_piece(wrong)
        name = str(ref.name)
        before, packed.store.objects[name] = packed.store.objects[name], (content, "tag")
        pieces = (*catalog.pieces[:at], piece_ref(wrong, content), *catalog.pieces[at + 1 :])
        say(packed, pieces=pieces)
        assert any(text.startswith(name) and reason in text for text in told(packed.store))
        packed.store.objects[name] = before


def test_without_a_copy_of_the_state(packed: Packed) -> None:
    packed.change_head(state=None)
    assert told(packed.store) == []
    assert HEAD in packed.store.objects
