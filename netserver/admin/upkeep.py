"""Work on all files of the log over HTTP: verifying them, a backup, what a segment file holds.

Each is a process of its own (``tools.upkeep``, by its command alone: nothing of it is imported here) that reads the
files as a command beside the server does. In a thread here it would take the interpreter from everybody for as long as
it lasts, since it looks at each record. What it tells, lines of JSON, is handed on as it comes; when the request ends
the process does, and a backup that is not finished is removed.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from engine.formats.segment import parse_segment_name
from netserver.admin.api import Conflict, NotFound
from netserver.http.bodies import LINES
from netserver.http.errors import BadRequest
from netserver.limits import UPKEEP_END_S, UPKEEP_FIRST_S, UPKEEP_MAX, UPKEEP_READ_BYTES

if TYPE_CHECKING:
    from netserver.admin.callers import Caller
    from netserver.admin.served import Served

COMMAND: Final = (sys.executable, "-P", str(Path(__file__).resolve().parents[2] / "quintlog.py"), "upkeep")
ROUTES: Final = frozenset(
    {"POST verify", "POST backups", "GET segments/NAME/NAME/NAME", "GET segments/NAME/NAME/NAME/records"}
)
BACKUP_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
STATUS_OF_EXIT: Final = {2: 400, 3: 503, 4: 403, 5: 404, 6: 409, 7: 507}
"""What the exit code that a failure would be to a command is over HTTP; others: 500."""


class UpkeepFailed(Exception):
    """The work could not be begun."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error["message"]))
        self.status = STATUS_OF_EXIT.get(error["exit_code"], 500)
        self.code = str(error["code"])


class Upkeep:
    """The work under way."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self._running = 0

    async def answer(
        self, request: web.BaseRequest, route: str, parts: Sequence[bytes], body: dict[str, Any], caller: Caller
    ) -> web.StreamResponse:
        """What one of `ROUTES` gives.

        Raises:
            BadRequest, Conflict, NotFound, UpkeepFailed: before the answer has begun.
            ConnectionError: its reader is gone.
        """
        words = self._words(route, parts, body)
        if self._running >= UPKEEP_MAX:
            raise Conflict(f"{UPKEEP_MAX} verifications, backups or dumps are under way; try again when one is done")
        self._running += 1
        try:
            async with _process([*COMMAND, *words]) as lines:
                return await _relayed(request, lines, caller)
        finally:
            self._running -= 1

    def _words(self, route: str, parts: Sequence[bytes], body: dict[str, Any]) -> list[str]:
        data_dir = self._server.data_dir.absolute()
        if route == "POST verify":
            return ["verify", str(data_dir)]
        if route == "POST backups":
            return ["backup", str(data_dir), str(self._backup_path(data_dir, body.get("name")))]
        topic_id, index, name = (part.decode("utf-8", "replace") for part in parts[1:4])
        if not (topic_id.isdecimal() and index.isdecimal()) or parse_segment_name(name) is None:
            raise NotFound(f"no segment file topics/{topic_id}/{index}/{name}"[:200])
        return ["segment", str(data_dir), f"topics/{topic_id}/{index}/{name}", *(["records"] if parts[4:] else [])]

    def _backup_path(self, data_dir: Path, name: object) -> Path:
        place = self._server.config.admin.backup_dir
        if not place:
            raise Conflict("there are no backups over HTTP: the setting [admin] backup_dir says where they would be")
        if not isinstance(name, str) or not BACKUP_NAME.fullmatch(name):
            raise BadRequest("name must be that of a new directory: letters, digits, dots, - and _, at most 100")
        path = Path(place).absolute() / name
        if path.resolve().is_relative_to(data_dir.resolve()):
            raise Conflict("[admin] backup_dir lies in the data directory itself")
        return path


@asynccontextmanager
async def _process(command: list[str]) -> AsyncIterator[asyncio.StreamReader]:
    """What a process prints, which ends with the block. Its errors go where the server's log does."""
    process = subprocess.Popen(  # noqa: ASYNC220  (a millisecond: no descriptor of ours is to be closed in it)
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, close_fds=False
    )
    reader = asyncio.StreamReader(UPKEEP_READ_BYTES)
    try:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        try:
            yield reader
        finally:
            transport.close()
    finally:
        process.terminate()
        await asyncio.to_thread(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(UPKEEP_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def _relayed(request: web.BaseRequest, lines: asyncio.StreamReader, caller: Caller) -> web.StreamResponse:
    content = await _first(lines)
    response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})
    response.content_type = LINES[0]
    await response.prepare(request)
    while True:
        if content:
            await response.write(content)
            wait_s = caller.sent(len(content), 0)
            if wait_s:
                await caller.pause(wait_s)
        content = await lines.read(UPKEEP_READ_BYTES)
        if not content:
            return response


async def _first(lines: asyncio.StreamReader) -> bytes:
    """The first line, empty when it does not come soon. Raises UpkeepFailed: it says that there will be no others."""
    try:
        async with asyncio.timeout(UPKEEP_FIRST_S):
            line = await lines.readline()
    except TimeoutError:
        return b""
    if not line:
        raise UpkeepFailed(
            {"exit_code": 70, "code": "internal", "message": "it ended at once; the server's log says why"}
        )
    found = json.loads(line)
    if "error" in found:
        raise UpkeepFailed(found["error"])
    return line
