"""Names of objects, below the prefix of their lineage.

::

    head                                        the only object that is ever overwritten
    pieces/EPOCH-VERSION-NONCE                  what one commit added
    catalog/EPOCH-VERSION-NONCE                 an immutable page of the catalog
    state/EPOCH-VERSION-NONCE                   a copy of the state
    segments/TOPIC ID/PARTITION/FIRST-SEGMENT ID.log    a sealed segment, as in an archive
    pins/NAME                                   who still reads what is no longer named
    probe/NAME                                  what a look at the store's abilities leaves for a moment

EPOCH has 10 digits, VERSION 19 and FIRST 20, so that names sort by age; NONCE and SEGMENT ID are 16 hexadecimal digits.
A nonce is random: no name is used twice, not even by a writer that does not know what became of its last attempt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_ID_MAX
from engine.remote.limits import EPOCH_MAX, NUMBER_MAX, U64_MAX

HEAD = "head"
PIECES = "pieces/"
CATALOG = "catalog/"
STATE = "state/"
SEGMENTS = "segments/"
PINS = "pins/"
PROBE = "probe/"

_OF_A_VERSION = re.compile(r"(pieces/|catalog/|state/)([0-9]{10})-([0-9]{19})-([0-9a-f]{16})")
_SEGMENT = re.compile(r"segments/(0|[1-9][0-9]{0,18})/(0|[1-9][0-9]{0,4})/([0-9]{20})-([0-9a-f]{16})\.log")
_PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, order=True)
class Versioned:
    """A name that says by whom and for which commit an object was made: a piece, a page, or a copy of the state."""

    kind: str
    epoch: int
    version: int
    nonce: int

    def __str__(self) -> str:
        return f"{self.kind}{self.epoch:010d}-{self.version:019d}-{self.nonce:016x}"


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """The name of a sealed segment."""

    topic: int
    partition: int
    first: int
    segment_id: int

    def __str__(self) -> str:
        return f"{SEGMENTS}{self.topic}/{self.partition}/{self.first:020d}-{self.segment_id:016x}.log"


def parse_versioned(name: str) -> Versioned | None:
    """What the name of a piece, page or copy says; None when it is no such name."""
    match = _OF_A_VERSION.fullmatch(name)
    if match is None:
        return None
    found = Versioned(match[1], int(match[2]), int(match[3]), int(match[4], 16))
    return found if found.epoch <= EPOCH_MAX and found.version <= NUMBER_MAX else None


def parse_segment(name: str) -> SegmentName | None:
    """What the name of a sealed segment says; None when it is no such name."""
    match = _SEGMENT.fullmatch(name)
    if match is None:
        return None
    found = SegmentName(int(match[1]), int(match[2]), int(match[3]), int(match[4], 16))
    fits = found.topic <= TOPIC_ID_MAX and found.partition < PARTITIONS_PER_TOPIC_MAX and found.first <= U64_MAX
    return found if fits else None


def pin_name(name: str) -> str:
    """The object of a pin. Raises ValueError: letters, digits, dots, underscores and hyphens are allowed, up to 100."""
    if not _PIN.fullmatch(name):
        raise ValueError(f"{name[:120]!r} cannot name a pin")
    return PINS + name
