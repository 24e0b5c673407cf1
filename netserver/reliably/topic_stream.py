"""Streams of a topic's records: the session holds which record each id stands for, the record is read from the log.

New records become messages in the order of the log. What damage took from the log before it became a message is passed
over, counted and logged, and shows as a gap in the offsets. A record that did become a message and cannot be read any
more ends the stream with an error that says so: another one must not come under its id.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from engine.errors import EngineError, OutOfRange
from engine.formats.batch import records
from engine.formats.record import BatchError, BundleError, Record
from netserver.reliably.applications import Message, Offsets, RecordsState, State
from netserver.reliably.codec import json_text
from netserver.reliably.limits import READ_BYTES, RETRY_S
from netserver.reliably.stream import Link, SessionStream

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from engine.segments.batches import ReadBatch
    from netserver.reliably.listener_state import ListenerState

log = logging.getLogger(__name__)
GONE: Final = "The topic of this stream has been deleted"


def beyond_the_end(offset: int, partition: Partition) -> str:
    """What a client is told that names a record which was never there."""
    return f"Offset {offset} is beyond the end of the topic, which is {partition.last_seq}"


def record_line(message_id: int, record: Record) -> bytes:
    """The message of a record. Bytes that are not UTF-8 go out as base64, under another name.

    Layout: ``{"id":1,"data":{"offset":17,"timestamp":1795822592000,"key":"k","value":"v"}}``; no key, no field.
    """
    key = _field("key", record.key) + "," if record.key else ""
    data = f'"offset":{record.seq},"timestamp":{record.timestamp_ms},{key}{_field("value", record.value)}'
    return f'{{"id":{message_id},"data":{{{data}}}}}\n'.encode()


def _field(name: str, content: bytes) -> str:
    try:
        return f'"{name}":{json_text(content.decode("utf-8"))}'
    except UnicodeDecodeError:
        return f'"{name}_base64":"{base64.b64encode(content).decode("ascii")}"'


class TopicStream(SessionStream):
    """See the module.

    Args:
        partition: where the topic's records are (partition 0); it need not be open yet.
    """

    def __init__(self, link: Link, shared: ListenerState, uuid: str, position: int, partition: Partition) -> None:
        super().__init__(link, shared, uuid, position)
        self.partition = partition
        self._made: dict[int, list[bytes]] = {}  # lines of blocks that are being stored, by the id of their first
        self._passed = 0  # records up to here are lost, or were found not to exist
        self._on_ready = link.connection.guarded(self.advance)

    def is_finished(self, state: State) -> bool:
        return isinstance(state, RecordsState) and state.left == 0

    def stop(self) -> None:
        super().stop()
        self.partition.forget(self._on_ready)

    # --- making

    def put(self, limit: int) -> int:
        state = self._sessions.state(self.uuid)
        assert isinstance(state, RecordsState)
        if state.left is not None:
            limit = min(limit, state.left)
        after = max(state.offset, self._passed)
        read_batch = self._read(after + 1)
        if read_batch is None:
            if self.partition.is_open and after > self.partition.last_seq:  # an older copy of the log was put back
                self._link.fail(beyond_the_end(after, self.partition), "offset")
            return 0
        found = self._records(read_batch, after + 1, limit)
        if not found:
            self._passed = max(read_batch.last_seq, after)
            self._shared.want(self)
            return 0
        left = None if state.left is None else state.left - len(found)
        next_state = RecordsState(state.topic_id, found[-1].seq, left)
        offsets = Offsets.of(record.seq for record in found)
        made = self._sessions.put_many(self.uuid, lambda _state, _limit: (offsets, next_state), limit, self.done)
        first_id = self._sessions.position(self.uuid)[2] - made + 1
        self._made[first_id] = [record_line(message_id, record) for message_id, record in enumerate(found, first_id)]
        return made

    def _read(self, seq: int) -> ReadBatch | None:
        """Committed records from ``seq`` on; None: not now, or never (then the connection has been told)."""
        try:
            read_batch = self.partition.read(seq, READ_BYTES, self._on_ready)
        except OutOfRange as problem:
            gone = f"Records {seq} to {problem.first - 1} of the topic have been removed by retention"
            self._link.fail(gone, "retention")
            return None
        except EngineError as problem:
            if self.partition.topic.deleting:
                self._link.fail(GONE, "topic")
            else:
                self._shared.paused(problem)
                self._later(RETRY_S, self._open_again)
            return None
        if read_batch is not None and read_batch.lost:
            lost = self.partition.gaps.most(read_batch.lost)
            log.warning("%s: a stream lost %d damaged records: %s", self.partition.title, lost, read_batch.lost)
            self._connection.counters.skipped["damaged"] += lost
        return read_batch

    def _open_again(self) -> None:
        self.partition.when_open(self._on_ready)

    def _records(self, read_batch: ReadBatch, seq: int, limit: int) -> list[Record]:
        """Up to ``limit`` records of the read batch from ``seq`` on."""
        found: list[Record] = []
        try:
            for record in records(read_batch.buffer, from_seq=seq):
                found.append(record)
                if len(found) >= limit:
                    break
        except (BatchError, BundleError) as problem:  # it passed its checksum, so it was written like that
            log.error("%s: records from %d to %d: %s", self.partition.title, seq, read_batch.last_seq, problem)
        return found

    # --- writing

    def _stored(self, error: EngineError | None, first_id: int, messages: Sequence[Message]) -> None:
        super()._stored(error, first_id, messages)
        self._made.pop(first_id, None)

    def lines(self, first_id: int, messages: Sequence[Message]) -> tuple[bytes | bytearray, int]:
        made = self._made.get(first_id)
        if made is not None:
            return b"".join(made[: len(messages)]), min(len(made), len(messages))
        assert isinstance(messages, Offsets)
        read_batch = self._read(messages[0])
        if read_batch is None:
            return b"", 0
        lines: list[bytes] = []
        for offset, record in zip(messages, self._records(read_batch, messages[0], len(messages)), strict=False):
            if record.seq != offset:
                break
            lines.append(record_line(first_id + len(lines), record))
        if not lines:
            self._link.fail(f"Record {messages[0]} of the topic can no longer be read", "damaged")
        return b"".join(lines), len(lines)
