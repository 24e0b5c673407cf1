"""Figures for questions of the design: how to sync many files, and what large bundles do to a small topic.

::

    python -m bench.questions sync [DIR]      # files written and synced: one after the other, in parallel, syncfs
    python -m bench.questions bundles         # latency of a small topic beside clients that send large bundles
    python -m bench.questions subscribers     # stalls of the loop with very many subscribers of one topic
    python -m bench.questions fujin           # latency of Figg beside a Fujin client at half of its maximum
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.figg_loads import Figg
from bench.fujin import beside_figg
from bench.harness import Bench
from bench.watched_server import Stalls
from engine.formats.bundle_encode import encode_bundle
from netserver.tank import codec, messages
from netserver.testing import server
from tests.figg_peer import FiggPeer

WRITE_BYTES = 4096
REPEATS = 7
FOREIGN_BYTES = 256 << 20
BUNDLE_MIB = (1, 16, 64, 200)
SECONDS = 6.0
SUBSCRIBERS = (100, 1000, 10_000)

_libc = ctypes.CDLL(None, use_errno=True)


def syncfs(fd: int) -> None:
    """Syncs the whole file system of `fd`. Raises OSError."""
    if _libc.syncfs(fd):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def sync_ms(fds: list[int], how: Callable[[], object]) -> float:
    """Median milliseconds of writing a page to each file and making all durable."""
    times = []
    for number in range(REPEATS):
        for fd in fds:
            os.pwrite(fd, os.urandom(WRITE_BYTES), number * WRITE_BYTES)
        begun = time.perf_counter()
        how()
        times.append((time.perf_counter() - begun) * 1000)
    return sorted(times)[REPEATS // 2]


def bench_sync(directory: Path) -> None:
    """Prints the table of question 1."""
    print("| files | one after the other | 16 threads | syncfs | syncfs beside 256 MiB of others |")
    print("|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(dir=directory) as place, ThreadPoolExecutor(16) as pool:
        for count in (1, 10, 100, 256):
            fds = [os.open(Path(place, str(number)), os.O_RDWR | os.O_CREAT, 0o644) for number in range(count)]
            serial = sync_ms(fds, lambda fds=fds: [os.fdatasync(fd) for fd in fds])  # type: ignore[misc]
            parallel = sync_ms(fds, lambda fds=fds: list(pool.map(os.fdatasync, fds)))  # type: ignore[misc]
            whole = sync_ms(fds, lambda fds=fds: syncfs(fds[0]))  # type: ignore[misc]
            foreign = Path(place, "foreign")
            foreign.write_bytes(os.urandom(1 << 20) * (FOREIGN_BYTES >> 20))
            begun = time.perf_counter()
            syncfs(fds[0])
            beside = (time.perf_counter() - begun) * 1000
            foreign.unlink()
            for fd in fds:
                os.close(fd)
            print(f"| {count} | {serial:.1f} ms | {parallel:.1f} ms | {whole:.1f} ms | {beside:.0f} ms |", flush=True)


class BundleClient(threading.Thread):
    """Sends bundles of one size through TANK, each when the one before is acknowledged."""

    def __init__(self, address: tuple[str, int], size_bytes: int) -> None:
        super().__init__()
        self.address = address
        record = os.urandom(1000)
        count = max(1, size_bytes // len(record))
        self.bundle = bytes(encode_bundle([record] * count, None, [1] * count))
        self.stopping = False
        self.sent = 0

    def run(self) -> None:
        request = messages.ProduceRequest(
            1, (messages.ProduceTopic(b"large", (messages.ProducePartition(0, self.bundle, 0),)),), False
        )
        frame = bytes(codec.encode_request(request))
        with socket.create_connection(self.address) as peer:
            peer.recv(5, socket.MSG_WAITALL)
            while not self.stopping:
                peer.sendall(frame)
                head = peer.recv(5, socket.MSG_WAITALL)
                peer.recv(struct.unpack("<BI", head)[1], socket.MSG_WAITALL)
                self.sent += 1


def latencies_ms(address: tuple[str, int]) -> list[float]:
    """Round trips of one record of 100 bytes at a time, in order of size."""
    times = []
    with FiggPeer(address) as peer:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            begun = time.perf_counter()
            peer.send(b"small", [b"x" * 100])
            peer.wait_for_ack(peer.sent - 1)
            times.append((time.perf_counter() - begun) * 1000)
    return sorted(times)


def bench_bundles() -> None:
    """Prints the table of question 2."""
    print("| beside | p50 | p99 | longest | MB/s of the bundles |")
    print("|---|---:|---:|---:|---:|")
    for size_mib in (0, *BUNDLE_MIB):
        with server() as process:
            process.admin("POST", "/v1/topics", {"name": "large", "partitions": 1})
            client = BundleClient(process.address("tank"), size_mib << 20)
            if size_mib:
                client.start()
            times = latencies_ms(process.address("figg"))
            client.stopping = True
            if size_mib:
                client.join()
            rate = client.sent * len(client.bundle) / SECONDS / 1e6
            what = f"bundles of {size_mib} MiB" if size_mib else "nothing"
            p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
            print(f"| {what} | {p50:.2f} ms | {p99:.1f} ms | {times[-1]:.0f} ms | {rate:.0f} |", flush=True)
            process.kill()
        shutil.rmtree(process.data_dir, ignore_errors=True)


def bench_subscribers() -> None:
    """Prints the table of question 5: one publisher at window 1, each of its rounds goes to all subscribers."""
    print("| subscribers | rounds | deliveries/s | publish p50 | longest stall | of it CPU |")
    print("|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(dir=".") as place:
        bench = Bench(SECONDS, Path(place).absolute())
        program = bench.build("load_figg")
        stalls = Stalls(bench.directory / "stalls")
        for subscribers in SUBSCRIBERS:
            more = {"QUINTLOG_SERVER_CONNECTIONS_MAX": str(subscribers + 100)}
            with bench.server(listeners=("figg",), environment=more) as process:
                figg = Figg(program, process)
                with figg.following("crowd", subscribers) as sums:
                    figg.publish("crowd", 100, 1, 1, 1.0)  # until all are attached
                    stalls.reset()
                    published = figg.publish("crowd", 100, 1, 1, SECONDS)
                    longest_ms, cpu_ms = stalls.longest_ms()
                rate = sums[0].messages / (SECONDS + 1.0)
                print(
                    f"| {subscribers:,} | {published.messages:,} | {rate:,.0f} | {published.p50_us / 1000:.1f} ms "
                    f"| {longest_ms:.1f} ms | {cpu_ms:.1f} ms |",
                    flush=True,
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["sync"]:
        bench_sync(Path(sys.argv[2] if len(sys.argv) > 2 else "."))
    elif sys.argv[1:2] == ["subscribers"]:
        bench_subscribers()
    elif sys.argv[1:2] == ["fujin"]:
        for row in beside_figg(SECONDS / 3, REPEATS):
            print(row, flush=True)
    else:
        bench_bundles()
