"""The sink loses and doubles nothing: tasks fail, workers, drivers and the server are killed, each at a chosen call.

Between Spark and the server stands a relay that, call by call, does what the plan says: kill somebody before the call
reaches the server, or after it has done its work and before anybody hears of it.
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from engine.state.writer_ledger import STAGED
from netserver.testing import ServerProcess, server
from tests.spark.conftest import ROOT, require_spark
from tests.stored_log import NOW_MS, StoredPartition, make_directory
from tests.unit.netserver.admin.test_staging import stored

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
ROWS, ROWS_PER_TRIGGER, DRIVERS_KILLED = (500_000, 20_000, 15) if NIGHTLY else (3_000, 1_000, 2)
PATIENCE_S = 1500 if NIGHTLY else 300
TOO_SLOW = "SparkException: Python worker failed to connect back"
"""Spark's patience with the start of a process is 10 s, whatever the machine has to do besides."""
TEST_S = 5400 if NIGHTLY else 600


class Relay:
    """Passes calls on, or does harm first; what it did is counted in ``done``."""

    def __init__(self, process: ServerProcess, plans: dict[str, deque[str]]) -> None:
        self.process = process
        self.plans = plans
        self.driver: subprocess.Popen[bytes] | None = None
        self.done: Counter[str] = Counter()
        self.lock = threading.Lock()
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = relay.answer(self.path, body, self.headers["Authorization"])
                if answer is None:
                    self.close_connection = True
                    return
                self.send_response(answer[0])
                self.send_header("Content-Length", str(len(answer[1])))
                self.end_headers()
                self.wfile.write(answer[1])

            def log_message(self, *_: object) -> None:
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True

    def answer(self, path: str, body: bytes, token: str) -> tuple[int, bytes] | None:
        """Status and content; None: the caller hears nothing."""
        name = path.partition("?")[0]
        plan = self.plans.get(name)
        with self.lock:
            fault = plan.popleft() if plan else ""
            self.done[f"{name} {fault}"] += 1
            if fault == "refuse":
                return 400, b'{"code": "bad_request", "detail": "injected"}'
            if fault == "driver before":
                self.kill_driver()
                return None
            if fault == "server before":
                self.restart_server()
                return None
            if fault in ("driver after", "server after", "silence"):
                found = self.forward(path, body, token)
                assert found is not None
                assert found[0] < 300, found
                if fault == "driver after":
                    self.kill_driver()
                elif fault == "server after":
                    self.restart_server()
                return None
            return self.forward(path, body, token)

    def forward(self, path: str, body: bytes, token: str) -> tuple[int, bytes] | None:
        host, port = self.process.address("admin")
        connection = http.client.HTTPConnection(host, port, timeout=60)
        try:
            connection.request("POST", path, body, {"Authorization": token})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def kill_driver(self) -> None:
        assert self.driver is not None
        os.killpg(self.driver.pid, signal.SIGKILL)

    def restart_server(self) -> None:
        self.process.kill()
        self.process.start()


@contextmanager
def relayed(process: ServerProcess, plans: dict[str, deque[str]]) -> Iterator[Relay]:
    relay = Relay(process, plans)
    thread = threading.Thread(target=relay.http.serve_forever, daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay.http.shutdown()
        relay.http.server_close()
        thread.join()


def run_driver(relay: Relay, place: Path, data_dir: Path) -> int:
    """Runs a driver until it ends or is killed; its exit code."""
    where = "http://{}:{}".format(*relay.http.server_address[:2])
    command = [sys.executable, str(Path(__file__).with_name("sink_query.py")), str(data_dir), where]
    command += [relay.process.token, str(place / "checkpoint"), str(ROWS_PER_TRIGGER), str(place / "marker")]
    environment = os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(place / "scratch"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    with (place / "driver.log").open("ab") as log:
        driver = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        relay.driver = driver
        try:
            return driver.wait(PATIENCE_S)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()


def commit_plan() -> deque[str]:
    """The first batch loses its driver before and after the commit, the second the server."""
    plan = ["driver before", "driver after", "", "server before", "server after", "silence"]
    if NIGHTLY:
        chance = random.Random(10)
        kills = ["driver before", "driver after"] * DRIVERS_KILLED
        faults = kills[: DRIVERS_KILLED - 2] + ["server before", "server after"] * 2
        chance.shuffle(faults)
        plan += [fault for found in faults for fault in (found, "")]
    return deque(plan)


@pytest.mark.timeout(TEST_S)
def test_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    require_spark()
    data_dir = tmp_path / "data"
    source = StoredPartition(data_dir, make_directory(data_dir), name=b"in")
    source.begin_segment()
    sent = [b"value %d" % number for number in range(ROWS)]
    for first in range(0, ROWS, 200):
        source.write(sent[first : first + 200], now_ms=NOW_MS + first)
    source.mark()
    (tmp_path / "marker").touch()
    plans = {"/v1/commits": commit_plan(), "/v1/staged": deque(["", "silence", "server after", "", "refuse"])}
    codes, own_ends = [], 0
    with server(data_dir) as process, relayed(process, plans) as relay:
        while not codes or codes[-1] == -signal.SIGKILL:
            codes.append(run_driver(relay, tmp_path, data_dir))
            log = (tmp_path / "driver.log").read_text("utf-8", "replace")
            if codes[-1] == 1 and log.count(TOO_SLOW) > own_ends:
                own_ends = log.count(TOO_SLOW)  # one more driver that ends at any point
                del codes[-1:]
                continue
            assert len(codes) <= DRIVERS_KILLED + 1
        assert codes == [-signal.SIGKILL] * DRIVERS_KILLED + [0], log[-4000:]
        query = (tmp_path / "checkpoint" / "query").read_text()
        last = process.admin("GET", f"/v1/commits/{query}")
    found = Counter(record.value for record in stored(data_dir, b"out"))
    doubled = sum(count - 1 for count in found.values())
    assert (len(set(sent) - set(found)), doubled, len(found)) == (0, 0, ROWS)
    assert last["batch"] >= ROWS // ROWS_PER_TRIGGER - 1
    assert not any(plans.values()), "each fault came"
    assert not (tmp_path / "marker").exists(), "a worker was killed amid its rows"
    assert not os.listdir(data_dir / STAGED), "what killed drivers had staged went with the commits"
    print(f"{ROWS} rows, 0 lost, 0 doubled; calls: {dict(relay.done)}")
