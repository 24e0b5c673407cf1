"""`context`: lists, adds, chooses and removes contexts; see `tools.logtool.lib.context_file`."""

from __future__ import annotations

import re
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from netserver.client.tls import OFF, SYSTEM
from tools.logtool.cli import Group, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.context_file import Context, Contexts
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.output import Column

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
