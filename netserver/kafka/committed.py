"""Offsets that groups have committed: in memory, and in ``state`` before a commit is answered.

Keys and values, with H = BLAKE2b-128 of the group's name in UTF-8 (clients choose the names, and nobody may find two
that collide)::

    k/ H >QI topic id, partition  ->  [group, offset, metadata or nil, leader epoch, time of the log in ms]

What is stored of a topic that is not there any more, or of a group that nobody has used for a week, is removed.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from engine.state.store import Delete, Put

from .limits import OFFSETS_KEPT_MS, OFFSETS_LOOK_S, OFFSETS_MAX

if TYPE_CHECKING:
    from engine.errors import EngineError
    from engine.log import Log
    from engine.state.store import OnDone, Op, StateReader, StateStore
    from engine.state.topic_entries import Topic

log = logging.getLogger("quintlog.kafka")

PREFIX: Final = b"k/"
HASH_BYTES: Final = 16
_PLACE: Final = Struct(">QI")
Place = tuple[int, int]
"""Topic id and partition."""


class Committed(NamedTuple):
    """Where a group is in a partition."""

    offset: int
    metadata: str | None = None
    leader_epoch: int = -1
    at_ms: int = 0


def key_of(group: str, place: Place) -> bytes:
    """Where the state has it."""
    return PREFIX + hashlib.blake2b(group.encode(), digest_size=HASH_BYTES).digest() + _PLACE.pack(*place)


def stored_offsets(
    state: StateReader | StateStore, report: Callable[[Exception], None]
) -> Iterator[tuple[str, Place, Committed]]:
    """What a state has: group, place and what was committed there."""
    for key, value in state.scan(PREFIX, report):
        topic_id, partition = _PLACE.unpack(key[-_PLACE.size :])
        yield value[0], (topic_id, partition), Committed(*value[1:])


class Offsets:
    """Those of all groups. Owner's thread only."""

    def __init__(self, engine: Log) -> None:
        self._log = engine
        self._groups: dict[str, dict[Place, Committed]] = {}
        self._count = 0
        self._looked_s = 0.0
        gone: list[Op] = []
        lost = lambda error: log.error("a committed offset is lost: %s", error)  # noqa: E731
        for name, place, committed in stored_offsets(engine.state, lost):
            if engine.catalog.by_id(place[0]) is None:
                gone.append(Delete(key_of(name, place)))
            else:
                self._groups.setdefault(name, {})[place] = committed
                self._count += 1
        if gone:
            engine.state.submit(gone)
        engine.catalog.listen(self._changed)

    @property
    def names(self) -> list[str]:
        """Groups that have committed something."""
        return list(self._groups)

    def of(self, group: str) -> dict[Place, Committed]:
        """What a group has committed."""
        return self._groups.get(group, {})

    def has_room(self, places: int) -> bool:
        """Whether so many more may be kept."""
        return self._count + places <= OFFSETS_MAX

    def commit(self, group: str, places: dict[Place, Committed], on_done: OnDone) -> None:
        """Keep these; ``on_done`` is called when they are on disk, from when on they are told."""
        puts, keep = self.prepared(group, places)

        def done(error: EngineError | None) -> None:
            if error is None:
                keep()
            on_done(error)

        self._log.state.submit(puts, done)

    def prepared(self, group: str, places: dict[Place, Committed]) -> tuple[list[Put], Callable[[], None]]:
        """What to write to keep these, but for topics that are gone, and what to call when it is on disk."""
        now_ms = self._log.now_ms()
        found = {
            place: one._replace(at_ms=now_ms)
            for place, one in places.items()
            if self._log.catalog.by_id(place[0]) is not None
        }

        for place, one in islice(self.of(group).items(), 1):  # what is on its way is not unused, nor removed as such
            self._groups[group][place] = one._replace(at_ms=now_ms)

        def keep() -> None:
            still = {place: one for place, one in found.items() if self._log.catalog.by_id(place[0]) is not None}
            if still:
                known = self._groups.setdefault(group, {})
                self._count += len(still.keys() - known.keys())
                known.update(still)

        return [Put(key_of(group, place), [group, *one]) for place, one in found.items()], keep

    def remove(self, group: str, on_done: OnDone | None = None, topic_id: int | None = None) -> None:
        """Forget all of a group, or what it has of a topic."""
        self.forget(group, [place for place in self.of(group) if topic_id in (None, place[0])], on_done)

    def forget(self, group: str, places: Iterable[Place], on_done: OnDone | None = None) -> None:
        """Forget what a group has committed in some places."""
        known = self.of(group)
        gone = [place for place in places if known.pop(place, None) is not None]
        if not known:
            self._groups.pop(group, None)
        self._count -= len(gone)
        self._log.state.submit([Delete(key_of(group, place)) for place in gone], on_done)

    def unused(self, now_s: float) -> Iterator[str]:
        """Groups whose latest commit is too old to be kept if nobody is in them; looked for once in a while."""
        if now_s - self._looked_s < OFFSETS_LOOK_S:
            return
        self._looked_s = now_s
        before_ms = self._log.now_ms() - OFFSETS_KEPT_MS
        for name, places in list(self._groups.items()):
            if all(one.at_ms < before_ms for one in places.values()):
                yield name

    def _changed(self, topic: Topic, change: str) -> None:
        if change != "deleted":
            return
        gone: list[Op] = []
        for name, places in list(self._groups.items()):
            for place in [place for place in places if place[0] == topic.id]:
                del places[place]
                self._count -= 1
                gone.append(Delete(key_of(name, place)))
            if not places:
                del self._groups[name]
        if gone:
            self._log.state.submit(gone)
