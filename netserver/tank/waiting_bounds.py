"""Consume requests that wait for records, bounded for each connection and in total.

Above a bound the oldest waiting request is answered as if its time had run out, which no client can tell apart from
that; nobody is refused and no memory grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .limits import WAITING_PARTITIONS_MAX, WAITING_PARTITIONS_PER_CONNECTION_MAX

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.slices import Slices
    from engine.state.topic_entries import Topic

    from .consume import ConsumeJob, Fetch, Unwritten


class WaitingRequests:
    """Those of all connections, oldest first."""

    def __init__(self, slices: Slices) -> None:
        self.partitions = 0
        self._slices = slices
        self._jobs: dict[ConsumeJob, None] = {}
        self._of_topic: dict[Topic, dict[ConsumeJob, None]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: ConsumeJob) -> None:
        """``job`` waits."""
        self._jobs[job] = None
        self.partitions += len(job.fetches)
        for topic in job.topics:
            self._of_topic.setdefault(topic, {})[job] = None
        while self.partitions > WAITING_PARTITIONS_MAX:
            next(iter(self._jobs)).expire()

    def discard(self, job: ConsumeJob) -> None:
        """It no longer waits."""
        if self._jobs.pop(job, self) is not None:
            return
        self.partitions -= len(job.fetches)
        for topic in job.topics:
            others = self._of_topic[topic]
            del others[job]
            if not others:
                del self._of_topic[topic]

    def topic_deleted(self, topic: Topic) -> None:
        """Answers the requests that wait for a topic that is gone."""
        self.expire(list(self._of_topic.get(topic, ())))

    def expire(self, jobs: list[ConsumeJob]) -> None:
        """Answers requests as if their time had run out; there may be very many."""
        self._slices.call_each("the end of a wait", (job.expire for job in jobs))

    def drop(self, jobs: list[ConsumeJob]) -> None:
        """Forgets requests: nobody wants their answers."""
        self._slices.call_each("the end of a connection", (job.drop for job in jobs))


class Waiting:
    """Those of one connection."""

    def __init__(self, everybody: WaitingRequests) -> None:
        self.partitions = 0
        self._everybody = everybody
        self._jobs: dict[ConsumeJob, None] = {}
        self._fetches: dict[Partition | Unwritten, dict[Fetch, None]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def jobs(self) -> list[ConsumeJob]:
        """The requests, oldest first."""
        return list(self._jobs)

    def add(self, job: ConsumeJob) -> None:
        """``job`` waits."""
        self._jobs[job] = None
        self.partitions += len(job.fetches)
        self._everybody.add(job)
        while self.partitions > WAITING_PARTITIONS_PER_CONNECTION_MAX:
            next(iter(self._jobs)).expire()

    def discard(self, job: ConsumeJob) -> None:
        """It no longer waits."""
        if self._jobs.pop(job, self) is not None:
            return
        self.partitions -= len(job.fetches)
        self._everybody.discard(job)

    def watch(self, fetch: Fetch) -> None:
        """A partition of a request is waited for."""
        if fetch.partition is not None:
            self._fetches.setdefault(fetch.partition, {})[fetch] = None

    def forget(self, fetch: Fetch) -> None:
        """It no longer is; one that was not is fine."""
        others = self._fetches.get(fetch.partition) if fetch.partition is not None else None
        if others is not None and fetch.partition is not None:
            others.pop(fetch, None)
            if not others:
                del self._fetches[fetch.partition]

    def committed(self, partition: Partition) -> None:
        """Records of this connection's own became readable: who waits for them here is answered first."""
        for fetch in list(self._fetches.get(partition, ())):
            fetch.ready()
