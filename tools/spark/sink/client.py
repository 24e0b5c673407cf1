"""The admin API as the sink uses it: staging, committing, dropping; waits while the server is away.

Every call may be repeated: staging again keeps a second file that nobody names, a repeated commit changes nothing.
"""

from __future__ import annotations

import http.client
import json
import logging
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from engine.errors import DataDirectoryError, UnsupportedFormat
from netserver.admin.names import DIRECTORY_HEADER
from netserver.errors import TlsFailed
from tools.serving import http_connection
from tools.spark.limits import SINK_ANSWER_BYTES_MAX, SINK_CALL_S, SINK_RETRY_PAUSE_S, SINK_SILENT_S
from tools.spark.sink.options import Place

LOG = logging.getLogger("quintlog.spark")
RETRIED = ("not_stored", "unavailable", "disk_full", "wrong_directory")
"""Codes of errors that go away by themselves: a repeated call may succeed. A server of another directory answers where
ours was: ours is somewhere else by now."""
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
        self._headers: dict[str, str] = {}

    def stage(self, rows: bytes | bytearray, writer: str = "", batch: int | None = None) -> str:
        """Keeps a file of rows; its name. What is staged for a batch goes with it, whether it was committed or not.

        Raises SinkError.
        """
        parameters = f"?{urlencode({'writer': writer, 'batch': batch})}" if batch is not None else ""
        return str(self._call(f"/v1/staged{parameters}", bytes(rows), RETRIED_STAGING)["name"])

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
        failing_since, warned, retry_s = 0.0, False, self._place.retry_s
        while True:
            try:
                return self._once(path, body, retried)
            except _Again as problem:
                self.close()
                now = time.monotonic()
                failing_since = failing_since or now
                if now - failing_since >= retry_s:
                    raise SinkError(f"gave up after {retry_s:g} s (option retryTimeout): {problem}") from None
                if not warned and now - failing_since >= SINK_SILENT_S:
                    warned = True
                    LOG.warning("%s; trying on for %g s in all (option retryTimeout)", problem, retry_s)
            time.sleep(SINK_RETRY_PAUSE_S)

    def _once(self, path: str, body: bytes, retried: Sequence[str]) -> dict[str, Any]:
        try:
            connection = self._connected()
            connection.request("POST", path, body, self._headers)
            with connection.getresponse() as answer:
                status, content = answer.status, answer.read(SINK_ANSWER_BYTES_MAX)
        except (DataDirectoryError, UnsupportedFormat, PermissionError, TlsFailed) as error:
            raise SinkError(str(error)) from None
        except (OSError, http.client.HTTPException) as error:
            raise _Again(f"{self._place}: {error or type(error).__name__}") from None
        try:
            document = json.loads(content)
            if status < 300:
                return dict(document)
            code, message = str(document["code"]), str(document["detail"])
        except (ValueError, TypeError, KeyError):
            text = f"{self._place} is not an admin address of this server: HTTP {status}"
            raise (_Again if self._place.server is None else SinkError)(text) from None
        text = f"{self._place} refused: {message} ({code})"
        raise (_Again if code in retried else SinkError)(text)

    def _connected(self) -> http.client.HTTPConnection:
        """The connection; a new one goes where the directory says that its server is by now."""
        if self._connection is None:
            url, token, directory = self._place.address()
            self._headers = {"Authorization": f"Bearer {token}"}
            if directory:
                self._headers[DIRECTORY_HEADER] = directory
            self._connection = http_connection(url, SINK_CALL_S, self._place.tls())
        return self._connection
