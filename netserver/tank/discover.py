"""DiscoverPartitions: first and last number of each partition, opening those that hold records and are closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from .messages import DiscoverPartitionsRequest, FaultCode, PartitionRange
from .responses import discovered_frame, encode_range

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.state.topic_entries import Topic

    from .listener_state import ListenerState

EMPTY = PartitionRange(0, 0)
INDEXES_A_STEP = 64


class DiscoverJob:
    """One request on its way to its answer; 14 bytes can ask for 65,535 partitions, so that it goes in slices.

    Args:
        answer: called once with the frame to send.
    """

    def __init__(
        self, shared: ListenerState, request: DiscoverPartitionsRequest, answer: Callable[[bytes], None]
    ) -> None:
        self._shared = shared
        self._request = request
        self._answer = answer
        self._pending = 1  # this object itself, until all are asked

    def start(self) -> None:
        """Answer now, or once all partitions are open; in slices, as there may be 65,535."""
        self._shared.log.slices.run(self._ask())

    def _ask(self) -> Iterator[None]:
        topic = self._shared.topic(self._request.topic)
        if topic is not None:
            for index in self._indexes(topic):
                partition = self._with_records(topic, index)
                if partition is not None and not partition.is_open:
                    self._pending += 1
                    partition.when_open(self._opened)
                if index % INDEXES_A_STEP == 0:
                    yield
        self._opened()

    def _indexes(self, topic: Topic) -> tuple[int, ...] | range:
        return self._request.partition_ids or range(topic.partition_count)

    def _with_records(self, topic: Topic, index: int) -> Partition | None:
        """The partition, None if it was never written to: then it costs no object either."""
        return self._shared.partition(topic, index) if index in topic.numbers else None

    def _opened(self) -> None:
        self._pending -= 1
        if not self._pending:
            self._shared.log.slices.run(self._look())

    def _look(self) -> Iterator[None]:
        request = self._request
        topic = self._shared.topic(request.topic)
        indexes = self._indexes(topic) if topic is not None else ()
        ranges = bytearray()  # encoded one by one: all of them at once would take 20 ms
        for index in indexes:
            assert topic is not None
            ranges += encode_range(self._range(topic, index))
            if index % INDEXES_A_STEP == 0:
                yield
        self._answer(discovered_frame(request.request_id, request.topic, len(indexes), ranges))

    def _range(self, topic: Topic, index: int) -> PartitionRange:
        if index >= topic.partition_count:
            return PartitionRange(0, 0, FaultCode.SYSTEM_ERROR)
        partition = self._with_records(topic, index)
        if partition is None:
            return EMPTY
        if not partition.is_open:
            return PartitionRange(0, 0, FaultCode.SYSTEM_ERROR)
        if not partition.committed_seq:
            return EMPTY
        return PartitionRange(partition.log_start, partition.committed_seq)
