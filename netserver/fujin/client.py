"""The Fujin client (asyncio, any event loop).

::

    async with fujin.connect("127.0.0.1:4848", ca="data/fujin-certificate.pem") as client:
        await client.publish("orders", b"one")                  # on disk when this returns
        async with client.transaction() as tx:                  # commit on leaving, rollback on an exception
            await tx.publish("paid", b"17")
            await tx.publish("audit", b"17 paid")
        async for message in client.subscribe("orders"):
            print(message.value)
            await message.ack()

A lost connection is made again. Subscriptions go on, with what was not acknowledged first; what was published and not
answered is sent again in the old order (at least once), or reported as ``Unknown``, as the option ``resend`` says. A
transaction never outlives its connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from itertools import repeat
from pathlib import Path

from netserver.client.base import Backoff, ClientBase, LinkLike, exponential_backoff, parse_address
from netserver.client.tls import TlsFiles
from netserver.client.window import Entry, partly_sent
from netserver.errors import ConnectionFailed, ProtocolError, QuintlogError, Refused, TlsFailed, TooLarge, Unknown
from netserver.fujin import codec
from netserver.fujin.client_transaction import Transaction
from netserver.fujin.codec import PULL, PUSH, Answer
from netserver.fujin.codec_answers import AnswerDecoder, Done, Event
from netserver.fujin.dispatch import pack_values, take_written
from netserver.fujin.limits import (
    CLIENT_WINDOW_BYTES,
    CLIENT_WRITE_BYTES_MAX,
    DEFAULT_PORT,
    FETCH_RECORDS,
    NAME_BYTES_MAX,
    PACKED_BYTES,
    PREFETCH_BYTES,
    PREFETCH_RECORDS,
)
from netserver.fujin.link import Link
from netserver.fujin.subscriber import Message, MessageBatch, Subscription
from netserver.quic.client import Trust

__all__ = ["Client", "Message", "MessageBatch", "Subscription", "Transaction", "connect"]

WRITE_BYTES = 13
"""A WRITE without topic and message."""
CID_BITS = 0xFFFFFFFF


class Writes(Entry):
    """WRITEs of one topic, back to back, in the window.

    Attributes:
        answered: how many of them are; the others' correlation ids follow ``first + answered``.
        problem: the first refusal among the answers.
    """

    __slots__ = ("answered", "problem", "topic_bytes")

    def __init__(
        self,
        first: int,
        frames: bytes | bytearray,
        future: asyncio.Future[None],
        records: Sequence[object],
        topic_bytes: int,
    ) -> None:
        super().__init__(first, first + len(records) - 1, frames, future, records, len(records))
        self.answered = 0
        self.problem: QuintlogError | None = None
        self.topic_bytes = topic_bytes


class Client(ClientBase):
    """A connection to a Fujin server that is kept up. Made by :func:`connect`; ``await`` it or use ``async with``."""

    protocol = "Fujin"
    is_tcp = False

    def __init__(
        self,
        host: str,
        port: int,
        *,
        trust: Trust,
        server_name: str | None,
        window: int,
        window_bytes: int,
        message_bytes_max: int,
        write_headers: bool,
        resend: bool,
        idle_timeout_s: float,
        dial_timeout_s: float,
        backoff: Backoff | None,
        give_up_after_s: float | None,
        flush_timeout_s: float,
    ) -> None:
        super().__init__(
            host,
            port,
            window=window,
            window_bytes=window_bytes,
            frame_bytes_max=message_bytes_max,
            dial_timeout_s=dial_timeout_s,
            backoff=backoff or exponential_backoff(0.1),
            give_up_after_s=give_up_after_s,
            flush_timeout_s=flush_timeout_s,
        )
        self.message_bytes_max = message_bytes_max
        self.write_headers = write_headers
        self._trust = trust
        self._server_name = server_name or host
        self._resend = resend
        self._idle_timeout_s = idle_timeout_s
        self._next = 0  # number of the next WRITE; its correlation id is the lower 32 bits
        self._expected: dict[int, Writes] = {}  # correlation id of the next answer -> whose it is
        self._subscriptions: dict[Subscription, None] = {}
        self._transactions: set[Transaction] = set()

    # --- publishing

    async def publish(self, topic: str | bytes, value: bytes) -> None:
        """Publish and wait until the record is stored (in the server's durability: on disk by default).

        Raises:
            TooLarge: nothing was sent
            Refused: the server could not store it; the text says why
            Unknown: the client gave up, or was closed, before the answer
        """
        await (await self.send(topic, value))

    async def send(self, topic: str | bytes, value: bytes) -> asyncio.Future[None]:
        """Publish, waiting only for a place in the window.

        Returns:
            a future that is done when the record is stored; it may be ignored when :meth:`flush` follows
        """
        self._check_open()
        name = self.checked(topic, value)
        size_bytes = WRITE_BYTES + len(name) + len(value)
        if not self.window.try_room(1, size_bytes):
            await self.window.room(1, size_bytes)
        return self._enter(name, [value], 0, 1)

    async def send_many(self, topic: str | bytes, values: Iterable[bytes]) -> asyncio.Future[None]:
        """Publish many records, waiting only for places in the window.

        Returns:
            a future that is done when all of them are answered
        """
        self._check_open()
        items = list(values)  # nobody may change it while it is being sent
        name = self.checked(topic)
        for value in items:
            if type(value) is not bytes or not 0 < len(value) <= self.message_bytes_max:
                self.checked(name, value)
        futures: list[asyncio.Future[None]] = []
        start = 0
        while start < len(items):
            end, size_bytes = self._portion(name, items, start)
            try:
                await self.window.room(end - start, size_bytes)
            except QuintlogError as error:
                raise partly_sent(futures, error) from error
            futures.append(self._enter(name, items, start, end))
            start = end
        return asyncio.ensure_future(_all(futures))

    async def publish_many(self, topic: str | bytes, values: Iterable[bytes]) -> None:
        """Publish many records and wait until all are stored; see :meth:`publish`."""
        await (await self.send_many(topic, values))

    def _enter(self, name: bytes, values: list[bytes], start: int, end: int) -> asyncio.Future[None]:
        number = self._next
        self._next = number + end - start
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        frames = pack_values(name, number, values, start, end, self.write_headers)
        records = list(zip(repeat(name), values[start:end], strict=False))
        entry = Writes(number, frames, future, records, len(name))
        self._expected[number & CID_BITS] = entry
        self._add(entry)
        return future

    def _portion(self, name: bytes, values: list[bytes], start: int) -> tuple[int, int]:
        """(end, size of the frames) of the values that make the next entry of the window."""
        size_bytes = 0
        end = start
        stop = min(len(values), start + max(self.window.limit_records // 4, 1))
        while end < stop:
            more = WRITE_BYTES + len(name) + len(values[end])
            if size_bytes + more > PACKED_BYTES and end > start:
                break
            size_bytes += more
            end += 1
        return end, size_bytes

    def checked(self, topic: str | bytes, value: bytes | None = None) -> bytes:
        """The topic's bytes, if topic and value are such as a server takes.

        Raises:
            TooLarge, ValueError, TypeError: they are not.
        """
        name = topic.encode() if isinstance(topic, str) else topic
        if not name:
            raise ValueError("a topic has a name")
        if len(name) > NAME_BYTES_MAX:
            raise TooLarge(f"topic of {len(name)} bytes", NAME_BYTES_MAX)
        if value is not None:
            if not isinstance(value, bytes):
                raise TypeError(f"a value is bytes, not {type(value).__name__}")
            if not value:
                raise ValueError("Fujin has no messages of 0 bytes")
            if len(value) > self.message_bytes_max:
                raise TooLarge(f"value of {len(value)} bytes", self.message_bytes_max)
        return name

    # --- transactions and subscriptions

    def transaction(self, writer_id: str | bytes = b"") -> Transaction:
        """A transaction: ``async with client.transaction() as tx``; see :class:`Transaction`.

        Args:
            writer_id: only one transaction at a time has it: a newer one ends an older one (servers in front of Kafka
                need one)
        """
        raw = writer_id.encode() if isinstance(writer_id, str) else writer_id
        return Transaction(self, raw)

    def subscribe(
        self,
        name: str | bytes,
        *,
        mode: str = "push",
        ack: str = "manual",
        fetch_records: int = FETCH_RECORDS,
        prefetch_records: int = PREFETCH_RECORDS,
        prefetch_bytes: int = PREFETCH_BYTES,
    ) -> Subscription:
        """A reader: ``await`` it, use it in ``async with``, or iterate over it. Readers of a group share its messages.

        Args:
            name: a topic, or a reader's name in the server's configuration
            mode: "push", or "pull" (messages are fetched when the application has room for them)
            ack: "manual": a message comes again until it is acknowledged; "auto": it counts as done when it was sent
            fetch_records: messages asked for at a time (pull), never more than ``prefetch_records``
            prefetch_records, prefetch_bytes: at so much received ahead of the application nothing more is fetched, or
                taken from what is pushed (but for what comes before the answer to an acknowledgement)
        """
        if mode not in ("push", "pull") or ack not in ("manual", "auto"):
            raise ValueError("mode is push or pull, ack is manual or auto")
        kind = PUSH if mode == "push" else PULL
        fetch_records = max(min(fetch_records, prefetch_records), 1)
        return Subscription(
            self, self.checked(name), kind, ack == "auto", fetch_records, prefetch_records, prefetch_bytes
        )

    # --- for subscriptions and transactions

    @property
    def link(self) -> Link:
        """The working connection.

        Raises:
            QuintlogError: there is none at the moment.
        """
        self._check_open()
        if not self._connected or not isinstance(self._link, Link):
            raise ConnectionFailed("there is no connection at the moment")
        return self._link

    @property
    def working_link(self) -> Link | None:
        """The working connection, if there is one."""
        return self._link if self._connected and isinstance(self._link, Link) else None

    def enter(self, subscription: Subscription) -> None:
        """Keep it open from now on."""
        self._check_open()
        self._subscriptions[subscription] = None
        link = self.working_link
        if link is not None:
            subscription.connect(link)

    def leave(self, subscription: Subscription) -> None:
        """It is closed."""
        self._subscriptions.pop(subscription, None)

    # --- netserver.client.base

    async def _dial(self) -> LinkLike:
        link = Link(self._pump)
        try:
            await link.dial(self.host, self.port, self._trust, self._server_name, self._idle_timeout_s)
        except TlsFailed as error:
            raise TlsFailed(f"{self.where}: {error}", error.kind) from error
        except ConnectionFailed as error:
            raise ConnectionFailed(f"{self.where}: {error}") from error
        link.writer = link.open(codec.connect_writer(), self, AnswerDecoder())
        return link

    def _restore(self, link: LinkLike) -> None:
        assert isinstance(link, Link)
        self._trim()
        for subscription in tuple(self._subscriptions):
            subscription.connect(link)

    def _trim(self) -> None:
        """See the base."""
        self._expected.clear()
        for entry in self.window:
            assert isinstance(entry, Writes)
            if entry.done:
                continue
            if entry.answered:
                position = 0
                head = WRITE_BYTES + entry.topic_bytes + (2 if self.write_headers else 0)
                for _ in range(entry.answered):
                    position += head + int.from_bytes(entry.frames[position + head - 4 : position + head])
                entry.first += entry.answered
                self.window.shrink(entry, entry.answered, entry.frames[position:])
                entry.answered = 0
            self._expected[entry.first & CID_BITS] = entry

    def _lost(self, reason: QuintlogError) -> None:
        if not self._resend:
            self._trim()
            for entry in tuple(self.window):
                if entry.sent and not entry.done:
                    text = f"{entry.count} records sent but not answered: {reason}"
                    self.window.settle(entry, error=Unknown(text, entry.records))

    def _ended(self, error: QuintlogError) -> None:
        for subscription in tuple(self._subscriptions):
            subscription.end(error)

    # --- netserver.fujin.link.Receiver: the writer's stream

    def stream_answers(self, decoder: AnswerDecoder) -> None:
        """Take the answers to WRITEs that are stored."""
        buffer = decoder.buffer
        while True:
            behind, cid, count = take_written(buffer, decoder.position, len(buffer))
            if not count:
                return
            decoder.consumed(behind)
            while count:
                entry = self._expected.pop(cid, None)
                if entry is None:
                    raise ProtocolError(f"answer to WRITE {cid}, which is not awaited")
                taken = min(count, entry.count - entry.answered)
                self._answered(entry, taken)
                cid = (cid + taken) & CID_BITS
                count -= taken

    def stream_event(self, event: Event) -> None:
        """An answer to WRITE with an error."""
        if not isinstance(event, Done) or event.kind != Answer.WRITE:
            raise ProtocolError(f"{type(event).__name__} on a writer's stream")
        entry = self._expected.pop(event.cid, None)
        if entry is None:
            raise ProtocolError(f"answer to WRITE {event.cid}, which is not awaited")
        if event.error is not None and entry.problem is None:
            entry.problem = Refused("write", event.error, retryable=True)
        self._answered(entry, 1)

    def _answered(self, entry: Writes, count: int) -> None:
        entry.answered += count
        if entry.answered == entry.count:
            self.window.settle(entry, error=entry.problem)
        else:
            self._expected[(entry.first + entry.answered) & CID_BITS] = entry

    def stream_ended(self, error: QuintlogError) -> None:
        """The writer's stream is over, and so is the connection for us."""
        link = self._link
        if isinstance(link, Link):
            link.abort(error)


async def _all(futures: list[asyncio.Future[None]]) -> None:
    """Wait for all; the first error of any of them."""
    if futures:
        await asyncio.wait(futures)
        for future in futures:
            future.result()


def connect(
    address: str = f"127.0.0.1:{DEFAULT_PORT}",
    *,
    ca: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
    ssl_context: ssl.SSLContext | None = None,
    fingerprint: str | None = None,
    verify: bool = True,
    server_name: str | None = None,
    window: int = 1024,
    window_bytes: int = CLIENT_WINDOW_BYTES,
    message_bytes_max: int = CLIENT_WRITE_BYTES_MAX,
    write_headers: bool = False,
    resend: bool = True,
    idle_timeout_s: float = 15.0,
    dial_timeout_s: float = 5.0,
    backoff: Backoff | None = None,
    give_up_after_s: float | None = None,
    flush_timeout_s: float = 10.0,
) -> Client:
    """A client of the server at ``address`` (``HOST[:PORT]``); it connects when it is awaited or entered.

    Args:
        ca, cert, key: authorities (or the server's own certificate), client certificate and its key; see
            :mod:`netserver.client.tls`. QUIC is always encrypted: without ``ca`` those of the system count
        ssl_context: refused, as QUIC has no use for it
        fingerprint: SHA-256 of the server's certificate, as it logs it, instead of ``ca``
        verify: False: anybody is taken for the server
        server_name: what the certificate is for; by default the host
        window, window_bytes: most records, and bytes, that are sent and not answered
        message_bytes_max: larger values are refused here (servers in front of brokers take 65536 bytes)
        write_headers: the server is set to expect the headers field
        resend: what was not answered when a connection was lost is sent again (so it may be stored twice); False: it
            fails with ``Unknown``
        idle_timeout_s: a connection on which nothing comes for so long is lost
        dial_timeout_s: for one attempt to connect
        backoff: seconds to wait before attempt n; by default 0, then 0.1, 0.2, 0.4 ... 30 with jitter
        give_up_after_s: seconds without a connection after which the client fails; None: never
        flush_timeout_s: how long closing waits for answers

    Raises:
        ConnectionFailed: when awaited: the first attempt failed (only a connection that was up is made again)
        ValueError: an ssl_context
    """
    if ssl_context is not None:
        raise ValueError("QUIC cannot use an ssl_context=: give ca=, cert= and key=")
    host, port = parse_address(address, DEFAULT_PORT)
    return Client(
        host,
        port,
        trust=Trust(TlsFiles.found(ca, cert, key), fingerprint, verify),
        server_name=server_name,
        window=window,
        window_bytes=window_bytes,
        message_bytes_max=message_bytes_max,
        write_headers=write_headers,
        resend=resend,
        idle_timeout_s=idle_timeout_s,
        dial_timeout_s=dial_timeout_s,
        backoff=backoff,
        give_up_after_s=give_up_after_s,
        flush_timeout_s=flush_timeout_s,
    )
