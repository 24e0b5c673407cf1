"""What this machine can do at best, measured in the same run as everything else: loopback, disk, memory."""

from __future__ import annotations

import mmap
import os
import resource
import socket
import statistics
import threading
import time
from contextlib import suppress
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, to the nanosecond: of the threads that it has now."""
    spent_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            spent_ns += int((task / "schedstat").read_bytes().split()[0])
    return spent_ns / 1e9


def cpu_seconds_of_ended() -> float:
    """Of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def sync_us(directory: Path, size_bytes: int, rounds: int = 200) -> tuple[float, float]:
    """(p50, p99) in microseconds of appending `size_bytes` and fdatasync."""
    path = directory / "sync-probe"
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    data = os.urandom(size_bytes)
    times = []
    try:
        for number in range(rounds):
            start = time.perf_counter()
            os.pwrite(fd, data, number * size_bytes)
            os.fdatasync(fd)
            times.append((time.perf_counter() - start) * 1e6)
    finally:
        os.close(fd)
        path.unlink()
    times.sort()
    return statistics.median(times), times[int(len(times) * 0.99)]


def warm_memory(size_bytes: int) -> None:
    """Touches and frees that much memory.

    Virtual machines give memory that lies free back to their host after a second or two. Getting it again costs about
    9 us for each 4 KiB, against 1 us for writing to a page of a file that is there: without this, what is measured of
    anything that writes files is how much memory happened to be left from what ran before.
    """
    available = next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line)
    size_bytes = min(size_bytes, int(available.split()[1]) * 1024 // 4)
    if size_bytes <= 0:
        return
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE):
        return


def loopback_bytes_per_s(seconds: float = 1.0) -> float:
    """One TCP connection over loopback, 256 KiB at a time, both ends in this process's threads."""
    listener = socket.create_server(("127.0.0.1", 0))
    received = 0

    def drain() -> None:
        nonlocal received
        peer, _ = listener.accept()
        buffer = bytearray(1 << 18)
        with peer:
            while n := peer.recv_into(buffer):
                received += n

    reader = threading.Thread(target=drain)
    reader.start()
    data = bytes(1 << 18)
    start = time.perf_counter()
    with socket.create_connection(listener.getsockname()) as sender:
        while time.perf_counter() - start < seconds:
            sender.sendall(data)
    reader.join()
    listener.close()
    return received / (time.perf_counter() - start)


def copy_bytes_per_s(size_bytes: int = 1 << 26) -> float:
    """Copying memory that is larger than the caches."""
    source, target = bytearray(size_bytes), bytearray(size_bytes)
    view = memoryview(target)
    start = time.perf_counter()
    rounds = 10
    for _ in range(rounds):
        view[:] = source
    return rounds * size_bytes / (time.perf_counter() - start)


def describe() -> str:
    """Processor, cores and kernel, in one line."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "unknown processor",
    )
    return f"{model}, {os.cpu_count()} cores, Linux {os.uname().release}"
