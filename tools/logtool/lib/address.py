"""Which log a command line means, where its server is, and how the admin API is called.

A log is named on the command line, by the environment, or by a context, and then that one is meant and no other: what
was named and yields nothing is exit code 3, or 6 when a process has the directory that cannot be asked. Only where
nothing was named the default addresses count. `settings.data_dir` and `settings.server` are what was named
(`tools.logtool.lib.address_options`); commands ask the functions below, and read neither `server.json` nor a default
themselves.
"""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from engine.files.lock import identity_of
from netserver.admin.names import DIRECTORY_HEADER, TOKEN_FILE
from netserver.client.tls import OFF, SYSTEM, TlsFiles, explained
from tools.logtool.cli import Settings
from tools.logtool.lib import errors
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.limits import ADMIN_ANSWER_BYTES_MAX
from tools.serving import Service, dialled, http_connection, read_token, service_of

DEFAULT_SERVER: Final = "http://127.0.0.1:9180"
DEFAULT_LISTENERS: Final = {
    "figg": "127.0.0.1:8119",
    "tank": "127.0.0.1:11011",
    "blipmq": "127.0.0.1:5555",
    "fujin": "127.0.0.1:4848",
    "kafka": "127.0.0.1:9092",
}
VIA_HINT: Final = "--via PROTOCOL=HOST:PORT names an address"

_EXIT_CODES = {
    400: (errors.USAGE, "invalid"),
    401: (errors.REFUSED, "token"),
    403: (errors.REFUSED, "refused"),
    404: (errors.NOT_FOUND, "not_found"),
    409: (errors.CONFLICT, "conflict"),
    413: (errors.NO_ROOM, "too_large"),
    422: (errors.USAGE, "invalid"),
    429: (errors.NO_ROOM, "quota_reached"),
    504: (errors.TIMEOUT, "timeout"),
    507: (errors.NO_ROOM, "no_space"),
}


def _token(settings: Settings) -> tuple[str, PermissionError | None]:
    """The token, or why it cannot be read: some pages do without."""
    path = settings.token_file
    if path is None and settings.data_dir is not None:
        path = settings.data_dir / TOKEN_FILE
    if path is None:
        return settings.environment.get("QUINTLOG_TOKEN", ""), None
    try:
        return read_token(path), None
    except PermissionError as error:
        return "", error


class Admin:
    """The admin API of one server. Calls raise Failure with the exit code that the answer means.

    Args:
        directory: see `engine.files.lock.identity_of`; a server of another one refuses each call. Empty: any will do.
        tls, server_name: see `tools.serving.http_connection`.
    """

    def __init__(
        self,
        url: str,
        token: str,
        timeout_s: float,
        no_token: PermissionError | None = None,
        directory: str = "",
        tls: TlsFiles | None = None,
        server_name: str | None = None,
    ) -> None:
        parts = urlsplit(dialled(url if "//" in url else f"http://{url}"))
        try:
            host, port = parts.hostname, parts.port
        except ValueError:  # of the port
            host = port = None
        if parts.scheme not in ("http", "https") or not host:
            raise Failure(errors.USAGE, "address", f"{url!r} is not an admin address; expected http://HOST:PORT")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.host, self.port = host, port
        self.is_secure = parts.scheme == "https"
        self._tls = tls or TlsFiles()
        self._server_name = server_name
        self._no_token = no_token
        self._timeout_s = timeout_s
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        if directory:
            self._headers[DIRECTORY_HEADER] = directory

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request; the answer's JSON object ({} when it has none).

        Raises:
            Failure: not reachable, no log server, refused, or an error that the answer names.
        """
        return self._answer(*self._request(method, path, body))

    def lines(self, path: str, method: str = "GET", body: dict[str, Any] | None = None) -> Iterator[bytes]:
        """The lines of an answer as they come. Raises Failure as `call`; HTTPException: the answer is broken off."""
        connection = self._connection()
        try:
            connection.request(method, path, *self._sent(body))
            response = connection.getresponse()
            if response.status >= 300:
                self._answer(response.status, response.read(ADMIN_ANSWER_BYTES_MAX))
            yield from response
        except OSError as error:
            raise Unreachable(self.url, error) from error
        finally:
            connection.close()

    def _answer(self, status: int, content: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(content) if content.strip() else {}
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or (status >= 300 and "code" not in answer):
            raise Failure(errors.UNREACHABLE, "wrong_server", f"{self.url} is no log server (HTTP status {status})")
        if status < 300:
            return answer
        if status == 401 and self._no_token is not None:
            raise self._no_token
        exit_code, code = _EXIT_CODES.get(status, (errors.UNREACHABLE, "server"))
        hint = ""
        if status == 401:
            hint = "--data-dir DIR finds the server's token there; --token-file FILE names another one"
        raise Failure(exit_code, str(answer["code"] or code), str(answer.get("detail") or status), hint)

    def text(self, path: str) -> str:
        """A page that needs no token. Raises Failure: not reachable, or no such page: not a log server."""
        status, content = self._request("GET", path, None)
        if status != 200:
            raise Failure(errors.UNREACHABLE, "wrong_server", f"{self.url} is not a log server (HTTP status {status})")
        return content.decode("utf-8", "replace")

    def not_ready_reason(self) -> str:
        """Why the server does not serve now; empty: it does. Raises Failure: not reachable."""
        status, content = self._request("GET", "/readyz", None)
        return "" if status == 200 else content.decode("utf-8", "replace").strip() or f"HTTP status {status}"

    def _sent(self, body: dict[str, Any] | None) -> tuple[bytes | None, dict[str, str]]:
        if body is None:
            return None, self._headers
        return json.dumps(body).encode(), self._headers | {"Content-Type": "application/json"}

    def _connection(self) -> http.client.HTTPConnection:
        return http_connection(self.url, self._timeout_s, self._tls, self._server_name)

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        connection = self._connection()
        try:
            connection.request(method, path, *self._sent(body))
            response = connection.getresponse()
            return response.status, response.read(ADMIN_ANSWER_BYTES_MAX)
        except TimeoutError as error:
            text = f"{self.url} gave no answer within {self._timeout_s:g} s"
            raise Failure(errors.TIMEOUT, "timeout", text) from error
        except (OSError, http.client.HTTPException) as error:
            problem = explained(error, self._tls.cert is not None)
            if problem is not None:
                raise errors.tls_failure(f"{self.url}: {problem}") from error
            raise self._recognised(error) or Unreachable(self.url, error) from error
        finally:
            connection.close()

    def _recognised(self, error: Exception) -> Failure | None:
        """What is really there, where something is."""
        from netserver.client.recognition import recognise

        if isinstance(error, ConnectionRefusedError):
            return None
        found = asyncio.run(recognise(self.host, self.port or 80, None))
        if found.tls is None or (found.tls and self.is_secure):
            return None
        if found.tls:
            hint = f"https://{self.url.partition('//')[2]}, with --ca FILE for a private authority"
            return Failure(errors.UNREACHABLE, "tls", f"{self.url} speaks TLS", hint)
        if found.protocol not in ("", "HTTP"):
            text = f"{self.url} is no log server: it speaks {found.protocol}"
            return Failure(errors.UNREACHABLE, "wrong_server", text)
        if self.is_secure:
            hint = f"http://{self.url.partition('//')[2]}"
            return Failure(errors.UNREACHABLE, "tls", f"{self.url} does not speak TLS", hint)
        return None


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a server listens for a protocol.

    Attributes:
        address: HOST:PORT.
        tls: it speaks TLS with a certificate of its configuration; None: nobody has said.
    """

    address: str
    tls: bool | None = None


class Unreachable(Failure):
    """Nobody answers at the admin address."""

    def __init__(self, url: str, reason: Exception) -> None:
        text = f"no server answers at {url} ({getattr(reason, 'strerror', None) or reason})"
        super().__init__(errors.UNREACHABLE, "unreachable", text, "--data-dir DIR or --server URL names another one")


def service(settings: Settings) -> Service | None:
    """What serves the directory that was named; None: no directory was. Raises Failure, PermissionError."""
    if settings.data_dir is None:
        return None
    try:
        return service_of(settings.data_dir, settings.timeout_s, settings.tls, settings.server_name)
    except TimeoutError as error:
        raise Failure(errors.TIMEOUT, "timeout", str(error)) from error


def admin_of(settings: Settings) -> Admin | None:
    """The admin API of the log's server; None: a directory without a server, or whose server cannot be asked."""
    return _admin(settings, service(settings))


def _admin(settings: Settings, found: Service | None) -> Admin | None:
    if found is None:
        url, directory = settings.server or DEFAULT_SERVER, ""
    elif found.server is None or found.server.admin is None:
        return None
    else:
        assert settings.data_dir is not None
        url, directory = found.server.admin, identity_of(settings.data_dir)
    token, problem = _token(settings)
    return Admin(url, token, settings.timeout_s, problem, directory, settings.tls, settings.server_name)


def need_admin(settings: Settings, hint: str = "") -> Admin:
    """The admin API of the log's server. Raises Failure: it has none."""
    found = service(settings)
    admin = _admin(settings, found)
    if admin is None:
        assert found is not None
        text = found.why or f"the server of {settings.data_dir} has no admin address"
        raise Failure(errors.UNREACHABLE, "unreachable", text, hint)
    return admin


def files_or_admin(settings: Settings) -> Admin | None:
    """Where a change has to go: the server, or (None) the files, which no process has.

    Raises:
        Failure: not reachable, or a process has the directory that cannot be asked.
    """
    found = service(settings)
    admin = _admin(settings, found)
    if admin is None and found is not None and found.in_use:
        pid = found.server.pid if found.server is not None else 0
        text = found.why or f"process {pid} has {settings.data_dir}, and no admin address to change it through"
        raise Failure(errors.CONFLICT, "in_use", text, "stop it first, or name its server with --server URL")
    return admin


def listener_of(settings: Settings, protocol: str) -> Listener:
    """Where the log's server listens for a protocol.

    Raises:
        Failure: no server, or it does not listen for that, or not where it could be reached from here.
    """
    found = service(settings)
    if found is None and settings.server is None:
        return Listener(DEFAULT_LISTENERS[protocol])
    if found is None:
        admin = need_admin(settings)
        status = admin.call("GET", "/v1/status")
        listeners = status.get("listeners", {})
        if protocol in listeners:
            address = _seen_from_here(admin, protocol, listeners[protocol], str(listeners.get("admin")))
            return Listener(address, protocol in status["tls"] if "tls" in status else None)
        whose = f"the server at {admin.url}"
    elif found.server is None:
        raise Failure(errors.UNREACHABLE, "unreachable", found.why, VIA_HINT)
    elif protocol in found.server.listeners:
        return Listener(found.server.listeners[protocol], protocol in found.server.tls)
    else:
        whose = f"the server of {settings.data_dir}"
    raise Failure(errors.UNREACHABLE, "no_listener", f"{whose} does not listen for {protocol}", VIA_HINT)


def _seen_from_here(admin: Admin, protocol: str, address: str, own: str) -> str:
    """A listener's address, as a server tells it of itself, for whoever reaches its admin address at `admin`.

    Behind a proxy or a forwarded port the same numbers may lead to another server. Raises Failure.
    """
    from netserver.client.base import parse_address

    host, port = parse_address(address, 1)
    if parse_address(own, 1)[1] != admin.port:
        text = f"the server calls its admin address {own}, not {admin.url}: {protocol} may be elsewhere from here, too"
        raise Failure(errors.UNREACHABLE, "forwarded", text, VIA_HINT)
    if _is(host, "is_unspecified"):
        host = admin.host
    elif _is(host, "is_loopback") and not (_is(admin.host, "is_loopback") or _is(admin.host, "is_unspecified")):
        text = f"the server at {admin.url} listens for {protocol} on its own machine only ({address})"
        raise Failure(errors.UNREACHABLE, "no_listener", text, VIA_HINT)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tls_words(settings: Settings, listener: Listener) -> dict[str, Any]:
    """The words of TLS (`netserver.client.tls`) for a client of a listener over TCP.

    Raises:
        Failure: TLS was asked for, and the listener, which is not on this machine, speaks none.
    """
    from netserver.client.base import parse_address

    files = settings.tls
    if listener.tls is False:
        host = parse_address(listener.address, 1)[0]
        if files.is_used and not _is(host, "is_loopback"):
            hint = "--ca off does without, over a network that is trusted"
            raise Failure(errors.REFUSED, "plain", f"the listener at {listener.address} does not speak TLS", hint)
        return {"ca": OFF}
    ca = files.ca or (SYSTEM if listener.tls or files.cert else OFF)
    return {"ca": ca, "cert": files.cert, "key": files.key, "server_name": settings.server_name}


def _is(host: str, what: str) -> bool:
    try:
        return bool(getattr(ipaddress.ip_address(host), what))
    except ValueError:  # a name
        return what == "is_loopback" and host == "localhost"
