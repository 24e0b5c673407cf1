"""One TANK connection of the server: frames in, answers out.

- The Ping leaves at once, alone in one write, and is the only one ever.
- Requests are executed in the order of arrival. A Produce is answered after its commit round; what comes after it
  and looks at the log waits for that, so that a client sees what it has published. A Consume that waits for records
  holds up nobody: answers come in the order of completion.
- There is no error frame: malformed input closes the connection, and nothing of that request is written.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from engine.errors import LimitReached
from netserver.access.table import right_of
from netserver.errors import ProtocolError
from netserver.limits import READ_BUFFER_BYTES
from netserver.shell.outstanding import Outstanding, Released

from .codec import decode_request, encode_response, frame_bounds
from .consume import ConsumeJob
from .discover import DiscoverJob
from .errors import FormatError
from .limits import BUSY_REQUESTS_MAX, CHECKED_AT_ONCE_BYTES, DEFERRED_REQUESTS_MAX, FRAME_BYTES_MAX
from .listener_state import ListenerState, is_topic_name
from .messages import (
    ConsumeRequest,
    CreateCode,
    CreateTopicRequest,
    CreateTopicResponse,
    DiscoverPartitionsRequest,
    DiscoverTopicsRequest,
    DiscoverTopicsResponse,
    DiscoverTopologyRequest,
    DiscoverTopologyResponse,
    MessageId,
    Ping,
    ProduceRequest,
    ReloadCode,
    ReloadConfRequest,
    ReloadConfResponse,
    Request,
    StatusRequest,
    TopicEntry,
)
from .produce import Answer, Part, Prepared, Producer, Run
from .requests import REQUEST_IDS
from .responses import PING_FRAME, discovered_frame
from .waiting_bounds import Waiting

if TYPE_CHECKING:
    from engine.partitions.partition import Partition
    from netserver.shell.connection import Connection, Services, Session

DISCOVER: Final = right_of("tank", "DISCOVER_PARTITIONS")
CREATE: Final = right_of("tank", "CREATE_TOPIC")
RELOAD: Final = right_of("tank", "RELOAD_CONF")
CHECKING: Final = "a large publish is being checked"
APPENDING: Final = "a large publish is being appended"
OPENING: Final = "a partition is being opened"
DEFERRED: Final = "requests wait for earlier publishes"
BUSY: Final = "requests wait for the disk"
DISCOVERING: Final = "partitions are looked at"
OUTPUT: Final = "answers wait for the peer to read"


def factory(services: Services) -> Callable[[Connection], Session]:
    """The maker of sessions for the TANK listener."""
    shared = ListenerState(services)

    def make(connection: Connection) -> Session:
        return TankSession(shared, connection)

    return make


class Deferred(NamedTuple):
    """Token of a request that waits for the answers before it."""

    request: Request
    weight: int


class TankSession:
    """See the module; ``netserver.shell.connection.Session`` says when its methods are called."""

    frame_bytes_max = FRAME_BYTES_MAX

    def __init__(self, shared: ListenerState, connection: Connection) -> None:
        self.shared = shared
        self.connection = connection
        self.waiting = Waiting(shared.waiting)
        self.is_ending = False
        self._outstanding = Outstanding(connection, self._released, shared.log.slices)
        self._producer = Producer(shared, connection, self._outstanding)
        self._jobs: dict[ConsumeJob, None] = {}
        self._parked: deque[Callable[[], None]] = deque()
        self._deferred = 0
        self._unanswered = 0  # requests whose answer comes from a callback
        self._is_silent = True
        self._checked: Prepared | Request | BaseException | None = None  # what a thread made of the next request
        shared.silent.add(connection)
        connection.write(PING_FRAME)

    # --- input

    def received(self, data: memoryview, length: int) -> int:
        if self._is_silent:
            self._is_silent = False
            self.shared.silent.remove(self.connection)
        connection = self.connection
        position = 0
        try:
            while not connection.held and connection.has_turn():
                frame = frame_bounds(data, position, length)
                if frame is None:
                    break
                message_id, start, end = frame
                if message_id not in REQUEST_IDS:
                    raise ProtocolError(f"message id {message_id} is not a request to this server", "message_id")
                if end > length:
                    connection.expect(end - position)
                    break
                if message_id == MessageId.PRODUCE and self._checked is None:
                    behind = self._producer.run(data, position, length)
                    if behind > position or connection.held:
                        position = behind
                        continue
                if not self._frame(message_id, data[start:end]):
                    break
                position = end
        except FormatError as error:
            raise ProtocolError(str(error)) from None
        return position

    def _frame(self, message_id: int, payload: memoryview) -> bool:
        """Begin with a request. False: it is being checked, and has to come again."""
        if message_id in (MessageId.PRODUCE, MessageId.PRODUCE_WITH_SEQ):
            return self._produce(message_id, payload)
        request = self._decoded(message_id, payload)
        if request is None:
            return False
        if isinstance(request, Ping):
            return True
        if len(self._outstanding):
            weight = self.shared.weight(request)
            self._deferred += weight
            if self._deferred >= DEFERRED_REQUESTS_MAX:
                self.connection.hold(DEFERRED)
            self._outstanding.add_done(Deferred(request, weight))
        else:
            self._execute(request)
        return True

    def _decoded(self, message_id: int, payload: memoryview) -> Request | None:
        """A request that is no Produce; None: a thread is looking at it."""
        checked = self._taken()
        if checked is not None:
            assert not isinstance(checked, Prepared)
            return checked
        if message_id != MessageId.CONSUME or len(payload) <= CHECKED_AT_ONCE_BYTES:
            return decode_request(message_id, payload)
        self.connection.hold(CHECKING)
        decode = partial(decode_request, message_id, memoryview(bytes(payload)))
        found = self.connection.loop.run_in_executor(self.shared.checks, decode)
        found.add_done_callback(lambda done: self._was_checked(done.exception() or done.result()))
        return None

    def _produce(self, message_id: int, payload: memoryview) -> bool:
        """Append what a Produce of any shape brings. False: a thread is looking at it, and it comes again."""
        prepared = self._taken()
        if not isinstance(prepared, Prepared):
            if len(payload) <= READ_BUFFER_BYTES:
                payload = memoryview(bytes(payload))  # the read buffer is used again meanwhile
            if len(payload) > CHECKED_AT_ONCE_BYTES:
                self.connection.hold(CHECKING)
                self._producer.prepare_on_thread(message_id, payload, self._was_checked)
                return False
            request = decode_request(message_id, payload)
            assert isinstance(request, ProduceRequest)
            prepared = self._producer.prepare(request)
        if prepared.closed:
            self.connection.hold(OPENING)
            self._open(list(prepared.closed), partial(self._opened, prepared))
        else:
            self._append(prepared)
        return True

    def _taken(self) -> Prepared | Request | None:
        """What a thread made of the request; None: no thread has looked at it. Raises what went wrong there."""
        outcome, self._checked = self._checked, None
        if not isinstance(outcome, BaseException):
            return outcome
        try:
            raise outcome
        finally:
            del outcome  # it knows this frame: a circle, which would keep the request's memory

    def _was_checked(self, outcome: Prepared | Request | BaseException) -> None:
        self._checked = outcome
        self.connection.release(CHECKING)

    def _append(self, prepared: Prepared) -> None:
        """Append it all, in several turns if there is much of it."""
        if not prepared.is_large:
            for _ in self._producer.execute(prepared):
                pass
            return
        self._unanswered += 1
        self.connection.hold(APPENDING)

        def steps() -> Iterator[None]:
            yield from self._producer.execute(prepared)
            self._unanswered -= 1
            self.connection.release(APPENDING)
            self.settled()

        self.connection.guarded(partial(self.shared.log.slices.run, steps()))()

    def _open(self, partitions: list[Partition], then: Callable[[], None]) -> None:
        since = time.monotonic()
        left = len(partitions)
        self._unanswered += 1

        def opened() -> None:
            nonlocal left
            left -= 1
            if not left:
                self.shared.opening_s += time.monotonic() - since
                self.connection.call(then)

        def steps() -> Iterator[None]:
            for partition in partitions:
                partition.when_open(opened)
                yield

        self.shared.log.slices.run(steps())

    def _opened(self, prepared: Prepared) -> None:
        self._unanswered -= 1
        if not self.connection.closed:  # its rights may have been withdrawn meanwhile
            self._append(prepared)
        self.connection.release(OPENING)

    # --- requests that are no Produce

    def _execute(self, request: Request) -> None:
        """Execute a request now, or as soon as the peer reads again."""
        if self._parked or not self.connection.writable:
            self.park(partial(self._answer, request))
        else:
            self._answer(request)

    def park(self, function: Callable[[], None]) -> None:
        """Call ``function`` when the peer takes output again; until then nothing more is read from it."""
        self._parked.append(function)
        self.connection.hold(OUTPUT)

    def _answer(self, request: Request) -> None:
        visitor = self.connection.visitor
        match request:
            case ConsumeRequest():
                job = ConsumeJob(self, request)
                self._jobs[job] = None
                job.start()
            case DiscoverPartitionsRequest():
                self._unanswered += 1
                if not visitor.check("DISCOVER_PARTITIONS", DISCOVER, request.topic):
                    self._write_late(discovered_frame(request.request_id, request.topic, 0, b""))
                    return
                self.connection.hold(DISCOVERING)  # its answer may have 1 MiB: one after the other
                DiscoverJob(self.shared, request, self._discovered).start()
            case CreateTopicRequest():
                self._unanswered += 1
                if not visitor.check("CREATE_TOPIC", CREATE, request.topic):
                    self._created(request, CreateCode.READ_ONLY)
                    return
                try:
                    visitor.make_topic("CREATE_TOPIC", request.topic, request.partition_count)
                except LimitReached:
                    self._created(request, CreateCode.SYSTEM_ERROR)
                    return
                self.shared.create_topic(request, self.connection.maker, partial(self._created, request))
            case ReloadConfRequest():
                self.connection.write(self._reload(request))
            case StatusRequest(request_id):
                self._unanswered += 1
                self.connection.in_slices(self._status(request_id))
            case DiscoverTopicsRequest(request_id):
                if visitor.sees_everything:
                    self.connection.write(self.shared.topics(request_id))
                else:
                    self._unanswered += 1
                    self.connection.in_slices(self._seen_topics(request_id))
            case DiscoverTopologyRequest(request_id):
                self.connection.write(encode_response(DiscoverTopologyResponse(request_id)))
            case _:
                raise AssertionError(f"{type(request).__name__} is not answered here")
        if self._busy >= BUSY_REQUESTS_MAX:
            self.connection.hold(BUSY)

    def _reload(self, request: ReloadConfRequest) -> bytes:
        """There is no file to reload for any partition: settings are changed at run time, and at once in force."""
        topic = self.shared.topic(request.topic)
        if topic is None or not self.connection.visitor.check("RELOAD_CONF", RELOAD, request.topic):
            code = ReloadCode.UNKNOWN_TOPIC
        elif request.partition_id >= topic.partition_count:
            code = ReloadCode.UNKNOWN_PARTITION
        else:
            code = ReloadCode.NO_CONFIG_FILE
        return encode_response(ReloadConfResponse(request.request_id, request.topic, request.partition_id, code))

    def _status(self, request_id: int) -> Iterator[None]:
        """The answer to Status: there may be 200,000 partitions."""
        count = 0
        for partition in self.shared.log.known_partitions():
            count += partition.is_open
            yield
        self._write_late(self.shared.status(request_id, count))

    def _seen_topics(self, request_id: int) -> Iterator[None]:
        """The answer to DiscoverTopics for somebody who may not know of all of them."""
        entries = []
        for topic in list(self.shared.catalog):
            if is_topic_name(topic.name) and not topic.deleting and self.connection.visitor.may_see(topic.name):
                entries.append(TopicEntry(topic.name, topic.partition_count))
            yield
        self._write_late(encode_response(DiscoverTopicsResponse(request_id, tuple(entries))))

    def _created(self, request: CreateTopicRequest, code: CreateCode) -> None:
        if code == CreateCode.CREATED:
            self.connection.visitor.changed("CREATE_TOPIC", request.topic)
        self._write_late(encode_response(CreateTopicResponse(request.request_id, request.topic, code)))

    def _discovered(self, frame: bytes) -> None:
        self.connection.release(DISCOVERING)
        self.connection.call(partial(self._write_late, frame))

    def _write_late(self, frame: bytes) -> None:
        self._unanswered -= 1
        self.connection.write(frame)
        self.settled()

    def consumed(self, job: ConsumeJob) -> None:
        """A Consume was answered, or dropped."""
        del self._jobs[job]
        self.settled()

    # --- answers that waited for a commit round

    def _released(self, released: Released) -> None:
        for token, error in released:
            if isinstance(token, Run | Part) and error is None:
                self.waiting.committed(token.partition)
        frames: list[bytes | bytearray] = []
        for token, error in released:
            if isinstance(token, Run | Part):
                frames.append(token.settle(error))
            elif isinstance(token, Answer):
                frames.append(token.frame())
            else:
                assert isinstance(token, Deferred)
                self._write_all(frames)
                self._deferred -= token.weight
                self._execute(token.request)
        self._write_all(frames)
        if self._deferred * 2 <= DEFERRED_REQUESTS_MAX:
            self.connection.release(DEFERRED)
        self.settled()

    def _write_all(self, frames: list[bytes | bytearray]) -> None:
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        frames.clear()
        if data:
            self.connection.write(data)

    # --- life

    def resume_output(self) -> None:
        while self._parked and self.connection.writable:
            self._parked.popleft()()
        if not self._parked:
            self.connection.release(OUTPUT)
        self.settled()

    def eof(self) -> None:
        self.is_ending = True
        self.shared.waiting.drop(self.waiting.jobs())
        self.settled()

    def drain(self) -> None:
        self.is_ending = True
        self.shared.waiting.expire(self.waiting.jobs())
        self.settled()

    def closed(self) -> None:
        self.shared.silent.remove(self.connection)
        self._parked.clear()
        self._outstanding.close()
        self.shared.waiting.drop(list(self._jobs))

    def idle(self) -> bool:
        return not (len(self._outstanding) or self._jobs or self._parked or self._unanswered)

    def settled(self) -> None:
        """Something has come to its end: read on if that was waited for, close if nothing else is left to do."""
        if self._busy * 2 <= BUSY_REQUESTS_MAX:
            self.connection.release(BUSY)
        if self.is_ending and self.idle():
            self.connection.close()

    @property
    def _busy(self) -> int:
        """Requests that wait for the disk."""
        return len(self._jobs) - len(self.waiting) + self._unanswered
