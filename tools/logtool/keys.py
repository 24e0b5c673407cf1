"""`keys`: list, add, revoke API keys of BlipMQ clients, in the server's key file or in a file named here."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from tools.logtool.cli import Group, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.address import Admin, need_admin
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.output import Column, time_text
from tools.logtool.topics import confirm


def _globs(value: Any) -> str:
    return " ".join(value) or "-"


COLUMNS = (
    Column("name"),
    Column("publish", show=_globs),
    Column("subscribe", show=_globs),
    Column("created_ms", "CREATED", show=time_text),
)


def _key_file(ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """The file that was named; that of the environment where the command line names no log."""
    settings = ctx.ensure_object(Settings)
    named = (settings.data_dir, settings.server, settings.context) != (None, None, None)
    variable = settings.environment.get("QUINTLOG_BLIPMQ_KEY_FILE")
    return Path(variable) if path is None and variable and not named else path


FILE_OPTION = click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_key_file,
    help="Work on this key file [QUINTLOG_BLIPMQ_KEY_FILE], not through a server.",
)
RELOAD = "a running server takes the change over when it reloads (SIGHUP)"


@click.group(cls=Group)
def keys() -> None:
    """List, make and revoke API keys of BlipMQ clients.

    Through the server, whose key file ([blipmq] key_file) is changed and counts at once; with --file on that file.
    """


def _server(settings: Settings) -> Admin:
    return need_admin(settings, "--file FILE works on a key file")


@keys.command("list")
@FILE_OPTION
@click.pass_obj
def list_keys(settings: Settings, path: Path | None) -> None:
    """List the keys of the file with their rights; the keys themselves are not stored anywhere."""
    if path is None:
        items = list(_server(settings).call("GET", "/v1/keys").get("items", []))
    else:
        from netserver.access.auth import key_item, read_key_file

        items = [key_item(key) for key in read_key_file(path)]
    settings.output.items(COLUMNS, items)


@keys.command()
@click.argument("name")
@click.option("--publish", multiple=True, metavar="GLOB", help="Topics to publish to; may be repeated.")
@click.option("--subscribe", multiple=True, metavar="GLOB", help="Topics to read; may be repeated.")
@FILE_OPTION
@click.pass_obj
def add(settings: Settings, name: str, publish: tuple[str, ...], subscribe: tuple[str, ...], path: Path | None) -> None:
    """Make a key and print it: this is the only time that it is seen.

    Without --publish and --subscribe it may do everything; with one of them, nothing else.
    """
    if not publish and not subscribe:
        publish = subscribe = ("*",)
    if path is None:
        body = {"name": name, "publish": list(publish), "subscribe": list(subscribe)}
        key = _server(settings).call("POST", "/v1/keys", body)["key"]
    else:
        from netserver.access.auth import add_key, read_key_file

        if path.exists() and any(stored.identity.name == name for stored in read_key_file(path)):
            raise Failure(errors.CONFLICT, "key_exists", f"there is a key named {name!r} in {path}; revoke it first")
        key = add_key(path, name, publish, subscribe)
        settings.output.note(RELOAD)
    if settings.output.form == "table":
        settings.output.write(key.encode() + b"\n")
        settings.output.flush()
    else:
        settings.output.items([Column("name"), Column("key")], [{"name": name, "key": key}])


@keys.command()
@click.argument("name")
@FILE_OPTION
@click.pass_obj
def revoke(settings: Settings, name: str, path: Path | None) -> None:
    """Take a key back; its connections end. Asks, or needs --yes."""
    confirm(settings, f"key {name} will be revoked", name)
    if path is None:
        _server(settings).call("DELETE", f"/v1/keys/{quote(name, safe='')}")
    else:
        from netserver.access.auth import revoke_key

        if not revoke_key(path, name):
            raise Failure(errors.NOT_FOUND, "unknown_key", f"no key {name!r} in {path}")
        settings.output.note(RELOAD)
    if settings.output.form == "table":
        settings.output.note(f"revoked {name}")
    else:
        settings.output.items([Column("revoked")], [{"revoked": name}])
