"""The server: one log, the listeners of all protocols, admin HTTP; start, reload, drain.

Order of a start: lock and open the log, bind every listener, admin HTTP, ``server.json``. Order of a stop: stop
accepting, let sessions finish, let the log commit what was appended, close it; then connections end as their peers take
what was sent. Nothing that was acknowledged depends on the stop being clean.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from engine.errors import EngineError, LogLocked
from engine.files.system import SystemFiles, replace_file
from engine.histogram import Histogram
from engine.log import Log
from netserver import remote
from netserver.access.access import Access
from netserver.access.exposed import warn_of_writers
from netserver.admin.metrics import Rounds
from netserver.admin.names import SERVER_FILE
from netserver.admin.server import AdminServer
from netserver.config.sections import PROTOCOL_SECTIONS, ServerConfig
from netserver.config.settings import Address
from netserver.config.table import RELOADABLE, changes, reloaded
from netserver.errors import CertificateError, ServerError
from netserver.fresh_directory import FreshDirectory
from netserver.limits import (
    ADMIN_SHUTDOWN_S,
    CURSORS_TICK_S,
    DESCRIPTORS_RESERVED,
    DRAIN_LOG_S,
    DRAIN_POLL_S,
    DRAIN_S,
    LOOP_LAG_INTERVAL_S,
    OPEN_FILES_LEAST,
    SWEEP_EVERYTHING_TICKS,
    SWEEP_S,
)
from netserver.logs import set_level
from netserver.shell.collection import Collection
from netserver.shell.connection import Connection, Services, SessionFactory, Shell
from netserver.shell.counters import Counters
from netserver.shell.inherited import INHERITED, Unanswered
from netserver.shell.listener import ConnectionGate, TcpListener, connections_allowed, raise_descriptor_limit
from netserver.shell.tls import TLS_SECTIONS, TlsContexts, section_of
from netserver.shell.watched_loop import WatchedLoop
from netserver.version import product_version

log = logging.getLogger(__name__)

MakeFactory = Callable[[Services], SessionFactory]

TCP_PROTOCOLS: Final[dict[str, str]] = {
    "figg": "netserver.figg.session",
    "reliably": "netserver.reliably.session",
    "tank": "netserver.tank.session",
    "blipmq": "netserver.blipmq.session",
    "kafka": "netserver.kafka.session",
}
"""Protocol -> module whose ``factory(services)`` gives the function that makes a connection's session."""

OTHER_PROTOCOLS: Final[dict[str, str]] = {"fujin": "netserver.fujin.listener"}
"""Protocol -> module whose coroutine ``start(services, config)`` gives a started ``Listener``."""


class Listener(Protocol):
    """What the server needs of a protocol's listener, whatever its transport.

    ``address`` is the one it really has (a port 0 is filled in).
    """

    address: Address

    @property
    def expires_at_s(self) -> float | None:
        """When its certificate expires, in seconds since 1970; None: it has none."""

    @property
    def sockets(self) -> list[socket.socket]:
        """Those that new connections come by."""

    def stop_accepting(self) -> None:
        """Free the address; existing connections go on."""

    @property
    def unanswered(self) -> list[Unanswered]:
        """What came to begin a connection since then, where nothing else keeps it."""

    async def warn(self, deadline: float) -> None:
        """Tell clients of the stop, where the protocol can; they leave until ``deadline``, served as before."""

    async def finish(self, deadline: float) -> None:
        """Let sessions finish what is outstanding until ``deadline`` (loop time); none needs the log after that."""

    async def drain(self, deadline: float) -> None:
        """Finish, and let peers take what was sent until ``deadline``, then abort the rest."""

    def close(self) -> None:
        """Give up everything at once."""


class TcpService:
    """A protocol over TCP: its listener and its connections.

    Raises:
        ListenError: the address cannot be bound.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        services: Services,
        factory: SessionFactory,
        gate: ConnectionGate,
        tls: TlsContexts,
    ) -> None:
        self._services = services
        self._factory = factory
        self._gone = asyncio.Event()
        self._context = functools.partial(tls.get, name)
        self._listener = TcpListener(name, address, self._make, gate, self._context)
        self.address = self._listener.start()

    @property
    def expires_at_s(self) -> float | None:
        """See ``Listener``."""
        context = self._context()
        return context.expires_at_s if context is not None else None

    def connections(self) -> list[Connection]:
        """This protocol's open connections."""
        counters = self._services.counters
        return [connection for connection in self._services.shell.connections if connection.counters is counters]

    @property
    def sockets(self) -> list[socket.socket]:
        """See ``Listener``."""
        return self._listener.sockets

    def stop_accepting(self) -> None:
        """See ``Listener``."""
        self._listener.stop_accepting()

    @property
    def unanswered(self) -> list[Unanswered]:
        """See ``Listener``: the kernel keeps them."""
        return []

    async def warn(self, deadline: float) -> None:
        """See ``Listener``: no protocol over TCP can."""

    async def finish(self, deadline: float) -> None:
        """See ``Listener``."""
        loop = self._services.loop
        await self._listener.end_setups()
        for connection in self.connections():
            connection.drain()
        while loop.time() < deadline and not all(one.closed for one in self.connections()):  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_POLL_S)  # asked of every session, as each has an order of its own to end in
        for connection in self.connections():
            if not connection.closed:
                connection.abort("the server stops", "drain")
            connection.end_session()

    async def drain(self, deadline: float) -> None:
        """See ``Listener``."""
        loop = self._services.loop
        await self.finish(deadline)
        while self.connections() and loop.time() < deadline:
            self._gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), deadline - loop.time())
        self._abort_all()

    def close(self) -> None:
        """See ``Listener``."""
        self.stop_accepting()
        self._listener.cancel_setups()
        self._abort_all()

    def _make(self, leave: Callable[[], None]) -> Connection:
        def lost(_connection: Connection) -> None:
            leave()
            self._gone.set()

        return Connection(self._services, self._factory, lost)

    def _abort_all(self) -> None:
        for connection in self.connections():
            connection.abort("the server stops", "drain")


class Server:
    """One server in the running event loop.

    Args:
        config: where each listener listens, limits, defaults of topics.
        protocols: further TCP protocols by name; they listen on free ports of 127.0.0.1 (for tests and embedding).
    """

    log: Log
    shell: Shell

    def __init__(self, config: ServerConfig, protocols: Mapping[str, MakeFactory] | None = None) -> None:
        self.descriptors = raise_descriptor_limit()
        self.config = config = _fitted(config, self.descriptors)
        self.data_dir = Path(config.server.data_dir)
        self.started_at = time.time()
        self.started_s = time.monotonic()
        self.open_seconds = 0.0
        self.ready = False
        self.counters: dict[str, Counters] = {}
        self.services: dict[str, Services] = {}
        self.listeners: dict[str, Listener] = {}
        self.failed: dict[str, CertificateError] = {}
        """Listeners that could not start, and why; the others serve."""
        self.tls = TlsContexts()
        self.access = Access(config)
        self.loop_lag = Histogram()
        self.collection = Collection(self._things)
        self.rounds = Rounds()
        self.reload_success = True
        self.reload_time = self.started_at
        self.restart_needed: list[str] = []
        """Settings that the last reload found changed and could not take over."""
        self.gate = ConnectionGate(self._connections_max(config))
        self.admin: AdminServer | None = None
        self.admin_address: Address | None = None
        self.http = Counters("http")
        self._further = dict(protocols or {})
        self._timers: list[asyncio.TimerHandle] = []
        self._ticks = 0

    @property
    def addresses(self) -> dict[str, Address]:
        """Where each listener listens."""
        found = {name: listener.address for name, listener in self.listeners.items()}
        if self.admin_address is not None:
            found["admin"] = self.admin_address
        return found

    @property
    def sockets(self) -> list[tuple[str, socket.socket]]:
        """Those that new connections come by, with the names of their listeners."""
        found = [(name, one) for name, listener in self.listeners.items() for one in listener.sockets]
        return found + [("admin", one) for one in (self.admin.sockets if self.admin is not None else ())]

    @property
    def unanswered(self) -> list[Unanswered]:
        """What came to begin a connection when none was begun any more."""
        return [one for listener in self.listeners.values() for one in listener.unanswered]

    @property
    def tls_listeners(self) -> list[str]:
        """Listeners that show a certificate of the configuration."""
        names = [name for name in self.addresses if name in TLS_SECTIONS or name == "fujin"]
        return sorted(name for name in names if section_of(self.config, name).tls_certificate)

    @property
    def certificates(self) -> dict[str, float]:
        """Listener -> when the certificate that it shows expires, in seconds since 1970."""
        found = {name: listener.expires_at_s for name, listener in self.listeners.items()}
        admin = self.tls.get("admin")
        if admin is not None:
            found["admin"] = admin.expires_at_s
        return {name: expires_at_s for name, expires_at_s in found.items() if expires_at_s is not None}

    async def start(self) -> None:
        """Open the log and listen.

        Raises:
            ServerError: says what is wrong and what to do; nothing is left open.
        """
        loop = asyncio.get_running_loop()
        made = FreshDirectory.before(self.data_dir)
        try:
            self.log = self._open_log(loop)
        except BaseException:
            made.undo()
            raise
        warn_of_writers(self.data_dir)
        self.access.exists = lambda name: self.log.catalog.get(name) is not None
        server, engine = self.config.server, self.config.engine
        self.shell = Shell(
            loop,
            pending_bytes_max=engine.pending_bytes_max,
            pending_share_bytes_max=server.publish_share_bytes,
            receive_bytes_max=server.receive_bytes_max,
            is_crowded=self.gate.is_crowded,
        )
        try:
            refused = await self._listen()
            try:
                if self.config.admin.listen is not None:
                    self.tls.replace(self.tls.loaded(self.config, [*self.listeners, "admin"]))
                    self.admin = AdminServer(self)
                    self.admin_address = self.admin.start(self.config.admin.listen, lambda: self.tls.get("admin"))
            except ServerError as error:
                refused.append(error)
            INHERITED.close_rest()
            if not refused and self.config.remote.url:
                remote.begin(self.log, self.config.remote, self._primary_address())
            if refused:
                raise _together(refused)
            self._write_server_json()
        except BaseException:
            await self._close_listeners()
            is_unused = not len(self.log.catalog)
            self.log.close()
            if is_unused:
                made.undo()
            raise
        self._later(SWEEP_S, self._sweep)
        self._later(CURSORS_TICK_S, self._tick_cursors)
        self._later(LOOP_LAG_INTERVAL_S, self._measure_lag, loop.time() + LOOP_LAG_INTERVAL_S)
        loop.call_soon(self.shell.turns.watch)
        self.ready = True

    def _things(self) -> int:
        """What there is to be remembered."""
        return len(self.log.catalog) + self.log.known_count + self.gate.connections

    async def warn(self, within_s: float) -> None:
        """Tell clients that a stop is near, where the protocol can, and serve on until they have left."""
        deadline = asyncio.get_running_loop().time() + within_s
        await self._each(listener.warn(deadline) for listener in self.listeners.values())

    async def drain(self, within_s: float = DRAIN_S, released: Callable[[], None] = lambda: None) -> bool:
        """Stop: finish what is outstanding, close everything. True: the log committed all that was appended.

        Args:
            within_s: sessions that are not done then are cut off.
            released: called when the log is closed, for who opens it next; peers still take what was sent to them.
        """
        started = asyncio.get_running_loop().time()
        self.ready = False
        self.shell.turns.stop()
        for listener in self.listeners.values():
            listener.stop_accepting()
        await self._each(listener.finish(started + within_s) for listener in self.listeners.values())
        committed = await self._drain_log()
        await remote.finish(self.log)
        if self.admin is not None:
            await self.admin.close(min(within_s, ADMIN_SHUTDOWN_S))
        for timer in self._timers:
            timer.cancel()
        try:
            (self.data_dir / SERVER_FILE).unlink(missing_ok=True)
        except OSError as error:  # a file system that is read-only now: the log is closed all the same
            log.warning("cannot remove %s: %s", self.data_dir / SERVER_FILE, error)
        if committed:
            self.log.close()
            released()
        await self._each(listener.drain(started + DRAIN_S) for listener in self.listeners.values())
        await self._close_listeners()
        self.access.audit.close()
        return committed

    def reload(self, new: ServerConfig) -> list[str]:
        """Take over the settings of ``new`` that may change now; names those that need a restart.

        Raises:
            ServerError: nothing was changed.
        """
        new = _fitted(new, self.descriptors)
        differing = changes(self.config, new)
        merged = reloaded(self.config, new)
        contexts = self.tls.loaded(merged, TLS_SECTIONS - self.failed.keys())
        take_over_access = self.access.prepare(merged)
        prepared = [reloader(merged) for services in self.services.values() for reloader in services.reloaders]
        self.tls.replace(contexts)
        self.config = merged
        for services in self.services.values():
            services.config = merged
        for take_over in prepared:
            take_over()
        take_over_access()  # when everything else is new: connections of a withdrawn key end in between
        self.log.config = merged.engine
        self.log.catalog.set_defaults(merged.engine)
        self.shell.pressure.total_bytes_max = merged.engine.pending_bytes_max
        self.shell.pressure.share_bytes_max = merged.server.publish_share_bytes
        self.shell.budget.total_bytes_max = merged.server.receive_bytes_max
        self.gate.connections_max = self._connections_max(merged)
        self.gate.changed()
        set_level(merged.server.log_level)
        self.restart_needed = sorted(name for name in differing if name not in RELOADABLE)
        return self.restart_needed

    # --- inside

    def _open_log(self, loop: asyncio.AbstractEventLoop) -> Log:
        def call_soon_threadsafe(callback: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(callback)

        call_next = loop.call_soon_unmarked if isinstance(loop, WatchedLoop) else loop.call_soon

        def call_soon(callback: Callable[[], None]) -> None:
            call_next(callback)

        def watch(fd: int, callback: Callable[[], None]) -> Callable[[], object]:
            loop.add_reader(fd, callback)
            return lambda: loop.remove_reader(fd)

        started = time.monotonic()
        try:
            opened = Log.open(self.data_dir, self.config.engine, call_soon_threadsafe, watch=watch, call_soon=call_soon)
        except EngineError as error:
            problem = ServerError(str(error))
            problem.exit_code = 6 if isinstance(error, LogLocked) else 3
            raise problem from error
        if isinstance(loop, WatchedLoop):
            opened.slices.turn_of = loop.turn_of
            opened.slices.call_soon = loop.call_soon  # marked: it is work, and may be all that there is in many turns
        self.open_seconds = time.monotonic() - started
        return opened

    def _primary_address(self) -> str:
        """Where people find this server, for who reads the head in object storage."""
        return ", ".join(f"{name} {address}" for name, address in self.addresses.items())

    async def _listen(self) -> list[ServerError]:
        """Why some do not listen: all are told in one go."""
        refused: list[ServerError] = []
        wanted = [name for name in PROTOCOL_SECTIONS if self.config.listener(name).listen is not None]
        if not wanted and not self._further:
            rest = "only the admin API takes records" if self.config.admin.listen else "nobody can reach this server"
            log.warning("the listeners of all protocols are off: %s", rest)
        for name in wanted:
            try:
                await self._listen_to(name)
            except CertificateError as error:
                self.failed[name] = error
                log.error("%s does not listen: %s; the others do, mend it and restart", name, error)
            except ServerError as error:
                refused.append(error)
        if wanted and len(self.failed) == len(wanted):
            raise self.failed[wanted[0]]
        for name, make in self._further.items():
            self._listen_tcp(name, Address("127.0.0.1", 0), make)
        return refused

    async def _listen_to(self, name: str) -> None:
        address = self.config.listener(name).listen
        assert address is not None
        if name in TCP_PROTOCOLS:
            self.tls.replace(self.tls.loaded(self.config, [*self.listeners, name]))
            make: MakeFactory = import_module(TCP_PROTOCOLS[name]).factory
            self._listen_tcp(name, address, make)
        elif name in OTHER_PROTOCOLS:
            start: Callable[[Services, ServerConfig], Awaitable[Listener]]
            start = import_module(OTHER_PROTOCOLS[name]).start
            self.listeners[name] = await start(self._services(name), self.config)

    def _listen_tcp(self, name: str, address: Address, make: MakeFactory) -> None:
        services = self._services(name)
        self.listeners[name] = TcpService(name, address, services, make(services), self.gate, self.tls)

    def _services(self, name: str) -> Services:
        counters = self.counters[name] = Counters(name)
        services = self.services[name] = Services(self.log, self.config, counters, self.shell, self.access.door(name))
        return services

    def _connections_max(self, config: ServerConfig) -> int:
        reserved = DESCRIPTORS_RESERVED + config.engine.open_files_max
        return connections_allowed(config.server.connections_max, self.descriptors, reserved)

    @staticmethod
    async def _each(steps: Iterable[Coroutine[None, None, None]]) -> None:
        for result in await asyncio.gather(*steps, return_exceptions=True):
            if isinstance(result, Exception):
                log.error("error while connections were drained", exc_info=result)

    async def _drain_log(self) -> bool:
        done = asyncio.Event()
        self.log.drain(done.set)
        try:
            await asyncio.wait_for(done.wait(), DRAIN_LOG_S)
        except TimeoutError:
            log.error("the disk did not take what was appended within %g s; it was not acknowledged", DRAIN_LOG_S)
            return False
        return True

    async def _close_listeners(self) -> None:
        for listener in self.listeners.values():
            listener.close()
        if self.admin is not None:
            await self.admin.close()

    def _write_server_json(self) -> None:
        """``server.json`` tells tools that this directory has a server, and where its admin address is."""
        scheme = "https" if "admin" in self.tls_listeners else "http"
        document: dict[str, Any] = {
            "pid": os.getpid(),
            "version": product_version(),
            "started": self.started_at,
            "admin": f"{scheme}://{self.admin_address}" if self.admin_address is not None else None,
            "listeners": {name: str(listener.address) for name, listener in self.listeners.items()},
            "tls": self.tls_listeners,
        }
        temporary = self.data_dir / f"{SERVER_FILE}.new"
        try:
            replace_file(SystemFiles(), self.data_dir / SERVER_FILE, json.dumps(document, indent=1).encode() + b"\n")
        except OSError as error:  # a full disk: reading has to go on, and records that retention removes make room
            log.warning("cannot write %s (%s): tools do not find this server by its directory", temporary, error)
            for path in (temporary, self.data_dir / SERVER_FILE):  # the latter names a server that was killed
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def _later(self, delay_s: float, function: Callable[..., None], *args: object) -> None:
        loop = asyncio.get_running_loop()
        self._timers = [timer for timer in self._timers if not timer.cancelled() and timer.when() > loop.time()]
        self._timers.append(loop.call_later(delay_s, function, *args))

    def _sweep(self) -> None:
        self._ticks += 1
        try:
            self.shell.sweep(time.monotonic(), self._ticks % SWEEP_EVERYTHING_TICKS == 0)
            self.rounds.take(self.log.committer.counters.round_sizes)
        finally:
            self._later(SWEEP_S, self._sweep)

    def _tick_cursors(self) -> None:
        try:
            self.log.cursors.tick()
        finally:
            self._later(CURSORS_TICK_S, self._tick_cursors)

    def _measure_lag(self, due: float) -> None:
        now = asyncio.get_running_loop().time()
        self.loop_lag.observe(max(now - due, 0.0))
        self._later(LOOP_LAG_INTERVAL_S, self._measure_lag, now + LOOP_LAG_INTERVAL_S)


def _together(errors: Sequence[ServerError]) -> ServerError:
    """One error, of the first one's kind, that says all of several."""
    return errors[0] if len(errors) == 1 else type(errors[0])("\n  ".join(map(str, errors)))


def _fitted(config: ServerConfig, descriptors: int) -> ServerConfig:
    """``config`` with fewer open segment files where the descriptor limit is low, so that connections find room too."""
    wanted = config.engine.open_files_max
    if DESCRIPTORS_RESERVED + wanted <= descriptors // 2:
        return config
    possible = max(descriptors // 4, OPEN_FILES_LEAST)
    if wanted <= possible:
        return config
    log.warning(
        "the limit of %d open files allows %d open segment files, not %d as [engine] open_files_max says; "
        "raise the limit (ulimit -n, LimitNOFILE)", descriptors, possible, wanted,
    )  # fmt: skip
    return dataclasses.replace(config, engine=dataclasses.replace(config.engine, open_files_max=possible))
