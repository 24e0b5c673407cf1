"""The head: the one object of a lineage that is overwritten, and only by compare-and-swap.

It is lease, fence and manifest at once. Whoever writes the next version under the tag of the one before is the only
one who did. `epoch` counts primaries; `version` counts heads; `write` is random, so that a writer whose answer was lost
knows its own head again, and so that no two heads have the same bytes (and by that the same tag).

A head of a later version says all that those before it said, but for what went into a page of the catalog:
`problem_of_next` says what breaks that. Who is about to write a head asks it first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.errors import EngineError
from engine.remote.catalog import (
    Catalog,
    ObjectRef,
    Tail,
    catalog_values,
    joined,
    read_catalog,
    read_ref,
    read_refs,
    ref_values,
)
from engine.remote.documents import Fields, pack_document, unpack_document
from engine.remote.limits import (
    ADDRESS_BYTES_MAX,
    CATALOG_BYTES_MAX,
    CATALOG_PAGES_MAX,
    EPOCH_MAX,
    HEAD_BYTES_MAX,
    NUMBER_MAX,
    OWNER_BYTES_MAX,
    TTL_MS_MAX,
    TTL_MS_MIN,
)
from engine.remote.names import CATALOG, HEAD, STATE


@dataclass(frozen=True, slots=True)
class Head:
    """See the module's docstring."""

    lineage: str
    """Random, 32 hexadecimal digits: of this prefix and no other."""
    directory_id: int
    """Of the log: a restored directory has the same."""
    epoch: int
    version: int
    write: str
    """Random, 32 hexadecimal digits: of this head and no other."""
    owner: str
    """Who is the primary, for people."""
    address: str
    """Where clients reach it."""
    beat: int
    """Counts what is written only to say that the primary lives."""
    ttl_ms: int
    """A standby that saw the head unchanged for so long, by its own clock, takes over."""
    released: bool
    """The primary has ended in good order: a standby need not wait."""
    ahead: int
    """Numbers above the stored ones that a primary may hand out before they are stored here."""
    catalog: tuple[ObjectRef, ...] = ()
    """Pages, the oldest first."""
    state: ObjectRef | None = None
    """The newest whole copy of the state."""
    recent: Catalog = field(default_factory=Catalog)
    """What is in no page yet."""

    def pack(self) -> bytes:
        """The object's content. Raises TooLarge; ValueError: no reader would take it."""
        values = {
            "lineage": self.lineage,
            "directory_id": self.directory_id,
            "epoch": self.epoch,
            "version": self.version,
            "write": self.write,
            "owner": self.owner,
            "address": self.address,
            "beat": self.beat,
            "ttl_ms": self.ttl_ms,
            "released": self.released,
            "ahead": self.ahead,
            "catalog": [ref_values(ref) for ref in self.catalog],
            "state": None if self.state is None else ref_values(self.state),
            **catalog_values(self.recent),
        }
        content = pack_document(values, HEAD_BYTES_MAX)
        if Head.unpack(content) != self:
            raise ValueError("a head that reads as another one")
        return content

    @classmethod
    def unpack(cls, content: bytes | memoryview, name: str = HEAD) -> Head:
        """The reverse of `pack`. Raises Corrupt, UnsupportedFormat."""
        fields = unpack_document(content, name, HEAD_BYTES_MAX)
        head = cls(
            fields.hexadecimal("lineage", 32),
            fields.number("directory_id"),
            fields.number("epoch", 1, EPOCH_MAX),
            fields.number("version", 1),
            fields.hexadecimal("write", 32),
            fields.text("owner", OWNER_BYTES_MAX),
            fields.text("address", ADDRESS_BYTES_MAX),
            fields.number("beat"),
            fields.number("ttl_ms", TTL_MS_MIN, TTL_MS_MAX),
            fields.flag("released"),
            fields.number("ahead"),
            read_refs(fields, "catalog", CATALOG, CATALOG_PAGES_MAX, CATALOG_BYTES_MAX),
            _state(fields),
            read_catalog(fields),
        )
        fields.end()
        if any((ref.name.epoch, ref.name.version) > (head.epoch, head.version) for ref in head.named()):
            fields.refuse("it names an object of a later head")
        return head

    def named(self) -> tuple[ObjectRef, ...]:
        """Every object that it names, but for sealed segments and what its pages name."""
        state = () if self.state is None else (self.state,)
        return (*self.catalog, *state, *self.recent.deltas, *self.recent.pieces)


def problem_of_next(before: Head, after: Head) -> str | None:
    """Why `after` cannot be the head that follows `before`; None: it can."""
    if (after.lineage, after.directory_id) != (before.lineage, before.directory_id):
        return "it is of another log"
    if after.version != before.version + 1 or after.write == before.write:
        return "it is not the next version"
    if after.epoch not in (before.epoch, before.epoch + 1):
        return "it skips an epoch"
    if after.epoch == before.epoch and (after.owner != before.owner or before.released):
        return "its epoch belongs to another primary, or has ended"
    if after.catalog == before.catalog and not _says_all(before, after):
        return "it leaves out what is in no page"
    for key, tail in after.recent.tail.items():
        if key in before.recent.tail and not _goes_on(before.recent.tail[key], tail):
            return f"the tail of partition {key} goes back"
    if any(start < before.recent.starts.get(key, 0) for key, start in after.recent.starts.items()):
        return "the start of a log goes back"
    return None


def is_later(content: bytes, known: Head | None) -> bool:
    """Whether another primary goes on from the head that we know. What is older was put back."""
    try:
        found = Head.unpack(content)
    except EngineError:
        return False
    if known is None:
        return True
    return found.lineage == known.lineage and (found.epoch, found.version) > (known.epoch, known.version)


def _says_all(before: Head, after: Head) -> bool:
    """Whether nothing is missing that the one before said, but for what has come to its end."""
    both, new = joined((before.recent, after.recent)), after.recent
    copied = 0 if after.state is None else after.state.name.version
    return (
        {topic.id for topic in both.topics} <= {topic.id for topic in new.topics}
        and set(both.gone) <= set(new.gone)
        and set(both.segments) <= set(new.segments)
        and (both.starts.keys(), both.tail.keys()) == (new.starts.keys(), new.tail.keys())
        and set(both.lost) <= set(new.lost)
        and set(both.pieces) <= set(new.pieces)
        and both.done == joined((new,)).done
        and {ref for ref in both.deltas if ref.name.version > copied} <= set(new.deltas)
    )


def _goes_on(before: Tail, after: Tail) -> bool:
    if after.segment == before.segment:
        return after.first == before.first and after.committed >= before.committed and after.position >= before.position
    return after.first > before.committed


def _state(fields: Fields) -> ObjectRef | None:
    return None if fields.is_null("state") else read_ref(fields.object("state"), STATE, NUMBER_MAX)
