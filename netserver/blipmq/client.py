"""The BlipMQ client (asyncio, any event loop).

::

    async with blipmq.connect("127.0.0.1:5555", api_key="secret") as client:
        await client.publish("orders", b"one")                    # on disk when this returns
        await client.publish_many("orders", bodies)               # pipelined
        await client.publish("ticks", b"42", qos=0)               # not waited for
        subscription = await client.subscribe("orders")           # keep subscription.id: it outlives everything
        async for message in subscription:
            ...
            await message.ack()                                   # otherwise it comes again
        # or: await subscription.run(handle, concurrency=8)

The protocol does not answer a PUBLISH. The client sends a PING after each batch; our server's PONG means that all
before it is stored (the original's, that it was taken). A lost connection is made again and what was not confirmed is
sent again, so a message may be stored twice; with QoS 0 it may be lost instead. Each subscription has a connection of
its own: deliveries do not say which POLL they answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from netserver.blipmq import codec, codec_v2
from netserver.blipmq.codec import CodecError, FrameType, Nack
from netserver.blipmq.limits import (
    CLIENT_ENTRY_BYTES,
    CLIENT_WINDOW_BYTES,
    CLIENT_WINDOW_RECORDS,
    DEFAULT_PORT,
    FRAME_LENGTH_MAX,
    PREFETCH_BYTES_MAX,
    PREFETCH_RECORDS_MAX,
)
from netserver.blipmq.login import CID_BASE, LoginClient, refusal
from netserver.blipmq.subscriber import Subscription
from netserver.client.base import WRITE_BYTES, Backoff, exponential_backoff, parse_address
from netserver.client.tls import client_tls
from netserver.client.window import Entry, partly_sent
from netserver.errors import NotStored, ProtocolError, QuintlogError, TooLarge

More = tuple[int | None, bytes]
"""Time to live in ms, and key: fields that version 2 has."""
EARLIEST = 0
"""``start`` of a subscription: from the first message that is kept."""
FIRST_RETRY_S = 0.05
LAST_RETRY_S = 2.0


class Publication(Entry):
    """Frames of one topic and QoS, with what is needed to send some of them again."""

    __slots__ = ("deadline", "more", "qos", "retry_s", "topic", "values")

    def __init__(
        self,
        first: int,
        topic: bytes,
        values: Sequence[bytes],
        qos: int,
        future: asyncio.Future[Any],
        deadline: float,
        retry_s: float,
        more: More | None,
    ) -> None:
        cids = range(CID_BASE + first, CID_BASE + first + len(values))
        if more is None:
            frames = b"".join(codec.publish(cid, qos, topic, value) for cid, value in zip(cids, values, strict=True))
        else:
            frames = b"".join(
                codec_v2.publish(cid, qos, topic, value, *more) for cid, value in zip(cids, values, strict=True)
            )
        super().__init__(first, first + len(values) - 1, frames, future, values, len(values))
        self.topic = topic
        self.values = values
        self.qos = qos
        self.deadline = deadline
        self.retry_s = retry_s
        self.more = more


class Client(LoginClient):
    """A connection to a BlipMQ server that is kept up. Made by :func:`connect`; ``await`` it or use ``async with``."""

    protocol = "BlipMQ"

    def __init__(
        self, host: str, port: int, *, api_key: str | Path, version: int, store_timeout_s: float, **options: Any
    ) -> None:
        super().__init__(host, port, api_key=api_key, version=version, **options)
        self._options = options
        self._store_timeout_s = store_timeout_s
        self._number = 0
        self._refused: dict[int, Nack] = {}
        self._retries: set[asyncio.Task[None]] = set()
        self._subscriptions: set[Subscription] = set()

    # --- publishing

    async def publish(
        self, topic: str | bytes, value: bytes, *, qos: int = 1, ttl_ms: int | None = None, key: bytes = b""
    ) -> None:
        """Publish and, with QoS 1, wait until the message is stored (on disk, in the server's default durability).

        Args:
            ttl_ms, key: with version 2: how long it may be delivered, and a key of up to 255 bytes

        Raises:
            Refused: no right to publish to the topic, or no such topic where the server makes none
            TooLarge: larger than a frame
            NotStored: the server could not store it within ``store_timeout_s``
            Unknown: the client was closed or gave up first
        """
        future = await self.send(topic, value, qos=qos, ttl_ms=ttl_ms, key=key)
        if qos:
            await future

    async def send(
        self, topic: str | bytes, value: bytes, *, qos: int = 1, ttl_ms: int | None = None, key: bytes = b""
    ) -> asyncio.Future[None]:
        """Publish, waiting only for a place in the window.

        Returns:
            a future that is done when the message is stored (with QoS 0: when it was handed over); it may be ignored
            when :meth:`flush` follows, which does not tell of refusals
        """
        more: More | None = None
        if ttl_ms is not None or key:
            if self.version != codec_v2.VERSION:
                raise ValueError("ttl_ms and key need connect(version=2)")
            if ttl_ms is not None and not 0 <= ttl_ms < 1 << 32:
                raise ValueError("ttl_ms is a number of 32 bits")
            more = (ttl_ms, key)
        return await self._send(_name(topic), [value], qos, more)

    async def publish_many(self, topic: str | bytes, values: Iterable[bytes], *, qos: int = 1) -> None:
        """Publish many messages in order and wait until all are stored.

        Raises:
            QuintlogError: of the first one that was not; those after it may be
        """
        name = _name(topic)
        items = list(values)
        _check(name, items, qos)
        futures: list[asyncio.Future[None]] = []
        for start, end in self._portions(name, items):
            try:
                futures.append(await self._send(name, items[start:end], qos))
            except QuintlogError as error:
                raise partly_sent(futures, error) from error
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    def _portions(self, name: bytes, values: Sequence[bytes]) -> Iterator[tuple[int, int]]:
        """Start and end of the values of each entry of the window."""
        most = max(self.window.limit_records // 4, 1)
        start, size_bytes = 0, 0
        for end, value in enumerate(values):
            if end > start and (size_bytes + len(value) > CLIENT_ENTRY_BYTES or end - start >= most):
                yield start, end
                start, size_bytes = end, 0
            size_bytes += len(value) + len(name) + 16
        if values:
            yield start, len(values)

    async def _send(
        self, topic: bytes, values: Sequence[bytes], qos: int, more: More | None = None
    ) -> asyncio.Future[None]:
        self._check_open()
        _check(topic, values, qos)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        await self._put(topic, values, qos, future, loop.time() + self._store_timeout_s, FIRST_RETRY_S, more)
        if not qos:
            future.set_result(None)
        return future

    async def _put(
        self,
        topic: bytes,
        values: Sequence[bytes],
        qos: int,
        future: asyncio.Future[None],
        deadline: float,
        retry_s: float,
        more: More | None,
    ) -> None:
        size_bytes = sum(map(len, values)) + len(values) * (len(topic) + 16)
        await self.window.room(len(values), size_bytes)
        first = self._number + 1
        self._number += len(values)
        self._add(Publication(first, topic, values, qos, future, deadline, retry_s, more))

    def _pump(self) -> None:
        """As the base, with a PING after each write."""
        link = self._link
        if link is None or not self._connected:
            return
        window = self.window
        while window.unsent and link.writable:
            frames = window.take_unsent(WRITE_BYTES)
            if frames:
                link.write(b"".join((*frames, codec.ping(CID_BASE + window.last_taken))))

    def _frame(self, kind: int, cid: int, payload: memoryview) -> None:
        number = cid - CID_BASE
        if not 0 < number <= self._number or kind not in (FrameType.PONG, FrameType.NACK):
            raise ProtocolError(f"unexpected frame of type {kind} with correlation id {cid}")
        if kind == FrameType.NACK:
            self._refused[number] = codec.parse_nack(payload)
        elif self._refused:
            self._settle_through(number)
        else:
            self.window.ack_through(number)

    def _settle_through(self, number: int) -> None:
        """As ``Window.ack_through`` when some were refused."""
        for entry in list(self.window):
            if entry.last > number or not entry.sent:
                break
            refused = {n: self._refused.pop(n) for n in range(entry.first, entry.last + 1) if n in self._refused}
            if not refused:
                self.window.settle(entry)
            elif isinstance(entry, Publication):
                self._refuse(entry, refused)

    def _refuse(self, entry: Publication, refused: dict[int, Nack]) -> None:
        """Some messages of an entry were refused: for good, or (500) they are sent again after a while."""
        loop = asyncio.get_running_loop()
        final = [nack for nack in refused.values() if nack.code < codec.SERVER_ERROR]
        if final:
            self.window.settle(entry, error=refusal(final[0]))
        elif not entry.qos:
            self.window.settle(entry)
        elif loop.time() + entry.retry_s > entry.deadline:
            self.window.settle(entry, error=NotStored(next(iter(refused.values())).text))
        else:
            self.window.withdraw(entry)
            values = [entry.values[n - entry.first] for n in refused]
            task = loop.create_task(self._send_again(entry, values))
            self._retries.add(task)
            task.add_done_callback(lambda done: self._sent_again(done, entry))

    async def _send_again(self, entry: Publication, values: Sequence[bytes]) -> None:
        await asyncio.sleep(entry.retry_s)
        next_s = min(2 * entry.retry_s, LAST_RETRY_S)
        await self._put(entry.topic, values, entry.qos, entry.future, entry.deadline, next_s, entry.more)

    def _sent_again(self, done: asyncio.Task[None], entry: Publication) -> None:
        """It is in the window once more, or never will be: the client has ended, perhaps before the task ran at all."""
        self._retries.discard(done)
        if (done.cancelled() or done.exception() is not None) and not entry.future.done():
            entry.future.set_exception(NotStored("the client was closed before the server could store it"))
            entry.future.exception()

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 (a deadline is part of the interface)
        """See the base; what the server could not store yet is waited for too."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            await super().flush(None if deadline is None else max(deadline - loop.time(), 0.0))
            if not self._retries:
                return
            await asyncio.wait(self._retries, timeout=None if deadline is None else max(deadline - loop.time(), 0.0))

    def _lost(self, reason: QuintlogError) -> None:
        self._refused.clear()
        for entry in list(self.window):
            if isinstance(entry, Publication) and not entry.qos and entry.sent:
                self.window.settle(entry)  # at most once: what was sent with QoS 0 is not sent again

    def _ended(self, error: QuintlogError) -> None:
        for task in self._retries:
            task.cancel()
        for subscription in tuple(self._subscriptions):
            subscription.end(error)
        self._subscriptions.clear()

    async def close(self, flush_timeout_s: float | None = None) -> None:
        """See the base; the subscriptions end too (on the server they stay)."""
        for subscription in tuple(self._subscriptions):
            await subscription.close()
        await super().close(flush_timeout_s)

    # --- reading

    def subscribe(
        self,
        topic: str | bytes,
        *,
        qos: int = 1,
        resume: int | None = None,
        group: str | bytes = b"",
        start: int | None = None,
        prefetch_records: int = PREFETCH_RECORDS_MAX,
        prefetch_bytes: int = PREFETCH_BYTES_MAX,
        poll_interval_s: float = 0.05,
        forgotten_on_restart: bool = False,
    ) -> Subscription:
        """A subscription: ``await`` it, use it in ``async with``, or just iterate over it.

        A new one sees what is published from now on. It stays on the server, and goes on collecting, when this client
        is gone: give its ``id`` as ``resume`` to go on with it.

        Args:
            qos: 1: messages are to be acknowledged; 0: each is delivered once at most
            group: with version 2: share the messages with all who name this group; it stays on the server, and goes on
                collecting, when its members are gone. Without a group a subscription of version 2 ends with its
                connection, and resume is not to be had.
            start: with version 2, for a new subscription: number in the log of the first message wanted, or EARLIEST
            prefetch_records, prefetch_bytes: how much is received ahead of the application, at most; it adapts to the
                application, so that nothing waits here until the server sends it again
            poll_interval_s: longest pause between two looks when there is nothing
            forgotten_on_restart: for the original server, which forgets its subscriptions: after a reconnect, find out
                (by subscribing once more) whether it did, and go on with a new one
        """
        self._check_open()
        if (group or start is not None) and self.version != codec_v2.VERSION:
            raise ValueError("group and start need connect(version=2)")
        if resume is not None and self.version == codec_v2.VERSION:
            raise ValueError("version 2 cannot go on with an id: use a group")
        subscription = Subscription(
            self,
            _name(topic),
            qos,
            resume,
            group=group.encode() if isinstance(group, str) else group,
            start=start,
            api_key=self._api_key,
            version=self.version,
            options=self._options,
            prefetch_records=prefetch_records,
            prefetch_bytes=prefetch_bytes,
            poll_interval_s=poll_interval_s,
            forgotten_on_restart=forgotten_on_restart,
        )
        self._subscriptions.add(subscription)
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """A subscription was closed."""
        self._subscriptions.discard(subscription)


def _check(topic: bytes, values: Sequence[bytes], qos: int) -> None:
    """Raises ValueError, TypeError, TooLarge: the server would not take it."""
    if qos not in (0, 1):
        raise ValueError("QoS is 0 or 1")
    if not topic:
        raise ValueError("a topic has at least one byte")
    for value in values:
        if not isinstance(value, bytes):
            raise TypeError("values are bytes")
        if len(value) + len(topic) + 12 > FRAME_LENGTH_MAX:
            raise TooLarge(f"a message of {len(value)} bytes", FRAME_LENGTH_MAX - len(topic) - 12)


def _name(topic: str | bytes) -> bytes:
    name = topic.encode() if isinstance(topic, str) else topic
    if not codec.is_utf8(name):
        raise CodecError("a topic is UTF-8")
    return name


def connect(
    address: str = f"127.0.0.1:{DEFAULT_PORT}",
    *,
    api_key: str | Path = "",
    version: int = codec.VERSION,
    window: int = CLIENT_WINDOW_RECORDS,
    window_bytes: int = CLIENT_WINDOW_BYTES,
    store_timeout_s: float = 30.0,
    dial_timeout_s: float = 5.0,
    backoff: Backoff | None = None,
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
        api_key: the key to log in with, or the path of a file that holds it (read at each login)
        version: of the protocol: 1, or 2 (messages are pushed; groups, patterns, time to live, keys)
        window, window_bytes: most messages, and bytes, that are sent and not confirmed
        store_timeout_s: how long a publish that the server cannot store (NACK 500) is tried again
        dial_timeout_s: for one attempt to connect and log in
        backoff: seconds to wait before attempt n
        give_up_after_s: seconds without a connection after which the client fails; None: never
        flush_timeout_s: how long closing waits for confirmations
        ca, cert, key: TLS by files: authorities, client certificate and its key; see :mod:`netserver.client.tls`
        ssl_context: instead of these
        server_name: what the server's certificate is for; by default the host

    Raises:
        ConnectionFailed: when awaited: the first attempt failed (only a connection that was up is made again)
        Refused: when awaited: the key (401) or the protocol version (426); ends the client whenever it comes
    """
    host, port = parse_address(address, DEFAULT_PORT)
    return Client(
        host,
        port,
        api_key=api_key,
        version=version,
        store_timeout_s=store_timeout_s,
        window=window,
        window_bytes=window_bytes,
        dial_timeout_s=dial_timeout_s,
        backoff=backoff or exponential_backoff(0.05, 5.0),
        give_up_after_s=give_up_after_s,
        flush_timeout_s=flush_timeout_s,
        tls=client_tls(ca, cert, key, ssl_context, server_name),
    )
