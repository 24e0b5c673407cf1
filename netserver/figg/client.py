"""The Figg client (asyncio, any event loop).

::

    async with figg.connect("127.0.0.1:8119", window=4096) as client:
        await client.publish("orders", b"one")              # on disk when this returns
        ack = await client.send("orders", b"two")           # in the window; the future tells when it is on disk
        async with client.subscribe("orders", start=figg.EARLIEST) as orders:
            async for record in orders:
                print(record.offset, record.value)

A lost connection is made again; subscriptions go on after the last record received, and what was not acknowledged is
sent again in the old order before anything new. So a record may be stored twice when an acknowledgement was lost, and
never not at all. (Specification: "Connection", "Topic", "Publish".)

The protocol has no errors. A server that does not take a publish closes the connection; one that does so again and
again, and acknowledges nothing, ends the client with :class:`netserver.errors.PublishRefused`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path
from typing import Final

from netserver.client.base import Backoff, ClientBase, ClientEvent, LinkLike, parse_address
from netserver.client.recognition import answers_as
from netserver.client.tls import ClientTls, client_tls
from netserver.client.window import Entry, partly_sent
from netserver.errors import ConnectionFailed, ProtocolError, PublishRefused, QuintlogError, Refused, TooLarge
from netserver.figg import codec
from netserver.figg.dispatch import pack_values, take_data
from netserver.figg.limits import (
    DEFAULT_PORT,
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    PACKED_BYTES,
    PREFETCH_BYTES,
    PREFETCH_RECORDS,
    TOPIC_BYTES_MAX,
    UNACKNOWLEDGED_CONNECTIONS,
    UNACKNOWLEDGED_S,
    VALUE_BYTES_MAX,
    WINDOW_BYTES,
)
from netserver.figg.subscriber import EARLIEST, LATEST, Record, RecordBatch, Start, Subscription

__all__ = ["EARLIEST", "LATEST", "Client", "Record", "RecordBatch", "Start", "Subscription", "connect"]


ANSWERS: Final = frozenset((codec.ACK, codec.ATTACHED, codec.DETACHED, codec.PONG))
"""What shows that it is a Figg server; DATA comes after ATTACHED only."""


class Client(ClientBase):
    """A connection to a Figg server that is kept up. Made by :func:`connect`; ``await`` it or use ``async with``.

    :meth:`events` also tells ``gap``: a subscription could not go on where it stood, or begin where it was told to,
    because those records are no longer kept (or the server has lost them, or never had them), or because the topic was
    deleted and made again; ``detail`` is (topic, offset before, offset now).

    Attributes:
        round_trip_s: of the last ping that was answered.
    """

    protocol = "Figg"
    proof_in_handshake = False

    def __init__(
        self,
        host: str,
        port: int,
        *,
        window: int,
        window_bytes: int,
        value_bytes_max: int,
        frame_bytes_max: int,
        ping_interval_s: float,
        pings_max: int,
        dial_timeout_s: float,
        backoff: Backoff | None,
        give_up_after_s: float | None,
        flush_timeout_s: float,
        tls: ClientTls | None,
    ) -> None:
        super().__init__(
            host,
            port,
            window=window,
            window_bytes=window_bytes,
            frame_bytes_max=frame_bytes_max + HEADER_BYTES,
            dial_timeout_s=dial_timeout_s,
            backoff=backoff,
            give_up_after_s=give_up_after_s,
            flush_timeout_s=flush_timeout_s,
            tls=tls,
        )
        self.value_bytes_max = value_bytes_max
        self.round_trip_s: float | None = None
        self._next = 0  # seq_num of the next publish; counts on over all connections
        self._acknowledged = -1
        self._subscriptions: dict[bytes, Subscription] = {}
        self._detaching: set[bytes] = set()
        self._awaited: dict[bytes, int] = {}  # ATTACHED that must still come on this connection, by topic
        self._paused = False  # nothing is read because a prefetch is full
        self._unacknowledged_since: float | None = None  # publishes are on this connection, and no ACK came since
        self._turned_away = 0  # connections in a row that the server closed on such publishes
        self._maybe_stored = -1  # the last number that was on a connection which ended in another way
        self._ping_interval_s = ping_interval_s
        self._pings_max = pings_max
        self._pings = 0  # sent since anything was last received
        self._answers_pings = False  # some server at this address has once sent PONG
        self._ping_timer: asyncio.TimerHandle | None = None

    # --- publishing

    async def publish(self, topic: str | bytes, value: bytes) -> None:
        """Publish and wait until the record is stored (in the server's durability: on disk by default).

        Raises:
            TooLarge: nothing was sent
            PublishRefused: the server does not take it
            Unknown: the client gave up, or was closed, before the acknowledgement
        """
        await (await self.send(topic, value))

    async def send(self, topic: str | bytes, value: bytes) -> asyncio.Future[None]:
        """Publish, waiting only for a place in the window.

        Returns:
            a future that is done when the record is stored; it may be ignored when :meth:`flush` follows
        """
        self._check_open()
        name = self._checked(topic, value)
        size_bytes = 24 + len(name) + len(value)
        if not self.window.try_room(1, size_bytes):
            await self.window.room(1, size_bytes)
        number = self._next
        self._next = number + 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._add(Entry(number, number, codec.publish(name, number, value), future, ((name, value),)))
        return future

    async def send_many(self, topic: str | bytes, values: Iterable[bytes]) -> asyncio.Future[None]:
        """Publish many records, waiting only for places in the window.

        Returns:
            a future that is done when the last of them, and so all, are stored
        """
        self._check_open()
        items = list(values)  # nobody may change it while it is being sent
        name = self._checked(topic, b"")
        if any(type(value) is not bytes for value in items) or max(map(len, items), default=0) > self.value_bytes_max:
            for row, value in enumerate(items):
                self._checked(name, value)
                items[row] = bytes(value)
        futures: list[asyncio.Future[None]] = []
        start = 0
        while start < len(items):
            end, size_bytes = self._portion(name, items, start)
            try:
                await self.window.room(end - start, size_bytes)
            except QuintlogError as error:
                raise partly_sent(futures, error) from error
            futures.append(self._put(name, items, start, end))
            start = end
        if futures:
            return futures[-1]
        nothing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        nothing.set_result(None)
        return nothing

    def _put(self, name: bytes, values: list[bytes], start: int, end: int) -> asyncio.Future[None]:
        """Put values for which places were taken into the window, as one entry."""
        number = self._next
        self._next = number + end - start
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        frames = pack_values(name, number, values, start, end)
        records = list(zip(repeat(name), values[start:end], strict=False))
        self._add(Entry(number, self._next - 1, frames, future, records, end - start))
        return future

    async def publish_many(self, topic: str | bytes, values: Iterable[bytes]) -> None:
        """Publish many records and wait until all are stored; see :meth:`publish`."""
        await (await self.send_many(topic, values))

    def _portion(self, name: bytes, values: list[bytes], start: int) -> tuple[int, int]:
        """(end, size of the frames) of the values that make the next entry of the window."""
        head = 24 + len(name)
        size_bytes = 0
        end = start
        stop = min(len(values), start + max(self.window.limit_records // 4, 1))
        while end < stop:
            more = head + len(values[end])
            if size_bytes + more > PACKED_BYTES and end > start:
                break
            size_bytes += more
            end += 1
        return end, size_bytes

    def _checked(self, topic: str | bytes, value: bytes) -> bytes:
        name = topic.encode() if isinstance(topic, str) else topic
        if len(name) > TOPIC_BYTES_MAX:
            raise TooLarge(f"topic of {len(name)} bytes", TOPIC_BYTES_MAX)
        if not isinstance(value, bytes):
            raise TypeError(f"a value is bytes, not {type(value).__name__}")
        if len(value) > self.value_bytes_max:
            raise TooLarge(f"value of {len(value)} bytes", self.value_bytes_max)
        return name

    def _add(self, entry: Entry) -> None:
        if self._paused:
            self._make_way()
        if self._unacknowledged_since is None:
            self._unacknowledged_since = asyncio.get_running_loop().time()
        super()._add(entry)
        if not self.proof.given:
            self._expect_answer()

    # --- subscribing

    def subscribe(
        self,
        topic: str | bytes,
        *,
        start: Start | int = LATEST,
        prefetch_records: int = PREFETCH_RECORDS,
        prefetch_bytes: int = PREFETCH_BYTES,
    ) -> Subscription:
        """A subscription, one per topic: ``await`` it, use it in ``async with``, or iterate over it.

        Args:
            start: EARLIEST, LATEST (what is published from now on), or the ``offset`` of a record, to read after it
            prefetch_records, prefetch_bytes: how much is received ahead of the application
        """
        return Subscription(self, self._checked(topic, b""), start, prefetch_records, prefetch_bytes)

    def _enter(self, subscription: Subscription) -> None:
        """Begin a subscription."""
        self._check_open()
        topic = subscription.topic
        if topic in self._subscriptions:
            raise Refused("already_subscribed", f"there is a subscription of topic {topic!r} on this client already")
        self._subscriptions[topic] = subscription
        self._detaching.discard(topic)
        self._send_attach(subscription)

    def _leave(self, subscription: Subscription) -> None:
        """End it; the server's answer is not waited for."""
        topic = subscription.topic
        if self._subscriptions.get(topic) is not subscription:
            return
        del self._subscriptions[topic]
        self._detaching.add(topic)
        if self._connected and self._link is not None:
            self._link.write(codec.detach(topic))
        self._flow()

    def _send_attach(self, subscription: Subscription) -> None:
        """Ask for DATA from where it stands; what still comes from elsewhere is dropped until the answer."""
        if self._connected and self._link is not None:
            topic = subscription.topic
            subscription.asking(is_first=topic not in self._awaited)
            self._awaited[topic] = self._awaited.get(topic, 0) + 1
            self._link.write(codec.attach(topic, subscription.tracked))
            self._expect_answer()
            if self._paused:
                self._make_way()

    # --- flow: a full prefetch stops the reading, or only its subscription when something else is awaited

    def _flow(self) -> None:
        """Some prefetch became full, or has room again."""
        full = [subscription for subscription in self._subscriptions.values() if subscription.is_full]
        if not full:
            self._resume()
        elif len(self.window) or any(self._awaited.values()):
            self._make_way()
        elif self._link is not None:
            self._paused = True
            self._link.pause_reading()

    def _make_way(self) -> None:
        """Answers are awaited: full subscriptions are detached until they have room, so that reading can go on."""
        for subscription in self._subscriptions.values():
            if subscription.is_full and not subscription.is_shed:
                subscription.is_shed = True
                if self._connected and self._link is not None:
                    self._link.write(codec.detach(subscription.topic))
        self._resume()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._link is not None:
                self._link.resume_reading()

    def _has_room(self, subscription: Subscription) -> None:
        if subscription.is_shed:
            subscription.is_shed = False
            self._send_attach(subscription)
        self._flow()

    # --- the connection

    def _restore(self, link: LinkLike) -> None:
        self._awaited.clear()
        self._paused = False
        self._pings = 0
        self._unacknowledged_since = asyncio.get_running_loop().time() if len(self.window) else None
        if not self.proof.given:  # a server that cannot store at the moment answers this; an old one all else
            link.write(codec.ping(time.monotonic_ns()))
            if len(self.window):
                self._expect_answer()
        subscriptions = self._subscriptions.values()
        for subscription in sorted(subscriptions, key=lambda one: one.is_attached):
            if not subscription.is_shed:
                self._send_attach(subscription)
        for topic in self._detaching:
            link.write(codec.detach(topic))
        self._trim()
        self._ping_timer = asyncio.get_running_loop().call_later(self._ping_interval_s, self._ping)

    def _trim(self) -> None:
        """Take from the oldest entry what was acknowledged of it: only the rest is sent again."""
        entry = next(iter(self.window), None)
        if entry is None or self._acknowledged < entry.first:
            return
        count = self._acknowledged + 1 - entry.first
        position = 0
        for _ in range(count):
            position += HEADER_BYTES + int.from_bytes(entry.frames[position + 4 : position + HEADER_BYTES])
        entry.first = self._acknowledged + 1
        self.window.shrink(entry, count, entry.frames[position:])

    def _lost(self, reason: QuintlogError) -> None:
        now = asyncio.get_running_loop().time()
        if self._is_turned_away(reason, now):
            self._turned_away += 1
        else:
            self._turned_away = 0
            self._maybe_stored = self.window.last_taken
        for topic, subscription in list(self._subscriptions.items()):
            if self._awaited.get(topic) and subscription.unanswered(now):
                del self._subscriptions[topic]
                text = f"the server closes the connection when topic {topic!r} is asked for: its log tells why"
                subscription.end(Refused("unreadable", text))
        self._awaited.clear()
        if self._ping_timer is not None:
            self._ping_timer.cancel()

    def _is_turned_away(self, reason: QuintlogError, now: float) -> bool:
        """Whether the server itself has ended the connection, after having had publishes for a while."""
        is_closed = isinstance(reason, ConnectionFailed) and reason.__cause__ is None
        since = self._unacknowledged_since
        return is_closed and len(self.window) > 0 and since is not None and now - since >= UNACKNOWLEDGED_S

    async def _refusal(self) -> QuintlogError | None:
        """A server that is there, and has closed often enough; a client that never redials asks whether it is there."""
        if not self._turned_away:
            return None
        if self._turned_away < UNACKNOWLEDGED_CONNECTIONS:
            redials = self.give_up_after_s is None or self.give_up_after_s > 0
            if redials or not await answers_as(self.protocol, self.host, self.port, self._tls):
                return None
        text = (
            "the server closes the connection when this is published: there is no right to publish to the topic, or it "
            "does not take such a topic or record; its log tells why"
        )
        self._trim()
        oldest = next(iter(self.window))
        return PublishRefused(text) if oldest.first > self._maybe_stored else Refused("not_taken", text)

    def _ended(self, error: QuintlogError) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        for subscription in list(self._subscriptions.values()):
            subscription.end(error)

    def _ping(self) -> None:
        """Ask whether the server is there; not while nothing is read, since its answer would wait too."""
        link = self._link
        if link is None or not self._connected:
            return
        self._ping_timer = asyncio.get_running_loop().call_later(self._ping_interval_s, self._ping)
        if self._paused:
            self._pings = 0
        elif self._pings < self._pings_max:
            self._pings += 1
            link.write(codec.ping(time.monotonic_ns()))
        elif self._answers_pings:  # an old server never answers; TCP keepalive is left for it
            link.abort(ProtocolError(f"no answer to {self._pings} pings", "ping"))

    # --- input

    def _received(self, data: memoryview, length: int) -> int:
        self._pings = 0
        position = 0
        chunk = b""
        try:
            while (frame := codec.open_frame(data, position, length, self.frame_bytes_max)) is not None:
                kind, start, end = frame
                if kind == codec.DATA:
                    chunk = chunk or bytes(data[:length])
                    position = self._data(chunk, position, length, start, end)
                    continue
                position = end
                if not self.proof.given and kind in ANSWERS:
                    self.proof.give()
                if kind == codec.ACK:
                    self._acked(codec.read_number(data, start, end))
                elif kind == codec.ATTACHED:
                    self._attached(*codec.read_attached(data, start, end))
                elif kind == codec.DETACHED:
                    self._detaching.discard(codec.read_topic(data, start, end))
                elif kind == codec.PONG:
                    self._answers_pings = True
                    self.round_trip_s = (time.monotonic_ns() - codec.read_number(data, start, end)) / 1e9
        except codec.FiggError as error:
            raise ProtocolError(f"from {self.host}:{self.port}: {error}", error.kind) from None
        return position

    def _acked(self, number: int) -> None:
        if number > self.window.last_taken:  # else it would count for publishes of that number when they come
            raise codec.FiggError(f"ACK of publish {number}, which was not sent")
        if number > self._acknowledged:
            self._acknowledged = number
            self._turned_away = 0
        self.window.ack_through(number)
        self._unacknowledged_since = asyncio.get_running_loop().time() if len(self.window) else None

    def _data(self, chunk: bytes, position: int, length: int, start: int, end: int) -> int:
        topic = codec.read_topic(chunk, start, end)
        behind, offsets, values = take_data(chunk, position, length, topic)
        if behind == position:  # malformed: this says how
            codec.read_record(chunk, start, end, "offset")
            raise codec.FiggError("frame cannot be read")
        subscription = self._subscriptions.get(topic)
        if subscription is None or subscription.is_shed or (self._awaited.get(topic) and not subscription.is_first):
            return behind  # of a subscription that has ended, or from a place that it has left
        before = subscription.tracked
        if subscription.take(offsets, values):
            self._tell(ClientEvent("gap", detail=(topic, before, offsets[0] - 1)))
        if subscription.is_full:
            self._flow()
        return behind

    def _attached(self, topic: bytes, offset: int) -> None:
        left = self._awaited.get(topic, 0) - 1
        self._awaited[topic] = max(left, 0)
        subscription = self._subscriptions.get(topic)
        if left > 0 or subscription is None:
            return
        before = subscription.tracked
        if subscription.attached(offset) if left == 0 else subscription.made_anew(offset):
            self._tell(ClientEvent("gap", detail=(topic, before, offset)))


def connect(
    address: str = f"127.0.0.1:{DEFAULT_PORT}",
    *,
    window: int = 256,
    window_bytes: int = WINDOW_BYTES,
    value_bytes_max: int = VALUE_BYTES_MAX,
    frame_bytes_max: int = FRAME_BYTES_MAX,
    ping_interval_s: float = 2.0,
    pings_max: int = 2,
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
        window, window_bytes: most records, and bytes, that are sent and not acknowledged
        value_bytes_max: larger values are refused here: the server would close the connection
        frame_bytes_max: largest payload of a frame taken from the server
        ping_interval_s, pings_max: a PING each interval; with so many unanswered the connection is rebuilt (if the
            server has ever answered one)
        dial_timeout_s: for one attempt to connect
        backoff: seconds to wait before attempt n; by default 0, then 1, 2, 4 ... 30 with jitter
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
        window=window,
        window_bytes=window_bytes,
        value_bytes_max=value_bytes_max,
        frame_bytes_max=frame_bytes_max,
        ping_interval_s=ping_interval_s,
        pings_max=pings_max,
        dial_timeout_s=dial_timeout_s,
        backoff=backoff,
        give_up_after_s=give_up_after_s,
        flush_timeout_s=flush_timeout_s,
        tls=client_tls(ca, cert, key, ssl_context, server_name),
    )
