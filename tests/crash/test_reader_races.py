"""Readers of the files beside a server that rolls and removes segments at every turn, while damage appears in them.

Each record that a reader gets has its own value; what it does not get is told, or was removed meanwhile; no command
ends with a traceback. (tests/spark/test_live.py has Spark's reader beside the same, without damage.)
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.reader import DirectoryReader, Loss, PartitionReader
from netserver.testing import ServerProcess, server
from tests.figg_peer import FiggPeer
from tests.server_support import FIGG_ONLY, publish, segment

PASSES = 200 if os.environ.get("QUINTLOG_NIGHTLY") == "1" else 12
SETTINGS = {
    **FIGG_ONLY,
    "topics": {"segment_bytes": "64KiB", "retention_bytes": "400KiB"},
    "engine": {"housekeeping_interval_ms": "10ms", "retention_grace_ms": "0"},
}
COMMANDS = {
    "cat": ("cat", "t", "--format", "%o %v\\n"),
    "tail": ("tail", "t", "--limit", "500", "--format", "%o %v\\n"),
    "verify": ("verify",),
    "topic": ("dump", "topic", "t"),
    "topics": ("topics", "list"),
}
DONE, FINDINGS, CANNOT_OPEN = 0, 1, 3


def publisher(process: ServerProcess, stop: threading.Event) -> None:
    with FiggPeer(process.address("figg")) as peer:
        while not stop.is_set():
            peer.send(b"t", [b"%d " % (peer.sent + at) + b"x" * 90 for at in range(100)])
            assert peer.wait_for_ack(peer.sent - 1)


def vandal(data: Path, stop: threading.Event) -> None:
    """Turns bits of segments, anywhere in them."""
    dice = random.Random(3)
    while not stop.wait(0.02):
        found = sorted((data / "topics" / "1" / "0").glob("*.log"))
        try:
            with dice.choice(found).open("r+b", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if not size:
                    continue  # it was made just now
                position = dice.randrange(size)
                file.seek(position)
                byte = file.read(1)
                file.seek(position)
                file.write(bytes([byte[0] ^ 1 << dice.randrange(8)]))
        except FileNotFoundError:
            continue  # removed


@contextmanager
def busy(data: Path, *, damaged: bool = True) -> Iterator[ServerProcess]:
    """A server under a publisher that never rests, and somebody who damages its files."""
    stop = threading.Event()
    with server(data, SETTINGS) as process:
        assert publish(process, b"t", b"0 first")
        assert segment(process).exists()
        threads = [threading.Thread(target=publisher, args=(process, stop))]
        threads += [threading.Thread(target=vandal, args=(data, stop))] if damaged else []
        for thread in threads:
            thread.start()
        try:
            yield process
            assert all(thread.is_alive() for thread in threads)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert "Traceback" not in process.log_text
        process.kill()
        process.start()
        assert publish(process, b"t", b"still there")
        assert "Traceback" not in process.log_text


def check(partition: PartitionReader) -> tuple[int, int]:
    """Numbers rise, values are theirs, and each number was read or told to be lost; (read, lost)."""
    seq, end = partition.log_start, partition.committed_seq + 1
    read = lost = 0
    all_told = not partition.unreadable  # a segment whose header is damaged is told there
    for item in partition.records(seq, end):
        if isinstance(item, Loss):
            if item.damage.last_seq >= item.damage.first_seq:
                assert item.damage.first_seq <= seq or not all_told
                lost += item.damage.last_seq + 1 - seq
                seq = item.damage.last_seq + 1
            continue
        assert item.seq == seq or (item.seq > seq and not all_told), "neither read nor told"
        assert item.seq == 1 or int(item.value.split()[0]) == item.seq - 2
        seq = item.seq + 1
        read += 1
    assert seq >= end or not all_told, "the rest was neither read nor told"
    return read, lost


def test_a_reader_of_the_files(tmp_path: Path) -> None:
    read = lost = removed = told = passes = 0
    starts = set()
    with busy(tmp_path / "data"):
        reader = DirectoryReader(tmp_path / "data")
        topic = reader.topic(b"t")
        while len(starts) < PASSES:  # retention is at work
            passes += 1
            try:
                partition = reader.partition(topic)
                starts.add(partition.log_start)
                counts = check(partition)
                partition.seq_at_time(1)
            except FileNotFoundError:
                removed += 1
                continue
            except EngineError:
                told += 1
                continue
            read, lost = read + counts[0], lost + counts[1]
        reader.close()
    print(f"{read} records read, {lost} told to be lost, {len(starts)} different starts of the log")
    print(f"of {passes} passes {removed} met a removed file, {told} another error")
    assert read > 1000


@pytest.mark.parametrize(
    "name", [name if name in ("cat", "verify") else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]
)
def test_logtool(tmp_path: Path, name: str) -> None:
    with busy(tmp_path / "data") as process:
        for _ in range(max(1, PASSES // 12)):
            command = [sys.executable, "-m", "tools.logtool", "--data-dir", str(process.data_dir), *COMMANDS[name]]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode in (DONE, FINDINGS, CANNOT_OPEN), (done.returncode, done.stderr[-3000:])
            assert "Traceback" not in done.stderr
            if name in ("cat", "tail"):
                for line in done.stdout.splitlines():
                    seq, value = line.split()[:2]
                    assert int(seq) == 1 or int(value) == int(seq) - 2
