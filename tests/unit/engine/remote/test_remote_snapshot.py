"""Reading a bucket: patience, whole objects, the state of one moment, and a pin meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import xxhash

from engine.errors import Corrupt, LimitReached
from engine.remote import objects as reading
from engine.remote import snapshot as snapshots
from engine.remote import stored_state
from engine.remote.catalog import ObjectRef
from engine.remote.limits import READ_ATTEMPTS, RESTORE_PIN_MS
from engine.remote.names import PIECES, STATE, Versioned
from engine.remote.objects import Objects, Wanted
from engine.remote.piece import Change, Piece, pack_piece, piece_ref
from engine.remote.pinning import PinKeeper
from engine.remote.pins import Pin
from engine.remote.snapshot import NoSuchVersion, Snapshot, read_snapshot
from engine.remote.state_copy import pack_state
from engine.remote.store import Bytes, Denied, Unclear
from engine.remote.stored_state import state_changes
from tests.faulty_store import MemoryStore
from tests.packed_bucket import Packed
from tests.remote_objects import LINEAGE, catalog, head


class Silent(MemoryStore):
    """A store that does not answer so many times."""

    def __init__(self, silent: int) -> None:
        super().__init__()
        self.silent = silent

    def get_range(self, name: str, begin: int, end: int) -> bytes:
        self.silent -= 1
        if self.silent >= 0:
            raise Unclear("no answer")
        return super().get_range(name, begin, end)


def whole(store: MemoryStore, content: bytes, wait: Callable[[float], None] = lambda _: None) -> bytes:
    store.put_if_absent("x", content)
    with Objects(store, wait=wait) as objects:
        return objects.whole(Wanted("x", len(content), xxhash.xxh3_64_hexdigest(content)))


def test_an_answer_that_does_not_come_is_asked_for_again() -> None:
    waits: list[float] = []
    assert whole(Silent(READ_ATTEMPTS - 1), b"content", waits.append) == b"content"
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0]
    with pytest.raises(Unclear):
        whole(Silent(READ_ATTEMPTS), b"content")


def test_nobody_waits_for_an_answer_at_the_end() -> None:
    """Whoever interrupts a restore need not wait for its patience."""
    asked, wanted = threading.Event(), Wanted("x", 100, "0" * 16)
    requests: list[str] = []

    class Dead(MemoryStore):
        def get_range(self, name: str, begin: int, end: int) -> bytes:
            requests.append(name)
            asked.set()
            raise Unclear("no answer")

    began = time.monotonic()
    with Objects(Dead()) as objects:
        blocks = objects._pool.submit(objects._block, wanted, 0)
        asked.wait()
    with pytest.raises(Unclear):
        blocks.result()
    assert time.monotonic() - began < 10
    assert len(requests) <= 3


def test_objects_are_read_in_blocks_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_BLOCK_BYTES", 10)
    store, wanted = MemoryStore(), []
    for number in range(30):
        content = b"%d" % number * (1 + number * 7)
        store.put_if_absent(str(number), content)
        wanted.append(Wanted(str(number), len(content), xxhash.xxh3_64_hexdigest(content)))
    with Objects(store) as objects:
        for number, (item, blocks) in enumerate(objects.each(wanted)):
            if number % 3:  # what is not read is left out
                assert b"".join(blocks) == store.objects[item.name][0]
        del store.objects["7"]
        for item, blocks in objects.each(wanted):
            if item.name == "7":
                with pytest.raises(Corrupt, match=r"^7: the object is missing"):
                    list(blocks)
            else:
                assert b"".join(blocks) == store.objects[item.name][0]


def test_an_object_that_is_longer_or_shorter() -> None:
    store = MemoryStore()
    store.put_if_absent("x", b"content")
    with Objects(store) as objects:
        for size, reason in ((6, "checksum"), (8, "cut short")):
            with pytest.raises(Corrupt, match=reason):
                objects.whole(Wanted("x", size, "0" * 16))


def test_a_catalog_that_is_too_large(made: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_ROWS_MAX", 5)
    with Objects(made.store) as objects, pytest.raises(LimitReached, match="more than 5 rows"):
        read_snapshot(objects)


# --- the state of one moment


def bucket(
    copy: dict[bytes, bytes], *deltas: dict[bytes, bytes | None]
) -> tuple[MemoryStore, Callable[[int], Snapshot]]:
    """A copy of version 5, which may hold more, and changes of 6, 7 and so on. Those of before are gone."""
    store, refs = MemoryStore(), [ObjectRef(Versioned(PIECES, 1, 5, 9), 100, "0" * 16)]
    for number, changes in enumerate(deltas):
        name = Versioned(PIECES, 1, 6 + number, number)
        piece = Piece(LINEAGE, name, (), (), tuple(Change(key, value) for key, value in changes.items()))
        content = pack_piece(piece)
        store.put_if_absent(str(name), content)
        refs.append(piece_ref(piece, content))
    name = Versioned(STATE, 1, 5, 1)
    content = b"".join(pack_state(LINEAGE, name, sorted(copy.items())))
    store.put_if_absent(str(name), content)
    ref = ObjectRef(name, len(content), xxhash.xxh3_64_hexdigest(content))

    def at(version: int) -> Snapshot:
        newest = replace(catalog(), deltas=tuple(refs))
        then = replace(newest, deltas=tuple(ref for ref in refs if ref.name.version <= version))
        return Snapshot(replace(head(), state=ref), version, then, newest)

    return store, at


def state(store: MemoryStore, snapshot: Snapshot) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    with Objects(store) as objects:
        for group in state_changes(objects, snapshot):
            for change in group:
                found.pop(change.key, None)
                if change.value is not None:
                    found[change.key] = change.value
    return found


def test_changes_after_the_copy_count(monkeypatch: pytest.MonkeyPatch) -> None:
    store, at = bucket({b"a": b"1", b"b": b"1", b"c": b"1"}, {b"a": b"2", b"b": None}, {b"a": b"3", b"d": b"1"})
    assert state(store, at(7)) == {b"a": b"3", b"c": b"1", b"d": b"1"}
    assert state(store, at(6)) == {b"a": b"2", b"c": b"1"}
    monkeypatch.setattr(stored_state, "STATE_ROUND_BYTES_MAX", 8)
    assert state(store, at(7)) == {b"a": b"3", b"c": b"1", b"d": b"1"}


def test_a_copy_that_has_later_changes_already_is_no_older_state() -> None:
    for copy, later in (
        ({b"a": b"2"}, {b"a": b"2"}),
        ({}, {b"a": None}),
    ):
        store, at = bucket(copy, {b"z": b"1"}, later)
        with pytest.raises(NoSuchVersion, match="later than version 6: restore version 7"):
            state(store, at(6))
    store, at = bucket({b"a": b"1", b"b": b"2"}, {b"b": b"1"}, {b"a": None, b"b": b"2"})
    assert state(store, at(6)) == {b"a": b"1", b"b": b"1"}


# --- a pin meanwhile


def test_a_pin_is_made_renewed_and_removed() -> None:
    store, now = MemoryStore(), [100.0]
    with PinKeeper(store, LINEAGE, 7, "one-1", clock=lambda: now[0]) as keeper:
        (first,) = store.objects
        assert Pin.unpack(store.objects[first][0], first) == Pin(LINEAGE, 7, "one-1", RESTORE_PIN_MS)
        keeper.beat()
        assert list(store.objects) == [first]
        now[0] += RESTORE_PIN_MS / 3000 + 1
        keeper.beat()
        (second,) = store.objects
        assert second != first
        assert second.removesuffix("2") == first.removesuffix("1")
        keeper.beat()
        assert list(store.objects) == [second]
    assert not store.objects


def test_a_pin_where_nothing_may_be_written() -> None:
    class ReadOnly(MemoryStore):
        def put_if_absent(self, name: str, content: Bytes) -> str:
            raise Denied("403")

    with PinKeeper(ReadOnly(), LINEAGE, 7, "one-1") as keeper:
        assert keeper.problem == "403"
        keeper.beat()


def test_a_pin_that_cannot_be_made_ends_the_reading() -> None:
    class Mute(MemoryStore):
        def put_if_absent(self, name: str, content: Bytes) -> str:
            raise Unclear("no answer")

        def delete(self, name: str) -> None:
            raise Unclear("no answer")

    waits: list[float] = []
    with pytest.raises(Unclear), PinKeeper(Mute(), LINEAGE, 7, "one-1", wait=waits.append):
        pass
    assert waits[:3] == [0.5, 1.0, 2.0]


def test_a_pin_that_cannot_be_removed_ends_by_itself() -> None:
    class Stays(MemoryStore):
        def delete(self, name: str) -> None:
            raise Unclear("no answer")

    store = Stays()
    with PinKeeper(store, LINEAGE, 7, "one-1"):
        pass
    assert len(store.objects) == 1
