"""The client's session file: which session, which stream, and up to where the application is done.

One JSON object::

    {"uuid": "...", "params": {...}, "id": 32, "crc": 123, "done": false}

It is replaced as a whole (written beside, synced, renamed), so that a crash leaves the old one or the new one.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.files.system import SystemFiles, write_new_file
from netserver.reliably.limits import SESSION_FILE_BYTES_MAX


@dataclass(slots=True)
class Stored:
    """What is known of a session.

    Attributes:
        uuid: its name.
        params: what it streams; None: not known, it can only be resumed.
        id: last message that the application is done with.
        crc: checksum of the values up to it; None: not known, or not a stream of numbers.
        done: that was the last one.
    """

    uuid: str
    params: dict[str, Any] | None
    id: int = 0
    crc: int | None = None
    done: bool = False

    @property
    def is_numbers(self) -> bool:
        """Whether messages are numbers with a checksum at the end (unknown params: the last message will tell)."""
        return self.params is None or "topic" not in self.params

    @property
    def count(self) -> int | None:
        """The last message of a topic stream, if it has one."""
        count = self.params.get("count") if self.params is not None else None
        return int(count) if count is not None else None

    @staticmethod
    def first_crc(params: dict[str, Any] | None) -> int | None:
        """The checksum of no values, for a stream of numbers."""
        return 0 if params is not None and "topic" not in params else None


class SessionFile:
    """A session file at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: str | None = None

    def read(self) -> Stored | None:
        """What it holds; None: there is none yet.

        Raises:
            ValueError: it is something else.
            OSError: it cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                content = file.read(SESSION_FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        try:
            fields: Any = json.loads(content) if len(content) <= SESSION_FILE_BYTES_MAX else None
            stored = Stored(**fields)
            crc_ok = stored.crc is None or isinstance(stored.crc, int)
            ok = isinstance(stored.uuid, str) and isinstance(stored.id, int) and stored.id >= 0 and crc_ok
            ok = ok and isinstance(stored.params, dict | None) and isinstance(stored.done, bool)
        except (ValueError, TypeError):
            ok = False
        if not ok:
            raise ValueError(f"{self.path} is not a session file")
        return stored

    async def write(self, stored: Stored) -> None:
        """Replace it, durably, unless it says this already.

        Raises:
            OSError: the old one is still there.
        """
        text = json.dumps(asdict(stored))
        if text != self._written:
            await asyncio.to_thread(self._replace, text)
            self._written = text

    def _replace(self, text: str) -> None:
        write_new_file(SystemFiles(), self.path, text.encode() + b"\n")
