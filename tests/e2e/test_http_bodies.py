"""Bodies of records over HTTP in the shapes that cost most: nobody waits for them, and they take no memory."""

from __future__ import annotations

import contextlib
import gzip
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from netserver.testing import ServerProcess, server
from tests.e2e.test_fairness import NIGHTLY, slow_turns
from tests.prober import Prober, percentile

SCALE = 4 if NIGHTLY else 1
MEMORY_BYTES_MAX = 100 << 20
"""What a body may add to the server's memory; the largest here is 8 MB, and what is not on disk yet counts, too."""
JSONL, LENGTH, LINES, NUL, DOCUMENT = "split=jsonl", "split=length", "split=lines", "split=nul", ""
MANY = 150_000 * SCALE
BODIES = {
    "smallest lines": (JSONL, b'{"value":""}\n' * MANY, 200),
    "lines that compiled code leaves": (JSONL, b'{"value_base64":""}\n' * (MANY // 5), 200),
    "lines with keys": (JSONL, b'{"key":"k","value":""}\n' * (MANY // 5), 200),
    "one and the other": (JSONL, b'{"value":""}\n{"value" :""}\n' * (MANY // 10), 200),
    "empty lines": (JSONL, b"\n" * (MANY * 5), 200),
    "a long line of small values": (JSONL, b'{"value_json":[' + b"0," * 1_000_000 + b"0]}\n", 200),
    "a line that is too long": (JSONL, b'{"value":"' + b"x" * (3 << 20), 400),
    "a line that is deep": (JSONL, b'{"value_json":' + b"[" * 500_000 + b"\n", 400),
    "escapes": (JSONL, b'{"value":"' + b"\\u0000" * 100_000 + b'"}\n', 200),
    "values without a byte": (LENGTH, bytes(4) * MANY, 200),
    "a value that never comes": (LENGTH, b"\xff\xff\xff\xff" + bytes(1000), 400),
    "a large value and small ones": (LENGTH, b"\0\x10\0\0" + bytes(1 << 20) + b"\0\0\0\1x" * MANY, 200),
    "empty lines of text": (LINES, b"\n" * MANY, 200),
    "zero bytes": (NUL, bytes(MANY), 200),
    "a document of small values": (DOCUMENT, b'{"records":[' + b'{"value":""},' * 40_000 + b'{"value":""}]}', 200),
    "a deep document": (DOCUMENT, b"[" * 1_000_000, 400),
}


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    with server() as started:
        yield started


def head_of(process: ServerProcess, split: str, more: str) -> bytes:
    kind = "application/octet-stream" if split else "application/json"
    return (
        f"POST /v1/topics/t/records?{split} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {process.token}\r\n"
        f"Content-Type: {kind}\r\n{more}\r\n\r\n"
    ).encode()


def status_of(process: ServerProcess, request: bytes) -> int:
    """Of the answer; a server that has refused may close before all of it is sent."""
    with socket.create_connection(process.address("admin"), 120) as peer:
        with contextlib.suppress(ConnectionError):
            peer.sendall(request)
        return int(peer.makefile("rb").readline().split()[1])


def memory_bytes(process: ServerProcess) -> int:
    """The most that it has had."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) << 10


def chunked(body: bytes, size_bytes: int) -> bytes:
    pieces = (body[at : at + size_bytes] for at in range(0, len(body), size_bytes))
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("name", BODIES)
def test_nobody_waits_for_a_body(process: ServerProcess, name: str) -> None:
    split, body, status = BODIES[name]
    before, memory_before = slow_turns(process), memory_bytes(process)
    with Prober("figg", process.address("figg")) as prober:
        found = status_of(process, head_of(process, split, f"Content-Length: {len(body)}") + body)
        beside = prober.take(5)
    after = slow_turns(process)
    grown = memory_bytes(process) - memory_before
    print(f"\n{name}: p99 {percentile(beside, 0.99):.1f} ms beside it, longest turn so far {after[1] * 1e3:.0f} ms")
    assert found == status
    assert after[0] == before[0], process.log_text[-2000:]
    assert grown < MEMORY_BYTES_MAX


def test_nobody_waits_for_bytes_that_come_one_by_one(process: ServerProcess) -> None:
    before, _ = slow_turns(process)
    for split, body in ((JSONL, b'{"value":"x"}\n' * 2000), (LENGTH, b"\0\0\0\1x" * 5000), (LINES, b"x\n" * 10_000)):
        request = head_of(process, split, "Transfer-Encoding: chunked") + chunked(body, 1)
        assert status_of(process, request) == 200
    assert slow_turns(process)[0] == before


def test_requests_behind_one_another_are_answered_in_turn(process: ServerProcess) -> None:
    before, _ = slow_turns(process)
    count = 300 * SCALE
    request = head_of(process, LINES, "Content-Length: 2") + b"x\n"
    with socket.create_connection(process.address("admin"), 120) as peer, peer.makefile("rb") as answers:
        peer.sendall(request * count)
        numbers = []
        for _ in range(count):
            assert answers.readline().startswith(b"HTTP/1.1 200")
            size = 0
            while (line := answers.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    size = int(line.partition(b":")[2])
            numbers.append(int(answers.read(size).split(b'"first_offset": ')[1].split(b",")[0]))
    assert numbers == list(range(numbers[0], numbers[0] + count))
    assert slow_turns(process)[0] == before


@pytest.mark.parametrize(
    ("more", "statuses"),
    [
        ("Content-Encoding: gzip\r\nContent-Length: {}", (415,)),
        ("Content-Encoding: gzip, gzip\r\nContent-Length: {}", (415,)),
        ("Transfer-Encoding: gzip, chunked", (400, 501)),
    ],
)
def test_bodies_of_records_are_not_unpacked(process: ServerProcess, more: str, statuses: tuple[int, ...]) -> None:
    packed = gzip.compress(b'{"value":""}\n' * 4_000_000, 1)
    memory_before = memory_bytes(process)
    body = chunked(packed, 1000) if "chunked" in more else packed
    assert status_of(process, head_of(process, JSONL, more.format(len(packed))) + body) in statuses
    assert memory_bytes(process) - memory_before < MEMORY_BYTES_MAX
