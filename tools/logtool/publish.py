"""`publish`: files, or standard input, through one of the protocols; every record is waited for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import click

from netserver.client.base import parse_address
from netserver.errors import Refused, TlsFailed, WrongServer
from tools.logtool.cli import Command, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.address import DEFAULT_LISTENERS, Listener, admin_of, listener_of, tls_words
from tools.logtool.lib.completing import complete_protocol, complete_topic
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.limits import READ_BYTES
from tools.logtool.lib.output import Column, Output, bytes_fields, count_text
from tools.logtool.lib.records import topic_and_partition
from tools.logtool.lib.sending import GROUP_RECORDS, Send, sender
from tools.logtool.lib.splitting import FRAMINGS, Framing, Splitter

CARRIES_KEYS = {"tank", "kafka"}
ENCRYPTED = {"fujin"}
OWN_CERTIFICATE = "fujin-certificate.pem"
CARRIES_PARTITIONS = {"tank", "kafka"}
TANK_UNKNOWN_PARTITION = 1
TANK_UNKNOWN_TOPIC = 0xFF
PROGRESS_S = 0.2
DIAL_S = 5.0
"""A server has so long to show that it speaks the protocol; --timeout may make it shorter."""
STALLED_S = 2.0
"""After so long without an acknowledgement it says what it waits for."""


def connect(protocol: str, listener: Listener, settings: Settings, window: int, retry_s: float, **more: Any) -> Any:
    """A client of that protocol, to be entered. Raises Failure, TlsFailed."""
    module = import_module(f"netserver.{protocol}")
    if protocol in ENCRYPTED:
        files, own = settings.tls, own_certificate(settings)
        more["ca"] = own if own is not None and (files.authorities is None or listener.tls is False) else files.ca
        more |= {"cert": files.cert, "key": files.key, "server_name": settings.server_name}
    else:
        more |= tls_words(settings, listener)
    if protocol == "blipmq" and settings.api_key:
        more["api_key"] = settings.api_key
    dial_timeout_s = min(settings.timeout_s / 2, DIAL_S)  # the other half is for finding out what is really there
    return module.connect(
        listener.address, window=window, dial_timeout_s=dial_timeout_s, give_up_after_s=retry_s, **more
    )


def own_certificate(settings: Settings) -> Path | None:
    """The self-signed certificate in the data directory; None: whom the system trusts is trusted."""
    path = settings.data_dir / OWN_CERTIFICATE if settings.data_dir is not None else None
    return path if path is not None and path.exists() else None


def kafka_client(listener: Listener, settings: Settings, window: int, retry_s: float) -> Any:
    """The same for Kafka, by aiokafka. Raises Failure, TlsFailed."""
    from tools.logtool.lib.kafka_sending import KafkaSender

    if settings.server_name:
        text = "--server-name is not offered for Kafka: its clients check the name of the host"
        raise Failure(errors.USAGE, "server_name", text)
    key = settings.api_key
    login = key.read_text().strip() if isinstance(key, Path) else key
    words = tls_words(settings, listener)
    return KafkaSender(listener.address, window, DIAL_S, settings.timeout_s + retry_s, words, login)


def parse_via(text: str) -> tuple[str, str]:
    """`PROTOCOL` or `PROTOCOL=HOST:PORT` as protocol and address; without one it is empty.

    Raises:
        click.BadParameter: no such protocol, or no address.
    """
    protocol, equals, address = text.partition("=")
    if protocol not in DEFAULT_LISTENERS:
        raise click.BadParameter(f"{protocol!r}: expected {', '.join(DEFAULT_LISTENERS)}", param_hint="--via")
    if equals:
        try:
            parse_address(address, 1)
        except ValueError as error:
            raise click.BadParameter(f"{error}: expected HOST:PORT", param_hint="--via") from error
    return protocol, address


class Progress:
    """Counts what was sent and acknowledged; shows it on a terminal."""

    def __init__(self, output: Output) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.problem: BaseException | None = None
        """Why the first record that was refused was."""
        self.is_uncertain = False
        """Of some record nobody can know whether it is stored."""
        self.pending: set[asyncio.Future[Any]] = set()
        self.shown = sys.stderr.isatty() and not output.quiet
        self._next = 0.0

    def add(self, future: asyncio.Future[Any], count: int) -> None:
        """Counts records as sent now, and as acknowledged once the future is done."""
        self.sent += count
        self.pending.add(future)

        def done(future: asyncio.Future[Any]) -> None:
            self.pending.discard(future)
            if future.cancelled():
                self.is_uncertain = True
                return
            error = future.exception()
            if error is None:
                self.acknowledged += count
                return
            self.is_uncertain = self.is_uncertain or getattr(error, "stored", None) is None
            if self.problem is None:
                self.problem = error

        future.add_done_callback(done)

    def tick(self, *, last: bool = False) -> None:
        """Shows the count when it is time to, and clears it at the end."""
        if self.shown and (last or time.monotonic() >= self._next):
            self._next = time.monotonic() + PROGRESS_S
            click.echo("\r\x1b[K" if last else f"\r{self.acknowledged:,} acknowledged", nl=False, err=True)


class Inputs:
    """Reads files one after the other on a thread of its own, as standard input may be slow.

    A daemon, and by descriptor: an interrupted command must not wait for input, nor for a lock that a reader holds.
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._wanted: SimpleQueue[asyncio.Future[bytes | None]] = SimpleQueue()
        threading.Thread(target=self._run, args=(descriptors,), daemon=True).start()

    async def read(self) -> bytes | None:
        """The next bytes; b"" at the end of each file, None at the end of all. Raises OSError."""
        future: asyncio.Future[bytes | None] = self._loop.create_future()
        self._wanted.put(future)
        return await future

    def _run(self, descriptors: Sequence[int]) -> None:
        for descriptor in descriptors:
            more = True
            while more:
                future = self._wanted.get()
                try:
                    data = os.read(descriptor, READ_BYTES)
                except OSError as error:
                    self._answer(future, None, error)
                    return
                self._answer(future, data)
                more = bool(data)
        self._answer(self._wanted.get(), None)

    def _answer(self, future: asyncio.Future[bytes | None], data: bytes | None, error: OSError | None = None) -> None:
        def answer() -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(data)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(answer)


async def _publish(
    client: AbstractAsyncContextManager[Any],
    make_send: Callable[[Any], Send],
    descriptors: Sequence[int],
    splitter: Splitter,
    progress: Progress,
) -> None:
    async with client as opened:
        send = make_send(opened)
        inputs = Inputs(descriptors)
        while (data := await inputs.read()) is not None:
            records = splitter.feed(data) if data else splitter.end()
            for at in range(0, len(records), GROUP_RECORDS):
                for future, count in await send(records[at : at + GROUP_RECORDS]):
                    progress.add(future, count)
                progress.tick()
                if progress.problem is not None:
                    raise progress.problem
        await opened.flush()
        if progress.pending:  # answered, but their outcome is not told yet
            await asyncio.wait(progress.pending)
        if progress.problem is not None:
            raise progress.problem


async def watched(
    work: Coroutine[Any, Any, None],
    progress: Progress,
    timeout_s: float,
    why: Callable[[], Failure | None],
    output: Output,
) -> None:
    """Runs `work`; gives it up (Failure) when records are outstanding and none is acknowledged for so long.

    Args:
        why: asks the server why nothing is stored (blocking); None when it does not know or say.
    """
    task = asyncio.ensure_future(work)
    ended = asyncio.get_running_loop().create_future()
    with contextlib.suppress(ValueError):  # not on the main thread: then nobody can signal us either
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set_result, None)
    acknowledged, since, told = 0, time.monotonic(), False
    while True:
        await asyncio.wait({task, ended}, timeout=min(STALLED_S, timeout_s), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        now = time.monotonic()
        if ended.done():
            await _cancel(task)
            raise Failure(errors.TERMINATED, "terminated", "SIGTERM")
        if progress.acknowledged != acknowledged or not progress.pending:
            acknowledged, since, told = progress.acknowledged, now, False
        elif now - since >= timeout_s:
            reason = await asyncio.to_thread(why)
            await _cancel(task)
            text = f"no acknowledgement within {timeout_s:g} s"
            if reason is not None:
                raise Failure(reason.exit_code, reason.code, f"{text}: {reason}", reason.hint)
            raise Failure(errors.TIMEOUT, "timeout", text)
        elif not told:
            told = True
            reason = await asyncio.to_thread(why)
            progress.tick(last=True)
            output.note(
                f"logtool: waiting, nothing was acknowledged for {now - since:.0f} s{f': {reason}' if reason else ''}; "
                f"giving up after {timeout_s:g} s (--timeout)"
            )


async def _cancel(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def why_nothing_is_stored(settings: Settings, topic: bytes, partition: int | None) -> Failure | None:
    """What the server says of a partition (None: of any) in which nothing is stored; None when it does not know or
    cannot be asked."""
    from tools.logtool.lib.changes import topic_path  # with the engine: only when something is wrong

    try:
        admin = admin_of(settings)
        if admin is None:
            return None
        item = admin.call("GET", topic_path(topic))
    except Failure as failure:
        return failure if failure.code == "unavailable" else None  # its partition cannot be opened
    except OSError:
        return None
    for detail in item.get("partition_details", []):
        if partition in (None, detail["partition"]) and detail.get("error"):
            if detail.get("no_space"):
                return Failure(errors.NO_ROOM, "no_space", detail["error"])
            return Failure(errors.REFUSED, "read_only", detail["error"])
    return None


def is_there(settings: Settings, topic: bytes) -> bool | None:
    """Whether the server says that there is this topic; None when it cannot be asked."""
    from tools.logtool.lib.changes import topic_path

    try:
        admin = admin_of(settings)
        return None if admin is None else bool(admin.call("GET", topic_path(topic)))
    except Failure as failure:
        return False if failure.exit_code == errors.NOT_FOUND else None
    except OSError:
        return None


def refusal(error: Exception, protocol: str, topic: str, settings: Settings) -> Failure | None:
    """What TANK's codes for topics mean here: not found or no right, and what to do about it; None for any other error.

    TANK says the same of a topic that is not there and of one that this client may not publish to.
    """
    if protocol != "tank" or not isinstance(error, Refused):
        return None
    name = shlex.quote(topic_and_partition(topic)[0].decode("utf-8", "surrogateescape"))
    if error.code == TANK_UNKNOWN_TOPIC:
        known = is_there(settings, topic_and_partition(topic)[0])
        if known:
            return Failure(errors.REFUSED, "refused", f"no right to publish to {name}", "docs/access.md has the rights")
        text = f"no topic {name}" if known is False else f"no topic {name}, or no right to publish to it"
        hint = f"TANK makes no topics by itself: `logtool topics create {name} --partitions N` does"
        return Failure(errors.NOT_FOUND, "unknown_topic", text, hint)
    if error.code == TANK_UNKNOWN_PARTITION:
        hint = f"`logtool topics show {name}` says how many it has; they are counted from 0"
        return Failure(errors.NOT_FOUND, "unknown_partition", f"no partition {topic}", hint)
    return None


def _opened(path: Path) -> BinaryIO:
    """The file, to read records from. Raises Failure, OSError."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        hint = "records come from files or from standard input: `echo TEXT | logtool publish TOPIC` publishes one"
        raise Failure(errors.USAGE, "no_file", f"{path}: no such file or directory", hint) from None


@click.command(cls=Command)
@click.argument("topic", metavar="TOPIC[:PARTITION]", shell_complete=complete_topic)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--via",
    metavar="PROTOCOL[=HOST:PORT]",
    default="figg",
    shell_complete=complete_protocol,
    help="figg (default), tank, blipmq, fujin or kafka.",
)
@click.option("--lines", "framing", flag_value="lines", default=True, help="A record is a line (default).")
@click.option("--nul", "framing", flag_value="nul", help="A record ends with a zero byte.")
@click.option("--length", "framing", flag_value="length", help="4 bytes of length (big-endian) before each record.")
@click.option("--whole", "framing", flag_value="whole", help="Each file is one record.")
@click.option("--jsonl", "framing", flag_value="jsonl", help="Lines as `cat -o jsonl` writes them.")
@click.option("--key", metavar="KEY", help="Key of every record that brings none (tank, kafka).")
@click.option("--key-delimiter", metavar="TEXT", help="What stands between key and value in a line (tank, kafka).")
@click.option("--window", type=click.IntRange(1), default=4096, metavar="N", help="Records on their way at once; 4096.")
@click.option("--retry", type=click.FloatRange(0), default=0.0, metavar="S", help="Seconds to try to reconnect; 0.")
@click.pass_obj
def publish(
    settings: Settings,
    topic: str,
    files: tuple[Path, ...],
    via: str,
    framing: Framing,
    key: str | None,
    key_delimiter: str | None,
    window: int,
    retry: float,
) -> None:
    """Publish each line of the FILEs (or of standard input) as a record of TOPIC.

    Ends when every record is acknowledged: with a topic's default durability all are then on disk. When the connection
    breaks it says how many were acknowledged; those sent after them may be stored or not. With --retry they are sent
    again, and a record may then be stored twice. What the server refuses is not stored: exit code 4.

    Without PARTITION, tank and kafka put records into the partition that their key's hash says, and those without a key
    into partition 0 (tank) or any (kafka). The other protocols reach partition 0 only. kafka needs aiokafka.
    """
    output = settings.output
    protocol, address = parse_via(via)
    name, named = topic_and_partition(topic)
    if not name:
        raise click.UsageError("an empty name means no topic")
    partition = None if name == os.fsencode(topic) and protocol in CARRIES_PARTITIONS else named
    if (key or key_delimiter) and protocol not in CARRIES_KEYS:
        raise click.UsageError(f"{protocol} carries no keys")
    if partition and protocol not in CARRIES_PARTITIONS:
        raise click.UsageError(f"{protocol} reaches partition 0 only")
    assert framing in FRAMINGS
    listener = Listener(address) if address else listener_of(settings, protocol)
    splitter = Splitter(framing, os.fsencode(key or ""), os.fsencode(key_delimiter or ""))
    progress = Progress(output)
    started = time.monotonic()

    async def main(descriptors: Sequence[int]) -> None:
        make = kafka_client if protocol == "kafka" else partial(connect, protocol)
        client = make(listener, settings, window, retry)
        work = _publish(
            client, lambda ready: sender(protocol, ready, name, partition, output.note), descriptors, splitter, progress
        )
        await watched(
            work,
            progress,
            settings.timeout_s + retry,
            lambda: why_nothing_is_stored(settings, name, partition),
            output,
        )

    try:
        with contextlib.ExitStack() as stack:
            inputs = [
                sys.stdin.buffer if str(path) == "-" else stack.enter_context(_opened(path))
                for path in files or (Path("-"),)
            ]
            asyncio.run(main([file.fileno() for file in inputs]))
    except KeyboardInterrupt:
        progress.tick(last=True)
        _report(output, name, partition, progress, started)
        raise
    except Exception as error:
        progress.tick(last=True)
        if not progress.sent or isinstance(error, WrongServer | TlsFailed):
            raise
        failure = refusal(error, protocol, topic, settings) or errors.explain(error)
        if failure is None:
            raise
        if failure.exit_code == errors.NOT_FOUND and not progress.acknowledged:
            raise failure from error
        lost = failure.code in ("unreachable", "unacknowledged", "closed") and not retry
        reason = "the connection broke" if lost else failure
        text = f"{progress.acknowledged} of {progress.sent} records were acknowledged, then: {reason}"
        is_uncertain = (progress.is_uncertain or progress.pending) and failure.code != "unavailable"
        uncertain = "those after them may be stored or not" if is_uncertain else ""
        hint = "; ".join(filter(None, ("" if lost else failure.hint, uncertain)))
        raise Failure(failure.exit_code, failure.code, text, hint) from error
    progress.tick(last=True)
    _report(output, name, partition, progress, started)


def _report(output: Output, topic: bytes, partition: int | None, progress: Progress, started: float) -> None:
    seconds = time.monotonic() - started
    if output.form == "table":
        output.write(f"{count_text(progress.acknowledged, 'record')} acknowledged\n".encode())
        output.flush()
        output.detail(f"in {seconds:.3f} s, {progress.acknowledged / max(seconds, 1e-9):.0f} a second")
        return
    item = {
        **bytes_fields("topic", topic),
        "partition": partition,
        "acknowledged": progress.acknowledged,
        "sent": progress.sent,
        "seconds": round(seconds, 6),
    }
    output.items([Column(key) for key in item], [item])
