"""Pins: what a reader makes, and what a collector then leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.errors import Corrupt, TooLarge
from engine.remote import pins
from engine.remote.limits import PIN_TTL_MS_MAX
from engine.remote.pins import Held, Pin, held_pins, pin_object, removable
from engine.remote.store import Described, Stored, Unclear, run
from tests.faulty_store import MemoryStore
from tests.remote_objects import LINEAGE

PIN = Pin(LINEAGE, 7, "one-4711", 1000)


def no_wait(attempts: int) -> None:
    """For pauses."""


def held(store: MemoryStore, now_ms: int) -> list[tuple[str, int]]:
    found = run(held_pins(store.list_below("pins/"), now_ms), store, no_wait)
    return [(item.name, item.pin.version) for item in found]


def test_the_form() -> None:
    assert Pin.unpack(PIN.pack(), "pins/x") == PIN
    with pytest.raises(Corrupt):
        Pin.unpack(PIN.pack().replace(b'"version":7', b'"version":8'), "pins/x")
    with pytest.raises(Corrupt, match="ttl_ms"):
        Pin.unpack(replace(PIN, ttl_ms=PIN_TTL_MS_MAX + 1).pack(), "pins/x")
    assert pin_object("restore-abc", 3) == "pins/restore-abc.3"


def test_a_pin_counts_until_its_time_is_over() -> None:
    store = MemoryStore()
    store.put_if_absent("pins/a.1", PIN.pack())  # at 1 by the store's clock
    store.put_if_absent("pins/a.2", replace(PIN, version=9).pack())
    assert held(store, 1000) == [("pins/a.1", 7), ("pins/a.2", 9)]
    assert held(store, 1001) == [("pins/a.2", 9)]
    assert held(store, 1002) == []


@pytest.mark.parametrize("content", [b"x", b"x" * 10_000, PIN.pack().replace(b'"format":1', b'"format":2')])
def test_what_cannot_be_read_holds_everything_for_a_day(content: bytes) -> None:
    store = MemoryStore()
    store.put_if_absent("pins/a", content)
    assert held(store, PIN_TTL_MS_MAX) == [("pins/a", 0)]
    assert held(store, PIN_TTL_MS_MAX + 1) == []


def test_a_pin_that_goes_meanwhile_is_none() -> None:
    listed = [Described("pins/a", 100, "tag", 1)]
    assert run(held_pins(listed, 2), MemoryStore(), no_wait) == []


def test_without_an_answer_nothing_is_known() -> None:
    class Silent(MemoryStore):
        def get(self, name: str, size_max: int) -> Stored:
            raise Unclear("no answer")

    with pytest.raises(Unclear):
        run(held_pins([Described("pins/a", 100, "tag", 1)], 2), Silent(), no_wait)


def test_pins_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "PINS_MAX", 1)
    store = MemoryStore()
    store.put_if_absent("pins/a", PIN.pack())
    store.put_if_absent("pins/b", PIN.pack())
    with pytest.raises(TooLarge):
        held(store, 3)
    assert held(store, PIN_TTL_MS_MAX + 2) == []


def test_what_a_pin_holds() -> None:
    gone = [("pieces/a", 6), ("pieces/b", 7), ("pieces/c", 8)]
    assert removable(gone, []) == ["pieces/a", "pieces/b", "pieces/c"]
    assert removable(gone, [Held("pins/x", PIN, 1)]) == ["pieces/a", "pieces/b"]
    assert removable(gone, [Held("pins/x", PIN, 1), Held("pins/y", replace(PIN, version=0), 1)]) == []
