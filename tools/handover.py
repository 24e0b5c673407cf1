"""One server follows another on the same directory and the same sockets.

The next one is started by the one before it, with its listening sockets. It loads its program and reads its
configuration, says so, and waits. Only then does the one before it finish what is outstanding and close the log. Nobody
is refused meanwhile: who connects waits in the sockets, which are never closed. A next server that does not get that
far changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from importlib import import_module
from typing import Final

from netserver.errors import ServerError
from netserver.shell.inherited import HANDED_OVER, handed_over
from tools.limits import SUCCESSOR_PREPARES_S

PREDECESSOR: Final = "QUINTLOG_PREDECESSOR"
"""The descriptor by which the two talk: one byte says that the next one waits, its end that the one before is done."""


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

    def go(self) -> None:
        """The directory is free."""
        self._ours.close()


class Predecessor:
    """The server before this one, seen from the next one; perhaps there is none."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
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
        with self._theirs as theirs:
            theirs.sendall(b"1")
            theirs.recv(1)
