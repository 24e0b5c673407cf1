"""Work on a whole data directory for its running server, in a process of its own: events as lines of JSON on stdout.

A server starts it for `verify`, `backup` and `dump segment` over HTTP (``netserver.admin.upkeep``). It reads the files
as the commands beside a server do, and costs those who publish nothing but time of the disk: another process has an
interpreter of its own, and this one gives way to all others. ::

    python -m quintlog upkeep verify DIR
    python -m quintlog upkeep backup DIR OUT
    python -m quintlog upkeep segment DIR FILE [records]

Once a second it says how far it is; so whoever waits knows that it is alive, and it learns that nobody waits any more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from netserver.http.json_lines import line_of
from tools import early_signals
from tools.limits import UPKEEP_BEAT_S, UPKEEP_NICE
from tools.logtool.backup import backed_up
from tools.logtool.dump import dumped
from tools.logtool.lib.errors import BUG, explain
from tools.logtool.lib.events import Event, OnBytes
from tools.logtool.lib.output import json_bytes
from tools.logtool.verify import verified

Work = Callable[..., Iterator[Event]]


def _backup(data_dir: Path, on_bytes: OnBytes, out: str) -> Iterator[Event]:
    return backed_up(data_dir, Path(out), on_bytes, leaves_room=True)


def _segment(data_dir: Path, _on_bytes: OnBytes, file: str, records: str = "") -> Iterator[Event]:
    return dumped(data_dir / file, with_records=bool(records))


WORK: Final[dict[str, Work]] = {"verify": verified, "backup": _backup, "segment": _segment}


class Lines:
    """Events on stdout; from the first one on also how far the work is, once a second."""

    def __init__(self) -> None:
        self._out = sys.stdout.buffer
        self._lock = threading.Lock()
        self._done_bytes = self._total_bytes = 0
        self._over = threading.Event()
        self._beats: threading.Thread | None = None

    def add(self, size_bytes: int) -> None:
        """So much more is done."""
        self._done_bytes += size_bytes

    def write(self, event: Event) -> None:
        """Raises BrokenPipeError: nobody reads it."""
        self._total_bytes = event.get("progress", {}).get("total_bytes", self._total_bytes)
        record = event.get("record")
        content = json_bytes(event) if record is None else b'{"record":%b}' % line_of(*record)[:-1]
        with self._lock:
            self._out.write(content + b"\n")
            if record is None:
                self._out.flush()
        if self._beats is None:
            self._beats = threading.Thread(target=self._beat, name="beats", daemon=True)
            self._beats.start()

    def end(self) -> None:
        """No more of them."""
        self._over.set()
        if self._beats is not None:
            self._beats.join()

    def _beat(self) -> None:
        while not self._over.wait(UPKEEP_BEAT_S):
            try:
                self.write({"progress": {"done_bytes": self._done_bytes, "total_bytes": self._total_bytes}})
            except OSError:
                os.kill(os.getpid(), signal.SIGTERM)
                return


def main() -> None:
    """Does what the command line says."""
    early_signals.interrupt()
    os.nice(UPKEEP_NICE)
    what, data_dir, *words = sys.argv[1:]
    lines = Lines()
    try:
        for event in WORK[what](Path(data_dir), lines.add, *words):
            lines.write(event)
        early_signals.ignore()  # whoever has the last line waits no longer
        lines.write({"done": True})
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)  # what it made is removed; nobody reads on
    except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits is told
        early_signals.ignore()
        failure = explain(error)
        if failure is None:
            traceback.print_exc()
        exit_code, code = (failure.exit_code, failure.code) if failure is not None else (BUG, "internal")
        lines.write({"error": {"exit_code": exit_code, "code": code, "message": str(failure or repr(error))}})
    lines.end()
