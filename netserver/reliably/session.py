"""The server's side of a connection of the JSON streaming protocol: lines into streams.

Life of a connection::

    OPEN      requests are taken; a stream may run. A stateless request beside a running stream is ignored, a stateful
              one replaces the stream.
    ENDING    the last message has been sent: the client is to close first. Acknowledgements and resumes still count.
    FINISHED  our FIN is sent (nothing can be answered any more): acknowledgements are read until the client's FIN.
              After an error, or when another connection has taken the session, all input is thrown away.

FIN is only ever sent between two lines, and the socket is not closed under a client that may still acknowledge: the
reset that would answer it ends the original's client, because after a FIN it is a broken pipe. A reset without a FIN
is a lost connection to it, which it makes again; so until a connection is ended in good order its socket is set up so
that the death of this process resets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from engine.errors import EngineError, LimitReached
from engine.sessions.types import OutOfOrderAck, UnknownMessage, UnknownSession
from netserver.access.table import right_of
from netserver.reliably import codec
from netserver.reliably.applications import RecordsState
from netserver.reliably.codec import (
    AckRequest,
    NumbersParams,
    Request,
    RequestError,
    ResumeRequest,
    StartRequest,
    StatelessRequest,
    TopicParams,
)
from netserver.reliably.limits import (
    DRAIN_S,
    LINE_BYTES_MAX,
    LINES_MAX,
    LONG_LINE_BYTES_MAX,
    OUTPUT_HIGH_BYTES,
)
from netserver.reliably.line_splitting import LineSplitter
from netserver.reliably.listener_state import ListenerState
from netserver.reliably.stateless import StatelessSender
from netserver.reliably.stream import NumbersStream, SessionStream
from netserver.reliably.topic_stream import GONE, TopicStream, beyond_the_end
from netserver.reliably.values import NumbersState

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from netserver.access.rights import Right
    from netserver.shell.connection import Connection, Services, SessionFactory

START: Final = right_of("reliably", "StartRequest")
RESUME: Final = right_of("reliably", "ResumeRequest")
OPEN: Final = 0
ENDING: Final = 1
FINISHED: Final = 2

TURN: Final = "many requests at once"
OPENING: Final = "a topic is being opened"

FIRST_ACK: Final = "Cannot send ACK as the first message"
KINDS: Final[dict[type[EngineError], str]] = {
    UnknownSession: "unknown_session",
    UnknownMessage: "unknown_message",
    OutOfOrderAck: "out_of_order",
    LimitReached: "too_many_sessions",
}


def factory(services: Services, **options: Any) -> SessionFactory:
    """Makes the sessions of one listener; options as of `ListenerState`."""
    shared = ListenerState(services, **options)

    def make(connection: Connection) -> ReliablySession:
        return ReliablySession(shared, connection)

    return make


class ReliablySession:
    """See the module, and ``netserver.shell.connection.Session`` for the methods that the connection calls."""

    def __init__(self, shared: ListenerState, connection: Connection) -> None:
        self.frame_bytes_max = LONG_LINE_BYTES_MAX + LINE_BYTES_MAX  # longer lines are refused here, with an answer
        self.connection = connection
        connection.transport.set_write_buffer_limits(OUTPUT_HIGH_BYTES)
        self._reset_on_death(True)
        self._shared = shared
        self._stream: SessionStream | StatelessSender | None = None
        self._uuid: str | None = None
        self._state = OPEN
        self._deaf = False
        self._lines = LineSplitter()
        self._timer: asyncio.TimerHandle | None = None

    # --- netserver.shell.connection.Session

    def received(self, data: memoryview, length: int) -> int:
        if self._deaf:
            return length
        try:
            for count, line in enumerate(self._lines.split(data, length), 1):
                self._line(line)
                if self._deaf:
                    return length
                if self.connection.held or self.connection.closed:
                    break
                if count == LINES_MAX:
                    self.connection.hold(TURN)
                    self._shared.loop.call_soon(self.connection.release, TURN)
                    break
        except RequestError as problem:
            self.fail(problem.text, problem.kind)
            return length
        return self._lines.position

    def eof(self) -> None:
        self._stop_stream()
        self._close()

    def resume_output(self) -> None:
        if self._stream is not None:
            self._stream.advance()

    def closed(self) -> None:
        self._stop_stream()
        self._stream = None
        self._leave()
        self._cancel_timer()

    def idle(self) -> bool:
        return self._stream is None or self._stream.stopped or self._state != OPEN

    def drain(self) -> None:
        self._stop_stream()
        self._close()

    # --- requests

    def _line(self, line: bytes) -> None:
        try:
            request = codec.parse_request(line)
            self._handle(request)
        except RequestError as problem:
            if self._state != FINISHED:
                self.fail(problem.text, problem.kind)
        except EngineError as problem:
            if self._state != FINISHED:
                self.fail(str(problem), KINDS.get(type(problem), "unavailable"))

    def _handle(self, request: Request) -> None:
        if isinstance(request, AckRequest):
            self._ack(request)
        elif self._state == FINISHED:
            return  # nothing can be answered any more
        elif isinstance(request, StatelessRequest):
            if self._stream is None:
                self._stream = StatelessSender(self.connection, self._shared, request.state)
                self._stream.advance()
        elif isinstance(request, ResumeRequest):
            self._resume(request)
        elif isinstance(request.params, NumbersParams):
            state = NumbersState(request.params.count, self._shared.random_seed(), 0)
            self._count_session(request.uuid)
            self._shared.sessions.register(request.uuid, state, self)
            self._start(request.uuid, NumbersStream(self, self._shared, request.uuid, 0))
        else:
            self._open_topic(request, request.params)

    def _ack(self, request: AckRequest) -> None:
        stream = self._stream
        if self._uuid is None or not isinstance(stream, SessionStream):
            raise RequestError(FIRST_ACK, "first_ack")
        if request.uuid != self._uuid:
            raise RequestError("The uuid is not that of this connection", "foreign_ack")
        stream.ack(request.id)

    def _resume(self, request: ResumeRequest) -> None:
        uuid = request.uuid
        sessions = self._shared.sessions
        sessions.resume(uuid, request.id, self)
        self._own(uuid)  # first: whatever fails from here on, the session ends with the connection
        state = sessions.state(uuid)
        if isinstance(state, NumbersState):
            self._start(uuid, NumbersStream(self, self._shared, uuid, request.id))
            return
        topic = self._shared.log.catalog.by_id(state.topic_id)
        if topic is None or topic.deleting:
            self.fail(GONE, "topic")
            return
        self._demand("ResumeRequest", RESUME, topic.name)
        self._start(uuid, TopicStream(self, self._shared, uuid, request.id, self._shared.log.partition(topic)))

    # --- topics

    def _demand(self, request: str, right: Right, topic: bytes) -> None:
        if not self.connection.visitor.check(request, right, topic):
            raise RequestError(f"Not allowed to read topic '{topic.decode('utf-8', 'replace')}'", "forbidden")

    def _open_topic(self, request: StartRequest, params: TopicParams) -> None:
        self._demand("StartRequest", START, params.topic)
        topic = self._shared.log.catalog.get(params.topic)
        if topic is None or topic.deleting:
            raise RequestError(f"Unknown topic '{params.topic.decode('utf-8')}'", "topic")
        partition = self._shared.log.partition(topic)
        if partition.is_open:
            self._start_topic(request.uuid, params, partition)
            return

        def opened() -> None:
            self.connection.release(OPENING)
            if partition.is_open:
                try:
                    self._start_topic(request.uuid, params, partition)
                except (RequestError, LimitReached) as problem:
                    self.fail(str(problem), "topic")
            else:
                self.fail(f"Topic '{params.topic.decode('utf-8')}' cannot be read now", "topic")

        self.connection.hold(OPENING)
        partition.when_open(self.connection.guarded(opened))

    def _start_topic(self, uuid: str, params: TopicParams, partition: Partition) -> None:
        if params.offset == "earliest":
            after = partition.log_start - 1
        elif params.offset == "latest":
            after = partition.committed_seq
        else:
            after = int(params.offset)
            if after < partition.log_start - 1:
                gone = f"Records {after + 1} to {partition.log_start - 1} of the topic have been removed by retention"
                raise RequestError(gone, "retention")
            if after > partition.last_seq:
                raise RequestError(beyond_the_end(after, partition), "offset")
        state = RecordsState(partition.topic.id, after, params.count)
        self._count_session(uuid)
        self._shared.sessions.register(uuid, state, self)
        self._start(uuid, TopicStream(self, self._shared, uuid, 0, partition))

    def _count_session(self, uuid: str) -> None:
        """Raises LimitReached: the client's identity has as many as it may."""
        self.connection.visitor.make_session("StartRequest", uuid, self._shared.sessions.__contains__)

    # --- the stream

    def _start(self, uuid: str, stream: SessionStream) -> None:
        """``stream`` replaces what was there; the session is this connection's already."""
        self._own(uuid)
        self._stream = stream
        self._state = OPEN
        self._cancel_timer()
        stream.advance()

    def _own(self, uuid: str) -> None:
        self._stop_stream()
        if self._uuid != uuid:
            self._leave()
            self._uuid = uuid

    def _stop_stream(self) -> None:
        if self._stream is not None:
            self._stream.stop()

    def _leave(self) -> None:
        """The session has no connection any more, from now on it expires."""
        uuid, self._uuid = self._uuid, None
        if uuid is not None and uuid in self._shared.sessions:
            self._shared.sessions.disconnect(uuid, self)

    def session_lost(self, uuid: str) -> None:
        """Another connection has taken the session, or it was removed: this one ends, without an error."""
        if uuid == self._uuid:
            self._uuid = None
            self._finish(deaf=True)

    # --- the end

    def finished(self) -> None:
        """The stream has come to its end: wait for the client to close."""
        if self._state != OPEN:
            return
        self._state = ENDING
        if isinstance(self._stream, SessionStream) and self._stream.sent:
            self._timer_in(self._shared.end_wait_s, self._end_wait)
        else:
            self._finish(deaf=False)

    def _end_wait(self) -> None:
        quiet_s = time.monotonic() - self.connection.received_at
        if quiet_s < self._shared.end_wait_s:
            self._timer_in(self._shared.end_wait_s - quiet_s, self._end_wait)
        else:
            self._finish(deaf=False)

    def fail(self, text: str, kind: str) -> None:
        """Tell the peer why its stream ends, and end it."""
        if self._state == FINISHED:
            return
        self.connection.counters.protocol_errors[kind] += 1
        self._stop_stream()
        self._leave()
        self.connection.write(codec.error_line(text))
        self._finish(deaf=True)

    def _finish(self, deaf: bool) -> None:
        self._stop_stream()
        self._state = FINISHED
        self._deaf = self._deaf or deaf
        self._reset_on_death(False)
        self.connection.end_output()
        if not self.connection.closed:
            self._timer_in(DRAIN_S, self._drain_wait)

    def _drain_wait(self) -> None:
        quiet_s = time.monotonic() - self.connection.received_at
        if quiet_s < DRAIN_S and not self._deaf:
            self._timer_in(DRAIN_S - quiet_s, self._drain_wait)
        else:
            self._close("the client has not closed after its stream ended", "stalled")

    def _close(self, reason: str = "", kind: str = "server") -> None:
        self._reset_on_death(False)
        self.connection.close(reason, kind)

    def _reset_on_death(self, wanted: bool) -> None:
        sock = self.connection.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # it is lost already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", wanted, 0))

    def _timer_in(self, delay_s: float, function: Callable[[], None]) -> None:
        self._cancel_timer()
        self._timer = self._shared.loop.call_later(delay_s, self.connection.guarded(function))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
