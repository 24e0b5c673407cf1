"""A bucket becomes a directory again: the same segments, the same state, and a log that goes on above it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Corrupt, DiskFull
from engine.files.system import SystemFiles
from engine.formats.segment import HEADER_BYTES, parse_header
from engine.remote import objects as reading
from engine.remote import stored_state
from engine.remote.catalog import Catalog, PartitionKey, Tail
from engine.remote.limits import UNKNOWN_AHEAD
from engine.remote.objects import Objects
from engine.remote.piece import pack_piece, piece_ref, unpack_piece
from engine.remote.restoring import Restored, Restoring
from engine.remote.snapshot import NoSuchVersion, Snapshot, read_snapshot, versions
from tests.cursor_log import CursorLog, lag_of
from tests.engine_log import SMALL, EngineLog, segments
from tests.faulty_store import MemoryStore
from tests.packed_bucket import AHEAD, DAMAGE, KINDS, Packed, Packer, entries_in, findings


def snapshot_of(store: MemoryStore, at: int | None = None) -> Snapshot:
    with Objects(store) as objects:
        return read_snapshot(objects, at)


def restored(store: MemoryStore, target: Path, at: int | None = None, snapshot: Snapshot | None = None) -> Restored:
    target.mkdir()
    with Objects(store, wait=lambda _: None) as objects:
        return Restoring(objects, snapshot or read_snapshot(objects, at), target).run()


def test_a_log_comes_back(packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_BLOCK_BYTES", 7000)
    target = tmp_path / "restored"
    report = restored(packed.store, target)
    assert (report.topics, report.partitions, report.lost) == (3, 3, [])
    assert entries_in(target) == packed.state
    for topic_id in (1, 2, 4):
        before, after = segments(packed.data_dir, topic_id), segments(target, topic_id)
        assert [path.name for path in before] == [path.name for path in after[:-1]]
        for path, copy in zip(before, after, strict=False):
            content = path.read_bytes()
            if path == before[-1]:
                assert copy.read_bytes().startswith(content.rstrip(b"\0"))
            else:
                assert copy.read_bytes() == content
    assert findings(target) == []
    with EngineLog(target, topic=SMALL) as engine:
        assert {topic: engine.values(topic) for topic in packed.values} == packed.values
        assert engine.log.directory_id == packed.packer.head.directory_id
        assert engine.partition("trimmed").log_start == 4


def test_records_go_on_in_a_new_segment_above_all_that_was_given_out(packed: Packed, tmp_path: Path) -> None:
    target = tmp_path / "restored"
    restored(packed.store, target)
    ids = {parse_header(path.read_bytes(), path).segment_id for path in segments(packed.data_dir)}
    last = parse_header(segments(target)[-1].read_bytes(), segments(target)[-1])
    assert last.segment_id not in ids
    with EngineLog(target, topic=SMALL) as engine:
        committed = engine.partition().committed_seq
        assert committed == packed.packer.catalog.tail[PartitionKey(1, 0)].committed
        assert engine.append([b"more"]).first_seq == committed + 1 + AHEAD
        assert engine.values()[-2:] == [packed.values["t"][-1], b"more"]
    assert findings(target) == []


@pytest.mark.parametrize("topic", ["t", "trimmed"])
def test_numbers_left_out_by_a_restore_wait_for_nobody(packed: Packed, tmp_path: Path, topic: str) -> None:
    """At once, when the first record is behind them, and after a restart."""
    target = tmp_path / "restored"
    restored(packed.store, target)
    log = CursorLog(target, topic=SMALL)
    held = len(packed.values[topic])
    cursor = log.subscribe(topic, after_seq=0)
    assert lag_of(log, cursor.id).records == held
    log.engine.append([b"more"], topic)
    log.engine.append([b"and more"], topic)
    lag = lag_of(log, cursor.id)
    assert lag.records == held + 2
    log.tick(10_000)
    assert log.flush() is None
    log.restart()
    log.tick(10_000)
    standing = log.store.standing(cursor.id)
    assert standing is not None
    waiting = log.store.lags.waiting(standing)
    assert waiting is not None
    assert waiting.records is None, "numbers are no count before the partition is open"
    lag = lag_of(log, cursor.id)
    assert (lag.records, lag.trend) == (held + 2, None), "nothing was noted that was not known"
    log.close()


def test_numbers_of_remote_topics_go_on_without_a_gap(packed: Packed, tmp_path: Path) -> None:
    found = snapshot_of(packed.store)
    topics = tuple(replace(topic, config={**topic.config, "durability": "remote"}) for topic in found.catalog.topics)
    target = tmp_path / "restored"
    restored(packed.store, target, snapshot=replace(found, catalog=replace(found.catalog, topics=topics)))
    for topic_id, path in ((topic_id, segments(target, topic_id)[-1]) for topic_id in (1, 2, 4)):
        header = parse_header(path.read_bytes(), path)
        assert header.first_seq == header.follows == found.catalog.tail[PartitionKey(topic_id, 0)].committed + 1


def test_an_older_version_and_numbers_above_the_newest(packed: Packed, tmp_path: Path) -> None:
    known = versions(packed.packer.head)
    assert len(known) == 3
    for at in (known[1], known[1] + 1):
        target = tmp_path / f"restored {at}"
        assert snapshot_of(packed.store, at).version == known[1]
        restored(packed.store, target, at)
        assert findings(target) == []
        with EngineLog(target, topic=SMALL) as engine:
            assert engine.values() == packed.values["t"][:70]
            newest = packed.packer.catalog.tail[PartitionKey(1, 0)].committed
            assert engine.append([b"more"]).first_seq == newest + 1 + AHEAD
    with pytest.raises(NoSuchVersion, match=f"version 1 is not kept any more.*: {known[0]}, {known[1]}"):
        snapshot_of(packed.store, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(packed: Packed, tmp_path: Path, kind: str, damage: str) -> None:
    name = packed.names[kind]
    packed.damage(name, damage)
    with pytest.raises(Exception, match="head" if kind == "head" else name):
        restored(packed.store, tmp_path / "restored")
    assert not (tmp_path / "restored" / "VERSION").exists()


def test_objects_of_another_lineage(packed: Packed, tmp_path: Path) -> None:
    packed.change_head(lineage="f" * 32)
    with pytest.raises(Corrupt, match=r"it is of the lineage 0011.*two buckets were mixed"):
        restored(packed.store, tmp_path / "restored")


def test_what_contradicts_itself(packed: Packed, tmp_path: Path) -> None:
    found = snapshot_of(packed.store)
    catalog = found.catalog
    key, tail = PartitionKey(1, 0), catalog.tail[PartitionKey(1, 0)]
    first = next(row for row in catalog.segments if row.key == key)
    cases: list[tuple[Catalog, str]] = [
        (replace(catalog, topics=()), "has partition 1/0 and not its topic"),
        (replace(catalog, topics=(replace(catalog.topics[0], name=b"x"), *catalog.topics[1:])), "has another name"),
        (replace(catalog, tail={}), "partition 1/0 has sealed segments and no tail"),
        (replace(catalog, tail={**catalog.tail, PartitionKey(1, 9): Tail(5, 1, 0, 0)}), "no number of partition 1/9"),
        (replace(catalog, tail={key: replace(tail, committed=tail.committed + 1)}), "should end with number"),
        (replace(catalog, tail={key: replace(tail, position=tail.position + 1)}), "are in no piece"),
        (replace(catalog, segments=(replace(first, segment_id=7),)), "says that it is another one"),
    ]
    for number, (wrong, reason) in enumerate(cases):
        with pytest.raises(Corrupt, match=reason):
            restored(packed.store, tmp_path / f"restored {number}", snapshot=replace(found, catalog=wrong))


def test_two_segments_with_the_same_first_number(packed: Packed, tmp_path: Path) -> None:
    found = snapshot_of(packed.store)
    row = found.catalog.segments[0]
    copy = f"{row.path}.copy"
    packed.store.objects[copy] = packed.store.objects[row.path]
    catalog = replace(found.catalog, segments=(*found.catalog.segments, replace(row, path=copy)))
    with pytest.raises(Corrupt, match="two segments of partition 1/0 begin with number 1"):
        restored(packed.store, tmp_path / "restored", snapshot=replace(found, catalog=catalog))


def test_a_state_that_is_damaged_itself(packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = stored_state.state_changes

    def one_more(*arguments: Any) -> Iterator[Any]:
        yield from real(*arguments)
        yield [stored_state.Change(b"t/\0\0\0\0\0\0\0\1", b"12345678x")]

    monkeypatch.setattr("engine.remote.restoring.state_changes", one_more)
    with pytest.raises(Corrupt, match="checksum of the value"):
        restored(packed.store, tmp_path / "restored")


def test_there_has_to_be_room(packed: Packed, tmp_path: Path) -> None:
    """As much as the segments take: what pieces repeat of those that are stored whole does not count."""

    class Small(SystemFiles):
        def free_bytes(self, path: Path) -> int:
            return room

    (tmp_path / "whole").mkdir()
    with Objects(packed.store) as objects:
        Restoring(objects, read_snapshot(objects), tmp_path / "whole").run()
    sizes = [path.stat().st_size for path in (tmp_path / "whole").rglob("*.log")]
    taken = sum(size for size in sizes if size > HEADER_BYTES)
    (tmp_path / "none").mkdir()
    with Objects(packed.store) as objects:
        room = 1000
        with pytest.raises(DiskFull, match=r"has room for 0\.0 MiB; at least"):
            Restoring(objects, read_snapshot(objects), tmp_path / "none", Small()).run()
        assert list((tmp_path / "none").iterdir()) == []
        room = taken
        Restoring(objects, read_snapshot(objects), tmp_path / "none", Small()).run()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_state_that_is_older_than_the_records(made: Packed, tmp_path: Path, is_there: bool) -> None:
    """Topics and numbers are taken from the catalog and the files; a transaction that was cut is whole."""
    found = snapshot_of(made.store)
    first = tuple(ref for ref in found.catalog.deltas if ref.name.version == 1)
    catalog = replace(found.catalog, deltas=first if is_there else ())
    older = replace(found, head=replace(found.head, state=None), catalog=catalog, newest=catalog)
    target = tmp_path / "restored"
    report = restored(made.store, target, snapshot=older)
    assert (report.topics, report.lost) == (3, [])
    assert len(report.notes) == 1
    assert findings(target) == []
    with EngineLog(target, topic=SMALL) as engine:
        assert {topic: engine.values(topic) for topic in made.values} == made.values
        for topic in made.values:
            engine.append([b"more"], topic=topic)
    assert findings(target) == []


def test_partitions_without_records_in_their_tail(tmp_path: Path) -> None:
    """Nothing at all, sealed segments and a tail that nobody has begun, and an empty file."""
    store = MemoryStore()
    with EngineLog(tmp_path / "data", topic=SMALL) as engine:
        packer = Packer.of(engine, store, ahead=AHEAD)
        for _ in range(3):
            engine.append([b"." * 4000] * 10)
        engine.append([b"second"], topic="second")
        packer.commit()
        packer.store_segments()
        values = engine.values()
    found, key = snapshot_of(store), PartitionKey(1, 0)
    tail = found.catalog.tail[key]
    sealed = tuple(row for row in found.catalog.segments if row.key == key)
    for number, (segments_left, committed, new) in enumerate(
        [
            ((), tail.committed, Tail(5, tail.committed + 1, tail.committed, 0)),
            (sealed, sealed[-1].next - 1, Tail(5, tail.first, tail.first - 1, 0)),
        ]
    ):
        catalog = replace(
            found.catalog,
            segments=segments_left,
            pieces=(),
            tail={key: new},
            starts={key: new.first} if not segments_left else {},
        )
        target = tmp_path / f"restored {number}"
        restored(store, target, snapshot=replace(found, catalog=catalog, newest=catalog))
        assert findings(target) == []
        with EngineLog(target, topic=SMALL) as engine:
            assert engine.values() == values[: committed if segments_left else 0]
            assert engine.append([b"more"]).first_seq == committed + 1 + AHEAD
            assert engine.values()[-1] == b"more"


def test_an_empty_file_at_the_end(tmp_path: Path) -> None:
    store = MemoryStore()
    with EngineLog(tmp_path / "data", topic=SMALL) as engine:
        packer = Packer.of(engine, store, ahead=0)
        engine.partition()
        engine.log.catalog.get_or_create(b"t")
        engine.append([b"first"])
        packer.commit()
    found, key = snapshot_of(store), PartitionKey(1, 0)
    (ref,) = found.catalog.pieces
    tail = replace(found.catalog.tail[key], committed=0, position=72)
    piece = unpack_piece(store.objects[str(ref.name)][0], str(ref.name), found.head.lineage)
    short = replace(piece, sections=(replace(piece.sections[0], end=72, last=0),), data=(piece.data[0][:72],))
    content = pack_piece(short)
    store.objects[str(ref.name)] = content, "tag"
    new = replace(ref, size_bytes=len(content), hash=piece_ref(short, content).hash)
    catalog = replace(found.catalog, pieces=(new,), deltas=(new,), tail={key: tail})
    restored(store, tmp_path / "restored", snapshot=replace(found, catalog=catalog, newest=catalog))
    assert findings(tmp_path / "restored") == []
    with EngineLog(tmp_path / "restored", topic=SMALL) as engine:
        assert engine.values() == []
        assert engine.append([b"more"]).first_seq == 1 + UNKNOWN_AHEAD, "the head names no bound"
