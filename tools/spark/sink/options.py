"""Options of the sink; a name that is not known is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from engine.files.lock import identity_of
from engine.files.system import SystemFiles
from engine.reader import read_version
from netserver.admin.names import TOKEN_FILE
from netserver.client.tls import TlsFiles
from tools.serving import read_token, service_of
from tools.spark.limits import SINK_ASKED_S, SINK_RETRY_S, SINK_STAGE_BYTES, SINK_STAGE_BYTES_MAX
from tools.spark.source.options import OptionError, as_documented, read_delay

_KNOWN = ("path", "server", "token", "ca", "cert", "key", "topic", "queryId", "batchId", "stageBytes", "retryTimeout")
_SPARKS_OWN = ("checkpointlocation",)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the server's admin API is: an address with its token, or a data directory that tells both."""

    server: str | None
    token: str | None
    path: str | None
    retry_s: float
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def tls(self) -> TlsFiles:
        """Files for an address that is ``https``; what no option names comes from the environment."""
        return TlsFiles.found(self.ca, self.cert, self.key)

    def __str__(self) -> str:
        return self.server or f"the server of {self.path}"

    def address(self) -> tuple[str, str, str]:
        """URL and token, and which directory the server has to have (empty: any), as they are now.

        Raises:
            DataDirectoryError, UnsupportedFormat: the path is not a data directory.
            PermissionError: it may not be looked into.
            OSError: no server of the directory says that it is running.
        """
        server, token, directory = self.server, self.token, ""
        if self.path is not None and server is None:
            read_version(SystemFiles(), Path(self.path))
            found = service_of(Path(self.path), SINK_ASKED_S, self.tls())
            server = found.server.admin if found.server is not None else None
            if server is None:
                raise OSError(found.why or f"the server of {self.path} has no admin address")
            directory = identity_of(Path(self.path))
        if self.path is not None and token is None:
            token = read_token(Path(self.path) / TOKEN_FILE)
        return server or "", token or "", directory


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a writing query asks for."""

    place: Place
    topic: str | None
    """For all rows; None: the column says."""
    query_id: str | None
    batch_id: int
    stage_bytes: int


def parse_sink(given: Mapping[str, str], streaming: bool = False) -> SinkOptions:
    """Reads the options, whose names have no case. Raises OptionError."""
    names = [name for name in given if name.lower() not in _SPARKS_OWN]
    options = {spelled: given[name] for name, spelled in as_documented(names, _KNOWN, " for writing").items()}
    if streaming and (own := [name for name in ("queryId", "batchId") if name in options]):
        raise OptionError(f"{own[0]} is for batch queries: a stream keeps its own in its checkpoint")
    if "batchId" in options and "queryId" not in options:
        raise OptionError("batchId says which batch of the writer queryId this is: name that, too")
    return SinkOptions(
        place=_place(options),
        topic=options.get("topic"),
        query_id=options.get("queryId"),
        batch_id=_number(options, "batchId", 0, 0, (1 << 63) - 1),
        stage_bytes=_number(options, "stageBytes", SINK_STAGE_BYTES, 1, SINK_STAGE_BYTES_MAX),
    )


def _place(options: Mapping[str, str]) -> Place:
    server, token, path = (options.get(name) for name in ("server", "token", "path"))
    if server is None and path is None:
        raise OptionError('name the server, .option("server", "http://HOST:PORT"), or its data directory, .save("DIR")')
    if server is not None and (urlsplit(server).scheme not in ("http", "https") or not urlsplit(server).hostname):
        raise OptionError(f"server is {server!r}; expected an address such as http://127.0.0.1:9180")
    if token is None and path is None:
        raise OptionError(f"token is missing: the content of {TOKEN_FILE} in the server's data directory")
    try:
        retry_s = read_delay(options["retryTimeout"]) if "retryTimeout" in options else SINK_RETRY_S
    except (ValueError, KeyError):
        raise OptionError(f"retryTimeout is {options['retryTimeout']!r}; expected a time such as 30s or 5m") from None
    if "key" in options and "cert" not in options:
        raise OptionError("key is the private key of a certificate: cert is missing")
    return Place(server, token, path, retry_s, *(options.get(name) for name in ("ca", "cert", "key")))


def _number(options: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    try:
        number = int(options.get(name, default))
    except ValueError:
        number = -1
    if not least <= number <= most:
        raise OptionError(f"{name} is {options[name]!r}; expected a number from {least} to {most}")
    return number
