"""The TANK client (asyncio, any event loop).

::

    async with tank.connect("127.0.0.1:11011") as client:
        await client.create_topic("clicks", partitions=4, exist_ok=True)
        await client.publish("clicks", b"one", partition=3, key=b"user-7")      # stored when this returns
        await client.publish_many("clicks", values, partition=3, keys=keys)     # as bundles, pipelined
        async for batch in client.subscribe("clicks", partition=3, start=tank.after(41)).batches():
            store(batch.values, next_offset=batch.next_offset)

A lost connection is made again, and questions are asked again on it. A publish that had been sent and was not answered
is reported by ``Unknown`` and never sent twice: the server would store it twice. Works with the original server too.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final

from netserver.client.base import Backoff, ClientEvent, LinkLike, parse_address
from netserver.client.tls import client_tls
from netserver.client.window import partly_sent
from netserver.errors import (
    ConnectionFailed,
    ProtocolError,
    QuintlogError,
    TooLarge,
    Unknown,
)

from .calls import Call, Calls
from .codec import decode_response, frame_bounds
from .limits import (
    BUNDLE_RECORDS,
    DEFAULT_PORT,
    FAILED_DIALS_MAX,
    FETCH_BYTES,
    FRAME_BYTES_MAX,
    PARTITION_ID_MAX,
    POLL_WAIT_MS,
    PREFETCH_BYTES,
    PREFETCH_RECORDS,
    WINDOW_BYTES,
    WINDOW_RECORDS,
)
from .messages import (
    ConsumePartition,
    ConsumeRequest,
    ConsumeTopic,
    Ping,
    ProduceResponse,
)
from .publisher import Batcher, Request, fail, now_ms, room_bytes, split, topic_bytes
from .reading import Entries, fetched
from .records import LATEST, Batching, Fetched, Part
from .responses import PING_FRAME
from .subscriber import StartsAt, Subscription
from .topics import TopicRequests

FETCH_MARGIN_S: Final = 10.0
"""Time beyond the longest wait in which a Consume must be answered."""
SWEEP_S: Final = 1.0


def backoff_s(failures: int) -> float:
    """144 ms * 2^n after n failed attempts, as the original's client, with jitter and at most half a minute."""
    return min(0.144 * 2.0 ** min(failures, 16), 30.0) * random.uniform(0.8, 1.2) if failures else 0.0


class Client(TopicRequests):
    """A connection to a TANK server that is kept up. Made by :func:`connect`; ``await`` it or use ``async with``."""

    protocol = "TANK"

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: bytes,
        batching: Batching | None,
        publish_timeout_s: float,
        **options: Any,
    ) -> None:
        super().__init__(host, port, frame_bytes_max=FRAME_BYTES_MAX, **options)
        self._client_id = client_id
        self._publish_timeout_s = publish_timeout_s
        self._requests: dict[int, Request] = {}
        self._calls = Calls(self._write, self._requests)
        self._batcher = Batcher(batching, self.window, self._emit) if batching is not None else None
        self._subscriptions: set[Subscription] = set()
        self._pinged: asyncio.Future[None] | None = None
        self._up = asyncio.Event()
        self._sweeper: asyncio.TimerHandle | None = None

    # --- publishing

    async def publish(
        self,
        topic: str | bytes,
        value: bytes,
        *,
        partition: int = 0,
        key: bytes = b"",
        timestamp_ms: int | None = None,
        compress: bool | str = "auto",
    ) -> None:
        """Publish and wait until the record is stored (in the server's durability: on disk by default).

        Raises:
            Refused: no such topic or partition
            NotStored: the server could not write
            Unknown: sent, and the connection was lost or the answer did not come in time
        """
        future = await self.send(
            topic, value, partition=partition, key=key, timestamp_ms=timestamp_ms, compress=compress
        )
        await future

    async def send(
        self,
        topic: str | bytes,
        value: bytes,
        *,
        partition: int = 0,
        key: bytes = b"",
        timestamp_ms: int | None = None,
        compress: bool | str = "auto",
    ) -> asyncio.Future[None]:
        """Publish, waiting only for a place in the window.

        Returns:
            a future that is done when the record is stored; it may be ignored when :meth:`flush` follows, which does
            not tell of refusals
        """
        self._check_open()
        time_ms = now_ms() if timestamp_ms is None else timestamp_ms
        if self._batcher is not None:
            _check(value, key, time_ms)
            _check_place(partition, compress)
            return await self._batcher.add(topic_bytes(topic), partition, value, key, time_ms, compress)
        part = Part(topic, (value,), partition, (key,) if key else None, (time_ms,), compress=compress)
        return _only(await self._request([part]))

    async def send_many(
        self,
        topic: str | bytes,
        values: Iterable[bytes],
        *,
        partition: int = 0,
        keys: Sequence[bytes] | None = None,
        timestamps_ms: Sequence[int] | None = None,
        seqs: Sequence[int] | None = None,
        compress: bool | str = "auto",
        bundle_records: int = BUNDLE_RECORDS,
    ) -> asyncio.Future[None]:
        """Publish many records as bundles, waiting only for places in the window.

        Args:
            keys, timestamps_ms: one of each a record; without: no keys, the present time
            seqs: rising numbers of their own, above the partition's last one
            bundle_records: most records of a bundle

        Returns:
            a future that is done when all are stored, or fails with the first bundle's error
        """
        self._check_open()
        items = values if isinstance(values, list | tuple) else list(values)
        if timestamps_ms is None:
            timestamps_ms = [now_ms()] * len(items)
        if any(column is not None and len(column) != len(items) for column in (keys, timestamps_ms, seqs)):
            raise ValueError("not one key, timestamp and number for each value")
        _check_all(items, keys, timestamps_ms, seqs)
        whole = Part(topic, items, partition, keys, timestamps_ms, seqs, compress)
        most = min(bundle_records, max(self.window.limit_records // 4, 1))
        requests: list[Request] = []
        for part in split(whole, most):
            try:
                requests.append(await self._request([part]))
            except QuintlogError as error:
                raise partly_sent([request.future for request in requests], error) from error
        whole_outcome = asyncio.ensure_future(_all([_only(request) for request in requests]))
        whole_outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
        return whole_outcome

    async def publish_many(self, topic: str | bytes, values: Iterable[bytes], **options: Any) -> None:
        """Publish many records and wait until all are stored; options as of :meth:`send_many`.

        Raises:
            QuintlogError: of the first bundle that was not stored; those after it may be
        """
        await (await self.send_many(topic, values, **options))

    async def publish_parts(self, parts: Iterable[Part]) -> list[QuintlogError | None]:
        """Publish to several topics and partitions in one request, one bundle each, and wait for its answer.

        Returns:
            for each part None (stored) or why it was not; each stands for itself

        Raises:
            Unknown: the answer did not come
        """
        self._check_open()
        wanted = list(parts)
        if not wanted:
            return []
        request = await self._request(wanted)
        outcome: list[QuintlogError | None] = await request.future
        return outcome

    async def _request(self, parts: list[Part]) -> Request:
        request = Request(self._calls.number(), parts, self._client_id)
        size_bytes = sum(map(room_bytes, parts))
        await self.window.room(request.count, size_bytes)
        self._put(request, size_bytes)
        return request

    def _emit(self, parts: list[Part], size_bytes: int) -> Request:
        request = Request(self._calls.number(), parts, self._client_id)
        self._put(request, size_bytes)
        return request

    def _put(self, request: Request, size_bytes: int) -> None:
        request.size_bytes = size_bytes
        self._requests[request.number] = request
        self._add(request)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Give up on publishes that were sent long ago."""
        self._sweeper = None
        now = time.monotonic()
        for request in list(self._requests.values()):
            if request.done:
                del self._requests[request.number]
            elif request.sent and not request.seen_at:
                request.seen_at = now
            elif request.sent and now - request.seen_at > self._publish_timeout_s:
                self._settle(request, Unknown(f"no answer within {self._publish_timeout_s:g} s", request.records))
        if self._requests:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _settle(self, request: Request, error: QuintlogError) -> None:
        del self._requests[request.number]
        self.window.settle(request, error=error)

    def _produced(self, response: ProduceResponse) -> None:
        request = self._requests.pop(response.request_id, None)
        if request is None:
            return
        try:
            self.window.settle(request, request.results(response.codes))
        except ValueError as error:
            self.window.settle(request, error=Unknown(f"the answer does not fit: {error}", request.records))
            raise

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 (a deadline is part of the interface)
        """See the base; what waits for its bundle to be filled is sent at once."""
        if self._batcher is not None:
            self._batcher.flush()
        await super().flush(timeout)

    async def close(self, flush_timeout_s: float | None = None) -> None:
        """See the base."""
        if self._batcher is not None and self._end is None:
            self._batcher.flush()
        await super().close(flush_timeout_s)

    # --- reading

    def subscribe(
        self,
        topic: str | bytes,
        *,
        partition: int = 0,
        partitions: Sequence[int] | None = None,
        start: StartsAt = LATEST,
        fetch_bytes: int = FETCH_BYTES,
        max_wait_ms: int = POLL_WAIT_MS,
        min_bytes: int = 0,
        prefetch_records: int = PREFETCH_RECORDS,
        prefetch_bytes: int = PREFETCH_BYTES,
        raise_out_of_range: bool = False,
    ) -> Subscription:
        """One partition or several: ``await`` it, use it in ``async with``, or iterate over it.

        Args:
            start: EARLIEST, LATEST (what is published from now on), the number of the first record wanted, or
                ``after(n)``; or a dictionary of these by partition
            fetch_bytes: asked for of each partition at a time; grows when not even one bundle fits
            max_wait_ms, min_bytes: the server answers a poll when so many bytes have come, or after this time
            prefetch_records, prefetch_bytes: how much is received ahead of the application
            raise_out_of_range: fail with OutOfRange where the next record is no longer there; else go on with the
                first one that is (``events()`` tells of the "gap")
        """
        return Subscription(
            self,
            topic_bytes(topic),
            tuple(partitions) if partitions is not None else (partition,),
            start,
            fetch_bytes=fetch_bytes,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            prefetch_records=prefetch_records,
            prefetch_bytes=prefetch_bytes,
            raise_out_of_range=raise_out_of_range,
        )

    async def fetch(
        self, entries: Iterable[tuple[str | bytes, int, int]], *,
        max_wait_ms: int = 0, min_bytes: int = 0, fetch_bytes: int = FETCH_BYTES,
    ) -> list[Fetched]:  # fmt: skip
        """One Consume of several topics and partitions.

        Args:
            entries: (topic, partition, number of the first record wanted; 0 is the first available one)
            max_wait_ms, min_bytes: if there is nothing, wait for so much, at most so long

        Raises:
            Refused: a topic or partition is unknown, or cannot be read now
        """
        self._check_open()
        wanted: Entries = [(topic_bytes(topic), index, seq, fetch_bytes) for topic, index, seq in entries]
        return await self._fetch(wanted, max_wait_ms, min_bytes)

    async def _fetch(self, entries: Entries, max_wait_ms: int, min_bytes: int) -> list[Fetched]:
        topics = tuple(
            ConsumeTopic(name, tuple(ConsumePartition(*entry[1:]) for entry in group))
            for name, group in groupby(entries, key=lambda entry: entry[0])
        )
        return await self._calls.ask(
            "consume",
            lambda number: ConsumeRequest(number, topics, max_wait_ms, min_bytes, client_id=self._client_id),
            lambda response: fetched(response, entries),
            timeout_s=max_wait_ms / 1000 + FETCH_MARGIN_S,
        )

    async def seq_at_time(self, topic: str | bytes, timestamp_ms: int, *, partition: int = 0) -> int:
        """Number of the first record whose timestamp is at least ``timestamp_ms``, found by bisection.

        The number after the last one when there is none; exact if timestamps never go back.
        """
        known = (await self.discover(topic))[partition]
        low, high = max(known.first_seq, 1), known.last_seq + 1
        while low < high:
            middle = (low + high) // 2
            (found,) = await self.fetch([(topic, partition, middle)], fetch_bytes=1)
            if found.first_available is not None and found.next_offset > middle:
                low = max(low, found.next_offset)
            elif found.batch is None or found.batch.timestamps_ms[0] >= timestamp_ms:
                high = middle
            else:
                low = found.batch.seqs[0] + 1
        return low

    # --- the connection

    def _write(self, data: bytes) -> None:
        if self._connected and self._link is not None:
            self._link.write(data)

    async def _handshake(self, link: LinkLike) -> None:
        """The server's Ping; one of ours, so that we do not count as a connection that never sends anything."""
        assert self._pinged is not None, "_dial() comes first"
        await self._pinged
        link.write(PING_FRAME)

    async def _dial(self) -> LinkLike:
        self._pinged = asyncio.get_running_loop().create_future()
        return await super()._dial()

    def _restore(self, link: LinkLike) -> None:
        self._calls.repeat()
        self._up.set()

    def _lost(self, reason: QuintlogError) -> None:
        self._up.clear()
        for request in list(self._requests.values()):
            if request.sent and not request.done:
                self._settle(request, Unknown(f"sent, and the connection was lost: {reason}", request.records))

        def unknown(call: Call) -> QuintlogError:
            return Unknown(f"{call.name}: sent, and the connection was lost: {reason}")

        self._calls.lost(unknown)

    def _ended(self, error: QuintlogError) -> None:
        self._up.set()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._batcher is not None:
            self._batcher.fail(error)
        self._calls.fail(error)
        self._requests.clear()
        for subscription in list(self._subscriptions):
            subscription.end(error)
        self._subscriptions.clear()

    def _tell(self, event: ClientEvent) -> None:
        super()._tell(event)
        if event.name == "failed" and event.failures >= FAILED_DIALS_MAX:
            self._calls.fail(event.reason or ConnectionFailed("no connection"))

    async def _reconnected(self, is_stuck: bool) -> None:
        """Wait for a connection.

        Args:
            is_stuck: the present one does not answer: give it up.
        """
        if is_stuck and self._link is not None and self._connected:
            self._link.abort(ConnectionFailed("the server does not answer"))
            self._up.clear()
        await self._up.wait()
        if self._end is not None:
            raise self._end

    def _received(self, data: memoryview, length: int) -> int:
        position = 0
        try:
            while (frame := frame_bounds(data, position, length)) is not None and frame[2] <= length:
                message_id, start, position = frame
                response = decode_response(message_id, data[start:position])
                if isinstance(response, Ping):
                    if self._pinged is not None and not self._pinged.done():
                        self._pinged.set_result(None)
                elif isinstance(response, ProduceResponse):
                    self._produced(response)
                else:
                    self._calls.received(response.request_id, response)
        except ValueError as error:  # FormatError, or an answer that does not fit its request
            raise ProtocolError(f"from {self.host}:{self.port}: {error}") from error
        return position


def _check(value: bytes, key: bytes, timestamp_ms: int) -> None:
    """Refuse at once what would spoil a whole bundle."""
    if not isinstance(value, bytes) or not isinstance(key, bytes):
        raise TypeError("values and keys are bytes")
    if len(key) > 255:
        raise TooLarge(f"key of {len(key)} bytes", 255)
    if not 0 <= timestamp_ms < 1 << 64:
        raise ValueError(f"timestamp {timestamp_ms} is not a 64-bit number")


def _check_all(
    values: Sequence[bytes],
    keys: Sequence[bytes] | None,
    timestamps_ms: Sequence[int],
    seqs: Sequence[int] | None,
) -> None:
    """Refuse at once what would be found when the first bundles are on their way.

    Raises:
        ValueError, TypeError: a record cannot be sent.
    """
    if not all(isinstance(value, bytes) for value in values) or not all(isinstance(key, bytes) for key in keys or ()):
        raise TypeError("values and keys are bytes")
    if keys and max(map(len, keys)) > 255:
        raise ValueError("key of more than 255 bytes")
    if timestamps_ms and not (min(timestamps_ms) >= 0 and max(timestamps_ms) < 1 << 64):
        raise ValueError("a timestamp is a 64-bit number")
    if seqs and not all(low < high for low, high in pairwise(seqs)):
        raise ValueError("sequence numbers do not rise")


def _check_place(partition: int, compress: bool | str) -> None:
    """Refuse at once what would spoil the bundles of others that are sent together."""
    if not 0 <= partition <= PARTITION_ID_MAX:
        raise ValueError(f"a partition is a number of 0 to {PARTITION_ID_MAX}, not {partition}")
    if not isinstance(compress, bool) and compress != "auto":
        raise ValueError(f'compress is True, False or "auto", not {compress!r}')


def _only(request: Request) -> asyncio.Future[None]:
    """The outcome of a request of one part."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settled(done: asyncio.Future[list[QuintlogError | None]]) -> None:
        error = done.exception() or done.result()[0]
        if error is not None:
            fail(future, error)
        elif not future.done():
            future.set_result(None)

    request.future.add_done_callback(settled)
    return future


async def _all(futures: list[asyncio.Future[None]]) -> None:
    for outcome in await asyncio.gather(*futures, return_exceptions=True):
        if outcome is not None:
            raise outcome


def connect(
    address: str = f"127.0.0.1:{DEFAULT_PORT}",
    *,
    client_id: str = "quintlog",
    batching: Batching | None = None,
    window: int = WINDOW_RECORDS,
    window_bytes: int = WINDOW_BYTES,
    publish_timeout_s: float = 32.0,
    dial_timeout_s: float = 2.0,
    backoff: Backoff = backoff_s,
    give_up_after_s: float | None = None,
    flush_timeout_s: float = 10.0,
    ca: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
    ssl_context: ssl.SSLContext | None = None,
    server_name: str | None = None,
) -> Client:
    """A client of the server at ``address`` (``HOST[:PORT]``); it connects when it is awaited or entered.

    Args:
        client_id: sent with each request, for the server's traces
        batching: gather records that are published one by one into bundles
        window, window_bytes: most records, and bytes, that are sent and not acknowledged
        publish_timeout_s: a publish without answer for so long fails with Unknown
        dial_timeout_s: for one attempt to connect
        backoff: seconds to wait before attempt n
        give_up_after_s: seconds without a connection after which the client fails; None: never
        flush_timeout_s: how long closing waits for acknowledgements
        ca, cert, key: TLS by files: authorities, client certificate and its key; see :mod:`netserver.client.tls`
        ssl_context: instead of these
        server_name: what the server's certificate is for; by default the host

    Raises:
        ConnectionFailed: when awaited: the first attempt failed (only a connection that was up is made again)
    """
    host, port = parse_address(address, DEFAULT_PORT)
    return Client(
        host,
        port,
        client_id=client_id.encode(),
        batching=batching,
        publish_timeout_s=publish_timeout_s,
        window=window,
        window_bytes=window_bytes,
        dial_timeout_s=dial_timeout_s,
        backoff=backoff,
        give_up_after_s=give_up_after_s,
        flush_timeout_s=flush_timeout_s,
        tls=client_tls(ca, cert, key, ssl_context, server_name),
    )
