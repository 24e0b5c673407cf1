"""A real server for tests: its own process on a temporary directory, or in the running event loop.

::

    with server() as quintlog:
        host, port = quintlog.address("figg")
        ...
        quintlog.kill()          # kill -9
        quintlog.restart()       # the same directory and ports

    async with running() as quintlog:      # in this process, for unit tests
        ...
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from netserver.admin.names import TOKEN_FILE
from netserver.app import MakeFactory, Server
from netserver.config import loading as config_reading
from netserver.config.sections import PROTOCOL_SECTIONS
from netserver.limits import TEST_START_S, TEST_STOP_S

Settings = Mapping[str, Mapping[str, Any]]
"""Section -> setting -> value, as in the configuration file."""

FREE_PORT = "127.0.0.1:0"
ROOT = Path(__file__).resolve().parents[1]
COMMAND = (sys.executable, "-P", str(ROOT / "quintlog.py"), "engine-server")


class ServerProcess:
    """``engine-server`` as a process of its own; all listeners on free ports of 127.0.0.1.

    Args:
        data_dir: kept at the end; None: a temporary one.
        settings: further settings; a listener is switched off by ``{"tank": {"listen": "off"}}``.
        arguments: further arguments of the command.
        environment: further variables.
        command: what runs the server; None: this Python. The arguments are put after it.

    Attributes:
        addresses: listener -> (host, port); "admin" too.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        settings: Settings | None = None,
        arguments: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        command: tuple[str, ...] | None = None,
    ) -> None:
        self._command = command or COMMAND
        self._temporary = tempfile.TemporaryDirectory(prefix="quintlog-") if data_dir is None else None
        self.data_dir = data_dir if data_dir is not None else Path(self._temporary.name) / "data"  # type: ignore[union-attr]
        self.addresses: dict[str, tuple[str, int]] = {}
        self.output: list[str] = []
        self._listen = dict.fromkeys((*PROTOCOL_SECTIONS, "admin"), FREE_PORT)
        self._settings: dict[str, dict[str, Any]] = {name: dict(table) for name, table in (settings or {}).items()}
        self._arguments = arguments
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._pump: threading.Thread | None = None
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  (as long as this object)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self.is_running:
                self.stop()
        finally:
            self._clean_up()

    # --- facts

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """The process has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def ports(self) -> dict[str, int]:
        """Listener -> port."""
        return {name: port for name, (_, port) in self.addresses.items()}

    @property
    def log_text(self) -> str:
        """What the processes wrote to stderr so far."""
        self._log.seek(0)
        text = self._log.read()
        self._log.seek(0, os.SEEK_END)
        return text

    @property
    def admin_url(self) -> str:
        """Base of the admin API."""
        host, port = self.addresses["admin"]
        return f"{'https' if self._settings.get('admin', {}).get('tls_certificate') else 'http'}://{host}:{port}"

    @property
    def token(self) -> str:
        """Bearer token of the admin API."""
        return (self.data_dir / TOKEN_FILE).read_text("ascii").strip()

    def address(self, name: str) -> tuple[str, int]:
        """(host, port) of a listener."""
        return self.addresses[name]

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """Call the admin API; the answer's document (text where it is not JSON).

        Raises:
            urllib.error.HTTPError: the answer was an error.
        """
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            self.admin_url + path, data, {"Authorization": f"Bearer {self.token}"}, method=method
        )
        with urllib.request.urlopen(request, timeout=TEST_STOP_S) as answer:
            content = answer.read()
            return json.loads(content) if "json" in answer.headers["Content-Type"] else content.decode()

    # --- life

    def start(self) -> None:
        """Start it and wait for ``ready``.

        Raises:
            RuntimeError: it ended or hung instead; the text has its log.
        """
        assert not self.is_running
        environment = {**os.environ, **self._environment}
        for section, table in self._settings.items():
            for name, value in table.items():
                if name == "listen":
                    self._listen[section] = str(value)
                else:
                    environment[f"QUINTLOG_{section}_{name}".upper()] = str(value)
        command = [*self._command, "--data-dir", str(self.data_dir)]
        for section, where in self._listen.items():
            command += [f"--{section}", where]
        self._process = self._launched([*command, *self._arguments], environment)
        self._lines = queue.SimpleQueue()
        assert self._process.stdout is not None
        self._pump = threading.Thread(target=_pump, args=(self._process.stdout, self._lines), daemon=True)
        self._pump.start()
        self._wait_ready(time.monotonic() + TEST_START_S)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send SIGTERM and wait; the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        """kill -9."""
        self.stop(signal.SIGKILL)

    def wait(self, timeout_s: float = TEST_STOP_S) -> int:
        """Wait for the end; the exit code.

        Raises:
            RuntimeError: it goes on.
        """
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise RuntimeError(f"the server did not end within {timeout_s} s; its log:\n{self.log_text}") from None

    def restart(self) -> None:
        """Stop it in good order if it runs, and start it on the same directory and ports.

        The system may have lent a free port to somebody's connection meanwhile: then it is tried again for a while.
        """
        if self.is_running:
            self.stop()
        for name, (host, port) in self.addresses.items():
            self._listen[name] = f"{host}:{port}"
            self._settings.get(name, {}).pop("listen", None)
        deadline = time.monotonic() + TEST_START_S
        while True:
            try:
                return self.start()
            except RuntimeError as error:
                last_line = str(error).rstrip().rpartition("\n")[2]
                if "Address already in use" not in last_line or time.monotonic() > deadline:
                    raise

    # --- inside

    def _launched(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=self._log, text=True)

    def _wait_ready(self, deadline: float) -> None:
        self.output = []
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                self.kill()
                line = None
            if line is None:  # its output has ended, so it is ending; or it was killed just now
                code = self._process.wait(TEST_STOP_S) if self._process is not None else None
                raise RuntimeError(f"the server did not get ready (exit code {code}); its log:\n{self.log_text}")
            self.output.append(line)
            if line == "ready":
                return
            name, _, where = line.partition(" ")
            if name in self._listen:
                host, _, port = where.rpartition(":")
                self.addresses[name] = (host.strip("[]"), int(port))

    def _clean_up(self) -> None:
        if self.is_running:
            self.kill()
        if self._pump is not None:
            self._pump.join()
        self._log.close()
        if self._temporary is not None:
            self._temporary.cleanup()


def _pump(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    with stream:
        for line in stream:
            lines.put(line.rstrip("\n"))
    lines.put(None)


@contextlib.contextmanager
def server(
    data_dir: Path | None = None,
    settings: Settings | None = None,
    arguments: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[ServerProcess]:
    """A ``ServerProcess``, started; stopped at the end."""
    with ServerProcess(data_dir, settings, arguments, environment) as process:
        yield process


@contextlib.asynccontextmanager
async def running(
    data_dir: Path | None = None,
    settings: Settings | None = None,
    protocols: Mapping[str, MakeFactory] | None = None,
) -> AsyncIterator[Server]:
    """A server in the running event loop, on free ports; drained at the end.

    Args:
        data_dir: None: a temporary one.
        settings: as in the configuration file.
        protocols: further TCP protocols by name.
    """
    with contextlib.ExitStack() as stack:
        if data_dir is None:
            data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quintlog-"))) / "data"
        free = {name: {"listen": FREE_PORT} for name in (*PROTOCOL_SECTIONS, "admin")}
        own = {"server": {"data_dir": str(data_dir)}}
        config = config_reading.build(("test", free), ("test", own), ("test", settings or {}))
        quintlog = Server(config, protocols)
        await quintlog.start()
        try:
            yield quintlog
        finally:
            await quintlog.drain()
