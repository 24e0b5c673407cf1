"""Which partitions may have what is not stored yet: by their watermarks, without opening them all. Owner's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from engine.context import EngineContext
from engine.directory_layout import TOPICS
from engine.errors import EngineError
from engine.files.system import found_at
from engine.formats.segment import segment_name
from engine.partitions.table import PartitionTable
from engine.remote.catalog import PartitionKey, Tail
from engine.segments.watermarks import Owner
from engine.shipping.limits import OPENING_MAX
from engine.state.topic_entries import Topic


class Scan:
    """Opens the partitions that differ from what is stored, some at a time; who watches openings sees them.

    Args:
        tails: what is stored.
        open_anyway: partitions with segments that are not stored whole yet.
        done: called when all are open, or cannot be.
    """

    def __init__(
        self,
        context: EngineContext,
        partitions: PartitionTable,
        tails: Mapping[PartitionKey, Tail],
        open_anyway: frozenset[PartitionKey],
        done: Callable[[], None],
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._tails = tails
        self._open_anyway = open_anyway
        self._done = done
        self._to_open: deque[tuple[Topic, int]] = deque()
        self._opening = 0
        self._is_looking = True

    def begin(self) -> None:
        """Begins."""
        self._context.slices.run(self._look())

    def _look(self) -> Iterator[None]:
        for topic in list(self._context.catalog):
            for index in list(topic.numbers):
                try:
                    differs = self._differs(topic, index)
                except OSError:  # opening it tells
                    differs = True
                if differs:
                    self._to_open.append((topic, index))
                    self._open_next()
                yield
        self._is_looking = False
        self._open_next()

    def _differs(self, topic: Topic, index: int) -> bool:
        key = PartitionKey(topic.id, index)
        tail = self._tails.get(key)
        if tail is None or key in self._open_anyway:
            return True
        mark = self._context.watermarks.read(Owner(topic.numbers[index], topic.id, index))
        if mark is None or (mark.segment_id, mark.committed_position) != (tail.segment, tail.position):
            return True
        path = self._context.data_dir / TOPICS / str(topic.id) / str(index) / segment_name(mark.active_first_seq)
        found = found_at(path)  # the mark may be older than the file
        return found is None or found.st_size != mark.committed_position

    def _open_next(self) -> None:
        while self._to_open and self._opening < OPENING_MAX:
            topic, index = self._to_open.popleft()
            if topic.deleting:
                continue
            self._opening += 1
            try:
                self._partitions.get(topic, index).when_open(self._opened)
            except EngineError:  # it was deleted, or cannot be looked at now: told when it is used
                self._opening -= 1
        if not self._to_open and not self._opening and not self._is_looking:
            self._is_looking = True  # once
            self._done()

    def _opened(self) -> None:
        self._opening -= 1
        self._context.slices.later(self._open_next)
