"""The original's own client (Go) against our server.

Needs Go, the modules that the client requires, and a checkout of the original at the commit of 2025-05-18 (077855f):
QUINTLOG_FUJIN=DIRECTORY names it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from netserver.testing import ServerProcess, Settings, server
from tests.e2e.test_handover import ending_successors
from tests.interop.original_fujin import NEEDED, ONE_THREAD, built
from tests.processes import Started

OFF = {name: {"listen": "off"} for name in ("figg", "reliably", "tank", "blipmq", "kafka")}
TIMEOUT_S = 120
LARGE = 1 << 20

pytestmark = NEEDED


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("fujin_client", tmp_path_factory.mktemp("fujin_client"))


@pytest.fixture(scope="module")
def running() -> Iterator[ServerProcess]:
    settings: Settings = {**OFF, "fujin": {"nack_delay": 50}}
    with server(settings=settings) as process:
        yield process


def run(program: Path, process: ServerProcess, *arguments: object) -> list[str]:
    """What the client prints before its "ok"."""
    host, port = process.address("fujin")
    command = [str(program), f"{host}:{port}", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=ONE_THREAD)
    lines = ended.stdout.splitlines()
    assert lines[-1:] == ["ok"], (ended.returncode, lines[-5:], ended.stderr[-2000:])
    assert ended.returncode == 0
    return lines[:-1]


def fetched(program: Path, process: ServerProcess, topic: str, count: int, batch: int = 100) -> list[str]:
    return run(program, process, "fetch", topic, count, batch, "ack")


@pytest.mark.parametrize("goroutines", [1, 64])
def test_writes_and_fetches(program: Path, running: ServerProcess, goroutines: int) -> None:
    topic, count = f"write-{goroutines}", 640
    run(program, running, "write", topic, count, goroutines)
    came = fetched(program, running, topic, count)
    assert sorted(came) == sorted(f"{g}-{i}" for g in range(goroutines) for i in range(count // goroutines))
    for g in range(goroutines):
        own = [int(text.split("-")[1]) for text in came if text.startswith(f"{g}-")]
        assert own == sorted(own)


def test_large_messages(program: Path, running: ServerProcess) -> None:
    (said,) = run(program, running, "large", "large")
    assert said.startswith("too large: ")
    assert said != "too large: <nil>"
    assert fetched(program, running, "large", 2) == [str(LARGE), "after"]


def test_transactions_over_two_topics(program: Path, running: ServerProcess) -> None:
    assert run(program, running, "transactions", "tx-a", "tx-b") == [
        "commit outside: invalid tx state",
        "rollback outside: invalid tx state",
        "begin inside: invalid tx state",
    ]
    for topic in ("tx-a", "tx-b"):
        run(program, running, "write", topic, 1, 1)  # what is behind the last transaction
        assert fetched(program, running, topic, 11) == [*(f"{topic}-{i}" for i in range(0, 20, 2)), "0-0"]


@pytest.mark.parametrize("mode", ["auto", "manual"])
def test_push_of_a_long_backlog(program: Path, running: ServerProcess, mode: str) -> None:
    topic, count = f"push-{mode}", 5000
    run(program, running, "write", topic, count, 100)
    came = run(program, running, "push", topic, count, mode)
    assert len(came) == count
    assert len(set(came)) == count


@pytest.mark.parametrize("mode", ["auto", "manual"])
def test_first_messages_of_many_subscribers(program: Path, running: ServerProcess, mode: str) -> None:
    """A message pushed before the client has read the answer to CONNECT READER is lost in it."""
    assert run(program, running, "first", f"first-{mode}", 300, mode, 30) == ["all 300"]


def test_nack(program: Path, running: ServerProcess) -> None:
    run(program, running, "write", "nack", 10, 1)
    assert sorted(run(program, running, "nack", "nack", 10)) == [f"0-{i} 2" for i in range(10)]


def test_what_was_not_acknowledged_comes_again(program: Path, running: ServerProcess) -> None:
    run(program, running, "write", "again", 20, 1)
    expected = [f"0-{i}" for i in range(20)]
    assert run(program, running, "fetch", "again", 20, 7, "leave") == expected
    assert run(program, running, "fetch", "again", 20, 7, "ack") == expected


def test_fetch_of_nothing(program: Path, running: ServerProcess) -> None:
    assert run(program, running, "empty", "empty") == ["nothing: no messages", "something"]


def test_many_streams(program: Path, running: ServerProcess) -> None:
    run(program, running, "streams", "streams", 1000)
    assert sorted(map(int, fetched(program, running, "streams", 1000, 300))) == list(range(1000))


def test_silence(program: Path, running: ServerProcess) -> None:
    run(program, running, "idle", "idle", 8)  # four intervals of PING
    assert fetched(program, running, "idle", 2) == ["before", "after"]


def test_unknown_topics(program: Path) -> None:
    with server(settings={**OFF, "topics": {"auto_create": False}}) as process:
        write, read = run(program, process, "unknown", "nowhere")
        assert write == "write: writer not found"
        assert "reader not found" in read


def acknowledged_until(program: Path, process: ServerProcess, number: signal.Signals) -> int:
    """How many writes of a client that writes all the time succeed until the server gets a signal. The one under way is
    answered: it does not run into the client's timeout of 10 s."""
    host, port = process.address("fujin")
    command = [str(program), f"{host}:{port}", "stopped", "stopped"]
    with Started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ONE_THREAD) as client:
        assert client.stdout is not None
        assert client.stderr is not None
        assert client.stdout.readline() == "begun\n"
        os.kill(process.pid, number)
        process.wait(TIMEOUT_S)
        out, err = client.communicate(timeout=5)
    assert "panic" not in err
    return int(out.splitlines()[0])


def test_another_server_takes_over(program: Path) -> None:
    with server(settings=OFF) as process, ending_successors(process):
        count = acknowledged_until(program, process, signal.SIGUSR2)
        assert fetched(program, process, "stopped", count) == [f"{i:06}" for i in range(count)]


def test_stop_of_the_server(program: Path) -> None:
    """All that was acknowledged is there after the restart, and the client ends without a panic."""
    with server(settings=OFF) as process:
        count = acknowledged_until(program, process, signal.SIGTERM)
        process.restart()
        came = fetched(program, process, "stopped", count)
        assert came == [f"{i:06}" for i in range(count)]
