"""Subscriptions of the Fujin client: push and pull, with acknowledgements in batches."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from netserver.client.stream import Batch, SubscriptionBase
from netserver.errors import Closed, ConnectionFailed, ProtocolError, QuintlogError, Refused, Unknown
from netserver.fujin import codec
from netserver.fujin.codec import PUSH, Answer, Op
from netserver.fujin.codec_answers import Acked, AnswerDecoder, Connected, Event, Fetched
from netserver.fujin.codec_answers import Message as Pushed
from netserver.fujin.dispatch import take_messages
from netserver.fujin.limits import ACK_IDS_MAX
from netserver.fujin.link import ClientStream, Link

if TYPE_CHECKING:
    from netserver.fujin.client import Client

log = logging.getLogger("quintlog.fujin")

RUN_RECORDS: Final = 4096
OVERHEAD_BYTES: Final = 100
"""What a message counts in the prefetch beside its value."""
REOPEN_S, REOPEN_LONGEST_S = 0.5, 5.0
"""Pause before a reader is opened again whose stream the server has ended while the connection is up; it doubles."""
EMPTY_S: Final = 0.05
"""Pause after a FETCH that was answered at once with nothing."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        topic: the name that was subscribed to.
        value: what was published.
        id: the server's id; empty with automatic acknowledgement.
    """

    topic: bytes
    value: bytes
    id: bytes
    _subscription: Subscription = field(repr=False, compare=False)

    @property
    def text(self) -> str:
        """The value as UTF-8."""
        return self.value.decode()

    def json(self) -> Any:
        """The value as JSON."""
        return json.loads(self.value)

    async def ack(self) -> None:
        """Acknowledge, so that it does not come again.

        Raises:
            Refused: the server does not know it
            Unknown: the connection was lost before the answer: it may come again
        """
        await self._subscription.acknowledge(Op.ACK, [self])

    async def nack(self) -> None:
        """Let it come again, after the server's delay; errors as ``ack``."""
        await self._subscription.acknowledge(Op.NACK, [self])


class MessageBatch(Batch[Message]):
    """Messages that came together."""

    __slots__ = ("_messages", "next_offset", "size_bytes")

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = list(messages)
        self.size_bytes = sum(len(message.value) + OVERHEAD_BYTES for message in self._messages)
        self.next_offset = _behind(self._messages[-1])

    def __len__(self) -> int:
        return len(self._messages)

    def records(self) -> list[Message]:
        return self._messages

    def part(self, start: int, end: int) -> Self:
        return type(self)(self._messages[start:end])

    async def ack(self, *, except_for: Iterable[Message] = ()) -> None:
        """Acknowledge all of them, or all but some; errors as ``Message.ack``."""
        left = {message.id for message in except_for}
        await self._acknowledge(Op.ACK, [message for message in self._messages if message.id not in left])

    async def nack(self, messages: Iterable[Message] | None = None) -> None:
        """Let all of them, or these, come again; errors as ``Message.ack``."""
        await self._acknowledge(Op.NACK, self._messages if messages is None else list(messages))

    async def _acknowledge(self, op: Op, messages: list[Message]) -> None:
        if messages:
            await self._messages[0]._subscription.acknowledge(op, messages)


def _behind(message: Message) -> int:
    """The number after that of a message, from a server that numbers them (0: it does not)."""
    found = codec.parse_message_id(message.id)
    return found[1] + 1 if found is not None else 0


class Subscription(SubscriptionBase[Message, MessageBatch]):
    """A reader; see ``Client.subscribe``.

    Attributes:
        topic: the name.
        failures: handler calls that raised (:meth:`run`).
    """

    def __init__(
        self,
        client: Client,
        topic: bytes,
        kind: int,
        auto: bool,
        fetch_records: int,
        prefetch_records: int,
        prefetch_bytes: int,
    ) -> None:
        super().__init__(prefetch_records, prefetch_bytes)
        self.topic = topic
        self.failures = 0
        self._client = client
        self._kind = kind
        self._auto = auto
        self._fetch_records = fetch_records
        self._stream: ClientStream | None = None
        self._answer: asyncio.Future[None] | None = None
        self._is_up = False
        self._fetching = False
        self._fetched_at = 0.0
        self._next = 0
        self._acks: dict[tuple[Answer, int], list[Part]] = {}
        self._gathered: dict[Op, list[AckCall]] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._reopen_s = REOPEN_S
        self._refused = ""

    # --- netserver.client.stream.SubscriptionBase

    async def _do_open(self) -> None:
        self._answer = asyncio.get_running_loop().create_future()
        self._client.enter(self)
        await self._answer

    async def _do_close(self) -> None:
        self._client.leave(self)
        self._cancel_retry()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.disconnect()
        self._fail_acks(Closed("the subscription was closed"))

    async def _do_seek(self, start: Any) -> None:
        raise TypeError("the server keeps the position: it is moved by 'logtool subscriptions reset'")

    def _do_room(self) -> None:
        self._balance()
        self._fetch()

    def _position_of(self, record: Message) -> int:
        return _behind(record)

    # --- for the client

    def connect(self, link: Link) -> None:
        """Open the stream on a new connection."""
        self._cancel_retry()
        self._is_up = False
        self._fetching = False
        first = codec.connect_reader(self._kind, self._auto, self.topic)
        try:
            self._stream = link.open(first, self, AnswerDecoder(auto=self._auto))
        except QuintlogError:
            self._stream = None  # the connection is gone already: the next one opens it
            return
        self._balance()

    def end(self, error: QuintlogError) -> None:
        """The client is over."""
        self._cancel_retry()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()
        self._fail_acks(error)
        self._end(None if isinstance(error, Closed) else error)

    # --- netserver.fujin.link.Receiver

    def stream_answers(self, decoder: AnswerDecoder) -> None:
        """Take runs of pushed messages."""
        if self._kind != PUSH or not self._is_up or not decoder.pending:
            return
        ids: list[bytes] = []
        values: list[bytes] = []
        data = bytes(memoryview(decoder.buffer)[decoder.position :])
        behind, count = take_messages(data, 0, len(data), RUN_RECORDS, True, not self._auto, ids, values)
        if count:
            decoder.consumed(decoder.position + behind)
            self._put(ids if ids else [b""] * count, values)

    def stream_event(self, event: Event) -> None:
        """An answer."""
        if isinstance(event, Connected):
            self._connected(event)
        elif isinstance(event, Pushed):
            self._put([event.message_id], [event.value])
        elif isinstance(event, Fetched):
            self._came(event)
        elif isinstance(event, Acked):
            self._acked(event)
        else:
            raise ProtocolError(f"{type(event).__name__} on a reader's stream")

    def stream_ended(self, error: QuintlogError) -> None:
        """The stream is over; the server may have its reasons, so it is opened again after a while."""
        self._stream = None
        self._is_up = False
        self._fetching = False
        self._fail_acks(error)
        if not self._closed and self._client.working_link is not None:
            self._retry = asyncio.get_running_loop().call_later(self._reopen_s, self._open_again)
            self._reopen_s = min(2 * self._reopen_s, REOPEN_LONGEST_S)

    def _open_again(self) -> None:
        self._retry = None
        link = self._client.working_link
        if link is not None and self._stream is None and not self._closed:
            self.connect(link)

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _connected(self, event: Connected) -> None:
        if event.error is not None:
            refused = Refused("reader", event.error)
            if self._answer is not None and not self._answer.done():
                self._client.leave(self)
                self._answer.set_exception(refused)
                self._end(refused)
            elif event.error != self._refused:
                self._refused = event.error
                log.warning("reader %r: %s; it is opened again when that is over", self.topic, event.error)
            return
        self._is_up = True
        self._reopen_s, self._refused = REOPEN_S, ""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)
        self._fetch()

    # --- messages

    def _put(self, ids: list[bytes], values: list[bytes]) -> None:
        topic = self.topic
        self._queue.put(MessageBatch([Message(topic, v, i, self) for i, v in zip(ids, values, strict=True)]))
        self._balance()

    def _balance(self) -> None:
        """Hold pushed messages back while the prefetch is full.

        Not while an acknowledgement waits for its answer, which comes after them. What was fetched was asked for.
        """
        if self._stream is not None and self._kind == PUSH:
            self._stream.pause(self._queue.full and not self._acks)

    def _fetch(self) -> None:
        """Ask for messages, if there is room for them."""
        if self._kind == PUSH or not self._is_up or self._fetching or self._queue.full or self._stream is None:
            return
        self._fetching = True
        self._fetched_at = asyncio.get_running_loop().time()
        self._stream.write(codec.fetch(self._cid(), self._fetch_records))

    def _came(self, event: Fetched) -> None:
        self._fetching = False
        loop = asyncio.get_running_loop()
        if event.messages:
            self._put([one.message_id for one in event.messages], [one.value for one in event.messages])
        elif loop.time() - self._fetched_at < EMPTY_S:
            self._retry = loop.call_later(EMPTY_S, self._fetch)
            return
        self._fetch()

    # --- acknowledgements

    async def acknowledge(self, op: Op, messages: list[Message]) -> None:
        """ACK or NACK; what is asked for in one turn of the loop goes out together. See ``Message.ack``."""
        if self._auto:
            return
        loop = asyncio.get_running_loop()
        calls = self._gathered.get(op)
        if calls is None:
            calls = self._gathered[op] = []
            loop.call_soon(self._send_acks, op)
        call = AckCall(op, messages, loop.create_future())
        calls.append(call)
        await asyncio.shield(call.future)

    def _send_acks(self, op: Op) -> None:
        calls = self._gathered.pop(op)
        stream = self._stream
        if stream is None or not self._is_up:
            for call in calls:
                call.lose(call.messages, "no connection")
            return
        for parts in _commands(calls):
            cid = self._cid()
            self._acks[Answer(op), cid] = parts
            stream.write(codec.ack(op, cid, [message.id for _, part in parts for message in part]))
        self._balance()

    def _acked(self, event: Acked) -> None:
        parts = self._acks.pop((event.kind, event.cid), None)
        if parts is None:
            raise ProtocolError(f"{event.kind.name} {event.cid} is not awaited")
        refused = {message_id: problem for message_id, problem in event.results if problem is not None}
        for call, part in parts:
            call.answered(part, refused, event.error)
        self._balance()

    def _fail_acks(self, error: QuintlogError) -> None:
        acks, self._acks = self._acks, {}
        lost: dict[AckCall, list[Message]] = {}
        for parts in acks.values():
            for call, part in parts:
                lost.setdefault(call, []).extend(part)
        for call, messages in lost.items():
            call.lose(messages, str(error))

    def _cid(self) -> int:
        self._next = (self._next + 1) & 0xFFFFFFFF
        return self._next

    # --- handlers

    async def run(self, handler: Callable[[Message], Awaitable[object]], *, concurrency: int = 1) -> None:
        """Call ``handler`` for each message: returning acknowledges it, raising lets it come again.

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
                log.exception("reader %r: the handler failed; the message comes again", self.topic)
                await self._told(message.nack())
            else:
                await self._told(message.ack())

    async def _told(self, answer: Awaitable[None]) -> None:
        """A lost connection, or a server that says no, only means that the message may come again."""
        try:
            await answer
        except (Unknown, ConnectionFailed) as error:
            log.info("reader %r: %s", self.topic, error)
        except Refused as error:
            log.warning("reader %r: %s", self.topic, error)


class AckCall:
    """One call of ``ack`` or ``nack``, which shares commands with others, and needs several if it is about many."""

    def __init__(self, op: Op, messages: list[Message], future: asyncio.Future[None]) -> None:
        self.messages = messages
        self.future = future
        self.left = 0  # parts without an answer
        self._op = op
        self._refused: list[Message] = []
        self._problem = ""

    def answered(self, part: list[Message], refused: dict[bytes, str], error: str | None) -> None:
        """A command with these messages of the call was answered; ``refused``: ids with their reasons."""
        self.left -= 1
        if error is not None or refused:
            failed = part if error is not None else [message for message in part if message.id in refused]
            if failed and not self._refused:
                self._problem = error or refused[failed[0].id]
            self._refused += failed
        if self.left or self.future.done():
            return
        if self._refused:
            self._fail(Refused(self._op.name.lower(), self._problem, records=self._refused))
        else:
            self.future.set_result(None)

    def lose(self, messages: list[Message], why: str) -> None:
        """No answer will come for these messages."""
        if not self.future.done():
            self._fail(Unknown(f"{len(messages)} messages maybe not acknowledged: {why}", messages))

    def _fail(self, error: QuintlogError) -> None:
        self.future.set_exception(error)
        self.future.exception()


Part = tuple[AckCall, list[Message]]


def _commands(calls: list[AckCall]) -> Iterator[list[Part]]:
    """What goes into one command each, so that none has too many ids."""
    parts: list[Part] = []
    room = ACK_IDS_MAX
    for call in calls:
        start = 0
        while start < len(call.messages):
            part = call.messages[start : start + room]
            parts.append((call, part))
            call.left += 1
            start += len(part)
            room -= len(part)
            if not room:
                yield parts
                parts, room = [], ACK_IDS_MAX
    if parts:
        yield parts
