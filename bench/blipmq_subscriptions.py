"""Figures for a question of the design: 100,000 BlipMQ subscriptions of which 1 % are used.

::

    python -m bench.blipmq_subscriptions [COUNT]

Prints what a start costs, what a POLL and an ACK cost beside so many, and what is written for the positions.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from bench import machine
from engine.cursors.stored_cursors import Entry, put_entry
from engine.cursors.table import NEXT_CURSOR_ID
from engine.state.store import Put
from netserver.blipmq import codec
from netserver.testing import ServerProcess
from tests.blipmq_peer import Peer
from tests.engine_log import EngineLog

ACTIVE_SHARE = 100
MESSAGES = 50
OTHERS = {name: {"listen": "off"} for name in ("figg", "reliably", "tank", "fujin", "kafka")}


def resident_mib(pid: int) -> float:
    """Memory of a process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def written_mib(pid: int) -> float:
    """What a process has written to the disk."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["write_bytes"]) / (1 << 20)


def prepare(data_dir: Path, count: int) -> None:
    """A log with so many subscriptions of one topic."""
    with EngineLog(data_dir) as engine:
        engine.append([b"x"])
        topic = engine.partition().topic
        now_ms = engine.log.now_ms()
        puts = [
            put_entry(Entry(n, "blipmq", b"", topic.id, 0, 1, 1, now_ms, now_ms, 1, [2])) for n in range(1, count + 1)
        ]
        answers: list[object] = []
        engine.log.state.submit([*puts, Put(NEXT_CURSOR_ID, count + 1)], answers.append)
        engine.inbox.run_until(lambda: bool(answers), 120)


def rounds(peer: Peer, process: ServerProcess, ids: list[int], paced: bool) -> None:
    """Every message is polled and acknowledged by all active subscriptions."""
    cpu, disk = machine.cpu_seconds(process.pid), written_mib(process.pid)
    begun = time.perf_counter()
    for number in range(MESSAGES):
        peer.publish(b"t", b"%d" % number + bytes(100))
        peer.send(b"".join(codec.poll(1, one) for one in ids))
        deliveries = peer.until_pong()
        assert len(deliveries) == len(ids)
        peer.send(b"".join(codec.ack(frame.cid, one) for frame, one in zip(deliveries, ids, strict=True)))
        assert peer.until_pong() == []
        if paced:
            time.sleep(max(0.0, begun + 0.1 * (number + 1) - time.perf_counter()))
    seconds, count = time.perf_counter() - begun, MESSAGES * len(ids)
    cpu_us = (machine.cpu_seconds(process.pid) - cpu) / count * 1e6
    disk_mib = written_mib(process.pid) - disk
    print(
        f"{'10 messages a second' if paced else 'as fast as it goes'}: {count / seconds:,.0f} messages/s polled and "
        f"acknowledged, {cpu_us:.1f} us of CPU each; {disk_mib:.1f} MiB written, {disk_mib * (1 << 20) / count:.0f} "
        f"bytes each, {disk_mib / seconds:.2f} MiB/s; {resident_mib(process.pid):.0f} MiB of memory"
    )


def main() -> None:
    """Runs it for one subscription, then for many."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory(prefix="quintlog-bench-", dir=Path.cwd()) as name:
        data_dir = Path(name) / "data"
        prepare(data_dir, count)
        begun = time.perf_counter()
        with ServerProcess(data_dir, OTHERS) as process, Peer(process.address("blipmq")) as peer:
            seconds = time.perf_counter() - begun
            print(f"{count:,} subscriptions: start in {seconds:.2f} s, {resident_mib(process.pid):.0f} MiB of memory")
            ids = list(range(1, count + 1, ACTIVE_SHARE))
            for paced in (True, False):
                rounds(peer, process, ids, paced)


if __name__ == "__main__":
    main()
