"""Fetch: records from the numbers that a client asks for on, or a wait until there are enough.

Each partition is read as far as it goes, and again when something was committed there. The answer goes out when there
are as many bytes as the client wants, when its time is over, or when a partition has an error. Batches come whole and
uncompressed: the first one even when it is larger than every limit, so that a client always gets on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from engine.errors import EngineError, OutOfRange
from netserver.access.table import right_of

from .call import nothing
from .encoding import encode_records
from .errors import Code
from .limits import ANSWER_BYTES_MAX, CHUNK_BYTES_MAX, WAIT_MS_MAX, WAITED_BYTES_MAX, WAITING_PARTITIONS_MAX
from .schema import Values

if TYPE_CHECKING:
    from engine.partitions.partition import Partition

    from .call import Call

SUBSCRIBE: Final = right_of("kafka", "FETCH")

READING: Final = 0
AT_END: Final = 1
FULL: Final = 2
FAILED: Final = 3
UNKNOWN: Final = 4
"""How far a partition has got: the last one has an error that ends no wait for others."""


class Part:
    """One partition of a request.

    Attributes:
        position: number to read next.
        state: see the module.
        pieces: what was read, as RecordBatches.
        is_interrupted: there is more to read, when others have had their turns.
    """

    __slots__ = (
        "code", "index", "is_interrupted", "is_opening", "is_watched", "job", "limit_bytes", "name", "partition",
        "pieces", "position", "size_bytes", "state",
    )  # fmt: skip

    def __init__(self, job: Fetching, name: str, asked: Values) -> None:
        self.job = job
        self.name = name
        self.index: int = asked["index"]
        self.position: int = asked["offset"]
        self.limit_bytes = min(max(asked["max_bytes"], 1), CHUNK_BYTES_MAX)
        self.state = READING
        self.code = Code.NONE
        self.partition: Partition | None = None
        self.pieces: list[bytes | memoryview] = []
        self.size_bytes = 0
        self.is_opening = False
        self.is_interrupted = False
        self.is_watched = False

    def ready(self) -> None:
        """Called by the engine: the partition was opened, the disk has answered, or something was committed."""
        self.is_watched = False
        self.job.woken[self] = None
        self.job.wake()

    def find(self) -> None:
        """Find the partition, and read."""
        call = self.job.call
        if not call.visitor.check("FETCH", SUBSCRIBE, self.name.encode()):
            self._fail(UNKNOWN, Code.TOPIC_FORBIDDEN)
            return
        try:
            self.partition = call.shared.partition(self.name, self.index)
        except EngineError:
            self._fail(FAILED, Code.STORAGE)
            return
        self.step()

    def step(self) -> None:
        """Get as far as is possible without waiting."""
        partition = self.partition
        if self.state in (FAILED, UNKNOWN, FULL):
            return
        if partition is None or partition.topic.deleting or partition.is_deleted:
            self._fail(UNKNOWN, Code.UNKNOWN_TOPIC)
            return
        try:
            self._read(partition)
        except OutOfRange:
            self._fail(FAILED, Code.OUT_OF_RANGE)
        except EngineError:
            self._fail(FAILED, Code.STORAGE)

    def _read(self, partition: Partition) -> None:
        job = self.job
        self.state = READING
        self.is_interrupted = False
        while True:
            if not partition.is_open:
                self._open(partition)
                return
            if self.position == 0 and partition.log_start <= 1:
                self.position = 1  # the number of the first record there ever was
            if not partition.log_start <= self.position <= partition.committed_seq + 1:
                raise OutOfRange("", partition.log_start, partition.committed_seq)
            if self.position > partition.committed_seq:
                self.state = AT_END
                return
            room = min(self.limit_bytes - self.size_bytes, job.room)
            if room <= 0:
                self.state = FULL
                return
            read_batch = partition.read(self.position, room, None if self.pieces else self.ready)
            if read_batch is None:  # what is there already does not wait for the disk
                self.is_watched = not self.pieces
                self.state = FULL if self.pieces else READING
                return
            job.call.connection.counters.skipped["damaged"] += partition.gaps.most(read_batch.lost)
            encoded = encode_records(read_batch, self.position, room)
            if len(encoded.data) > room and job.size_bytes:
                self.state = FULL
                return
            if encoded.data:
                self.pieces.append(encoded.data)
                self.size_bytes += len(encoded.data)
                job.took(len(encoded.data), encoded.count)
            self.position = encoded.next_seq
            if job.call.shared.log.slices.is_over():
                self.is_interrupted = True
                return

    def _open(self, partition: Partition) -> None:
        if self.is_opening:  # it was tried
            raise EngineError(f"{partition.title} cannot be opened")
        self.is_opening = True
        partition.when_open(self.ready)

    def _fail(self, state: int, code: Code) -> None:
        if not self.pieces:  # else they come, and the error the next time
            self.state = state
            self.code = code

    def watch(self) -> None:
        """Have ``ready`` called at the next commit."""
        if self.is_watched or self.partition is None:
            return
        self.is_watched = True
        try:
            if self.partition.read(self.position, 1, self.ready) is not None:  # it came meanwhile
                self.ready()
        except EngineError:  # which the next step meets
            self.ready()

    def forget(self) -> None:
        """No longer."""
        if self.is_watched and self.partition is not None:
            self.partition.forget(self.ready)

    def answer(self) -> Values:
        """What the answer says of this partition."""
        if self.code or self.partition is None:
            return {"index": self.index, "error": self.code, "aborted": None}
        end = self.partition.committed_seq + 1
        return {
            "index": self.index,
            "error": Code.NONE,
            "end": end,
            "stable_end": end,
            "log_start": self.partition.log_start,
            "aborted": None,
            "records": self.pieces,
        }


class Fetching:
    """One request.

    Attributes:
        woken: partitions that may get on.
        room: bytes that the answer may still take.
        size_bytes, records: what it has.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.woken: dict[Part, None] = {}
        self.size_bytes = 0
        self.records = 0
        self.room = min(max(call.body["max_bytes"], 1), ANSWER_BYTES_MAX)
        self._wanted_bytes = min(call.body["min_bytes"], WAITED_BYTES_MAX, self.room)
        self._parts: list[Part] = []
        self._is_over = False
        self._wakened: asyncio.Future[None] | None = None

    async def run(self) -> Values:
        """The answer."""
        call = self.call
        if call.body["session"]:  # none was ever given
            return {"error": Code.FETCH_SESSION_UNKNOWN, "topics": ()}
        timer: asyncio.TimerHandle | None = None
        waiting = 0
        try:
            async for name, asked in call.each(call.partitions()):
                part = Part(self, name, asked)
                self._parts.append(part)
                part.find()
                await self._read_on(part)
            wait_s = min(max(call.body["wait_ms"], 0), WAIT_MS_MAX) / 1000
            self._is_over = not wait_s
            while not self._is_done():
                if timer is None:
                    timer = call.connection.loop.call_later(wait_s, self._expire)
                    waiting = len(self._parts)
                    call.shared.waiting_partitions += waiting
                    call.on_ending = self.wake
                    async for part in call.each(self._parts):
                        self._watch(part)
                else:
                    await self._woken_up()
                await self._go_on()
            return {"topics": await self._answer()}
        finally:
            if timer is not None:
                timer.cancel()
            call.shared.waiting_partitions -= waiting
            call.on_ending = nothing
            parts, self._parts, self.woken = self._parts, [], {}  # which breaks circles: they know this object
            call.shared.log.slices.run(_let_go(parts))

    def took(self, size_bytes: int, records: int) -> None:
        """So much more is in the answer."""
        self.size_bytes += size_bytes
        self.room -= size_bytes
        self.records += records

    def wake(self) -> None:
        """There may be something to do."""
        if self._wakened is not None and not self._wakened.done():
            self._wakened.set_result(None)

    def _expire(self) -> None:
        """Its time is over; a timer may come a little before the time that it was set to."""
        self._is_over = True
        self.wake()

    def _is_done(self) -> bool:
        """Whether the answer may go out: disks are waited for in any case, else a client would never get on."""
        states = {part.state for part in self._parts}
        if READING in states:
            return False
        call = self.call
        return (
            self.size_bytes >= self._wanted_bytes
            or FAILED in states
            or FULL in states
            or AT_END not in states
            or call.is_ending
            or call.shared.waiting_partitions > WAITING_PARTITIONS_MAX
            or self._is_over
        )

    async def _woken_up(self) -> None:
        if self.woken:
            return
        self._wakened = self.call.connection.loop.create_future()
        await self._wakened

    async def _go_on(self) -> None:
        woken, self.woken = self.woken, {}
        async for part in self.call.each(woken):
            part.step()
            await self._read_on(part)
            self._watch(part)

    async def _read_on(self, part: Part) -> None:
        """One after the other gets its records, with others having their turns."""
        while part.is_interrupted:
            await self.call.turn()
            part.step()

    def _watch(self, part: Part) -> None:
        if part.state == AT_END:
            part.watch()

    async def _answer(self) -> object:
        call = self.call
        by_topic: dict[str, list[Part]] = {}
        for part in self._parts:
            by_topic.setdefault(part.name, []).append(part)
        counters = call.connection.counters
        counters.records_delivered += self.records
        counters.delivered_bytes += self.size_bytes
        call.connection.delivered(self.records)
        return await call.encoded_by_topic(
            (name, (part.answer() for part in parts)) for name, parts in by_topic.items()
        )


def _let_go(parts: list[Part]) -> Iterator[None]:
    """Nobody calls them any more."""
    for part in parts:
        part.forget()
        yield


async def fetch(call: Call) -> Values:
    """See the module."""
    return await Fetching(call).run()
