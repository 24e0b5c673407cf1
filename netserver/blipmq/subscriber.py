"""A subscription of our client: polling on a connection of its own, messages and acknowledgements.

Rounds: some POLLs and a PING after them; what comes before the PONG are the messages, in order. A round that brought
less than it asked for found the end: the next one follows after a pause, which doubles while nothing comes. How much a
round asks for adapts to the application: what waits here unacknowledged for too long would come a second time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from netserver.blipmq import codec, codec_v2
from netserver.blipmq.codec import FrameType, Nack
from netserver.blipmq.limits import POLLS_MAX
from netserver.blipmq.login import CID_BASE, LoginClient, refusal
from netserver.client.base import ClientEvent, LinkLike
from netserver.client.stream import Batch, SubscriptionBase
from netserver.errors import Closed, ConnectionFailed, ProtocolError, QuintlogError, Refused

if TYPE_CHECKING:
    from netserver.blipmq.client import Client

log = logging.getLogger("quintlog.blipmq")

FIRST_PAUSE_S = 0.001
"""Pause after a round that found nothing; doubles up to ``poll_interval_s``."""
TAKEN_S = 0.03
"""What is received ahead should be taken by the application within this time: less than the server's back-off."""
FAREWELL_S = 1.0
ASK_S = 1.0
"""Interval at which an idle subscription asks whether it is still there."""
SUBSCRIBE_CID = CID_BASE


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        topic, value: what was published.
        tag: its number in the subscription, the same when it comes again; None with QoS 0: not to be acknowledged.
    """

    topic: bytes
    value: bytes
    tag: int | None
    _subscription: Subscription = field(repr=False, compare=False)
    _subscription_id: int = field(repr=False, compare=False)

    @property
    def text(self) -> str:
        """The value as UTF-8."""
        return self.value.decode()

    def json(self) -> Any:
        """The value as JSON."""
        return json.loads(self.value)

    async def ack(self) -> None:
        """Acknowledge, so that it does not come again. Sent at once; ``subscription.flush()`` waits until it counts."""
        if self.tag is not None:
            self._subscription.ack(self.tag, self._subscription_id)


class MessageBatch(Batch[Message]):
    """The messages of a round."""

    __slots__ = ("_messages", "next_offset", "size_bytes")

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = list(messages)
        self.size_bytes = sum(len(message.value) for message in self._messages) + 100 * len(self._messages)
        self.next_offset = (self._messages[-1].tag or 0) + 1

    def __len__(self) -> int:
        return len(self._messages)

    def records(self) -> list[Message]:
        return self._messages

    def part(self, start: int, end: int) -> Self:
        return type(self)(self._messages[start:end])

    async def ack(self) -> None:
        """Acknowledge all of them."""
        for message in self._messages:
            await message.ack()


class PollConnection(LoginClient):
    """The connection of one subscription."""

    def __init__(self, owner: Subscription, host: str, port: int, **options: Any) -> None:
        super().__init__(host, port, **options)
        self._owner = owner
        self._pings = itertools.count(CID_BASE + 1)
        self._round = 0  # cid of the PING after the POLLs that are outstanding
        self._asked = 0
        self._messages: list[Message] = []
        self._barriers: dict[int, asyncio.Future[None]] = {}
        self._acks: list[tuple[int, int]] = []  # (tag, subscription) to be sent
        self._is_sending = False
        self._sent: list[tuple[int, int]] = []  # sent after the last PING
        self._unconfirmed: dict[int, list[tuple[int, int]]] = {}  # cid of a PING -> acknowledgements sent before it
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s = FIRST_PAUSE_S
        self._asked_at = 0.0  # loop time of the last question whether the subscription is there
        self._ending: asyncio.Task[None] | None = None

    # --- connection

    def _restore(self, link: LinkLike) -> None:
        owner = self._owner
        self._round = 0
        self._messages = []
        self._send_acks()
        if not owner.id or (owner.forgotten_on_restart and owner.is_known):
            link.write(codec.subscribe(SUBSCRIBE_CID, owner.topic, owner.qos))
        else:
            self._ask(link)

    def _ask(self, link: LinkLike) -> None:
        """Ask whether the subscription is there: a POLL of one that is not has no answer. No message has tag 0."""
        self._asked_at = asyncio.get_running_loop().time()
        link.write(codec.ack(0, self._owner.id))

    def _lost(self, reason: QuintlogError) -> None:
        self._stop_timer()
        self._round = 0
        # Those that the server had taken are refused with 404, which hurts nobody.
        self._acks = [*itertools.chain(*self._unconfirmed.values()), *self._sent, *self._acks]
        self._unconfirmed, self._sent = {}, []
        barriers, self._barriers = self._barriers, {}
        for barrier in barriers.values():
            if not barrier.done():
                barrier.set_exception(reason)
                barrier.exception()

    def _ended(self, error: QuintlogError) -> None:
        self._stop_timer()
        self._owner.ended(error)

    async def _farewell(self, link: LinkLike) -> None:
        self._stop_timer()
        self._send_acks()
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self.barrier()
        except (TimeoutError, QuintlogError) as error:
            log.debug("subscription %d: closing without confirmation: %r", self._owner.id, error)

    def fail(self, error: QuintlogError) -> None:
        """End the connection, and with it the subscription, for good."""
        self._finish(error, "gave_up")
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._stop())

    def _frame(self, kind: int, cid: int, payload: memoryview) -> None:
        if kind == FrameType.PUBLISH:
            qos, topic, body = codec.parse_publish(payload)
            self._messages.append(Message(topic, body, cid if qos else None, self._owner, self._owner.id))
        elif kind == FrameType.PONG:
            self._pong(cid)
        elif kind == FrameType.NACK:
            nack = codec.parse_nack(payload)
            if cid == 0 and nack.code == codec.NOT_FOUND:
                self._told(nack)
            elif nack.code in (codec.BAD_REQUEST, codec.UNAUTHORIZED) or cid == SUBSCRIBE_CID:
                self.fail(refusal(nack))
            elif nack.code != codec.NOT_FOUND:  # 404: acknowledged too late or twice; a duplicate may come
                self._tell(ClientEvent("refused", refusal(nack)))
        elif kind == FrameType.ACK and cid == SUBSCRIBE_CID:
            self._owner.subscribed(codec.parse_ack(payload))
            self.poll()
        else:
            raise ProtocolError(f"unexpected frame of type {kind} with correlation id {cid}")

    def _told(self, nack: Nack) -> None:
        """The answer to `_ask`. The original, which cannot tell, counts as a server that has the subscription."""
        owner = self._owner
        if nack.text != codec.UNKNOWN_SUBSCRIPTION:
            owner.subscribed(owner.id)
            self.poll()
        elif owner.forgotten_on_restart and self._link is not None:
            owner.forgotten()
            self._link.write(codec.subscribe(SUBSCRIBE_CID, owner.topic, owner.qos))
        else:
            self.fail(Refused(nack.code, f"{nack.text}: {owner.id}"))

    # --- polling

    def poll(self) -> None:
        """Begin a round, if none is on its way and the application can take messages."""
        owner = self._owner
        asked = owner.room()
        if self._round or not self._connected or self._link is None or not owner.id or not asked:
            return
        self._stop_timer()
        asked = min(asked, POLLS_MAX)
        self._round = next(self._pings)
        self._asked = asked
        polls = codec.poll(self._round, owner.id) * asked
        self._ping(self._link, self._round, polls)

    def _ping(self, link: LinkLike, cid: int, before: bytes = b"") -> None:
        if self._sent:
            self._unconfirmed[cid], self._sent = self._sent, []
        link.write(before + codec.ping(cid))

    def _pong(self, cid: int) -> None:
        self._unconfirmed.pop(cid, None)
        barrier = self._barriers.pop(cid, None)
        if barrier is not None and not barrier.done():
            barrier.set_result(None)
        if cid != self._round:
            return
        self._round = 0
        messages, self._messages = self._messages, []
        if messages:
            self._pause_s = FIRST_PAUSE_S
            self._owner.put(messages)
        if len(messages) == self._asked:
            self.poll()
            return
        if not messages:
            self._pause_s = min(2 * self._pause_s, self._owner.poll_interval_s)
            self._ask_now_and_then()
        self._timer = asyncio.get_running_loop().call_later(self._pause_s, self.poll)

    def _ask_now_and_then(self) -> None:
        if self._link is not None and self._owner.id and asyncio.get_running_loop().time() > self._asked_at + ASK_S:
            self._ask(self._link)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- acknowledging

    def ack(self, tag: int, subscription_id: int) -> None:
        """Send an ACK together with the others of this turn of the loop."""
        self._acks.append((tag, subscription_id))
        if not self._is_sending:
            self._is_sending = True
            asyncio.get_running_loop().call_soon(self._send_acks)

    def _send_acks(self) -> None:
        self._is_sending = False
        if self._acks and self._connected and self._link is not None:
            acks, self._acks = self._acks, []
            self._sent += acks
            self._link.write(b"".join([codec.ack(tag, subscription_id) for tag, subscription_id in acks]))

    async def barrier(self) -> None:
        """Wait until the server has handled everything that was sent before.

        Raises:
            QuintlogError: the connection was lost first
        """
        self._send_acks()
        if not self._connected or self._link is None:
            raise ConnectionFailed("not connected at the moment")
        cid = next(self._pings)
        future = self._barriers[cid] = asyncio.get_running_loop().create_future()
        self._ping(self._link, cid)
        await future


class PushConnection(PollConnection):
    """The same with version 2: the server sends messages by itself; a full prefetch stops the reading.

    While somebody waits for a PONG, which comes after messages that are under way, reading goes on all the same. What
    arrives then above the prefetch is bounded: by what the server and the kernels had buffered in front of the PONG.
    """

    def _restore(self, link: LinkLike) -> None:
        owner = self._owner
        self._send_acks()
        link.write(codec_v2.subscribe(SUBSCRIBE_CID, owner.topic, owner.qos, owner.group, owner.next_start()))

    def _frame(self, kind: int, cid: int, payload: memoryview) -> None:
        if kind != codec_v2.DELIVER:
            super()._frame(kind, cid, payload)
            return
        qos, tag, topic, body = codec_v2.parse_deliver(payload)
        self._messages.append(Message(topic, body, tag if qos else None, self._owner, self._owner.id))

    def _received(self, data: memoryview, length: int) -> int:
        consumed = super()._received(data, length)
        if self._messages:
            messages, self._messages = self._messages, []
            self._owner.put(messages)
        self.poll()
        return consumed

    def poll(self) -> None:
        """Read, or do not: what has come, what was taken or who waits for an answer may have changed that."""
        if self._link is None:
            return
        if self._owner.is_full and not self._barriers:
            self._link.pause_reading()
        else:
            self._link.resume_reading()

    def _ping(self, link: LinkLike, cid: int, before: bytes = b"") -> None:
        super()._ping(link, cid, before)
        self.poll()


class Subscription(SubscriptionBase[Message, MessageBatch]):
    """A durable subscription; see ``Client.subscribe``.

    Attributes:
        id: what to give as ``resume`` to go on with it, now or in years (0 until it is open).
        topic, qos, group: as asked for.
        failures: handler calls that raised (:meth:`run`).
    """

    def __init__(
        self,
        client: Client,
        topic: bytes,
        qos: int,
        resume: int | None,
        *,
        group: bytes,
        start: int | None,
        version: int,
        api_key: str | Path,
        options: dict[str, Any],
        prefetch_records: int,
        prefetch_bytes: int,
        poll_interval_s: float,
        forgotten_on_restart: bool,
    ) -> None:
        super().__init__(prefetch_records, prefetch_bytes)
        self.id = resume or 0
        self.topic = topic
        self.qos = qos
        self.group = group
        self.poll_interval_s = poll_interval_s
        self.forgotten_on_restart = forgotten_on_restart
        self.is_known = False
        self.failures = 0
        self._client = client
        self._highest_id = self.id
        self._prefetch_records = prefetch_records
        self._start = start
        self._ahead = 1  # messages to have here, at most
        self._filled_at = 0.0
        kind = PushConnection if version == codec_v2.VERSION else PollConnection
        self._connection = kind(self, client.host, client.port, api_key=api_key, version=version, **options)
        self._open: asyncio.Future[None] | None = None

    # --- netserver.client.stream.SubscriptionBase

    async def _do_open(self) -> None:
        self._open = asyncio.get_running_loop().create_future()
        await self._connection
        await self._open

    async def _do_close(self) -> None:
        self._client.forget(self)
        await self._connection.close()

    async def _do_seek(self, start: Any) -> None:
        raise TypeError("the server keeps the position: it is moved by 'logtool subscriptions reset'")

    def _do_room(self) -> None:
        self._connection.poll()

    def _position_of(self, record: Message) -> int:
        return (record.tag or 0) + 1

    def end(self, error: QuintlogError) -> None:
        """The client is over."""
        self._connection.fail(error)

    # --- for the connection

    def subscribed(self, subscription_id: int) -> None:
        """The server has answered SUBSCRIBE, or the subscription was there."""
        if self.forgotten_on_restart and self.is_known and subscription_id > self._highest_id:
            self._highest_id = subscription_id  # the server remembers: this one is not needed
        else:
            self.id = subscription_id
            self._highest_id = max(self._highest_id, subscription_id) if not self.is_known else subscription_id
        self.is_known = True
        if self._open is not None and not self._open.done():
            self._open.set_result(None)

    def forgotten(self) -> None:
        """The server has it no longer: the next answer to SUBSCRIBE counts."""
        self.id = 0
        self.is_known = False

    def ended(self, error: QuintlogError) -> None:
        """The connection is over."""
        self._end(error if not isinstance(error, Closed) else None)
        if self._open is not None and not self._open.done():
            self._open.set_exception(error)
            self._open.exception()

    def next_start(self) -> int | None:
        """Where the server is to begin: a new connection's subscription begins at now unless it is the first."""
        start, self._start = self._start, None
        return start

    @property
    def is_full(self) -> bool:
        """As much has come as is wanted ahead of the application."""
        return self._queue.full

    def room(self) -> int:
        """How many messages to ask for now."""
        if self._closed or self._queue.full:
            return 0
        return max(self._ahead - self._queue.records, 0)

    def put(self, messages: list[Message]) -> None:
        """A round has brought messages."""
        self._filled_at = asyncio.get_running_loop().time()
        self._queue.put(MessageBatch(messages))

    async def _load(self) -> bool:
        before = self._current
        loaded = await super()._load()
        if self._current is not before:
            self._adapt()
        return loaded

    def _adapt(self) -> None:
        """The application takes a batch: learn from how long it waited here, and ask for more."""
        waited_s = asyncio.get_running_loop().time() - self._filled_at
        if not self._queue.records:
            if waited_s < TAKEN_S:
                self._ahead = min(2 * self._ahead, self._prefetch_records)
            else:
                self._ahead = max(self._ahead // 2, 1)
        self._connection.poll()

    # --- for the application

    def ack(self, tag: int, subscription_id: int | None = None) -> None:
        """Acknowledge a message by its tag, and the id that the subscription had when it came."""
        self._connection.ack(tag, self.id if subscription_id is None else subscription_id)

    async def flush(self) -> None:
        """Wait until the server has taken all acknowledgements so far (with ``acks = "synced"`` there: on disk).

        Raises:
            QuintlogError: the connection was lost first (those not taken are sent again on the next one)
        """
        await self._opened()
        await self._connection.barrier()

    async def run(self, handler: Callable[[Message], Awaitable[object]], *, concurrency: int = 1) -> None:
        """Call ``handler`` for each message: returning acknowledges it, raising lets it come again after the back-off.

        Runs until the subscription is closed. Up to ``concurrency`` messages are handled at a time.

        Raises:
            QuintlogError: the subscription has failed
        """
        await self._opened()
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(self._work(handler))

    async def _work(self, handler: Callable[[Message], Awaitable[object]]) -> None:
        async for message in self:
            try:
                await handler(message)
            except Exception:
                self.failures += 1
                log.exception("subscription %d: the handler failed; message %s comes again", self.id, message.tag)
            else:
                await message.ack()
