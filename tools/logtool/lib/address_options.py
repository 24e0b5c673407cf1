"""The options that say which log a command means: what the command line names, else the environment, else a context.

How that log is reached is in `tools.logtool.lib.address`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tools.logtool.lib.output import Output

if TYPE_CHECKING:
    from netserver.client.tls import TlsFiles

PLACE = ("data_dir", "server", "token_file", "ca", "cert", "key", "server_name", "api_key_file")
"""Settings that say where a log is and how it is reached: what `context add` keeps."""


@dataclass(slots=True)
class AddressOptions:
    """See the module."""

    data_dir: Path | None = None
    server: str | None = None
    context: str | None = None
    token_file: Path | None = None
    ca: str | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    api_key_file: Path | None = None
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    given: dict[str, Path | str | None] = field(default_factory=dict)
    """What the command line alone says of the log, by the names in `PLACE`."""

    @property
    def output(self) -> Output:
        """Where a command says what it has found."""
        raise NotImplementedError

    def take_address(self) -> None:
        """Takes what the command line names, else the environment's. Raises click.UsageError when it is not one log."""
        get = self.environment.get
        self.given = {name: getattr(self, name) for name in PLACE}
        if "" in (self.server, self.context):
            raise click.UsageError("--server and --context: an empty name means no log")
        if [self.data_dir, self.server, self.context].count(None) < 2:
            raise click.UsageError("--data-dir, --server and --context exclude each other: a log has one address")
        if [self.data_dir, self.server, self.context].count(None) == 3:
            self.server = get("QUINTLOG_SERVER") or None
            if get("QUINTLOG_DATA_DIR"):
                self.data_dir, self.server = Path(self.environment["QUINTLOG_DATA_DIR"]), None

    def find_address(self) -> None:
        """Without an address, that of a context holds. Raises Failure, OSError: see `_take_context`."""
        get = self.environment.get
        own_token = self.given["data_dir"] is not None  # a directory that was named has its token in it
        if self.data_dir is None and self.server is None:
            self.context = self.context or get("QUINTLOG_CONTEXT") or None
            self._take_context()
            own_token = self.data_dir is not None
        if self.token_file is None and not own_token and get("QUINTLOG_TOKEN_FILE"):
            self.token_file = Path(self.environment["QUINTLOG_TOKEN_FILE"])
        self.server_name = self.server_name or get("QUINTLOG_SERVER_NAME") or None

    def _take_context(self) -> None:
        """Fills in the address: of `context`, else of the current context if there is one.

        Raises:
            Failure: no such context, or the file is damaged. OSError: it cannot be read.
        """
        from tools.logtool.lib.context_file import Contexts

        contexts = Contexts.read(self.environment)
        name = self.context or contexts.current
        if name is None:
            return
        context = contexts.get(name)
        self.context = name
        self.data_dir, self.server = context.data_dir, context.server
        for kept in PLACE[2:]:
            setattr(self, kept, getattr(self, kept) or getattr(context, kept))
        self.output.detail(f"context {name}: {context.data_dir or context.server}")

    @property
    def tls(self) -> TlsFiles:
        """Files for TLS, of the command line, the context or the environment. Raises click.UsageError."""
        from netserver.client.tls import TlsFiles

        try:
            return TlsFiles.found(self.ca, self.cert, self.key, self.environment)
        except ValueError:
            raise click.UsageError("--key is the private key of a certificate: --cert is missing") from None

    @property
    def api_key(self) -> Path | str:
        """The key that BlipMQ's AUTH shows; empty: none was named."""
        get = self.environment.get
        path = self.api_key_file or (Path(get("QUINTLOG_API_KEY_FILE", "")) if get("QUINTLOG_API_KEY_FILE") else None)
        return path or get("QUINTLOG_API_KEY", "")
