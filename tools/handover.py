"""One server follows another on the same directory and the same sockets.

The next one is started by the one before it, with its listening sockets. It loads its program and reads its
configuration, says so, and waits. Only then does the one before it finish what is outstanding and close the log. Nobody
is refused meanwhile: who connects waits in the sockets, which are never closed. A next server that does not get that
far changes nothing.

Connections of the server before end beside the next one, which has the log by then: what was written to them still
goes out. QUIC packets that begin a connection and come too late for it are handed over as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from importlib import import_module
from typing import Final, NamedTuple, Self

from netserver.errors import ServerError
from netserver.shell.inherited import HANDED_OVER, INHERITED, Unanswered, handed_over
from tools.limits import SUCCESSOR_PREPARES_S, SUCCESSOR_TAKES_S

PREDECESSOR: Final = "QUINTLOG_PREDECESSOR"
"""The descriptor by which the two talk: one byte says that the next one waits, a line of JSON and its end that the one
before is done."""


class Moment(NamedTuple):
    """A time, and how much of the processor a process had used by then."""

    at_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Self:
        """This one; all processes of a machine have the same clock."""
        return cls(time.monotonic(), time.process_time())


class Successor:
    """The next server.

    Args:
        sockets: with the names of their listeners.
        environment: further variables.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, sockets: Sequence[tuple[str, socket.socket]], environment: Mapping[str, str]) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.setblocking(False)
        told = {HANDED_OVER: handed_over(sockets), PREDECESSOR: str(theirs.fileno())}
        try:
            self._process = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                env={**os.environ, **environment, **told},
                pass_fds=[theirs.fileno(), *(one.fileno() for _, one in sockets)],
            )
        except BaseException:
            self._ours.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    async def prepared(self) -> None:
        """Returns when it waits for us. Raises ServerError: it does not get there, and is gone."""
        try:
            loop = asyncio.get_running_loop()
            word = await asyncio.wait_for(loop.sock_recv(self._ours, 1), SUCCESSOR_PREPARES_S)
        except (TimeoutError, OSError):
            word = b""
        if not word:
            self._ours.close()
            self._process.kill()
            code = await asyncio.to_thread(self._process.wait)
            raise ServerError(
                f"the next server did not get ready (exit code {code}), see its lines above; this one goes on"
            )

    def go(self, since: Moment, unanswered: Sequence[Unanswered]) -> None:
        """The directory is free; nobody was served since then."""
        told = {
            "since_s": since.at_s,
            "cpu_s": Moment.now().cpu_s - since.cpu_s,
            "unanswered": [(one.at, one.sender, one.data.hex()) for one in unanswered],
        }
        with self._ours as ours, contextlib.suppress(OSError):  # it is gone: then nobody follows
            ours.settimeout(SUCCESSOR_TAKES_S)
            ours.sendall(json.dumps(told).encode())


class Predecessor:
    """The server before this one, seen from the next one; perhaps there is none."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._began = Moment.now()
        self._since_s = self._cpu_s = 0.0
        fd = environment.pop(PREDECESSOR, "")
        self._theirs = socket.socket(fileno=int(fd)) if fd.isdecimal() else None
        if self._theirs is not None:
            self._theirs.set_inheritable(False)

    def wait(self, modules: Sequence[str]) -> None:
        """Load ``modules``, so that the pause is short, and wait until the directory is free."""
        if self._theirs is None:
            return
        for name in modules:
            import_module(name)
        gc.collect()
        gc.freeze()  # what is looked at when the start is over is the rest
        with self._theirs as theirs, theirs.makefile("rb") as lines:
            theirs.sendall(b"1")
            told = lines.read()
        self._began = Moment.now()
        if told:  # else it was killed
            document = json.loads(told)
            self._since_s, self._cpu_s = document["since_s"], document["cpu_s"]
            INHERITED.unanswered = [
                Unanswered(tuple(at), tuple(sender), bytes.fromhex(data)) for at, sender, data in document["unanswered"]
            ]

    def pause(self) -> str:
        """For how long nobody was served, for people; empty: there was no server before, or it was killed."""
        if not self._since_s:
            return ""
        now = Moment.now()
        cpu_s = self._cpu_s + now.cpu_s - self._began.cpu_s
        return f"nobody was served for {now.at_s - self._since_s:.3f} s, {cpu_s:.3f} s of it on a processor"
