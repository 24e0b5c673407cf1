"""The state as it was at one version: the copy that the head names, and the changes of the pieces after it.

A copy is made while the state is in use, so it may have changes of versions after its own. Up to the head that names it
these are repeated by the deltas. Where an older version is wanted, a change of a later one may be in the copy already:
that is found out by comparing, and such a version cannot be had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import xxhash

from engine.limits import STATE_ROUND_BYTES_MAX
from engine.remote.catalog import ObjectRef
from engine.remote.objects import Objects, Wanted
from engine.remote.piece import Change, unpack_piece
from engine.remote.snapshot import NoSuchVersion, Snapshot
from engine.remote.state_copy import StateUnpacker


def state_changes(objects: Objects, snapshot: Snapshot) -> Iterator[Sequence[Change]]:
    """What makes the state, from an empty one on, in groups that fit into memory and one transaction.

    Raises:
        Corrupt: an object is damaged or missing. NoSuchVersion: only a later state is there.
    """
    later = _only_later(objects, snapshot)
    if snapshot.head.state is not None:
        for entries in copied(objects, snapshot.head.state, snapshot.head.lineage):
            if any(_digest(entry.value) in later.get(entry.key, ()) for entry in entries):
                raise _too_new(snapshot)
            for entry in entries:
                if None in later.get(entry.key, ()):
                    later[entry.key].discard(None)  # it was not deleted yet
            yield from _parts(entries)
    if any(None in digests for digests in later.values()):
        raise _too_new(snapshot)
    for _, changes in deltas(objects, snapshot.deltas, snapshot.head.lineage):
        yield from _parts(changes)


def copied(objects: Objects, ref: ObjectRef, lineage: str) -> Iterator[list[Change]]:
    """The entries of a copy, each block when it has proved itself. Raises Corrupt."""
    unpacker = StateUnpacker(str(ref.name), lineage)
    for _, blocks in objects.each([Wanted.of(ref)]):
        for block in blocks:
            yield from unpacker.feed(block)
    unpacker.end()


def deltas(objects: Objects, refs: Sequence[ObjectRef], lineage: str) -> Iterator[tuple[ObjectRef, tuple[Change, ...]]]:
    """The changes of each piece. Raises Corrupt."""
    for ref, (wanted, blocks) in zip(refs, objects.each(map(Wanted.of, refs)), strict=True):
        yield ref, unpack_piece(b"".join(blocks), wanted.name, lineage).changes


def _only_later(objects: Objects, snapshot: Snapshot) -> dict[bytes, set[int | None]]:
    """Keys that are changed after the version and by no delta before: hashes of what they become; None: deleted."""
    if not snapshot.later_deltas:
        return {}
    found: dict[bytes, set[int | None]] = {}
    for _, changes in deltas(objects, snapshot.later_deltas, snapshot.head.lineage):
        for change in changes:
            found.setdefault(change.key, set()).add(_digest(change.value))
    for _, changes in deltas(objects, snapshot.deltas, snapshot.head.lineage):
        for change in changes:
            found.pop(change.key, None)
    return found


def _digest(value: bytes | None) -> int | None:
    return None if value is None else xxhash.xxh3_64_intdigest(value)


def _too_new(snapshot: Snapshot) -> NoSuchVersion:
    return NoSuchVersion(
        f"the copy of the state is later than version {snapshot.version}: restore version {snapshot.head.version}"
    )


def _parts(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """Groups for one transaction each."""
    begin = size_bytes = 0
    for index, change in enumerate(changes):
        size_bytes += len(change.key) + len(change.value or b"")
        if size_bytes >= STATE_ROUND_BYTES_MAX // 4:
            yield changes[begin : index + 1]
            begin, size_bytes = index + 1, 0
    if begin < len(changes):
        yield changes[begin:]
