"""Pins: who reads what a later head may no longer name. While one counts, nothing goes that its head names.

A pin is made under a name that is used once, and holds for `ttl_ms` from the time at which the store says it was made.
Who needs longer makes the next one, and removes the one before. A reader that died is forgotten by that; no clock but
that of the store is asked.

The order on both sides makes it safe: a reader makes its pin and *then* reads the head that it goes by, and a collector
looks for pins when `grace` has passed since a head stopped naming what it is about to remove.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.errors import Corrupt, TooLarge, UnsupportedFormat
from engine.remote.documents import pack_document, unpack_document
from engine.remote.limits import OWNER_BYTES_MAX, PIN_BYTES_MAX, PIN_TTL_MS_MAX, PINS_MAX, TTL_MS_MIN
from engine.remote.names import pin_name
from engine.remote.store import Absent, Described, Steps, Stored, ask


@dataclass(frozen=True, slots=True)
class Pin:
    """The content of a pin."""

    lineage: str
    version: int
    """Of the head that is read, or of one before it."""
    owner: str
    """Who reads, for people."""
    ttl_ms: int

    def pack(self) -> bytes:
        """The object's content."""
        values = {"lineage": self.lineage, "version": self.version, "owner": self.owner, "ttl_ms": self.ttl_ms}
        return pack_document(values, PIN_BYTES_MAX)

    @classmethod
    def unpack(cls, content: bytes, name: str) -> Pin:
        """The reverse of `pack`. Raises Corrupt, UnsupportedFormat."""
        fields = unpack_document(content, name, PIN_BYTES_MAX)
        pin = cls(
            fields.hexadecimal("lineage", 32),
            fields.number("version"),
            fields.text("owner", OWNER_BYTES_MAX),
            fields.number("ttl_ms", TTL_MS_MIN, PIN_TTL_MS_MAX),
        )
        fields.end()
        return pin


_ANY = Pin("0" * 32, 0, "", PIN_TTL_MS_MAX)


@dataclass(frozen=True, slots=True)
class Held:
    """A pin that counts."""

    name: str
    pin: Pin
    modified_ms: int


def held_pins(listed: Iterable[Described], now_ms: int) -> Steps[list[Held]]:
    """The pins that count at `now_ms` by the clock of the store.

    Args:
        listed: what lies in ``pins/``.

    Raises:
        Unclear, Denied: they could not be read, so nothing may be removed.
        TooLarge: there are more than `PINS_MAX`, so nothing may be removed.
    """
    young = [item for item in listed if item.modified_ms + PIN_TTL_MS_MAX > now_ms]
    if len(young) > PINS_MAX:
        raise TooLarge(f"{len(young)} pins", PINS_MAX)
    found = []
    for item in young:
        pin = yield from _pin(item)
        if pin is not None and item.modified_ms + pin.ttl_ms > now_ms:
            found.append(Held(item.name, pin, item.modified_ms))
    return found


def _pin(item: Described) -> Steps[Pin | None]:
    """None: it is gone. What cannot be read may be a newer version's, and is taken for one of every head."""
    if item.size_bytes > PIN_BYTES_MAX:
        return _ANY
    try:
        stored: Stored = yield from ask("get", item.name, PIN_BYTES_MAX)
        return Pin.unpack(stored.content, item.name)
    except Absent:
        return None
    except (Corrupt, UnsupportedFormat):
        return _ANY


def removable(names: Iterable[tuple[str, int]], held: Iterable[Held]) -> list[str]:
    """Which of these objects may go: (name, version of the first head that does not name it any more)."""
    oldest = min((one.pin.version for one in held), default=None)
    return [name for name, unnamed_in in names if oldest is None or unnamed_in <= oldest]


def pin_object(owner: str, number: int) -> str:
    """The name of the pin that a reader makes as its `number`-th. Raises ValueError."""
    return pin_name(f"{owner}.{number}")
