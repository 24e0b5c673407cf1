"""The publishing half of the TANK client: records into bundles and requests, answers into results.

A request that went out and was not answered before the connection was lost may or may not be stored; it is never sent
again (TANK keeps no account of what it has), its records are reported by ``errors.Unknown``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final, overload

from engine.formats.bundle_encode import encode_bundle
from netserver.client.window import Entry, Window
from netserver.errors import NotStored, QuintlogError, Refused, TooLarge, Unknown

from .codec import encode_request
from .limits import (
    BUNDLE_BYTES,
    BUNDLE_OVERHEAD_BYTES,
    BUNDLE_UNPACKED_BYTES_MAX,
    COMPRESS_BYTES_MIN,
    COMPRESS_RECORDS_MIN,
    FRAME_PAYLOAD_BYTES_MAX,
    RECORD_OVERHEAD_BYTES,
    REQUEST_ENTRIES_MAX,
)
from .messages import Leader, ProduceCode, ProducePartition, ProduceRequest, ProduceTopic
from .records import Batching, Part
from .responses import produce_results

Sent = tuple[bytes, int, bytes, bytes]
"""What Unknown reports of a record: topic, partition, key, value."""

_TEXTS: Final[dict[int, str]] = {
    ProduceCode.UNKNOWN_PARTITION: "no such partition",
    ProduceCode.INVALID_SEQ: "invalid sequence numbers",
    ProduceCode.OTHER_LEADER: "another node leads this partition",
    ProduceCode.NO_LEADER: "the partition has no leader",
    ProduceCode.READ_ONLY: "the server is read-only",
    ProduceCode.UNKNOWN_TOPIC: "no such topic",
}


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def topic_bytes(topic: str | bytes) -> bytes:
    """The name on the wire."""
    name = topic.encode() if isinstance(topic, str) else topic
    if len(name) > 255:
        raise TooLarge(f"topic name of {len(name)} bytes", 255)
    return name


def produce_error(code: int, leader: Leader | None, where: str, records: Sequence[Sent]) -> QuintlogError | None:
    """What a code of a Produce answer means for the records of its partition."""
    if code == ProduceCode.WRITTEN:
        return None
    if code == ProduceCode.IO_ERROR:
        return NotStored(f"{where}: the server could not write")
    if code in (ProduceCode.ACK_TIMEOUT, ProduceCode.TOO_FEW_REPLICAS):
        return Unknown(f"{where}: not acknowledged by enough replicas", records)
    text = _TEXTS.get(code, "refused")
    if leader is not None:
        text += f": {leader.host}:{leader.port}"
    return Refused(code, f"{where}: {text}", retryable=code >= ProduceCode.OTHER_LEADER and code != 0xFF)


def encode_part(part: Part) -> bytes:
    """The bundle of a part.

    Raises:
        ValueError: no records, lists of different lengths, numbers that do not rise, a key above 255 bytes.
    """
    count = len(part.values)
    timestamps_ms = [now_ms()] * count if part.timestamps_ms is None else part.timestamps_ms
    compress = part.compress
    if compress == "auto":
        size_bytes = sum(map(len, part.values)) + (sum(map(len, part.keys)) if part.keys is not None else 0)
        compress = size_bytes > COMPRESS_BYTES_MIN or count > COMPRESS_RECORDS_MIN
        compress = compress and size_bytes <= BUNDLE_UNPACKED_BYTES_MAX - BUNDLE_OVERHEAD_BYTES
    elif not isinstance(compress, bool):
        raise ValueError(f'compress is True, False or "auto", not {compress!r}')
    plain = encode_bundle(part.values, part.keys, timestamps_ms, sparse_seqs=part.seqs)
    if not compress:
        return plain
    packed = encode_bundle(part.values, part.keys, timestamps_ms, sparse_seqs=part.seqs, codec=1)
    return packed if len(packed) < len(plain) or part.compress is True else plain


def room_bytes(part: Part) -> int:
    """What a part counts in the window."""
    keys_bytes = sum(map(len, part.keys)) if part.keys is not None else 0
    return sum(map(len, part.values)) + keys_bytes + RECORD_OVERHEAD_BYTES * len(part.values)


class SentRecords(Sequence[Sent]):
    """The records of some parts as Unknown reports them, made only when somebody looks."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(len(part.values) for part in self._parts)

    def __iter__(self) -> Iterator[Sent]:
        for part in self._parts:
            name = topic_bytes(part.topic)
            for row, value in enumerate(part.values):
                yield name, part.partition, b"" if part.keys is None else part.keys[row], value

    @overload
    def __getitem__(self, index: int) -> Sent: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sent]: ...
    def __getitem__(self, index: int | slice) -> Sent | Sequence[Sent]:
        return list(self)[index]


def split(part: Part, records_max: int, bytes_max: int = BUNDLE_BYTES) -> Iterator[Part]:
    """Parts of at most ``records_max`` records and about ``bytes_max`` bytes, in order."""
    start = 0
    while start < len(part.values):
        end = start
        size_bytes = 0
        while end < len(part.values) and end - start < records_max:
            size_bytes += len(part.values[end])
            if size_bytes > bytes_max and end > start:
                break
            end += 1
        whole = start == 0 and end == len(part.values)
        yield (
            part
            if whole
            else Part(
                part.topic,
                part.values[start:end],
                part.partition,
                None if part.keys is None else part.keys[start:end],
                None if part.timestamps_ms is None else part.timestamps_ms[start:end],
                None if part.seqs is None else part.seqs[start:end],
                part.compress,
            )
        )
        start = end


class Request(Entry):
    """A Produce in the window. Its future gives the error of each part (None: stored), or fails as a whole.

    Raises:
        ValueError: the records of a part cannot be encoded, or there are too many topics or partitions of one.
        TooLarge: the whole request would be.
    """

    __slots__ = ("number", "parts", "seen_at", "shape")

    def __init__(self, number: int, parts: list[Part], client_id: bytes) -> None:
        ordered = sorted(parts, key=_name)  # stable: each partition keeps its order
        topics = []
        for name, group in groupby(ordered, key=_name):
            entries = tuple(
                ProducePartition(part.partition, encode_part(part), part.seqs[0] if part.seqs else 0) for part in group
            )
            topics.append(ProduceTopic(name, entries))
        with_seq = any(part.seqs for part in parts)
        frame = encode_request(ProduceRequest(number, tuple(topics), with_seq, client_id=client_id))
        if len(frame) > FRAME_PAYLOAD_BYTES_MAX:
            raise TooLarge(f"a request of {len(frame)} bytes", FRAME_PAYLOAD_BYTES_MAX)
        records = SentRecords(parts)
        future: asyncio.Future[list[QuintlogError | None]] = asyncio.get_running_loop().create_future()
        super().__init__(number, number, frame, future, records, len(records))
        self.number = number
        self.parts = parts
        self.shape = [(topic.name, len(topic.partitions)) for topic in topics]
        self.seen_at = 0.0

    def results(self, codes: bytes) -> list[QuintlogError | None]:
        """The outcome of each part of ``parts``.

        Raises:
            ValueError: the answer does not fit the request.
        """
        order = sorted(range(len(self.parts)), key=lambda index: _name(self.parts[index]))
        outcome: list[QuintlogError | None] = [None] * len(order)
        for index, (_, _, code, leader) in zip(order, produce_results(codes, self.shape), strict=True):
            part = self.parts[index]
            where = f"topic {_name(part).decode('utf-8', 'backslashreplace')!r} partition {part.partition}"
            outcome[index] = produce_error(code, leader, where, SentRecords([part]))
        return outcome


def _name(part: Part) -> bytes:
    return topic_bytes(part.topic)


class _Open:
    """A bundle that is being filled."""

    __slots__ = ("futures", "keys", "room_bytes", "timestamps_ms", "values")

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.keys: list[bytes] = []
        self.timestamps_ms: list[int] = []
        self.futures: list[asyncio.Future[None]] = []
        self.room_bytes = 0


class Batcher:
    """Gathers single records into bundles.

    Args:
        window: places are taken for each record when it is added.
        emit: makes a request of parts whose places are taken, and returns it.
    """

    def __init__(self, batching: Batching, window: Window, emit: Callable[[list[Part], int], Request]) -> None:
        if not batching.records_max >= 1 or batching.bytes_max < 1 or batching.linger_s < 0:
            raise ValueError("a bundle holds at least one record, and no time is negative")
        self._batching = batching
        self._window = window
        self._emit = emit
        self._open: dict[tuple[bytes, int, bool | str], _Open] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def add(
        self, topic: bytes, partition: int, value: bytes, key: bytes, timestamp_ms: int, compress: bool | str
    ) -> asyncio.Future[None]:
        """A record; the future is done when it is stored."""
        size_bytes = len(value) + len(key) + RECORD_OVERHEAD_BYTES
        if not self._window.try_room(1, size_bytes):
            self.flush()  # what waits here is what the window is full of
            await self._window.room(1, size_bytes)
        where = topic, partition, compress
        bundle = self._open.get(where)
        if bundle is None:
            bundle = self._open[where] = _Open()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bundle.values.append(value)
        bundle.keys.append(key)
        bundle.timestamps_ms.append(timestamp_ms)
        bundle.futures.append(future)
        bundle.room_bytes += size_bytes
        if len(bundle.values) >= self._batching.records_max or bundle.room_bytes >= self._batching.bytes_max:
            self._send([where])
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._batching.linger_s, self.flush)
        return future

    def flush(self) -> None:
        """Send all that waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._open:
            self._send(list(self._open)[:REQUEST_ENTRIES_MAX])

    def fail(self, error: QuintlogError) -> None:
        """The client is over."""
        if self._timer is not None:
            self._timer.cancel()
        for bundle in self._open.values():
            for future in bundle.futures:
                fail(future, error)
        self._open.clear()

    def _send(self, places: list[tuple[bytes, int, bool | str]]) -> None:
        bundles = [self._open.pop(where) for where in places]
        parts = [
            Part(
                topic,
                bundle.values,
                partition,
                bundle.keys if any(bundle.keys) else None,
                bundle.timestamps_ms,
                compress=compress,
            )
            for (topic, partition, compress), bundle in zip(places, bundles, strict=True)
        ]
        room_bytes = sum(bundle.room_bytes for bundle in bundles)
        try:
            request = self._emit(parts, room_bytes)
        except (QuintlogError, ValueError) as error:  # the window has failed, or all together are too large
            if self._window.error is None:
                self._window.give_back(sum(len(bundle.values) for bundle in bundles), room_bytes)
            for bundle in bundles:
                for future in bundle.futures:
                    fail(future, error)
            return
        request.future.add_done_callback(lambda done: _distribute(done, [bundle.futures for bundle in bundles]))


def _distribute(done: asyncio.Future[list[QuintlogError | None]], futures: list[list[asyncio.Future[None]]]) -> None:
    error = done.exception()
    outcome = [error] * len(futures) if error is not None else done.result()
    for problem, group in zip(outcome, futures, strict=True):
        for future in group:
            if problem is None:
                if not future.done():
                    future.set_result(None)
            else:
                fail(future, problem)


def fail(future: asyncio.Future[None], error: BaseException) -> None:
    """Fail a future that the application may never look at."""
    if not future.done():
        future.set_exception(error)
        future.exception()
