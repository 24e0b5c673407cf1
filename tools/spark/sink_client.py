"""The admin API as the sink uses it: staging, committing, dropping; goes on when the server was away for a while.

Every call may be repeated: staging again keeps a second file that nobody names, a repeated commit changes nothing.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from tools.spark.limits import SINK_ANSWER_BYTES_MAX, SINK_CALL_S, SINK_RETRY_PAUSE_S
from tools.spark.sink_options import Place

RETRIED = ("not_stored", "unavailable", "disk_full")
"""Codes of errors that go away by themselves: a repeated call may succeed."""
RETRIED_STAGING = (*RETRIED, "limit_reached")
"""Staged files of other batches make room when those are committed."""


class SinkError(Exception):
    """Rows could not be written; the text says why. Spark shows it as the reason of the failed task or query."""


class _Again(Exception):
    """This call failed in a way that the next one may not."""


class Client:
    """Calls of one task, or of the driver."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._connection: http.client.HTTPConnection | None = None
        self._token = ""

    def stage(self, rows: bytes | bytearray) -> str:
        """Keeps a file of rows; its name. Raises SinkError."""
        return str(self._call("/v1/staged", bytes(rows), RETRIED_STAGING)["name"])

    def commit(self, writer: str, batch: int, names: Sequence[str]) -> dict[str, Any]:
        """Appends what the files hold, if the batch is not in the log yet. Raises SinkError."""
        body = json.dumps({"writer": writer, "batch": batch, "names": list(names)}).encode()
        return self._call("/v1/commits", body, RETRIED)

    def drop(self, names: Sequence[str]) -> None:
        """Removes files that no commit will name; where that does not succeed the server does it in time."""
        try:
            self._once("/v1/staged/drop", json.dumps({"names": list(names)}).encode(), RETRIED)
        except (_Again, SinkError):
            return
        finally:
            self.close()

    def close(self) -> None:
        """Closes the connection; the next call opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _call(self, path: str, body: bytes, retried: Sequence[str]) -> dict[str, Any]:
        failing_since = 0.0
        while True:
            try:
                return self._once(path, body, retried)
            except _Again as problem:
                self.close()
                now = time.monotonic()
                failing_since = failing_since or now
                if now - failing_since >= self._place.retry_s:
                    text = f"gave up after {self._place.retry_s:g} s (option retryTimeout): {problem}"
                    raise SinkError(text) from None
            time.sleep(SINK_RETRY_PAUSE_S)

    def _once(self, path: str, body: bytes, retried: Sequence[str]) -> dict[str, Any]:
        try:
            connection = self._connected()
            connection.request("POST", path, body, {"Authorization": f"Bearer {self._token}"})
            with connection.getresponse() as answer:
                status, content = answer.status, answer.read(SINK_ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise _Again(f"{self._place}: {error or type(error).__name__}") from None
        try:
            document = json.loads(content)
            if status < 300:
                return dict(document)
            code, message = str(document["error"]["code"]), str(document["error"]["message"])
        except (ValueError, TypeError, KeyError):
            raise SinkError(f"{self._place} is no admin address of this server: HTTP {status}") from None
        text = f"{self._place} refused: {message} ({code})"
        raise (_Again if code in retried else SinkError)(text)

    def _connected(self) -> http.client.HTTPConnection:
        """The connection; a new one goes where the directory says that its server is by now."""
        if self._connection is None:
            url, self._token = self._place.address()
            parts = urlsplit(url)
            kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(parts.hostname or "", parts.port, timeout=SINK_CALL_S)
        return self._connection
