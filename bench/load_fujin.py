"""Load client for Fujin servers and the bare echo beside them (``bench.fujin_echo``): raw bytes over tuned aioquic.

    python -m bench.load_fujin PORT real|echo|disk sync|gathered WRITERS SIZE SECONDS
    python -m bench.load_fujin PORT real|echo|disk window WRITES SIZE SECONDS
    python -m bench.load_fujin PORT real|echo push|pull BATCH SIZE COUNT [TOPIC]
    python -m bench.load_fujin PORT real fill WRITES SIZE COUNT
    python -m bench.load_fujin PORT real|disk rate PER_SECOND SIZE SECONDS

``sync`` is so many writers that share a stream, each waiting for the answer to its message before the next one; each
message leaves in a datagram of its own, as from the Go client's goroutines. ``gathered`` is the same, but what is ready
at the same time leaves together.
Prints one JSON document: messages, seconds, p50_us and p99_us (of answers to WRITE). Its own Python is about as slow as
the server's, so it must have a core of its own, and rates are those of the slower side: compare CPU seconds too.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections import deque
from typing import Any

import uvloop
from aioquic.asyncio.client import connect
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration

from bench.fujin_echo import HEAD, Tuned

ANSWER_BYTES = 6
MESSAGE_HEAD_BYTES = 5  # of a MSG without an id: opcode, length
FETCH_HEAD_BYTES = 10
KINDS = {"echo": "w", "disk": "s"}  # of the echo's streams


class Load(Tuned):
    """Calls ``on_data`` with what comes."""

    on_data: Any = None

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived) and self.on_data is not None and event.stream_id % 2 == 0:
            self.on_data(event.data)
        elif isinstance(event, events.StreamDataReceived) and event.end_stream:
            self._quic.send_stream_data(event.stream_id, b"\x0b", True)

    def send(self, stream_id: int, data: bytes) -> None:
        """Queue bytes; they leave at the end of the turn."""
        self._quic.send_stream_data(stream_id, data)
        self._transmit_soon()

    def transmit_now(self) -> None:
        """What is queued leaves before anything else is."""
        if self._transmit_task is not None:
            self._transmit_task.cancel()
        self.transmit()


def write_frame(cid: int, size: int, topic: bytes = b"t") -> bytes:
    """A WRITE."""
    return b"\x03" + cid.to_bytes(4) + len(topic).to_bytes(4) + topic + size.to_bytes(4) + bytes(size - 1) + b"x"


class Publishing:
    """WRITEs with a window, until the time is over and all are answered."""

    def __init__(
        self, load: Load, server: str, window: int, size: int, seconds: float, count: int | None = None
    ) -> None:
        self.load = load
        self.window = window
        self.left = count
        self.seconds = seconds
        self.done = asyncio.Event()
        self.sent: deque[tuple[float, int]] = deque()
        self.delays: list[tuple[float, int]] = []
        self.rest = 0
        self.answered = 0
        self.under_way = 0
        self.started = 0.0
        self.ended = 0.0
        self.is_over = False
        self.frame = write_frame(0, size)
        self.stream_id = load._quic.get_next_available_stream_id()
        self.first = (
            b"\x01\x00\x00\x00\x00" if server == "real" else HEAD.pack(ord(KINDS[server]), len(self.frame), 0, 0)
        )

    def start(self) -> None:
        """Fill the window."""
        self.load.on_data = self.came
        self.started = time.perf_counter()
        self.load.send(self.stream_id, self.first)
        self.fill()

    def fill(self) -> None:
        """Send as many as have room."""
        count = self.window - self.under_way
        if self.left is not None:
            count = min(count, self.left)
            self.left -= max(count, 0)
        if count > 0 and not self.is_over:
            self.under_way += count
            self.sent.append((time.perf_counter(), count))
            self.load.send(self.stream_id, self.frame * count)

    def came(self, data: bytes) -> None:
        """Answers."""
        count, self.rest = divmod(self.rest + len(data), ANSWER_BYTES)
        now = time.perf_counter()
        self.answered += count
        self.under_way -= count
        while count:
            at, size = self.sent[0]
            taken = min(size, count)
            self.delays.append((now - at, taken))
            count -= taken
            if taken == size:
                self.sent.popleft()
            else:
                self.sent[0] = (at, size - taken)
        self.ended = now
        if now - self.started >= self.seconds if self.left is None else not self.left:
            self.is_over = True
            if not self.under_way:
                self.done.set()
        self.fill()


def percentile(delays: list[tuple[float, int]], share: float) -> float:
    """In microseconds, of (seconds, how many)."""
    delays = sorted(delays)
    left = share * sum(count for _, count in delays)
    for seconds, count in delays:
        left -= count
        if left <= 0:
            return seconds * 1e6
    return 0.0


class Writers:
    """Tasks that share a stream; each awaits the answer to its message before it sends the next one."""

    def __init__(self, load: Load, server: str, is_gathered: bool, size: int, seconds: float) -> None:
        self.load = load
        self.is_gathered = is_gathered
        self.until = time.perf_counter() + seconds
        self.frame = write_frame(0, size)
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.rest = 0
        self.delays: list[tuple[float, int]] = []
        self.stream_id = load._quic.get_next_available_stream_id()
        load.on_data = self.came
        load.send(
            self.stream_id,
            b"\x01\x00\x00\x00\x00" if server == "real" else HEAD.pack(ord(KINDS[server]), len(self.frame), 0, 0),
        )

    def came(self, data: bytes) -> None:
        """Answers, in the order of the messages."""
        count, self.rest = divmod(self.rest + len(data), ANSWER_BYTES)
        for _ in range(count):
            self.waiting.popleft().set_result(None)

    async def run(self) -> None:
        """One writer."""
        loop = asyncio.get_running_loop()
        while (now := time.perf_counter()) < self.until:
            answer: asyncio.Future[None] = loop.create_future()
            self.waiting.append(answer)
            self.load.send(self.stream_id, self.frame)
            if not self.is_gathered:
                self.load.transmit_now()
            await answer
            self.delays.append((time.perf_counter() - now, 1))


async def synchronous(
    load: Load, server: str, is_gathered: bool, writers: int, size: int, seconds: float
) -> dict[str, float]:
    """See the module."""
    started = time.perf_counter()
    all_of_them = Writers(load, server, is_gathered, size, seconds)
    await asyncio.gather(*(all_of_them.run() for _ in range(writers)))
    delays = all_of_them.delays
    return {
        "messages": len(delays),
        "seconds": time.perf_counter() - started,
        "p50_us": percentile(delays, 0.5),
        "p99_us": percentile(delays, 0.99),
    }


async def fill(load: Load, window: int, size: int, count: int) -> dict[str, float]:
    """So many messages into topic ``p``."""
    publishing = Publishing(load, "real", window, size, 0.0, count)
    publishing.frame = write_frame(0, size, b"p")
    publishing.start()
    await publishing.done.wait()
    return {"messages": publishing.answered, "seconds": 1, "p50_us": 0, "p99_us": 0}


async def rate(load: Load, server: str, per_second: float, size: int, seconds: float) -> dict[str, float]:
    """At a rate, a portion every few milliseconds, as far as answers keep up."""
    publishing = Publishing(load, server, 0, size, seconds)
    publishing.start()
    sent = 0
    while not publishing.is_over:
        due = int((time.perf_counter() - publishing.started) * per_second)
        if due > sent and publishing.under_way < 4096:
            publishing.window = publishing.under_way + due - sent
            sent = due
            publishing.fill()
            publishing.window = 0
        await asyncio.sleep(0.002)
        publishing.is_over = time.perf_counter() - publishing.started >= seconds
    return {"messages": publishing.answered, "seconds": seconds, "p50_us": 0, "p99_us": 0}


async def publish(load: Load, server: str, window: int, size: int, seconds: float) -> dict[str, float]:
    """See the module."""
    publishing = Publishing(load, server, window, size, seconds)
    publishing.start()
    await publishing.done.wait()
    delays = publishing.delays
    return {
        "messages": publishing.answered,
        "seconds": publishing.ended - publishing.started,
        "p50_us": percentile(delays, 0.5),
        "p99_us": percentile(delays, 0.99),
    }


async def read(
    load: Load, server: str, is_push: bool, batch: int, size: int, count: int, topic: bytes
) -> dict[str, float]:
    """Messages that are pushed, or fetched ``batch`` at a time with one FETCH ahead."""
    frame = size + (MESSAGE_HEAD_BYTES if is_push else MESSAGE_HEAD_BYTES - 1)
    expected = count * frame
    if server == "real" and not is_push:
        expected += (count + batch - 1) // batch * FETCH_HEAD_BYTES
    stream_id = load._quic.get_next_available_stream_id()
    came = 0
    fetched = 0
    done = asyncio.Event()
    each = batch * frame + (FETCH_HEAD_BYTES if server == "real" else 0)

    def fetch() -> None:
        nonlocal fetched
        fetched += 1
        load.send(stream_id, b"\x07\x00\x00\x00\x01" + batch.to_bytes(4))

    def on_data(data: bytes) -> None:
        nonlocal came
        came += len(data)
        if not is_push:
            while fetched * batch < count and came >= (fetched - 1) * each:
                fetch()
        if came >= expected:
            done.set()

    start = time.perf_counter()
    if server == "real":
        connected = asyncio.Event()
        load.on_data = lambda data: connected.set()
        load.send(stream_id, bytes((2, 1 if is_push else 2, 1)) + len(topic).to_bytes(4) + topic)
        await connected.wait()
        load.on_data = on_data
        start = time.perf_counter()
    else:
        load.on_data = on_data
        kind = ord("p" if is_push else "f")
        load.send(stream_id, HEAD.pack(kind, frame, batch, count // batch))
    if not is_push:
        fetch()
    await done.wait()
    return {"messages": count, "seconds": time.perf_counter() - start, "p50_us": 0, "p99_us": 0}


async def main() -> None:
    """Run what the command line says."""
    port, server, shape, number, size, last = sys.argv[1:7]
    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=["fujin"],
        verify_mode=ssl.CERT_NONE,
        max_datagram_size=1452,
        max_data=1 << 24,
        max_stream_data=1 << 24,
    )
    async with connect("127.0.0.1", int(port), configuration=configuration, create_protocol=Load) as load:
        assert isinstance(load, Load)
        if shape == "window":
            figures = await publish(load, server, int(number), int(size), float(last))
        elif shape in ("sync", "gathered"):
            figures = await synchronous(load, server, shape == "gathered", int(number), int(size), float(last))
        elif shape == "fill":
            figures = await fill(load, int(number), int(size), int(last))
        elif shape == "rate":
            figures = await rate(load, server, float(number), int(size), float(last))
        else:
            topic = sys.argv[7].encode() if len(sys.argv) > 7 else b""
            figures = await read(load, server, shape == "push", int(number), int(size), int(last), topic)
    print(json.dumps(figures))


if __name__ == "__main__":
    uvloop.run(main())
