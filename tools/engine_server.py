"""``engine-server``: the server process.

On stdout it tells what an acknowledgement means, the data directory and each listener; the last line of a successful
start is ``ready``. The log goes to stderr. SIGTERM and SIGINT stop it in good order, a second one at once; SIGHUP
reloads the configuration, SIGUSR2 lets a new process follow this one. What comes while it starts is done when it can
be.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from netserver.config import loading as config_reading
from netserver.config.sections import PROTOCOL_SECTIONS, ServerConfig
from netserver.config.table import SECTIONS, as_toml
from netserver.contract import contract
from netserver.errors import ConfigError, ServerError
from netserver.logs import set_up
from netserver.malloc import keep_freed_buffers
from netserver.notify import Notifier
from netserver.shell.inherited import INHERITED
from netserver.version import product_version
from tools import early_signals as signals
from tools.handover import Moment, Predecessor, Successor
from tools.limits import HANDOVER_DRAIN_S, HANDOVER_WARN_S
from tools.service import Service

if TYPE_CHECKING:  # the server itself is imported when it runs: --help and checks answer at once
    from netserver.app import Server

log = logging.getLogger("tools.engine_server")  # also when it runs as __main__

SWITCH_INTERVAL_S = 0.0005
"""The committer's thread gets the interpreter within this time of asking for it, not within 5 ms."""

PROTOCOL_MODULES = (
    "netserver.figg.session",
    "netserver.reliably.session",
    "netserver.tank.session",
    "netserver.blipmq.session",
    "netserver.fujin.listener",
    "netserver.kafka.session",
)
"""What a server loads when it starts to listen; one that takes over has it before."""
EXIT_NOT_COMMITTED = 1
EXIT_UNWRITTEN = 1
EXIT_UNUSABLE = 3
EXIT_BUG = 70
EXIT_CLOSED_PIPE = 141  # as a program that SIGPIPE ended


def say(text: str) -> None:
    """A line on stdout; whoever closed it, or has no room for it, does not get it."""
    try:
        click.echo(text)
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def answer(text: str) -> None:
    """What the command was called for, on stdout. Raises SystemExit: it could not be written."""
    try:
        click.echo(text)
        sys.stdout.flush()
    except OSError as error:
        unwritten(error)


def unwritten(error: OSError) -> NoReturn:
    """Ends the process: quietly when nobody reads stdout any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the exit's flush fails quietly
    if isinstance(error, BrokenPipeError):
        sys.exit(EXIT_CLOSED_PIPE)
    click.echo(f"engine-server: stdout: {(error.strerror or str(error)).lower()}", err=True)
    sys.exit(EXIT_UNWRITTEN)


def open_standard_streams() -> None:
    """Opens what the caller closed of stdin, stdout and stderr on nothing: else the next file, one of the log perhaps,
    would get that descriptor, and whatever a library says there."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    for name, fd in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, "w", closefd=False))  # noqa: SIM115 - as long as the process


class Process:
    """One run of the server, with its signals.

    Args:
        config: that of the start.
        load: reads the configuration again, for SIGHUP.
        notifier: tells the service manager.
        predecessor: the server before this one.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(
        self, config: ServerConfig, load: Callable[[], ServerConfig], notifier: Notifier, predecessor: Predecessor
    ) -> None:
        self._config = config
        self._predecessor = predecessor
        self._notifier = notifier
        self._service: Service | None = None
        self._successor: Successor | None = None
        self._handing_over: asyncio.Task[None] | None = None
        self._load = load
        self._stop = asyncio.Event()
        self._reading = False
        self._read_again = False

    async def run(self) -> NoReturn:
        """Serve until a signal, then end the process at once: with the log closed there is nothing left to do. To take
        down what a server has in memory would take seconds with many topics, and a signal would then find nobody."""
        code = EXIT_BUG
        try:
            code = await self._serve()
        except Exception as error:  # noqa: BLE001 - told, and the process ends
            code = failed(error)
        finally:
            logging.shutdown()
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os._exit(code)

    async def _serve(self) -> int:
        """The exit code."""
        from netserver.app import Server

        server = Server(self._config)
        self._loop = asyncio.get_running_loop()
        for number in signals.HANDLED:
            self._loop.add_signal_handler(number, self._signal, number, server)
        for number in signals.KEPT.taken():
            self._signal(number, server)
        if self._stop.is_set():
            return 0
        await server.start()
        say(f"quintlog {product_version()}\n{contract(self._config)}\ndata directory {server.data_dir.absolute()}")
        for name, address in server.addresses.items():
            say(f"{name} {address}")
        for line in server.access.who_may(server.listeners):
            say(line)
        server.collection.begin(self._loop)
        self._loop.add_signal_handler(signal.SIGUSR2, self._hand_over, server)
        self._service = Service(self._notifier, server)
        self._service.begin()
        say("ready")
        pause = self._predecessor.pause()
        if pause:
            log.info("took over: %s", pause)
        again, self._read_again = self._read_again, False
        if again:  # asked for while it started
            self._reload(server)
        await self._stop.wait()
        if self._successor is not None:
            self._notifier.tell(f"MAINPID={self._successor.pid}")
        else:
            self._notifier.stopping()
        started = time.monotonic()
        committed = await (server.drain() if self._successor is None else self._drain_for(self._successor, server))
        log.info("stopped after %.2f s", time.monotonic() - started)
        return 0 if committed else EXIT_NOT_COMMITTED  # the log's threads hang in the disk: nothing would end them

    @staticmethod
    async def _drain_for(successor: Successor, server: Server) -> bool:
        """Stop, and let the next server have the log before the last connection is gone."""
        await server.warn(HANDOVER_WARN_S)
        since = Moment.now()
        return await server.drain(HANDOVER_DRAIN_S, lambda: successor.go(since, server.unanswered))

    def _signal(self, number: signal.Signals, server: Server) -> None:
        if number == signal.SIGHUP:
            self._reload(server)
        else:
            self._stop_signal(number)

    def _hand_over(self, server: Server) -> None:
        if self._handing_over is not None and not self._handing_over.done():
            log.warning("SIGUSR2: the next server is being started already")
        elif not self._stop.is_set():
            self._handing_over = self._loop.create_task(self._start_successor(server))

    async def _start_successor(self, server: Server) -> None:
        log.info("SIGUSR2: starting the next server; this one serves until it is ready to take over")
        try:
            successor = Successor(server.sockets, self._notifier.environment)
            await successor.prepared()
        except (ServerError, OSError) as error:
            log.error("not handed over: %s", error)
            return
        log.info("process %d takes over", successor.pid)
        self._successor = successor
        self._stop.set()

    def _stop_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            log.warning("second %s: stopping at once", number.name)
            logging.shutdown()
            os._exit(128 + number)
        log.info("%s: finishing what is outstanding, then stopping", number.name)
        self._stop.set()

    def _reload(self, server: Server) -> None:
        """Take over a changed configuration, all or nothing. It is read by a thread: a file may be large, or a pipe."""
        if self._stop.is_set():
            log.warning("SIGHUP while stopping: nothing is reloaded")
        elif not server.ready:
            self._read_again = True
            log.warning("SIGHUP while starting: the configuration is read again when it is done")
        elif self._reading:
            self._read_again = True
            log.warning("SIGHUP while the configuration is being read: it is read once more afterwards")
        else:
            self._reading = True
            self._notifier.reloading()
            threading.Thread(target=self._read, args=(server,), name="quintlog-reload", daemon=True).start()

    def _read(self, server: Server) -> None:
        """The thread."""
        try:
            found: ServerConfig | Exception = self._load()
        except Exception as error:  # noqa: BLE001 - told by `_loaded`
            found = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._loaded, server, found)

    def _loaded(self, server: Server, found: ServerConfig | Exception) -> None:
        self._reading, again, self._read_again = False, self._read_again, False
        if server.ready:
            self._take_over(server, found)
            if self._service is not None:
                self._service.ready()
            if again:
                self._reload(server)

    @staticmethod
    def _take_over(server: Server, found: ServerConfig | Exception) -> None:
        server.reload_success = False
        try:
            if isinstance(found, Exception):
                raise found
            tell_warnings(found)
            later = server.reload(found)
        except ServerError as error:
            log.error("configuration not reloaded, nothing changed: %s", str(error).replace("\n  ", "; "))
            return
        except Exception:
            log.exception("configuration not reloaded")
            return
        server.reload_success = True
        server.reload_time = time.time()
        log.info("configuration reloaded")
        if later:
            log.warning("these settings changed but need a restart: %s", ", ".join(sorted(later)))


ADDRESS = "HOST:PORT|off"


EPILOG = """\b
Examples:
  engine-server --data-dir data                      all protocols on 127.0.0.1
  engine-server --data-dir data --tank off --figg 127.0.0.1:0
  engine-server --config quintlog.toml --check-config
  engine-server --print-config >quintlog.toml        a file to begin with

\b
Exit codes: 0 stopped in order, 1 the disk did not take everything, 2 usage or configuration,
3 the directory cannot be opened, 6 directory or address in use, 70 a bug."""


class ServerCommand(click.Command):
    """Tells a usage error as every other error is told: one line after the program's name, and what to do."""

    def main(self, *args: Any, **details: Any) -> Any:
        """Runs the command line of the process."""
        try:
            return super().main(*args, **{**details, "standalone_mode": False})
        except click.exceptions.Exit as done:
            sys.exit(done.exit_code)
        except OSError as error:  # of --help and --version: the server itself tells its errors
            unwritten(error)
        except click.ClickException as error:
            click.echo(f"engine-server: {error.format_message()}", err=True)
            click.echo("  `engine-server --help` lists the options, --print-config the settings", err=True)
            sys.exit(error.exit_code)


@click.command(cls=ServerCommand, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--data-dir", metavar="DIR", help="Directory of the log; created when missing.")
@click.option("--config", "config_file", metavar="FILE", envvar="QUINTLOG_CONFIG", help="TOML file with settings.")
@click.option("--figg", metavar=ADDRESS, help="Figg listener. Port 0 picks a free one.")
@click.option("--reliably", metavar=ADDRESS, help="JSON stream listener.")
@click.option("--tank", metavar=ADDRESS, help="TANK listener.")
@click.option("--blipmq", metavar=ADDRESS, help="BlipMQ listener.")
@click.option("--fujin", metavar=ADDRESS, help="Fujin listener (UDP).")
@click.option("--kafka", metavar=ADDRESS, help="Kafka listener.")
@click.option("--admin", metavar=ADDRESS, help="Health, metrics and admin API over HTTP.")
@click.option("--port-offset", type=int, metavar="N", help="Add N to the ports of listeners that no option names.")
@click.option("--ports", type=click.Choice(["auto"]), help="Free ports for them; logtool finds them by --data-dir.")
@click.option("--set", "assignments", multiple=True, metavar="SECTION.NAME=VALUE", help="Any setting; repeatable.")
@click.option("--insecure", is_flag=True, default=None, help="Let in anybody from other machines.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Form of the log on stderr.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Least severe log lines.")
@click.option("--check-config", is_flag=True, help="Check the configuration and end.")
@click.option("--print-config", is_flag=True, help="Print the whole configuration as TOML and end.")
@click.option("--print-contract", is_flag=True, help="Print what an acknowledgement means and end.")
@click.version_option(product_version(), prog_name="engine-server", message="%(prog)s %(version)s")
def main(
    config_file: str | None,
    port_offset: int | None,
    ports: Literal["auto"] | None,
    assignments: tuple[str, ...],
    check_config: bool,
    print_config: bool,
    print_contract: bool,
    **flags: Any,
) -> None:
    """Run the log server.

    It needs nothing but a directory. Settings come from defaults, then the TOML file, then the environment
    (QUINTLOG_SECTION_KEY), then these options; --print-config shows them all.
    """

    def load() -> ServerConfig:
        path = Path(config_file) if config_file else None
        return config_reading.load(path, os.environ, _layer(flags, assignments), ports or port_offset)

    signals.KEPT.keep()  # unless the entry point has done it
    open_standard_streams()
    try:
        if ports is not None and port_offset is not None:
            raise ConfigError("--ports auto takes free ports, --port-offset moves them: give one of the two")
        config = load()
        if print_config or print_contract or check_config:
            for warning in config.warnings:
                click.echo(f"engine-server: warning: {warning}", err=True)
        if print_config:
            answer(as_toml(config))
            return
        if print_contract:
            answer(contract(config))
            return
        if check_config:
            answer("the configuration is valid")
            return
        if not config.server.data_dir:
            raise ConfigError("no data directory: name one with --data-dir DIR or [server] data_dir")
        set_up(config.server.log_format, config.server.log_level)
        tell_warnings(config)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        keep_freed_buffers()
        gc.disable()  # until the server is ready, see `netserver.shell.collection`
        if signals.KEPT.ask_for_end:
            log.info("asked to stop before anything was opened")
            return
        import uvloop

        load_aiohttp()
        from netserver.shell.watched_loop import WatchedLoop

        notifier = Notifier(os.environ)
        predecessor = Predecessor(os.environ)
        INHERITED.find(os.environ)
        predecessor.wait(["netserver.app", *PROTOCOL_MODULES])
        uvloop.run(Process(config, load, notifier, predecessor).run(), loop_factory=WatchedLoop)
    except Exception as error:  # noqa: BLE001 - told
        sys.exit(failed(error))


def load_aiohttp() -> None:
    """Imports aiohttp as a server needs it. For clients, which a server never is, it then reads the authorities that
    the system trusts, twice: a tenth of what a start takes."""
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR")
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ.update(dict.fromkeys(names, os.devnull))
    try:
        import_module("aiohttp")
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def tell_warnings(config: ServerConfig) -> None:
    """Into the log."""
    for warning in config.warnings:
        log.warning("configuration: %s", warning)


def failed(error: Exception) -> int:
    """Tells why the server does not run; the exit code."""
    if isinstance(error, ServerError):
        click.echo(f"engine-server: {error}", err=True)
        return error.exit_code
    if isinstance(error, MemoryError) or "start new thread" in str(error):
        click.echo(f"engine-server: not enough memory, or too many threads: {error}; see ulimit -v and -u", err=True)
        return EXIT_UNUSABLE
    log.critical("internal error: %s", error, exc_info=error)
    return EXIT_BUG


def _layer(flags: dict[str, Any], assignments: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Flags as a layer of settings; those with a name of their own win. Raises ConfigError."""
    layer: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for assignment in assignments:
        title, equals, value = assignment.partition("=")
        section, _, name = title.strip().partition(".")
        if not equals or section not in layer:
            raise ConfigError(f"--set {assignment}: expected SECTION.NAME=VALUE, such as topics.retention=7d")
        layer[section][name] = value
    for name, value in flags.items():
        if value is None:
            continue
        if name in PROTOCOL_SECTIONS or name == "admin":
            layer[name]["listen"] = value
        else:
            layer["server"][name] = value
    return layer


if __name__ == "__main__":
    main()
