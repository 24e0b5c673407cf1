"""Where a log is: its directory or its server's admin address, and how the admin API is called."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tools.logtool import errors
from tools.logtool.cli import Settings
from tools.logtool.errors import Failure
from tools.logtool.limits import ADMIN_ANSWER_BYTES_MAX, SMALL_FILE_BYTES_MAX

DEFAULT_SERVER = "http://127.0.0.1:9180"
SERVER_FILE = "server.json"
TOKEN_FILE = "admin.token"

_EXIT_CODES = {
    400: (errors.USAGE, "invalid"),
    401: (errors.REFUSED, "token"),
    403: (errors.REFUSED, "refused"),
    404: (errors.NOT_FOUND, "not_found"),
    409: (errors.CONFLICT, "conflict"),
    413: (errors.NO_ROOM, "too_large"),
    422: (errors.USAGE, "invalid"),
    504: (errors.TIMEOUT, "timeout"),
    507: (errors.NO_ROOM, "no_space"),
}


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """``server.json``: written by a server when it has started, removed when it stops in order."""

    pid: int
    admin: str | None
    version: str = ""
    started: float = 0.0
    listeners: dict[str, str] = field(default_factory=dict)


def read_server_info(data_dir: Path) -> ServerInfo | None:
    """What the directory says of its server; it may be left over from one that was killed.

    Raises:
        PermissionError: whether there is one cannot be seen.
    """
    try:
        with (data_dir / SERVER_FILE).open("rb") as file:
            fields = json.loads(file.read(SMALL_FILE_BYTES_MAX))
        return ServerInfo(
            int(fields["pid"]),
            fields.get("admin"),
            str(fields.get("version", "")),
            float(fields.get("started", 0)),
            {str(name): str(address) for name, address in fields.get("listeners", {}).items()},
        )
    except PermissionError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _token(settings: Settings) -> tuple[str, PermissionError | None]:
    """The token, or why it cannot be read: some pages do without."""
    path = settings.token_file or (settings.data_dir / TOKEN_FILE if settings.data_dir is not None else None)
    if path is None:
        return settings.environment.get("QUINTLOG_TOKEN", ""), None
    try:
        with path.open("rb") as file:
            return file.read(SMALL_FILE_BYTES_MAX).decode("ascii", "replace").strip(), None
    except PermissionError as error:
        return "", error


class Admin:
    """The admin API of one server. Calls raise Failure with the exit code that the answer means."""

    def __init__(self, url: str, token: str, timeout_s: float, no_token: PermissionError | None = None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Failure(errors.USAGE, "address", f"{url!r} is no admin address; expected http://HOST:PORT")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._token = token
        self._no_token = no_token
        self._timeout_s = timeout_s

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request; the answer's JSON object ({} when it has none).

        Raises:
            Failure: not reachable, refused, or an error that the answer names.
        """
        status, content = self._request(method, path, body)
        try:
            answer = json.loads(content) if content.strip() else {}
        except ValueError:
            answer = {"error": {"message": content[:200].decode("utf-8", "replace").strip()}}
        if not isinstance(answer, dict):
            answer = {"items": answer}
        if status < 300:
            return answer
        if status == 401 and self._no_token is not None:
            raise self._no_token
        exit_code, code = _EXIT_CODES.get(status, (errors.UNREACHABLE, "server"))
        error = answer.get("error")
        fields = error if isinstance(error, dict) else {"message": str(error or f"HTTP status {status}")}
        hint = str(fields.get("hint") or "")
        if status == 401 and not hint:
            hint = "--data-dir DIR finds the server's token there; --token-file FILE names another one"
        raise Failure(exit_code, str(fields.get("code") or code), str(fields.get("message") or status), hint)

    def text(self, path: str) -> tuple[int, str]:
        """Status and text of a page (health, metrics). Raises Failure: not reachable."""
        status, content = self._request("GET", path, None)
        return status, content.decode("utf-8", "replace")

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout_s)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return response.status, response.read(ADMIN_ANSWER_BYTES_MAX)
        except TimeoutError as error:
            raise Failure(
                errors.TIMEOUT, "timeout", f"{self.url} gave no answer within {self._timeout_s:g} s"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(self.url, error) from error
        finally:
            connection.close()


class Unreachable(Failure):
    """Nobody answers at the admin address."""

    def __init__(self, url: str, reason: Exception) -> None:
        text = f"no server answers at {url} ({getattr(reason, 'strerror', None) or reason})"
        super().__init__(errors.UNREACHABLE, "unreachable", text, "--data-dir DIR or --server URL names another one")


def admin_of(settings: Settings) -> Admin | None:
    """The admin API of the server that the address means; None: a directory without a server, or with none of that."""
    if settings.data_dir is not None:
        info = read_server_info(settings.data_dir)
        if info is None or info.admin is None:
            return None
        url = info.admin
    else:
        url = settings.server or DEFAULT_SERVER
    token, problem = _token(settings)
    return Admin(url, token, settings.timeout_s, problem)
