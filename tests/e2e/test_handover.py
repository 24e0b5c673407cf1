"""One server follows another: nobody is refused, nothing that was acknowledged is lost, and the pause is short."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from netserver import blipmq, errors, figg, fujin, reliably, tank
from netserver.testing import ServerProcess, server

pytestmark = pytest.mark.whole

NIGHTLY = bool(os.environ.get("QUINTLOG_NIGHTLY"))
CLIENTS_EACH = 20 if NIGHTLY else 1
"""Of each protocol that publishes, and as many streams of JSON."""
WAIT_S = 60
AWAY_CPU_S = 0.2
"""Of both servers, while nobody is served; 0.04 s where the machine does nothing else."""


class Moment(NamedTuple):
    """A time, or the time between two, and the processor time of this process."""

    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Self:
        return cls(time.monotonic(), time.process_time())


def at_once(*_: object) -> float:
    """A backoff: these clients come back at once, so that the pause is the server's."""
    return 0.005


class Traffic:
    """Publishers that publish one record after the other, and a stream of JSON, over a hand-over.

    Attributes:
        moments: protocol -> when something was acknowledged (or came), and how much CPU all clients had used by then.
        acknowledged: what was.
        refused: attempts to connect that were.
    """

    def __init__(self, process: ServerProcess) -> None:
        self.addresses = {name: f"{host}:{port}" for name, (host, port) in process.addresses.items()}
        self.ca = process.data_dir / "fujin-certificate.pem"
        self.moments: dict[str, list[Moment]] = defaultdict(list)
        self.acknowledged: set[bytes] = set()
        self.refused = 0
        self.done = asyncio.Event()

    def client(self, protocol: str) -> Any:
        """A client that publishes."""
        at = self.addresses[protocol]
        if protocol == "fujin":
            return fujin.connect(at, ca=self.ca, backoff=at_once, dial_timeout_s=WAIT_S)
        return {"figg": figg.connect, "tank": tank.connect, "blipmq": blipmq.connect}[protocol](
            at, backoff=at_once, dial_timeout_s=WAIT_S
        )

    async def publish(self, protocol: str, name: str) -> None:
        """One publisher."""
        async with self.client(protocol) as client:
            number = 0
            while not self.done.is_set():
                value = f"{name}-{number}".encode()
                try:
                    await asyncio.wait_for(client.publish("t", value), WAIT_S)
                except errors.QuintlogError as error:
                    if not error.retryable:
                        raise
                    await asyncio.sleep(0.001)  # the same again: it may be stored twice, and is never lost
                    continue
                self.moments[protocol].append(Moment.now())
                self.acknowledged.add(value)
                number += 1

    async def stream(self) -> None:
        """One reader of a JSON stream."""
        parameters = {"topic": "t", "offset": "latest"}
        async with reliably.connect(self.addresses["reliably"], params=parameters, backoff=at_once) as session:
            reading = asyncio.ensure_future(self._read(session))
            await self.done.wait()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, session: Any) -> None:
        async for _ in session:
            self.moments["reliably"].append(Moment.now())

    async def all_are_there(self) -> None:
        """Returns when every acknowledged record has been read."""
        missing = set(self.acknowledged)
        async with (
            figg.connect(self.addresses["figg"]) as client,
            client.subscribe("t", start=figg.EARLIEST) as records,
        ):
            while missing:
                missing.discard((await records.next()).value)

    async def knock(self) -> None:
        """Somebody who connects all the time."""
        host, _, port = self.addresses["figg"].rpartition(":")
        while not self.done.is_set():
            try:
                with socket.create_connection((host, int(port)), WAIT_S):
                    await asyncio.sleep(0.02)
            except ConnectionRefusedError:
                self.refused += 1


async def over(process: ServerProcess, traffic: Traffic) -> dict[str, Moment]:
    """A hand-over under traffic; the longest pause of each protocol."""
    names = ("figg", "tank", "blipmq", "fujin")
    tasks = [
        asyncio.create_task(traffic.publish(name, f"{name}-{number}"))
        for name in names
        for number in range(CLIENTS_EACH)
    ]
    tasks += [asyncio.create_task(traffic.stream()) for _ in range(CLIENTS_EACH)]
    tasks += [asyncio.create_task(traffic.knock())]
    await until(lambda: all(len(traffic.moments[name]) > 20 for name in (*names, "reliably")), tasks)
    os.kill(process.pid, signal.SIGUSR2)
    await asyncio.to_thread(process.wait, WAIT_S)
    ended_at = time.monotonic()
    await until(lambda: all(traffic.moments[name][-1].wall_s > ended_at for name in (*names, "reliably")), tasks)
    traffic.done.set()
    await asyncio.gather(*tasks)
    return {
        name: max(
            Moment(later.wall_s - earlier.wall_s, later.cpu_s - earlier.cpu_s)
            for earlier, later in itertools.pairwise(found)
        )
        for name, found in traffic.moments.items()
    }


async def until(is_true: Any, tasks: list[asyncio.Task[None]]) -> None:
    """Until it is, or a task has failed."""
    deadline = time.monotonic() + WAIT_S
    while not is_true():
        for task in tasks:
            if task.done():
                task.result()
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def successors_of(process: ServerProcess) -> list[int]:
    """The process that has followed; none when nobody has."""
    return [int(pid) for pid in re.findall(r"process (\d+) takes over", process.log_text)]


@contextlib.contextmanager
def ending_successors(process: ServerProcess) -> Iterator[None]:
    """Whoever follows is ended at the end, also when the test fails before it has looked."""
    try:
        yield
    finally:
        for pid in successors_of(process):
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + WAIT_S
            while Path(f"/proc/{pid}/stat").exists() and ") Z " not in Path(f"/proc/{pid}/stat").read_text():
                assert time.monotonic() < deadline
                time.sleep(0.01)


def test_clients_of_five_protocols_see_a_pause_and_no_refusal() -> None:
    with server() as process, ending_successors(process):
        process.admin("POST", "/v1/topics", {"name": "t"})
        traffic = Traffic(process)
        pauses = asyncio.run(over(process, traffic))
        document = json.loads((process.data_dir / "server.json").read_text())
        assert [document["pid"]] == successors_of(process)
        assert document["admin"] == process.admin_url, "the same addresses"
        [(away_s, cpu_s)] = re.findall(r"served for ([\d.]+) s, ([\d.]+) s of it on a processor", process.log_text)
        asyncio.run(asyncio.wait_for(traffic.all_are_there(), WAIT_S))
    assert traffic.refused == 0
    found = {name: f"{pause.wall_s:.3f} s ({pause.cpu_s:.3f} s of CPU here)" for name, pause in pauses.items()}
    print(f"server away: {away_s} s ({cpu_s} s of CPU); clients: {found}", file=sys.stderr)
    assert float(cpu_s) < AWAY_CPU_S  # whatever else the machine does
    if NIGHTLY and os.getloadavg()[0] < 4:
        assert max(pause.wall_s for pause in pauses.values()) < 0.3, found


def test_a_next_server_that_cannot_start_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "quintlog.toml"
    path.write_text("")
    with server(arguments=("--config", str(path))) as process:
        path.write_text("[figg]\nlissten = 1\n")
        os.kill(process.pid, signal.SIGUSR2)
        deadline = time.monotonic() + WAIT_S
        while "not handed over: the next server did not get ready (exit code 2" not in process.log_text:
            assert time.monotonic() < deadline, process.log_text
            time.sleep(0.01)
        assert "unknown setting 'lissten'" in process.log_text
        assert process.admin("GET", "/v1/status")["pid"] == process.pid
