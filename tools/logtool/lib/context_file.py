"""The file of contexts: addresses of logs under names, so that a command line need not repeat them.

It is ``quintlog/contexts.json`` below ``XDG_CONFIG_HOME`` (else ``~/.config``)::

    {"schema": 1, "current": "shop", "contexts": {
      "shop": {"server": "https://10.0.0.5:9180", "token_file": "/etc/shop.token", "ca": "/etc/shop-ca.pem"},
      "here": {"data_dir": "/var/lib/quintlog"}}}

Tokens and keys are not stored, only the names of the files that hold them.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from engine.files.system import make_directory
from tools.logtool.lib import errors
from tools.logtool.lib.address_options import PLACE
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.limits import CONTEXTS_BYTES_MAX
from tools.logtool.lib.output import JSON_SCHEMA

TEXTS = ("server", "server_name", "ca")
"""What is kept as it is; all else is a path."""


@dataclass(frozen=True, slots=True)
class Context:
    """The address of one log, either a directory or a server, and the files that open it; see `AddressOptions`."""

    data_dir: Path | None = None
    server: str | None = None
    token_file: Path | None = None
    ca: str | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    api_key_file: Path | None = None

    def fields(self) -> dict[str, str]:
        """As in the file."""
        found = {name: getattr(self, name) for name in PLACE}
        return {key: str(value) for key, value in found.items() if value is not None}

    @classmethod
    def of(cls, fields: Any) -> Self:
        """From the file's object. Raises ValueError."""
        if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
            raise ValueError("a context is an object of texts")
        if set(fields) - set(PLACE) or ("data_dir" in fields) == ("server" in fields):
            raise ValueError(f"a context has data_dir or server, and may have {', '.join(PLACE[2:])}")
        kept: dict[str, Any] = {key: value if key in TEXTS else Path(value) for key, value in fields.items()}
        return cls(**kept)


@dataclass(slots=True)
class Contexts:
    """All of a user's contexts.

    Attributes:
        current: the one that holds where no address is given; None: none was chosen.
    """

    path: Path
    known: dict[str, Context] = field(default_factory=dict)
    current: str | None = None

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Self:
        """The contexts of the user whose environment this is; none without a file.

        Raises:
            Failure: the file is damaged or too large.
            OSError: it cannot be read.
        """
        base = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        found = cls(Path(base) / "quintlog" / "contexts.json")
        try:
            with found.path.open("rb") as file:
                content = file.read(CONTEXTS_BYTES_MAX + 1)
        except (FileNotFoundError, NotADirectoryError):
            return found
        try:
            if len(content) > CONTEXTS_BYTES_MAX:
                raise ValueError(f"larger than {CONTEXTS_BYTES_MAX} bytes")
            document = json.loads(content)
            if not isinstance(document, dict) or document.get("schema") != JSON_SCHEMA:
                raise ValueError(f"expected an object with schema {JSON_SCHEMA}")
            found.known = {str(name): Context.of(fields) for name, fields in dict(document["contexts"]).items()}
            current = document.get("current")
            found.current = current if isinstance(current, str) else None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            hint = "mend or remove the file; --data-dir, --server and their variables do without it"
            raise Failure(errors.UNREACHABLE, "contexts", f"{found.path} is damaged: {error}", hint) from error
        return found

    def get(self, name: str) -> Context:
        """Raises Failure: there is no such context."""
        context = self.known.get(name)
        if context is None:
            hint = "`logtool context list` shows them, `logtool context add` makes one"
            raise Failure(errors.NOT_FOUND, "unknown_context", f"no context {name!r}", hint)
        return context

    def write(self) -> None:
        """Replaces the file, or leaves it as it was. Raises OSError."""
        contexts = {name: context.fields() for name, context in sorted(self.known.items())}
        document: dict[str, Any] = {"schema": JSON_SCHEMA, "current": self.current, "contexts": contexts}
        make_directory(self.path.parent, 0o700)
        fd, aside = tempfile.mkstemp(dir=self.path.parent, prefix=".contexts-")
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(fd)
            os.replace(aside, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise
