"""One Consume request: read what is there, wait if nothing is, answer once.

States::

    READING -> answered                      some partition has records or an error, or there is no time to wait
    READING -> WAITING                       every partition is at its end
    WAITING -> READING (last) -> answered    enough has come, the time is over, the server stops, the topic is gone

Reading may take more than one turn (a partition is opened, or its bytes come from the disk); ``Fetch.ready`` is what
the engine calls then. What is read in the last pass is all that has come since the request, so nothing is lost between
the end of the wait and the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol

from engine.errors import EngineError, OutOfRange
from netserver.access.table import right_of
from netserver.errors import ProtocolError

from .dispatch import ChunkCut
from .limits import (
    ANSWER_BYTES_MAX,
    ANSWER_BYTES_TARGET,
    CHUNK_BYTES_TARGET,
    FETCH_BYTES_MAX,
    FETCH_BYTES_MIN,
    GATHERED_BYTES,
    PIECES_A_STEP,
    SHARE_BYTES_MIN,
    SLICE_BYTES_MIN,
    WAIT_MS_MAX,
)
from .messages import SEQ_END, ConsumeCode, ConsumedPartition, ConsumePartition, ConsumeRequest
from .responses import consume_frame_head, consumed_entry, topic_head, unknown_topic_entry

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from engine.partitions.partition import Partition
    from engine.segments.batches import ReadBatch
    from engine.state.topic_entries import Topic
    from netserver.shell.connection import Connection

    from .waiting_bounds import Waiting

SUBSCRIBE: Final = right_of("tank", "CONSUME")

READING: Final = 0
WAITING: Final = 1
ANSWERED: Final = 2

# how far one partition has got
PENDING: Final = 0
AT_END: Final = 1
DONE: Final = 2


class Unwritten:
    """Stands for a partition that nobody has written to: it costs no object of the engine until it is waited for."""

    is_open = True
    log_start = 1
    committed_seq = last_seq = 0

    def __init__(self, topic: Topic) -> None:
        self.topic = topic


class Fetch:
    """One partition of a request.

    Attributes:
        state: PENDING, AT_END (there is nothing to read, one may wait) or DONE (records or an error).
        partition: None when there is no such one.
        start_seq: number that reading begins with, 0 until it is known.
        position: number to read next.
        limit_bytes: chunk size after which no further bundle is begun.
        pieces: what was read, with the read batches that it lies in.
    """

    __slots__ = (
        "code",
        "job",
        "limit_bytes",
        "opening",
        "partition",
        "pieces",
        "position",
        "request",
        "size_bytes",
        "start_seq",
        "state",
        "tail_seq",
        "topic",
    )

    def __init__(self, job: ConsumeJob, request: ConsumePartition, topic: Topic) -> None:
        self.job = job
        self.request = request
        self.topic = topic
        self.partition: Partition | Unwritten | None = None
        self.state = PENDING
        self.code: int = ConsumeCode.OK
        self.start_seq = 0
        self.position = 0
        self.tail_seq = 0
        self.opening = False
        self.limit_bytes = min(max(request.fetch_bytes, FETCH_BYTES_MIN), FETCH_BYTES_MAX, job.share_bytes)
        self.size_bytes = 0
        self.pieces: list[tuple[ReadBatch, ChunkCut]] = []

    def ready(self) -> None:
        """Called by the engine: the partition was opened, the disk has answered, or something was committed."""
        job = self.job
        if job.state == READING and self.state == PENDING:
            job.connection.call(job.go_on, self)
        elif job.state == WAITING:
            job.connection.call(job.arrived, self)

    def again(self) -> None:
        """Read from the beginning."""
        self.state = PENDING
        self.code = ConsumeCode.OK
        self.position = self.start_seq
        self.pieces = []
        self.size_bytes = 0

    def _look(self) -> None:
        """Find the partition, and again as long as nobody has written to it."""
        if self.partition is None or isinstance(self.partition, Unwritten):
            if self.job.shared.is_written(self.topic, self.request.partition_id):
                self._take_object()
            else:
                self.partition = Unwritten(self.topic)

    def _take_object(self) -> None:
        try:
            self.partition = self.job.shared.partition(self.topic, self.request.partition_id)
        except ProtocolError:  # a Consume has a code for it
            self._fail(ConsumeCode.SYSTEM_ERROR)

    def step(self) -> None:
        """Get as far as is possible without waiting."""
        if not self.topic.deleting:
            self._look()
        partition = self.partition
        if self.state == DONE:
            return
        if partition is None or self.topic.deleting:
            self._fail(ConsumeCode.UNKNOWN_PARTITION)
        elif isinstance(partition, Unwritten) or partition.is_open:
            if self.start_seq or self._begin(partition):
                self._read(partition)
        elif not self.opening:
            self.opening = True
            partition.when_open(self.ready)
        else:
            self._fail(ConsumeCode.SYSTEM_ERROR)

    def _done(self) -> None:
        self.state = DONE
        self.job.is_found = True

    def _fail(self, code: ConsumeCode) -> None:
        self.code = code
        self._done()

    def _begin(self, partition: Partition | Unwritten) -> bool:
        """Find out where to read from; False when the number asked for is not there."""
        seq = self.request.seq
        if seq == 0:
            seq = partition.log_start
        elif seq == SEQ_END:
            seq = partition.committed_seq + 1
        elif seq < partition.log_start or seq > max(partition.committed_seq, partition.last_seq) + 1:
            self._fail(ConsumeCode.OUT_OF_RANGE)
            return False
        self.start_seq = self.position = seq
        return True

    def _read(self, partition: Partition | Unwritten) -> None:
        job = self.job
        while not isinstance(partition, Unwritten) and self.position <= partition.committed_seq:
            if job.is_last:  # it waited here: what retention took meanwhile is not missed
                self.position = max(self.position, partition.log_start)
            # what is there already is not kept waiting for the disk; what is not asked for is not read and verified
            on_ready = None if self.pieces else self.ready
            try:
                read_batch = partition.read(self.position, self.limit_bytes - self.size_bytes, on_ready)
            except EngineError as error:
                if not self.pieces:
                    is_gone = isinstance(error, OutOfRange)
                    self._fail(ConsumeCode.OUT_OF_RANGE if is_gone else ConsumeCode.SYSTEM_ERROR)
                    return
                break
            if read_batch is None:
                if not self.pieces:
                    self.state = PENDING
                    return
                break
            job.connection.counters.skipped["damaged"] += partition.gaps.most(read_batch.lost)
            if self._take(read_batch):
                self._done()
                return
        if self.pieces:
            self._done()
        else:
            self.state = AT_END

    def _take(self, read_batch: ReadBatch) -> bool:
        """Add the records of a read batch; True when the chunk is full or ends here."""
        job = self.job
        cut = ChunkCut()
        expected_seq = self.position if self.pieces else 0
        if not cut.cut(read_batch.buffer, self.position, expected_seq, self.limit_bytes - self.size_bytes):
            self.position = read_batch.last_seq + 1
            return cut.stopped
        if job.size_bytes and job.size_bytes + cut.size_bytes > ANSWER_BYTES_MAX:
            return True
        self.pieces.append((read_batch, cut))
        self.size_bytes += cut.size_bytes
        job.size_bytes += cut.size_bytes
        self.position = cut.last_seq + 1
        return cut.stopped

    def has_more(self) -> bool:
        """Whether it was at its end and no longer is."""
        if self.state == AT_END and not self.topic.deleting:
            self._look()
        return self.state == AT_END and self.partition is not None and self.position <= self.partition.committed_seq

    def begin_wait(self) -> None:
        """Have ``ready`` called at the next commit."""
        self.tail_seq = self.position
        if isinstance(self.partition, Unwritten) and not self.topic.deleting:
            self._take_object()
        if self.partition is not None and not isinstance(self.partition, Unwritten):
            self.partition.read(self.position, 1, self.ready)

    def end_wait(self) -> None:
        """No longer."""
        if self.partition is not None and not isinstance(self.partition, Unwritten):
            self.partition.forget(self.ready)

    def arrived_bytes(self) -> int:
        """Bytes of the bundles that came since this was last asked; ``ready`` is called when there are more.

        Raises:
            EngineError: they cannot be read.
        """
        partition = self.partition
        assert partition is not None, "only known partitions wait"
        assert not isinstance(partition, Unwritten), "what is waited for has an object"
        found = 0
        cut = ChunkCut()
        while (read_batch := partition.read(self.tail_seq, CHUNK_BYTES_TARGET, self.ready)) is not None:
            while self.tail_seq <= read_batch.last_seq and cut.cut(
                read_batch.buffer, self.tail_seq, 0, FETCH_BYTES_MAX
            ):
                found += cut.size_bytes
                self.tail_seq = cut.last_seq + 1
            self.tail_seq = read_batch.last_seq + 1
        return found

    def entry(self) -> bytes:
        """What the header of the answer says of this partition."""
        partition = self.partition
        code = self.code
        base_seq = high_water_mark = first_available = 0
        if partition is not None and code in (ConsumeCode.OK, ConsumeCode.OUT_OF_RANGE):
            first_available = partition.log_start
            high_water_mark = partition.committed_seq
            if self.pieces:
                first = self.pieces[0][1]
                base_seq = first.first_seq
                code = ConsumeCode.SPARSE_FIRST if first.sparse else code
            elif code == ConsumeCode.OK:
                base_seq = 0 if self.job.is_last else first_available
                # below what is there if the answer had no room for it: a client at the end goes on after the mark
                high_water_mark = min(high_water_mark, self.position - 1)
        answer = ConsumedPartition(
            self.request.partition_id, code, high_water_mark, base_seq, first_available=first_available
        )
        return consumed_entry(answer, self.size_bytes)


class Partitions(Protocol):
    """What the listener knows of topics; see `netserver.tank.listener_state.ListenerState`."""

    def topic(self, name: bytes) -> Topic | None:
        """The topic of this name."""

    def partition(self, topic: Topic, index: int) -> Partition | None:
        """The partition, None when the topic has fewer."""

    def is_written(self, topic: Topic, index: int) -> bool:
        """Whether a partition may hold records."""


class Requester(Protocol):
    """The connection's session, as a request needs it."""

    connection: Connection
    waiting: Waiting
    is_ending: bool

    @property
    def shared(self) -> Partitions:
        """The listener."""

    def park(self, function: Callable[[], None]) -> None:
        """Call ``function`` when the peer takes output again."""

    def settled(self) -> None:
        """Something has come to its end."""

    def consumed(self, job: ConsumeJob) -> None:
        """``job`` was answered, or dropped."""


class ConsumeJob:
    """One request of a session on its way to its answer.

    Attributes:
        is_found: some partition is DONE.
        topics: those that it reads.
    """

    def __init__(self, session: Requester, request: ConsumeRequest) -> None:
        self.shared = session.shared
        self._session = session
        self.connection = session.connection
        self.state = READING
        self.is_last = False
        self.is_found = False
        self.size_bytes = 0
        self.fetches: list[Fetch] = []
        self._request = request
        count = sum(len(partitions) for _, partitions in request.topics)
        self.share_bytes = max(SHARE_BYTES_MIN, min(CHUNK_BYTES_TARGET, ANSWER_BYTES_TARGET // max(count, 1)))
        self.topics: set[Topic] = set()
        self._topics: list[list[Fetch] | None] = []
        self._pending = 0
        self._came_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Read, and answer or wait; also again after ``park``. A request may name 65,025 partitions: in slices."""
        if self.state != READING:
            return
        self.size_bytes = 0
        self.is_found = False
        self._pending = 1  # this pass itself, until it has been through all partitions
        self.connection.in_slices(self._read_all())

    def _read_all(self) -> Iterator[None]:
        for name, partitions in self._request.topics[len(self._topics) :]:
            topic = self.shared.topic(name)
            if topic is not None and not self.connection.visitor.check("CONSUME", SUBSCRIBE, name):
                topic = None
            fetches = None if topic is None else [Fetch(self, entry, topic) for entry in partitions]
            self._topics.append(fetches)
            self.fetches += fetches or ()
            if topic is not None:
                self.topics.add(topic)
            yield
        for fetch in self.fetches:
            if self.state != READING:
                return
            fetch.again()
            fetch.step()
            self._pending += fetch.state == PENDING
            yield
        self._pending -= 1
        if not self._pending:
            yield from self._settle()

    def go_on(self, fetch: Fetch) -> None:
        """A partition that was PENDING may get on."""
        fetch.step()
        if fetch.state != PENDING:
            self._pending -= 1
            if not self._pending:
                self.connection.in_slices(self._settle())

    def _settle(self) -> Iterator[None]:
        """Every partition has been read as far as it goes: answer or wait."""
        if self.is_last or not self._may_wait():
            yield from self._answer()
            return
        self._pending = 1
        for fetch in self.fetches:
            if fetch.has_more():  # committed while another partition kept this request from going on
                fetch.step()
                self._pending += fetch.state == PENDING
            yield
        self._pending -= 1
        if self._pending or self.state != READING:
            return
        if self.is_found or not self._may_wait():
            yield from self._answer()
        else:
            yield from self._wait()

    def _may_wait(self) -> bool:
        is_known = bool(self.fetches) and None not in self._topics
        return is_known and self._request.max_wait_ms > 0 and not self._session.is_ending

    # --- waiting

    def _wait(self) -> Iterator[None]:
        self.state = WAITING
        wait_s = min(self._request.max_wait_ms, WAIT_MS_MAX) / 1000
        self._timer = self.connection.loop.call_later(wait_s, self.expire)
        for fetch in self.fetches:
            if self.state != WAITING:
                return
            fetch.begin_wait()
            self._session.waiting.watch(fetch)
            if fetch.has_more():  # it came before this
                self.arrived(fetch)
            yield
        if self.state == WAITING and self._may_wait():
            self._session.waiting.add(self)
            self._session.settled()
        else:
            self.expire()

    def arrived(self, fetch: Fetch) -> None:
        """Records were committed in a partition that is waited for."""
        min_bytes = min(self._request.min_bytes, FETCH_BYTES_MAX)
        if min_bytes > 1:
            try:
                self._came_bytes += fetch.arrived_bytes()
            except EngineError:
                self._came_bytes = min_bytes  # the answer tells what is wrong
            if self._came_bytes < min_bytes:
                return
        self._end_wait()

    def expire(self) -> None:
        """The wait is over; answer with what has come."""
        if self.state == WAITING:
            self.connection.call(self._end_wait)

    def _end_wait(self) -> None:
        self._stop_waiting()
        self.state = READING
        self.is_last = True
        if self.connection.writable:
            self.start()
        else:
            self._session.park(self.start)

    def _stop_waiting(self) -> None:
        self._session.waiting.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def _let_go(self) -> Iterator[None]:
        """No partition has to call any more."""
        for fetch in self.fetches:
            fetch.end_wait()
            self._session.waiting.forget(fetch)
            yield

    def drop(self) -> None:
        """No answer is wanted any more."""
        if self.state == WAITING:
            self._stop_waiting()
        self._finish()
        self.connection.services.log.slices.run(chain(self._let_go(), self._take_apart()))

    def _take_apart(self) -> Iterator[None]:
        """Let go of what it has gathered, which refers to it: so many objects take a while to go."""
        topics, self._topics, self.fetches = self._topics, [], []
        asked, self._request = list(self._request.topics), self._request._replace(topics=())
        while asked or topics:
            if asked:
                asked.pop()
            if topics:
                topics.pop()
            yield

    def _finish(self) -> None:
        if self.state != ANSWERED:
            self.state = ANSWERED
            self._session.consumed(self)

    # --- the answer

    def _answer(self) -> Iterator[None]:
        if self.is_last:
            yield from self._let_go()
        if not self.connection.writable:  # meanwhile; nothing is held in memory until it is
            for fetch in self.fetches:
                fetch.again()
            self._session.park(self.start)
            return
        entries: list[bytes] = []
        pieces: list[tuple[ReadBatch, ChunkCut]] = []
        batches = records = 0
        for (name, partitions), fetches in zip(self._request.topics, self._topics, strict=True):
            if fetches is None:
                entries.append(unknown_topic_entry(name, len(partitions)))
            else:
                entries.append(b"".join([topic_head(name, len(fetches)), *(fetch.entry() for fetch in fetches)]))
                for fetch in fetches:
                    pieces += fetch.pieces
                    batches += sum(cut.batches for _, cut in fetch.pieces)
                    records += sum(cut.records for _, cut in fetch.pieces)
            yield
        if self.state != READING:
            return
        head = consume_frame_head(self._request.request_id, entries, len(self._topics), self.size_bytes)
        yield from self._write(head, pieces, batches)
        if self.state != READING:
            return
        counters = self.connection.counters
        counters.records_delivered += records
        self.connection.delivered(records)
        counters.delivered_bytes += self.size_bytes
        self._finish()
        yield from self._take_apart()
        while pieces:
            del pieces[-PIECES_A_STEP:]
            yield

    def _write(self, head: bytearray, pieces: list[tuple[ReadBatch, ChunkCut]], batches: int) -> Iterator[None]:
        """Head and chunks, at once: gathered in buffers where batches are small, else as slices of what was read."""
        connection = self.connection
        if self.size_bytes < SLICE_BYTES_MIN * max(batches, 2):
            gathered = []
            at = 0
            while at < len(pieces) or head:
                end, size_bytes = _run(pieces, at)
                buffer = bytearray(len(head) + size_bytes)
                buffer[: len(head)] = head
                position, head = len(head), bytearray()
                for read_batch, cut in pieces[at:end]:
                    position = cut.copy_to(read_batch.buffer, buffer, position)
                gathered.append(buffer)
                at = end
                if at < len(pieces):  # one buffer is written at once, before the answers to the requests behind it
                    yield
            for buffer in gathered:
                connection.write(buffer)
            return
        connection.write(head)
        for read_batch, cut in pieces:
            for start, end in cut.ranges(read_batch.buffer):
                connection.write(read_batch.buffer[start:end])


def _run(pieces: list[tuple[ReadBatch, ChunkCut]], start: int) -> tuple[int, int]:
    """Where the pieces end that one buffer takes from ``start`` on, at least one; their bytes."""
    size_bytes = 0
    end = min(start + PIECES_A_STEP, len(pieces))
    for at in range(start, end):
        piece_bytes = pieces[at][1].size_bytes
        if size_bytes and size_bytes + piece_bytes > GATHERED_BYTES:
            return at, size_bytes
        size_bytes += piece_bytes
    return end, size_bytes
