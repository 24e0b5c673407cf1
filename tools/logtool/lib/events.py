"""What long work on a directory's files tells while it goes on, done here or by a server: one event after the other.

An event is an object with one name that says what it is, beside others that belong to it:

- ``{"progress": {"done_bytes", "total_bytes"}}``: how far it is; one comes first, when the work could be begun;
- ``{"error": {"exit_code", "code", "message"}}``: the last one, where the work failed;
- ``{"note": TEXT}``: something to mention;
- what the work is about: see `tools.logtool.verify`, `backup` and `dump`.

A server hands them out as lines of JSON (`tools.upkeep`), so that a command prints the same wherever the files are.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from tools.logtool.lib.address import Admin
from tools.logtool.lib.errors import UNREACHABLE, Failure
from tools.logtool.lib.progress import BytesProgress

Event: TypeAlias = dict[str, Any]
OnBytes: TypeAlias = Callable[[int], None]
"""Is told that so many more bytes are done."""


def begun(total_bytes: int) -> Event:
    """The first event of work on so many bytes."""
    return {"progress": {"done_bytes": 0, "total_bytes": total_bytes}}


def served(admin: Admin, method: str, path: str, body: dict[str, Any] | None = None) -> Iterator[Event]:
    """The events of work that a server does. Raises Failure: it failed, or the answer is not whole."""
    is_over = False
    try:
        for line in admin.lines(path, method, body):
            if not line.strip():
                continue
            event = json.loads(line)
            if "error" in event:
                error = event["error"]
                raise Failure(int(error["exit_code"]), str(error["code"]), str(error["message"]))
            is_over = "done" in event
            yield event
    except http.client.HTTPException as error:
        raise Failure(UNREACHABLE, "unreachable", f"{admin.url} broke the answer off ({error!r})") from error
    if not is_over:
        raise Failure(UNREACHABLE, "unreachable", f"{admin.url} broke the answer off; its log may say why")


def followed(events: Iterator[Event], progress: BytesProgress) -> Iterator[Event]:
    """The events but for those that only tell how far it is, which is shown."""
    for event in events:
        if "progress" not in event:
            yield event
            continue
        progress.total_bytes = event["progress"]["total_bytes"]
        progress.add(max(event["progress"]["done_bytes"] - progress.done_bytes, 0))
