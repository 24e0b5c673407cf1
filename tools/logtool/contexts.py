"""`context`: addresses of logs under names, so that a command line need not repeat them.

They are in ``quintlog/contexts.json`` below ``XDG_CONFIG_HOME`` (else ``~/.config``)::

    {"schema": 1, "current": "shop", "contexts": {
      "shop": {"server": "https://10.0.0.5:9180", "token_file": "/etc/shop.token", "ca": "/etc/shop-ca.pem"},
      "here": {"data_dir": "/var/lib/quintlog"}}}

Tokens and keys are not stored, only the names of the files that hold them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import click
from click.shell_completion import CompletionItem

from engine.files.system import make_directory
from netserver.client.tls import OFF, SYSTEM
from tools.logtool.cli import PLACE, Group, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.limits import CONTEXTS_BYTES_MAX
from tools.logtool.lib.output import JSON_SCHEMA, Column

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
COLUMNS = (
    Column("current", show=lambda current: "*" if current else ""),
    Column("name"),
    Column("server"),
    Column("data_dir"),
    Column("token_file"),
    Column("ca"),
    Column("cert"),
)
TEXTS = ("server", "server_name", "ca")
"""What is kept as it is; all else is a path."""


@dataclass(frozen=True, slots=True)
class Context:
    """The address of one log, either a directory or a server, and the files that open it; see `tools.logtool.cli`."""

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


def resolve(settings: Settings) -> None:
    """Fills in the address: of `settings.context`, else of the current context if there is one.

    Raises:
        Failure: no such context, or the file is damaged. OSError: it cannot be read.
    """
    contexts = Contexts.read(settings.environment)
    name = settings.context or contexts.current
    if name is None:
        return
    context = contexts.get(name)
    settings.context = name
    settings.data_dir, settings.server = context.data_dir, context.server
    for kept in PLACE[2:]:
        setattr(settings, kept, getattr(settings, kept) or getattr(context, kept))
    settings.output.detail(f"context {name}: {context.data_dir or context.server}")


def complete_name(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names that begin so, for a shell; none when they cannot be read."""
    try:
        known = Contexts.read(ctx.ensure_object(Settings).environment).known
    except (Failure, OSError):
        return []
    return [
        CompletionItem(name, help=str(context.data_dir or context.server))
        for name, context in sorted(known.items())
        if name.startswith(incomplete)
    ]


def _name(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if not NAME.fullmatch(value):
        raise click.BadParameter("expected a letter or digit, then up to 63 of A-Z a-z 0-9 . _ -")
    return value


@click.group(cls=Group)
def context() -> None:
    """Addresses of logs under names: add them, choose the one that holds without --data-dir, --server and --context.

    \b
    logtool context add shop --server http://10.0.0.5:9180 --token-file ~/shop.token
    logtool --context shop status
    """


@context.command("list")
@click.pass_obj
def list_contexts(settings: Settings) -> None:
    """List the contexts; * marks the one that holds when no address is given."""
    contexts = Contexts.read(settings.environment)
    items = [
        {"name": name, "current": name == contexts.current, **one.fields()}
        for name, one in sorted(contexts.known.items())
    ]
    settings.output.items(COLUMNS, items)


@context.command()
@click.argument("name", callback=_name)
@click.option("--use", is_flag=True, help="It holds from now on when no address is given.")
@click.option("--replace", is_flag=True, help="One of this name may be there already.")
@click.pass_obj
def add(settings: Settings, name: str, use: bool, replace: bool) -> None:
    """Keep --data-dir or --server under NAME, with --token-file, --ca, --cert, --key, --server-name and --api-key-file.

    Nothing is asked of the server.
    """
    given = settings.given
    if given["data_dir"] is None and given["server"] is None:
        raise click.UsageError("which log? Name its address with --data-dir DIR or --server URL")
    contexts = Contexts.read(settings.environment)
    if name in contexts.known and not replace:
        raise Failure(errors.CONFLICT, "exists", f"there is a context {name!r}", "--replace overwrites it")
    if given["ca"] is not None and given["ca"] not in (SYSTEM, OFF):
        given["ca"] = str(Path(str(given["ca"])).expanduser().absolute())
    kept = {key: value.expanduser().absolute() if isinstance(value, Path) else value for key, value in given.items()}
    contexts.known[name] = Context(**kept)  # type: ignore[arg-type]
    if use:
        contexts.current = name
    contexts.write()
    settings.output.note(f"added {name}{' and chosen' if use else ''}")


@context.command()
@click.argument("name", required=False, shell_complete=complete_name)
@click.option("--none", "none", is_flag=True, help="None any more.")
@click.pass_obj
def use(settings: Settings, name: str | None, none: bool) -> None:
    """Choose the context that holds from now on when no address is given, on the command line or in the environment."""
    if none == (name is not None):
        raise click.UsageError("name a context, or say --none")
    contexts = Contexts.read(settings.environment)
    if name is not None:
        contexts.get(name)
    contexts.current = name
    contexts.write()
    settings.output.note(f"{name} is chosen" if name is not None else "no context is chosen")


@context.command()
@click.argument("name", shell_complete=complete_name)
@click.pass_obj
def remove(settings: Settings, name: str) -> None:
    """Forget a context; the log stays as it is."""
    contexts = Contexts.read(settings.environment)
    contexts.get(name)
    del contexts.known[name]
    was_current = contexts.current == name
    if was_current:
        contexts.current = None
    contexts.write()
    settings.output.note(f"removed {name}{'; no context is chosen now' if was_current else ''}")
