"""What a bucket holds as of one head, or as of a page of its catalog: read whole, and joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.errors import Corrupt, EngineError, LimitReached
from engine.remote.catalog import Catalog, ObjectRef, joined, unpack_page
from engine.remote.head import Head
from engine.remote.limits import HEAD_BYTES_MAX, SNAPSHOT_ROWS_MAX
from engine.remote.names import HEAD
from engine.remote.objects import Objects, Wanted
from engine.remote.store import Absent

OnProblem = Callable[[Corrupt], None]


class NoLog(EngineError):
    """There is no head below this prefix, so no log."""


class NoSuchVersion(EngineError):
    """The bucket cannot say any more what was stored at that version."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The log at `version`."""

    head: Head
    """As it is stored now, which may be of a later version."""
    version: int
    catalog: Catalog
    newest: Catalog
    """That of the head: which numbers were given out since."""

    @property
    def deltas(self) -> tuple[ObjectRef, ...]:
        """Pieces whose changes make of the copy of the state that of `version`."""
        return self._since_copy(self.catalog)

    @property
    def later_deltas(self) -> tuple[ObjectRef, ...]:
        """Pieces with changes after `version`, some of which the copy may have already."""
        known = set(self.deltas)
        return tuple(ref for ref in self._since_copy(self.newest) if ref not in known)

    def _since_copy(self, catalog: Catalog) -> tuple[ObjectRef, ...]:
        copied = 0 if self.head.state is None else self.head.state.name.version
        return tuple(ref for ref in catalog.deltas if ref.name.version > copied)

    @property
    def size_bytes(self) -> int:
        """Of all objects that are read to restore it; pieces may repeat what segments have that are stored whole."""
        state = 0 if self.head.state is None else self.head.state.size_bytes
        pieces = {ref.name: ref.size_bytes for ref in (*self.catalog.pieces, *self.deltas)}
        return state + sum(pieces.values()) + sum(segment.size_bytes for segment in self.catalog.segments)

    @property
    def log_bytes_min(self) -> int:
        """What the segments take at least: those that are stored whole, and the last one of each partition."""
        whole = {segment.segment_id for segment in self.catalog.segments}
        tails = sum(tail.position for tail in self.catalog.tail.values() if tail.segment not in whole)
        return tails + sum(segment.size_bytes for segment in self.catalog.segments)


def read_head_of(objects: Objects) -> Head:
    """The head as it is now. Raises NoLog, Corrupt, UnsupportedFormat, Unclear, Denied."""
    try:
        return Head.unpack(objects.patiently(lambda: objects.store.get(HEAD, HEAD_BYTES_MAX)).content)
    except Absent:
        raise NoLog("there is no log in this place: it has no object named head") from None


def read_snapshot(objects: Objects, at: int | None = None, on_problem: OnProblem | None = None) -> Snapshot:
    """The log as of the head, or as of the newest version up to `at` that can still be told.

    Args:
        on_problem: is told of a damaged page, which is left out; without it Corrupt is raised.

    Raises:
        NoSuchVersion: with the versions that there are. LimitReached: the catalog is too large.
        Otherwise as `read_head_of`.
    """
    head = read_head_of(objects)
    version = _chosen(head, at)
    then: list[Catalog] = []
    since: list[Catalog] = []
    for ref, catalog in _pages(objects, head, on_problem):
        (then if ref.name.version <= version else since).append(catalog)
        if sum(map(_rows, (*then, *since))) > SNAPSHOT_ROWS_MAX:
            raise LimitReached(f"the pages of the catalog have more than {SNAPSHOT_ROWS_MAX} rows")
    newest = joined((*then, *since, head.recent))
    return Snapshot(head, version, newest if version == head.version else joined(then), newest)


def versions(head: Head) -> list[int]:
    """The versions that can be restored: that of the head, and those of pages since the newest copy of the state."""
    copied = 0 if head.state is None else head.state.name.version
    return sorted({head.version, *(ref.name.version for ref in head.catalog if ref.name.version >= copied)})


def _chosen(head: Head, at: int | None) -> int:
    if at is None or at >= head.version:
        return head.version
    known = versions(head)
    version = max((one for one in known if one <= at), default=None)
    if version is None:
        told = ", ".join(map(str, known[-10:]))
        raise NoSuchVersion(f"version {at} is not kept any more; these can be restored: {told}")
    return version


def _pages(objects: Objects, head: Head, on_problem: OnProblem | None) -> Iterator[tuple[ObjectRef, Catalog]]:
    for ref in head.catalog:
        name = str(ref.name)
        try:
            page = unpack_page(objects.whole(Wanted.of(ref)), name)
            if page.lineage != head.lineage:
                text = f"it is of the lineage {page.lineage}, the head of {head.lineage}: two buckets were mixed"
                raise Corrupt(name, None, text)
            if (page.epoch, page.version) != (ref.name.epoch, ref.name.version):
                raise Corrupt(name, None, f"it says that it is of version {page.version} in epoch {page.epoch}")
        except Corrupt as problem:
            if on_problem is None:
                raise
            on_problem(problem)
            continue
        yield ref, page.catalog


def _rows(catalog: Catalog) -> int:
    rows = (catalog.topics, catalog.segments, catalog.starts, catalog.tail, catalog.lost, catalog.pieces)
    return sum(map(len, rows)) + len(catalog.deltas) + len(catalog.gone) + len(catalog.done)
