"""Which server has a data directory now, so that nobody acts on another one's log.

``server.json`` tells process and addresses of a directory's server, ``admin.token`` opens its admin API. Both lie there
still when the server was killed, and both come along when a directory is copied. So they count only where a process
holds the directory and whoever answers at the admin address says that it is this very directory (device and inode). It
is asked that before it is sent the token, and each request names the directory again: another server refuses it.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from engine.files.lock import identity_of, is_in_use, told_holder
from engine.files.system import SystemFiles, read_whole_file
from netserver.admin.names import DIRECTORY_PATH, SERVER_FILE
from netserver.client.tls import TlsFiles, explained
from netserver.errors import TlsFailed
from tools.limits import IDENTITY_BYTES_MAX, SMALL_FILE_BYTES_MAX

EVERYWHERE = re.compile(r"(?<![\d.])0\.0\.0\.0(?![\d.])")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """``server.json``: written by a server when it has started, removed when it stops in order."""

    pid: int
    admin: str | None
    version: str = ""
    started: float = 0.0
    listeners: dict[str, str] = field(default_factory=dict)
    tls: tuple[str, ...] = ()
    """Listeners that show a certificate of the configuration."""


@dataclass(frozen=True, slots=True)
class Service:
    """What a directory's server is.

    Attributes:
        server: it is running, and it is this directory's; None: there is none, or that is not certain.
        in_use: a process holds the directory.
        why: for people, why `server` is None; empty when it is not.
        stopped_badly: no process has it, and the last server was killed.
    """

    server: ServerInfo | None
    in_use: bool
    why: str = ""
    stopped_badly: bool = False


def read_server_info(data_dir: Path) -> ServerInfo | None:
    """What the directory says of its server, whether that is still true or not; None: nothing.

    Raises:
        PermissionError: whether there is one cannot be seen.
    """
    try:
        fields = json.loads(read_whole_file(SystemFiles(), data_dir / SERVER_FILE, SMALL_FILE_BYTES_MAX) or b"")
        return ServerInfo(
            int(fields["pid"]),
            dialled(str(fields["admin"])) if fields.get("admin") else None,
            str(fields.get("version", "")),
            float(fields.get("started", 0)),
            {str(name): dialled(str(address)) for name, address in fields.get("listeners", {}).items()},
            tuple(map(str, fields.get("tls", ()))),
        )
    except PermissionError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def read_token(path: Path) -> str:
    """The token in a file. Raises OSError."""
    content = read_whole_file(SystemFiles(), path, SMALL_FILE_BYTES_MAX)
    if content is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return content.decode("ascii", "replace").strip()


def dialled(address: str) -> str:
    """An address, or a URL, that can be dialled: a server that listens everywhere is here, too."""
    return EVERYWHERE.sub("127.0.0.1", address.replace("[::]", "[::1]", 1))


class _Https(http.client.HTTPSConnection):
    """Knows the server by another name than the host that is dialled."""

    server_name: str | None = None

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        context: ssl.SSLContext = self._context  # type: ignore[attr-defined]
        self.sock = context.wrap_socket(self.sock, server_hostname=self.server_name or self.host)


def http_connection(url: str, timeout_s: float, tls: TlsFiles, server_name: str | None = None) -> HTTPConnection:
    """A connection to an admin address, not opened yet; ``tls`` counts where it is ``https``.

    Raises:
        TlsFailed: a file cannot be used.
        ValueError: not a URL.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    if parts.scheme != "https":
        return HTTPConnection(host, port, timeout=timeout_s)
    made = _Https(host, port, timeout=timeout_s, context=tls.context())
    made.server_name = server_name
    return made


def service_of(
    data_dir: Path, timeout_s: float, tls: TlsFiles | None = None, server_name: str | None = None
) -> Service:
    """The server of a directory, if there is one and it says so.

    Args:
        tls, server_name: see `http_connection`; None: as the environment says.

    Raises:
        TimeoutError: a process holds the directory and gives no answer at the admin address.
        TlsFailed: the server cannot be asked because of its certificate or ours.
        OSError: there is no such directory, or it cannot be looked into.
    """
    info = read_server_info(data_dir)
    if not is_in_use(data_dir):
        return Service(None, False, f"no server is running on {data_dir}", info is not None)
    holder = told_holder(data_dir)
    held = f"process {holder or 'unknown'} has {data_dir}"
    if info is None:
        return Service(None, True, f"{held}, and no server.json says where it listens")
    if info.admin is None:  # nobody to ask: the file is the holder's own, or of one before it
        if str(info.pid) == holder:
            return Service(info, True)
        return Service(None, True, f"{held}, and server.json is of process {info.pid}")
    if _identity_at(info.admin, timeout_s, tls or TlsFiles.found(), server_name) == identity_of(data_dir):
        return Service(info, True)
    return Service(None, True, f"{held}, and whoever listens at {info.admin} does not say that it is its server")


def is_holder(pid: int, data_dir: Path) -> bool:
    """Whether a process of this machine has the directory open, as its server does.

    A server in a container, or on another machine, tells a number that means another process here, or none.

    Raises:
        PermissionError: it is somebody else's.
    """
    try:
        there = data_dir.stat()
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                if os.path.samestat(link.stat(), there):
                    return True
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        pass
    return False


def _identity_at(url: str, timeout_s: float, tls: TlsFiles, server_name: str | None) -> str:
    """What a server says its directory is; empty: none answers, or something else does.

    Raises:
        TimeoutError: no answer. TlsFailed: see `service_of`.
    """
    try:
        connection = http_connection(url, timeout_s, tls, server_name)
        try:
            connection.request("GET", DIRECTORY_PATH)
            response = connection.getresponse()
            content = response.read(IDENTITY_BYTES_MAX)
        finally:
            connection.close()
    except TimeoutError:
        raise TimeoutError(f"{url} gave no answer within {timeout_s:g} s") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        problem = explained(error, tls.cert is not None)
        if problem is not None:
            raise TlsFailed(f"{url}: {problem}", problem.kind) from error
        return ""
    return content.decode("ascii", "replace").strip() if response.status == 200 else ""
