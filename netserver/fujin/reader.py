"""A reader's stream: push or pull, with automatic or manual acknowledgement.

CONNECT READER is answered when the group's position is there for good. Nothing else is sent until the client has the
answer (see ``READ_GRACE_S``). A push stream is given records while its output is short and, in manual mode, as
long as it has not too many unacknowledged; a pull stream gets what it asks for with FETCH. In both, ACK and NACK name
records by their ids, also such that another stream of the group was given.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from engine.errors import EngineError
from netserver.fujin import codec
from netserver.fujin.codec import PULL, PUSH, Ack, Answer, Command, ConnectReader, Decoder, Fetch, Op
from netserver.fujin.dispatch import id_ranges, ok_results
from netserver.fujin.limits import ACKNOWLEDGED_S, FETCH_RECORDS_MAX, FETCHES_MAX, READ_GRACE_S, READ_MESSAGE_BYTES_MAX
from netserver.fujin.runs import Runs
from netserver.fujin.writer import STOPPING

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from netserver.fujin.groups import Group
    from netserver.fujin.listener_state import ListenerState, ReaderOptions
    from netserver.quic.stream import QuicStream

CONNECTING: Final = "connecting"
NOT_FOUND: Final = "reader not found"
INVALID_ID: Final = "invalid message id"
UNLIMITED: Final = 1 << 30


class Reader:
    """See the module; ``netserver.fujin.session.Role``, and for a push stream ``netserver.fujin.groups.Taker``."""

    is_push = True

    def __init__(self, shared: ListenerState, stream: QuicStream, command: ConnectReader) -> None:
        self.is_auto = command.auto
        self.held = Runs()
        self.is_waiting = False
        self._shared = shared
        self._stream = stream
        self._kind = command.kind
        self._options: ReaderOptions = shared.reader(command.name)
        self._group: Group | None = None
        self._partition: Partition | None = None
        self._fetches: deque[_Fetch] = deque()
        self._unsynced = 0
        self._ending: bytes | None = None
        self._paused = False
        self._gone = False
        self._is_counted = False
        self._is_connecting = True
        stream.hold(CONNECTING)
        self._connect()

    # --- connecting

    def _connect(self) -> None:
        try:
            stream = self._stream
            partition = self._shared.reader_partition(self._options.topic, stream.visitor, stream.maker)
            stream.visitor.subscribe("CONNECT_READER", self._options.topic)
            self._is_counted = True
        except EngineError as error:
            self._refuse(str(error))
            return
        if partition is None:
            self._refuse(NOT_FOUND)
            return
        self._partition = partition
        partition.when_open(self._stream.guarded(self._opened))

    def _opened(self) -> None:
        partition = self._partition
        assert partition is not None
        if not partition.is_open:
            self._refuse(str(partition.error or f"{partition.title} cannot be opened"))
            return
        group = self._shared.group(self._options.group, partition)
        group.open(self._options.start, lambda error: self._stream.call(self._joined, group, error))

    def _joined(self, group: Group, error: EngineError | None) -> None:
        if error is not None or self._gone or self._ending is not None:
            group.leave(self)
            if error is not None and not self._gone:
                self._refuse(str(error))
            return
        self._group = group
        group.join(self)
        self._stream.write(codec.connected())
        # a pull reader is sent nothing that it has not asked for, and it asks when it has read the answer
        self._stream.when_acknowledged(self._begin, ACKNOWLEDGED_S, READ_GRACE_S if self._kind == PUSH else 0.0)

    def _begin(self) -> None:
        """The client has the answer to CONNECT READER."""
        self._is_connecting = False
        self._stream.release(CONNECTING)
        if self._paused:
            self._say_stop()
        self._want()

    def _refuse(self, text: str) -> None:
        """The answer to CONNECT READER is an error; FIN follows in a packet of its own, see ``session.refuse``."""
        self._gone = True
        self._uncount()
        self._stream.write(codec.connected(text))
        self._stream.stop_reading()
        self._stream.when_acknowledged(self._stream.finish, ACKNOWLEDGED_S, READ_GRACE_S)

    # --- Role

    def run(self, decoder: Decoder) -> None:
        return

    def handle(self, command: Command) -> bool:
        if isinstance(command, Fetch):
            self._fetch(command)
        else:
            assert isinstance(command, Ack), "the decoder lets nothing else pass on a reader's stream"
            self._ack(command)
        return True

    def end(self, last: bytes) -> None:
        self._ending = last
        self._leave("reader is closed")
        self._end_when_synced()

    def stop(self) -> None:
        self._paused = True
        self._drop_fetches(STOPPING)
        if self._group is not None and not self._is_connecting:
            self._say_stop()

    def _say_stop(self) -> None:
        """Nothing is answered before the client has read STOP: the Go client drops what shares a read with it."""
        self._stream.hold(STOPPING)
        self._stream.write(codec.STOP)
        self._stream.when_acknowledged(lambda: self._stream.release(STOPPING), ACKNOWLEDGED_S, READ_GRACE_S)

    def broken(self) -> None:
        self._gone = True
        self._leave("")

    def resume_output(self) -> None:
        """The client reads again."""
        self._want()

    def _uncount(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._stream.visitor.unsubscribe()

    def _leave(self, reason: str) -> None:
        self._uncount()
        self._drop_fetches(reason)
        group, self._group = self._group, None
        if group is not None:
            group.forget(self)
            group.leave(self)

    def _end_when_synced(self) -> None:
        if self._ending is not None and not self._unsynced:
            self._stream.write(self._ending)
            self._stream.finish()

    # --- Taker (push)

    @property
    def message_bytes_max(self) -> int:
        """Larger records are left out."""
        return self._shared.section.push_bytes_max

    def wanted(self) -> int:
        if self._paused or self._group is None or not self._stream.writable:
            return 0
        if self.is_auto:
            return UNLIMITED
        return max(self._shared.section.push_unacknowledged_max - self.held.count, 0)

    def give(self, frames: bytes, count: int) -> None:
        self._stream.write(frames)
        self._stream.delivered(count)

    def given(self) -> None:
        return

    def fail(self, text: str) -> None:
        """A push stream that cannot be read any more ends, with the reason."""
        self._leave("")
        self._gone = True
        self._stream.write(codec.connected(text) + codec.DISCONNECT)
        self._stream.finish()

    def freed(self) -> None:
        """See ``netserver.fujin.groups.Member``."""
        self._want()

    def _want(self) -> None:
        if self._group is not None and self._kind == PUSH and self.wanted() > 0:
            self._group.wants(self)

    # --- FETCH

    def _fetch(self, command: Fetch) -> None:
        group = self._group
        if self._kind != PULL:
            self._refuse_fetch(command.cid, "invalid reader type")
        elif not command.limit:
            self._refuse_fetch(command.cid, "fetch arg not provided")
        elif self._paused or group is None:
            self._refuse_fetch(command.cid, STOPPING)
        elif len(self._fetches) >= FETCHES_MAX:
            self._refuse_fetch(command.cid, "too many fetches wait")
        else:
            waiting = _Fetch(self, command.cid, min(command.limit, FETCH_RECORDS_MAX))
            self._fetches.append(waiting)
            group.wants(waiting)
            if waiting in self._fetches and self._options.fetch_empty != "block":
                waiting.timer = self._shared.loop.call_later(
                    self._shared.section.fetch_wait / 1000, self._stream.guarded(lambda: self._nothing(waiting))
                )

    def _refuse_fetch(self, cid: int, text: str) -> None:
        self._stream.write(codec.done(Answer.FETCH, cid, text))

    def _nothing(self, waiting: _Fetch) -> None:
        """A FETCH has found nothing in time."""
        self._drop(waiting)
        if self._options.fetch_empty == "zero":
            self._stream.write(codec.fetched(waiting.cid, 0))
        else:
            self._refuse_fetch(waiting.cid, "no messages")

    def fetched(self, waiting: _Fetch, count: int, messages: bytes) -> None:
        """A FETCH has found something."""
        self._drop(waiting)
        self._stream.write(codec.fetched(waiting.cid, count, messages))
        self._stream.delivered(count)

    def failed(self, waiting: _Fetch, text: str) -> None:
        """A FETCH cannot read."""
        self._drop(waiting)
        self._refuse_fetch(waiting.cid, text)

    def _drop(self, waiting: _Fetch) -> None:
        if waiting in self._fetches:
            self._fetches.remove(waiting)
        if waiting.timer is not None:
            waiting.timer.cancel()
        if self._group is not None:
            self._group.forget(waiting)

    def _drop_fetches(self, reason: str) -> None:
        for waiting in tuple(self._fetches):
            self._drop(waiting)
            if reason:
                self._refuse_fetch(waiting.cid, reason)

    # --- ACK and NACK

    def _ack(self, command: Ack) -> None:
        group, partition = self._group, self._partition
        assert group is not None, "held until then"
        assert partition is not None
        taken, ranges = id_ranges(command.ids, 0, command.size, partition.index)
        next_seq = group.next_seq
        results: bytes | bytearray
        with group.quiet():  # what comes of it follows the answer
            if taken == command.size and not any(last >= next_seq for last in ranges[1::2]):
                for at in range(0, len(ranges), 2):
                    self._settle(group, command.op, ranges[at], ranges[at + 1])
                results = ok_results(command.ids, 0, taken)
            else:
                ids = codec.strings(command.ids, command.size)
                results = b"".join(self._settle_one(group, command.op, one) for one in ids)
        answer = codec.acked(Answer(command.op), command.cid, command.size, results)
        if self._shared.is_synced and command.op == Op.ACK:
            self._answer_synced(command, answer)
        else:
            self._stream.write(answer)
        self._want()
        group.deal()

    def _settle_one(self, group: Group, op: Op, message_id: bytes) -> bytes:
        """The result of one id."""
        found = codec.parse_message_id(message_id)
        assert self._partition is not None
        if found is None or found[0] != self._partition.index or not 0 < found[1] < group.next_seq:
            return codec.result(message_id, INVALID_ID)
        self._settle(group, op, found[1], found[1])
        return codec.result(message_id)

    def _settle(self, group: Group, op: Op, first: int, last: int) -> None:
        if op == Op.ACK:
            group.acknowledge(self, first, last)
        else:
            group.give_back(self, first, last, self._shared.section.nack_delay)

    def _answer_synced(self, command: Ack, answer: bytes) -> None:
        """Answer when the group's position is on disk."""
        self._unsynced += 1

        def written(error: EngineError | None) -> None:
            self._unsynced -= 1
            if self._gone:
                return
            text = f"acknowledged, but not on disk: {error}"
            self._stream.write(answer if error is None else codec.done(Answer(command.op), command.cid, text))
            self._end_when_synced()

        self._shared.cursors.flush(written)


class _Fetch:
    """A FETCH that waits; a ``Taker``. It is answered with what the first turn that finds something gives it."""

    is_push = False
    message_bytes_max = READ_MESSAGE_BYTES_MAX

    def __init__(self, reader: Reader, cid: int, limit: int) -> None:
        self.cid = cid
        self.is_auto = reader.is_auto
        self.held = reader.held
        self.is_waiting = False
        self.timer: asyncio.TimerHandle | None = None
        self._reader = reader
        self._limit = limit
        self._count = 0
        self._frames: list[bytes] = []

    def wanted(self) -> int:
        """As ``Taker``."""
        return self._limit - self._count

    def give(self, frames: bytes, count: int) -> None:
        self._frames.append(frames)
        self._count += count

    def given(self) -> None:
        if self._count:
            count, self._count = self._count, self._limit
            self._reader.fetched(self, count, b"".join(self._frames))

    def fail(self, text: str) -> None:
        self._reader.failed(self, text)
