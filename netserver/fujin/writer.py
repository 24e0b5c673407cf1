"""A writer's stream: WRITE, and transactions.

Plain WRITEs are answered when they are stored, all answers in the order of the commands. Between BEGIN and COMMIT
records are only gathered, checked and answered; COMMIT makes them durable and visible together, over all topics, or
says that none of them is. A transaction that failed (at its COMMIT, by a timeout, or because a newer writer has taken
over its id) stays open for nothing but ROLLBACK: everything else is answered with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from engine.commit.transactions import Transaction
from engine.errors import EngineError, NotStored
from netserver.fujin import codec
from netserver.fujin.codec import Answer, Command, ConnectWriter, Decoder, Op, Tx, Write
from netserver.fujin.dispatch import pack_writes
from netserver.fujin.limits import ACKNOWLEDGED_S, ANSWERS_BYTES_MAX, READ_GRACE_S, RUNS_MAX, TOPICS_REMEMBERED_MAX
from netserver.shell.outstanding import Outstanding, Promise, Released

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from netserver.fujin.listener_state import ListenerState
    from netserver.quic.stream import QuicStream

OPENING: Final = "a topic is being opened"
COMMITTING: Final = "a transaction is being committed"
ANSWERS: Final = "too many answers wait"
STOPPING: Final = "the server is about to stop"
INVALID_STATE: Final = "invalid tx state"
NOT_FOUND: Final = "writer not found"
ANSWER_BYTES: Final = 6
WRITE_HEAD_BYTES: Final = 9


class Written(NamedTuple):
    """Token of a run of WRITEs: their answers if they are stored."""

    answers: bytes

    def refused(self, error: Exception) -> bytes:
        """Their answers if they are not."""
        at = range(1, len(self.answers), ANSWER_BYTES)
        cids = (int.from_bytes(self.answers[start : start + 4], "big") for start in at)
        return b"".join(codec.done(Answer.WRITE, cid, str(error)) for cid in cids)


class Committed(NamedTuple):
    """Token of a COMMIT."""

    cid: int


class End(NamedTuple):
    """Token of the stream's end."""

    last: bytes


class Writer:
    """See the module, and ``netserver.fujin.session.Role``.

    Attributes:
        writer_id: of CONNECT WRITER; only one transaction at a time has it.
        used_at: loop time of the latest command in a transaction.
    """

    def __init__(self, shared: ListenerState, stream: QuicStream, command: ConnectWriter) -> None:
        self.writer_id = command.writer_id
        self.used_at = 0.0
        self._shared = shared
        self._stream = stream
        self._outstanding = Outstanding(stream, self._released, shared.log.slices)
        self._answers_bytes = 0
        self._partitions: dict[bytes, Partition] = {}
        self._opening: Partition | None = None
        self._transaction: Transaction | None = None
        self._committing = False
        self._failed = ""  # why the open transaction can only be rolled back
        self._stopping = False

    # --- Role

    def run(self, decoder: Decoder) -> None:
        if self._transaction is not None or self._shared.section.write_headers:
            return
        stream = self._stream
        while not stream.held:
            found = self._next_topic(decoder)
            if found is None or not self._store_run(decoder, *found):
                return

    def handle(self, command: Command) -> bool:
        if isinstance(command, Write):
            return self._write(command)
        assert isinstance(command, Tx), "the decoder lets nothing else pass on a writer's stream"
        self.used_at = self._shared.loop.time()
        if command.op == Op.BEGIN:
            self._begin(command.cid)
        elif self._transaction is None:
            self._answer(codec.done(Answer(command.op - 1), command.cid, INVALID_STATE))
        elif command.op == Op.COMMIT:
            self._commit(command.cid)
        else:
            self._drop_transaction("rolled_back")
            self._answer(codec.done(Answer.ROLLBACK, command.cid))
        return True

    def end(self, last: bytes) -> None:
        self._drop_transaction("rolled_back")
        self._outstanding.add_done(End(last))

    def stop(self) -> None:
        self._stopping = True
        self._say_stop()

    def broken(self) -> None:
        self._outstanding.close()
        self._drop_transaction("rolled_back")

    # --- plain WRITEs

    def _next_topic(self, decoder: Decoder) -> tuple[bytes, Partition] | None:
        """The topic of the WRITE that comes next, where it is known and open."""
        buffer, position = decoder.buffer, decoder.position
        if len(buffer) - position < WRITE_HEAD_BYTES or buffer[position] != Op.WRITE:
            return None
        start = position + WRITE_HEAD_BYTES
        topic = bytes(buffer[start : start + int.from_bytes(buffer[start - 4 : start], "big")])
        partition = self._partitions.get(topic)
        if partition is None or partition.error is not None or partition.topic.deleting:
            return None
        return topic, partition

    def _store_run(self, decoder: Decoder, topic: bytes, partition: Partition) -> bool:
        """Store the WRITEs to this topic that are back to back; False: the next command needs a closer look."""
        shared = self._shared
        limit = min(shared.section.message_bytes_max, partition.config.record_bytes_max)
        room_bytes = 0
        while True:
            buffer, position = decoder.buffer, decoder.position
            try:
                writer = partition.writer(room_bytes)
            except NotStored:
                return False
            behind, count, is_full = pack_writes(buffer, position, len(buffer), topic, writer, limit, shared.answers)
            if count:
                size_bytes = behind - position
                write_batch = partition.appended(self._outstanding, size_bytes)
                token = Written(bytes(memoryview(shared.answers)[: ANSWER_BYTES * count]))
                self._outstanding.add(write_batch, token, size_bytes, count)
                self._check_runs()
                decoder.consumed(behind)
            if not is_full:
                return bool(count)
            if self._stream.held:
                return True
            start = decoder.position + WRITE_HEAD_BYTES + len(topic)
            room_bytes = int.from_bytes(buffer[start : start + 4], "big")

    def _write(self, command: Write) -> bool:
        """One WRITE that is not part of a run; False: its topic is being opened."""
        if self._failed:
            self._answer(codec.done(Answer.WRITE, command.cid, self._failed))
            return True
        if len(command.headers) % 2:
            self._answer(codec.done(Answer.WRITE, command.cid, "headers are pairs of a name and a value"))
            return True
        try:
            partition = self._partition(command.topic)
            if partition is None:
                return False
            if self._transaction is not None:
                self._add(self._transaction, partition, command)
            else:
                self._append(partition, command)
        except EngineError as error:
            self._answer(codec.done(Answer.WRITE, command.cid, str(error)))
        return True

    def _append(self, partition: Partition, command: Write) -> None:
        headers = [command.headers] if command.headers else None
        write_batch = partition.append([command.message], headers=headers, waiter=self._outstanding)
        size_bytes = len(command.message) + sum(map(len, command.headers))
        self._outstanding.add(write_batch, Written(codec.done(Answer.WRITE, command.cid)), size_bytes)
        self._check_runs()

    def _partition(self, topic: bytes) -> Partition | None:
        """The open partition that a topic's name stands for; None: it is being opened, and the stream held.

        Raises:
            EngineError: there is none, or it cannot be written to.
        """
        partition = self._shared.writer_partition(topic, self._stream.visitor, self._stream.maker)
        if partition is None or partition.topic.deleting:
            self._partitions.pop(topic, None)
            raise EngineError(NOT_FOUND)
        if partition.is_open:
            if len(self._partitions) >= TOPICS_REMEMBERED_MAX:
                self._partitions.clear()
            self._partitions[topic] = partition
            return partition
        if self._opening is partition and partition.error is not None:
            self._opening = None
            raise partition.error.again()
        self._opening = partition
        self._stream.hold(OPENING)
        partition.when_open(lambda: self._stream.release(OPENING))
        return None

    # --- transactions

    def _begin(self, cid: int) -> None:
        if self._transaction is not None:
            self._answer(codec.done(Answer.BEGIN, cid, INVALID_STATE))
            return
        self._transaction = self._shared.log.transaction()
        self._shared.begun(self)
        self._answer(codec.done(Answer.BEGIN, cid))

    def _add(self, transaction: Transaction, partition: Partition, command: Write) -> None:
        """Gather a record.

        Raises:
            TooLarge, NotStored: it was not added; the transaction goes on.
        """
        self.used_at = self._shared.loop.time()
        if not self._shared.may_hold(len(command.message)):
            raise NotStored("too many bytes are in open transactions; try again later")
        before = transaction.size_bytes
        transaction.append(partition, command.message, headers=command.headers)
        self._shared.transaction_bytes += transaction.size_bytes - before
        self._stream.received(len(command.message), 1)
        self._answer(codec.done(Answer.WRITE, command.cid))

    def _commit(self, cid: int) -> None:
        transaction = self._transaction
        assert transaction is not None
        if self._failed:
            self._answer(codec.done(Answer.COMMIT, cid, self._failed))
            return
        promise = Promise()
        self._outstanding.add_promise(promise, Committed(cid))
        self._stream.hold(COMMITTING)
        size_bytes = transaction.size_bytes
        self._committing = True

        def done(error: EngineError | None) -> None:
            self._committing = False
            self._shared.transaction_bytes -= size_bytes
            transaction.rollback()  # lets go of its records
            if error is None:
                self._shared.ended(self, "committed")
                self._transaction = None
            else:
                self._shared.ended(self, "failed")
                self._failed = f"transaction failed: {error}"
            promise.settle(error)
            self._outstanding.round_done()
            self._stream.release(COMMITTING)

        transaction.commit(done)

    def abort(self, reason: str) -> None:
        """Roll the open transaction back, unless it is being committed; its stream is told by the answers to come."""
        if self._committing:
            return
        self._release_transaction()
        self._shared.ended(self, "rolled_back")
        self._failed = reason

    def _drop_transaction(self, result: str) -> None:
        """It is over, if there is one (one that is being committed goes on)."""
        if self._committing:
            return
        if self._transaction is not None:
            self._release_transaction()
            self._shared.ended(self, result)
        self._transaction = None
        self._failed = ""

    def _release_transaction(self) -> None:
        transaction = self._transaction
        if transaction is not None:
            self._shared.transaction_bytes -= transaction.size_bytes
            transaction.rollback()

    # --- answers

    def _check_runs(self) -> None:
        if len(self._outstanding) > RUNS_MAX:
            self._stream.hold(ANSWERS)

    def _answer(self, answer: bytes) -> None:
        """Send an answer after everything that is outstanding."""
        if not len(self._outstanding):
            self._stream.write(answer)
            return
        self._outstanding.add_done(answer)
        self._answers_bytes += len(answer)
        if self._answers_bytes > ANSWERS_BYTES_MAX:
            self._stream.hold(ANSWERS)

    def _released(self, released: Released) -> None:
        """What was outstanding is stored or refused."""
        parts: list[bytes] = []
        is_last = False
        for token, error in released:
            if isinstance(token, Written):
                parts.append(token.answers if error is None else token.refused(error))
            elif isinstance(token, bytes):
                self._answers_bytes -= len(token)
                parts.append(token)
            elif isinstance(token, Committed):
                text = None if error is None else f"transaction failed: {error}"
                parts.append(codec.done(Answer.COMMIT, token.cid, text))
            elif isinstance(token, End):
                parts.append(token.last)
                is_last = True
        self._stream.write(parts[0] if len(parts) == 1 else b"".join(parts))
        if is_last:
            self._stream.finish()
            self._outstanding.close()
            return
        if self._answers_bytes <= ANSWERS_BYTES_MAX // 2 and len(self._outstanding) <= RUNS_MAX // 2:
            self._stream.release(ANSWERS)
        if self._stopping:
            self._say_stop()

    def _say_stop(self) -> None:
        """Send STOP when nothing is outstanding: the Go client drops what shares a read with it.

        So nothing is carried out, hence answered, before it has been read.
        """
        if not len(self._outstanding):
            self._stopping = False
            self._stream.hold(STOPPING)
            self._stream.write(codec.STOP)
            self._stream.when_acknowledged(lambda: self._stream.release(STOPPING), ACKNOWLEDGED_S, READ_GRACE_S)
