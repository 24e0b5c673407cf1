"""The audit: one JSON line for each change and each refused attempt. Never what a record or a key is.

::

    {"time": "2026-11-28T10:00:00.123Z", "who": "billing", "from": "10.0.0.7:41822", "listener": "figg",
     "what": "PUBLISH", "on": "orders", "result": "refused"}

``group`` is beside ``on`` where the request is about a group of that topic. A line in the server's log has no ``time``
of its own: the log has it.

Of one kind of line (who, listener, what, result) so many a second are written as `AUDIT_LINES_PER_S` says; the next one
tells by ``left_out`` how many are missing. Changes made by the operator are never left out.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from netserver.limits import AUDIT_KINDS_MAX, AUDIT_LINES_PER_S, AUDIT_NAME_CHARS_MAX

log = logging.getLogger("quintlog.audit")

FILE_MODE: Final = 0o600
REFUSED: Final = "refused"


class Audit:
    """Where the lines go.

    Args:
        path: a file that is appended to, made for the server's user alone; None: the server's log.
        clock_s: a clock that nobody sets.
    """

    def __init__(self, path: Path | None = None, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock_s = clock_s
        self._fd = -1
        self._failed = False
        self._kinds: dict[tuple[str, str, str, str], list[float]] = {}  # second, lines in it, left out
        self.refused = 0

    def reopen(self, path: Path | None) -> None:
        """Write there from now on; the file may have been moved aside meanwhile."""
        self.close()
        self._path = path

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def refuse(
        self, who: str, peer: str, listener: str, what: str, on: bytes | str = "", group: bytes | str = ""
    ) -> None:
        """Somebody was refused something."""
        self.refused += 1
        self._tell((who, listener, what, REFUSED), peer, on, group, always=False)

    def change(
        self,
        who: str,
        peer: str,
        listener: str,
        what: str,
        on: bytes | str,
        result: str = "done",
        group: bytes | str = "",
    ) -> None:
        """Somebody has changed something, or tried to."""
        self._tell((who, listener, what, result), peer, on, group, always=listener == "admin")

    def _tell(
        self, kind: tuple[str, str, str, str], peer: str, on: bytes | str, group: bytes | str, always: bool
    ) -> None:
        left_out = 0 if always else self._left_out(kind)
        if left_out < 0:
            return
        who, listener, what, result = kind
        fields: dict[str, str | int] = {"who": who, "from": peer, "listener": listener, "what": what}
        for name, value in (("on", on), ("group", group)):
            if value:
                text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
                fields[name] = text[:AUDIT_NAME_CHARS_MAX]
        fields["result"] = result
        if left_out:
            fields["left_out"] = left_out
        self._write(fields)

    def _left_out(self, kind: tuple[str, str, str, str]) -> int:
        """How many lines of a kind were left out before this one; -1: this one is left out, too."""
        now = self._clock_s()
        known = self._kinds.pop(kind, None)
        if known is None:
            known = [now, 0.0, 0.0]
            if len(self._kinds) >= AUDIT_KINDS_MAX:
                del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = known
        if now - known[0] >= 1:
            known[0], known[1] = now, 0.0
        if known[1] >= AUDIT_LINES_PER_S:
            known[2] += 1
            return -1
        known[1] += 1
        left_out, known[2] = int(known[2]), 0.0
        return left_out

    def _write(self, fields: dict[str, str | int]) -> None:
        if self._path is None:
            log.info("%s", json.dumps(fields))
            return
        seconds = time.time()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"
        try:
            if self._fd < 0:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                self._fd = os.open(self._path, flags, FILE_MODE)
            os.write(self._fd, json.dumps({"time": moment} | fields).encode() + b"\n")
            self._failed = False
        except OSError as error:  # nobody waits for the audit; its lines are in the log then
            if not self._failed:
                self._failed = True
                log.error("the audit file %s cannot be written: %s; its lines come here", self._path, error.strerror)
            log.info("%s", json.dumps(fields))
