"""Starts that go wrong: killed again and again while it recovers, and two servers at the same instant."""

from __future__ import annotations

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from netserver.testing import ServerProcess, server
from tests.engine_log import SMALL, EngineLog, segments
from tests.figg_peer import FiggPeer
from tests.server_support import FIGG_ONLY, publish, values

KILLS, PAIRS = (20, 4) if os.environ.get("QUINTLOG_NIGHTLY") == "1" else (4, 2)
TOPICS = 6
EARLY_S = 0.05
EAGER = {**FIGG_ONLY, "topics": {"retention_bytes": "1GiB"}, "engine": {"housekeeping_interval_ms": "10ms"}}
"""Retention has the server open, and recover, its partitions at once."""


def unclean(path: Path, dice: random.Random) -> None:
    """Torn tails, as a crash amid a round leaves them."""
    for topic_id in range(1, TOPICS + 1):
        with segments(path, topic_id)[-1].open("ab") as file:
            file.write(dice.randbytes(dice.randint(1, 20_000)))


def test_killed_within_the_first_moments_of_recovery_again_and_again(tmp_path: Path) -> None:
    dice = random.Random(7)
    data = tmp_path / "data"
    expected = [b"%d" % number + b"." * 3000 for number in range(60)]
    with EngineLog(tmp_path / "made", topic=SMALL) as engine:
        for topic in range(TOPICS):
            for at in range(0, len(expected), 10):
                engine.append(expected[at : at + 10], str(topic))
        engine.image(data)
    process = ServerProcess(data, EAGER)
    recovered = 0
    with process:
        process.kill()
        for number in range(KILLS):
            unclean(data, dice)
            before = set_aside(data)
            starting = threading.Thread(target=start_to_be_killed, args=(process,))
            starting.start()
            pid = wait_for_lock(data)
            while number % 2 and set_aside(data) == before:  # into the recovery of the first partition, or behind it
                assert process.is_running
                time.sleep(0.0005)
            time.sleep(dice.random() * EARLY_S)
            process.kill()
            starting.join()
            assert pid == process.pid
            recovered += set_aside(data) > before
        process.start()
        for topic in range(TOPICS):
            assert values(process, b"%d" % topic, len(expected)) == expected
            assert publish(process, b"%d" % topic, b"next")
            with FiggPeer(process.address("figg")) as peer:
                assert peer.read(b"%d" % topic, len(expected), 1) == [(len(expected) + 1, b"next")]
        assert "Traceback" not in process.log_text
        assert "lost" not in process.log_text
    print(f"{recovered} of {KILLS} kills after something had been recovered")


def set_aside(data: Path) -> int:
    return len(list((data / "set-aside").glob("*")))


def start_to_be_killed(process: ServerProcess) -> None:
    try:
        process.start()
    except RuntimeError as killed:
        assert "exit code -9" in str(killed)  # noqa: PT017 - it may also have been quick enough to get ready


def wait_for_lock(data: Path) -> int:
    """The process that has the directory now, as soon as there is another one than before."""
    before = (data / "LOCK").read_text()
    deadline = time.monotonic() + 60
    while (told := (data / "LOCK").read_text()) in (before, "") or not told.endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    return int(told)


def test_two_servers_at_the_same_instant(tmp_path: Path) -> None:
    """One of them gets the directory, new or old; the other one says who has it."""
    for round_number in range(PAIRS):
        data = tmp_path / "data" if round_number else tmp_path / "new" / "data"
        together = threading.Barrier(2)
        pair = [ServerProcess(data, FIGG_ONLY), ServerProcess(data, FIGG_ONLY)]

        def start(process: ServerProcess, together: threading.Barrier = together) -> str:
            together.wait(10)
            try:
                process.__enter__()
            except RuntimeError as refused:
                return str(refused)
            return ""

        with ThreadPoolExecutor(2) as pool:
            said = list(pool.map(start, pair))
        winner = pair[said.index("")]
        refusal = next(text for text in said if text)
        try:
            assert "is in use by process" in refusal, refusal
            assert str(winner.pid) in refusal
            assert "Traceback" not in refusal
            assert publish(winner, b"t", b"%d" % round_number)
            winner.kill()
        finally:
            winner.__exit__(None, None, None)
    with server(tmp_path / "data", FIGG_ONLY) as process:
        assert values(process, b"t", PAIRS - 1) == [b"%d" % number for number in range(1, PAIRS)]
