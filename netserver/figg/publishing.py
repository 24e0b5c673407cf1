# cython: annotation_typing=False
"""The publisher's half of a Figg session: runs of PUBLISH frames, and ACKs (compiled where there is a compiler)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import NotStored
from netserver.figg import codec
from netserver.figg.dispatch import pack_publishes
from netserver.figg.limits import HEADER_BYTES, RUN_BYTES, RUNS_FREE
from netserver.shell.outstanding import Outstanding, Released

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.slices import Slices
    from netserver.shell.connection import Connection

NUMBERS = 1 << 64
"""Above every seq_num."""


class PublishingSession:
    """A session as far as publishes go. The rest of the protocol is in the class derived from it.

    Attributes:
        connection: whose session this is.
        frame_bytes_max: largest payload of a frame.
    """

    def __init__(self, connection: Connection, slices: Slices, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.connection = connection
        # of runs: lowest and highest seq_num, partition
        self._outstanding = Outstanding(connection, self._released, slices)
        self._last: Partition | None = None  # the topic of the publish before
        self._runs_charged = 0
        self._highest = -1  # seq_num of those outstanding
        self._disordered = False  # some run has a lower number than one before it
        self._acknowledge = -1  # highest number that is stored and not yet acknowledged
        self._refused = False  # something could not be stored: nothing is acknowledged from there on
        self._refused_from = NUMBERS  # lowest number of what was not stored
        self._ending = False

    def received(self, data: memoryview, length: int) -> int:
        """See ``netserver.shell.services.Session``. Usually all of it are publishes to the topic of those before."""
        position = 0
        partition = self._last
        if partition is not None and not self._refused and not self.connection.held:
            try:
                position = self._store_run(partition, data, 0, length)
            except NotStored:
                self._last = None
        return position if position == length else self.other(data, position, length)

    def other(self, data: memoryview, position: int, length: int) -> int:
        """Takes whatever comes from ``position`` on; the position after it."""
        raise NotImplementedError

    def _store_run(self, partition: Partition, data: memoryview, start: int, length: int) -> int:
        """Put the publishes of the partition's topic that are back to back into the log; the position after them.

        Raises:
            NotStored: nothing can be stored there.
        """
        connection = self.connection
        limit = partition.topic.config.record_bytes_max
        topic = partition.topic.name
        outstanding = self._outstanding
        room_bytes = 0
        position = start
        while True:
            try:
                writer = partition.writer(room_bytes)
            except NotStored:
                if position == start:
                    raise
                return position  # the next frame meets it again
            position, count, lowest, highest, size_bytes, full = pack_publishes(
                data, position, length, topic, writer, self.frame_bytes_max, limit
            )
            if count:
                write_batch = partition.appended(outstanding, size_bytes)
                if lowest <= self._highest:
                    self._disordered = True
                if highest > self._highest:
                    self._highest = highest
                outstanding.add(write_batch, (lowest, highest, partition), size_bytes, count)
                if len(outstanding) > RUNS_FREE:
                    self._runs_charged += 1
                    connection.charge(RUN_BYTES)
            if not full or connection.held:
                return position
            room_bytes = int.from_bytes(data[position + 4 : position + HEADER_BYTES], "big")

    # --- acknowledging

    def _released(self, released: Released) -> None:
        """A round has set answers free, in the order of arrival."""
        for (lowest, highest, partition), problem in released:
            if problem is not None:
                self._refuse(problem, partition.topic.name, partition, lowest)
            elif not self._refused and highest > self._acknowledge:
                self._acknowledge = highest
        if self._runs_charged:
            self._discharge_runs(max(len(self._outstanding) - RUNS_FREE, 0))
        self._write_ack()
        if self._ending:
            self._close_when_done()

    def _discharge_runs(self, charged: int) -> None:
        if charged < self._runs_charged:
            self.connection.discharge(RUN_BYTES * (self._runs_charged - charged))
            self._runs_charged = charged

    def _write_ack(self) -> None:
        """Acknowledge what is stored, unless a lower number is not: an ACK covers every lower one."""
        number = self._acknowledge
        if number < 0 or number >= self._refused_from:
            return
        if self._disordered and min([run[0] for run in self._outstanding.tokens()], default=NUMBERS) <= number:
            return
        if not len(self._outstanding):
            self._highest = -1
            self._disordered = False
        self._acknowledge = -1
        self.connection.write(codec.ack(number))

    def _refuse(self, problem: Exception, topic: bytes, partition: Partition | None, number: int) -> None:
        """The publish with this number cannot be stored: it and what comes after it is not acknowledged."""
        raise NotImplementedError

    def _close_when_done(self) -> None:
        raise NotImplementedError
