"""A relay between the sink and the server that, call by call, does what the plan says: kill somebody before the call
reaches the server, or after it has done its work and before anybody hears of it.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from netserver.testing import ServerProcess
from tests.spark.conftest import ROOT

TOO_SLOW = "SparkException: Python worker failed to connect back"
"""Spark's patience with the start of a process is 10 s, whatever the machine has to do besides."""
Answer = tuple[int, bytes]


class Relay:
    """Passes calls on, or does harm first; what it did is counted in ``done``."""

    def __init__(self, process: ServerProcess, plans: dict[str, deque[str]]) -> None:
        self.process = process
        self.plans = plans
        self.driver: subprocess.Popen[bytes] | None = None
        self.is_driver_killed = False
        self.others: dict[str, Callable[[], None]] = {}
        """Harm of other kinds."""
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

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:  # who called is dead
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True

    def answer(self, path: str, body: bytes, token: str) -> Answer | None:
        """Status and content; None: the caller hears nothing. Calls of several queries pass at the same time."""
        fault = self.next_fault(path.partition("?")[0])
        harmed, _, when = fault.partition(" ")
        if fault == "refuse":
            return 400, b'{"code": "bad_request", "detail": "injected"}'
        if when != "before":
            found = self.forward(path, body, token)
            while found is None and fault:  # somebody else's restart
                found = self.forward(path, body, token)
            if not fault:
                return found
            assert found is not None
            assert found[0] < 300, found
        if harmed == "driver":
            self.kill_driver()
        elif harmed == "server":
            self.restart_server()
        elif harmed in self.others:
            self.others[harmed]()
        return None

    def next_fault(self, name: str) -> str:
        """What the plan says for this call. A driver that was killed is not killed again by a call it left behind."""
        plan = self.plans.get(name)
        with self.lock:
            fault = plan.popleft() if plan and not (plan[0].startswith("driver") and self.is_driver_killed) else ""
            self.is_driver_killed |= fault.startswith("driver")
            self.done[f"{name} {fault}"] += 1
        return fault

    def forward(self, path: str, body: bytes, token: str) -> Answer | None:
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
        with self.lock:
            self.process.kill()
            self.process.start()

    def run_driver(self, place: Path, arguments: list[str], patience_s: int) -> int:
        """Runs ``sink_query.py`` until it ends or is killed; its exit code. What it says is in ``driver.log``."""
        where = "http://{}:{}".format(*self.http.server_address[:2])
        command = [sys.executable, str(Path(__file__).with_name("sink_query.py")), where, self.process.token]
        environment = os.environ | {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(place / "scratch"),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        }
        self.is_driver_killed = False
        with (place / "driver.log").open("ab") as log:
            driver = subprocess.Popen(
                [*command, str(place), *arguments], env=environment, stdout=log, stderr=log, start_new_session=True
            )
            self.driver = driver
            try:
                return driver.wait(patience_s)
            finally:
                if driver.poll() is None:
                    os.killpg(driver.pid, signal.SIGKILL)
                    driver.wait()

    def run_until_done(self, place: Path, arguments: list[str], patience_s: int, kills: int) -> None:
        """Runs drivers, of which the plan kills so many; the next one goes on from where it was."""
        codes, own_ends = [], 0
        while not codes or codes[-1] == -signal.SIGKILL:
            codes.append(self.run_driver(place, arguments, patience_s))
            log = (place / "driver.log").read_text("utf-8", "replace")
            if codes[-1] == 1 and log.count(TOO_SLOW) > own_ends:
                own_ends = log.count(TOO_SLOW)  # one more driver that ends at any point
                del codes[-1:]
                continue
            assert len(codes) <= kills + 1
        assert codes == [-signal.SIGKILL] * kills + [0], log[-4000:]


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
