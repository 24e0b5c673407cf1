"""`keys`: identities and their rights, in the server's access file or in a file named here."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from netserver.access.key_file import LISTENERS
from netserver.access.rights import QUOTA_NAMES, Right, Role
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
    Column("known_by", "KNOWN BY", show=lambda ways: ", ".join(ways) or "-"),
    Column("publish", show=_globs),
    Column("subscribe", show=_globs),
    Column("manage", show=_globs),
    Column("role", show=lambda value: value or "-"),
    Column("created_ms", "CREATED", show=time_text),
)


def _key_file(ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """The file that was named; that of the environment where the command line names no log."""
    settings = ctx.ensure_object(Settings)
    named = (settings.data_dir, settings.server, settings.context) != (None, None, None)
    variable = settings.environment.get("QUINTLOG_ACCESS_FILE") or settings.environment.get("QUINTLOG_BLIPMQ_KEY_FILE")
    return Path(variable) if path is None and variable and not named else path


FILE_OPTION = click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_key_file,
    help="Work on this file [QUINTLOG_ACCESS_FILE], not through a server.",
)
RELOAD = "a running server takes the change over when it reloads (SIGHUP)"


@click.group(cls=Group)
def keys() -> None:
    """Say who may do what: identities, their keys and rights.

    Through the server, whose file ([access] file) is changed and counts at once; with --file on that file.
    """


def _server(settings: Settings) -> Admin:
    return need_admin(settings, "--file FILE works on a key file")


@keys.command("list")
@FILE_OPTION
@click.pass_obj
def list_keys(settings: Settings, path: Path | None) -> None:
    """List the identities of the file with their rights; the keys themselves are not stored anywhere."""
    if path is None:
        items = list(_server(settings).call("GET", "/v1/keys").get("items", []))
    else:
        from netserver.access.key_file import key_item, read_key_file

        items = [key_item(key) for key in read_key_file(path)]
    settings.output.items(COLUMNS, items)


@keys.command()
@click.argument("name")
@click.option("--publish", multiple=True, metavar="GLOB", help="Topics to publish to; as all of these any number.")
@click.option("--subscribe", multiple=True, metavar="GLOB", help="Topics to read.")
@click.option("--create", multiple=True, metavar="GLOB", help="Topics to make; default: those it publishes or reads.")
@click.option("--manage", multiple=True, metavar="GLOB", help="Topics to change, trim and delete.")
@click.option("--no-create", is_flag=True, help="It makes no topics, not by first use either.")
@click.option("--role", type=click.Choice([role.value for role in Role]), help="What it may do over admin HTTP.")
@click.option("--listener", "listeners", multiple=True, type=click.Choice(LISTENERS), help="It counts there only.")
@click.option("--certificate", "certificates", multiple=True, metavar="NAME", help="CN=.., DNS:..: no key then.")
@click.option("--network", "networks", multiple=True, metavar="NET", help="Its addresses (10.0.0.0/8): no key then.")
@click.option("--anyone", is_flag=True, help="It is whoever is nobody else: no key then.")
@click.option("--quota", "quotas", multiple=True, metavar="NAME=N", help=f"A bound: {', '.join(QUOTA_NAMES)}.")
@FILE_OPTION
@click.pass_obj
def add(settings: Settings, /, name: str, path: Path | None, **options: Any) -> None:
    """Make an identity. Its key is printed, this once; with another way to be known by it has none.

    Without rights and role it may publish and read everything; with one of them, nothing else.
    """
    fields = _fields(name, **options)
    if path is None:
        key = str(_server(settings).call("POST", "/v1/keys", fields).get("key", ""))
    else:
        from netserver.access.key_file import add_identity, read_key_file

        if path.exists() and any(stored.identity.name == name for stored in read_key_file(path)):
            raise Failure(errors.CONFLICT, "key_exists", f"there is a key named {name!r} in {path}; revoke it first")
        key = add_identity(path, fields)
        settings.output.note(RELOAD)
    _tell(settings, name, key)


def _fields(
    name: str, *, no_create: bool, role: str | None, anyone: bool, quotas: tuple[str, ...], **lists: Any
) -> Any:
    """An identity as it stands in the file. Raises UsageError."""
    given = {key: list(value) for key, value in lists.items() if value}
    rights = {"publish", "subscribe", "create", "manage"}
    everything = ["*"] if not (rights & given.keys() or role) else []
    fields: dict[str, Any] = {"name": name, "publish": everything, "subscribe": everything} | given
    if no_create:
        fields["create"] = []
    if role:
        fields["role"] = str(role)
    if anyone:
        fields["anyone"] = True
    for quota in quotas:
        word, _, number = quota.partition("=")
        if word not in QUOTA_NAMES or not number.isdecimal():
            raise click.UsageError(f"--quota {quota}: expected NAME=N, NAME one of {', '.join(QUOTA_NAMES)}")
        fields.setdefault("quotas", {})[word] = int(number)
    return fields


def _tell(settings: Settings, name: str, key: str) -> None:
    """Print a new key, alone so that it can be piped; what has none is noted."""
    if settings.output.form != "table":
        item = {"name": name} | ({"key": key} if key else {})
        settings.output.items([Column("name"), Column("key")], [item])
    elif key:
        settings.output.write(key.encode() + b"\n")
        settings.output.flush()
    else:
        settings.output.note(f"added {name}, which has no key")


@keys.command()
@click.argument("name")
@click.option("--end-old", is_flag=True, help="The old key counts no longer, instead of until the next rotation.")
@FILE_OPTION
@click.pass_obj
def rotate(settings: Settings, name: str, end_old: bool, path: Path | None) -> None:
    """Make another key for a name and print it; the one before counts until the next rotation."""
    if path is None:
        body = {"end_old": end_old}
        key = str(_server(settings).call("POST", f"/v1/keys/{quote(name, safe='')}/rotate", body)["key"])
    else:
        from netserver.access.key_file import rotate_key

        try:
            key = rotate_key(path, name, keeps_old=not end_old)
        except KeyError:
            raise Failure(errors.NOT_FOUND, "unknown_key", f"no key {name!r} in {path}") from None
        settings.output.note(RELOAD)
    _tell(settings, name, key)


@keys.command()
@click.argument("name")
@click.argument("right", type=click.Choice([right.value for right in Right]))
@click.argument("topic")
@FILE_OPTION
@click.pass_obj
def test(settings: Settings, name: str, right: str, topic: str, path: Path | None) -> None:
    """Tell whether NAME has a right to a topic: may it publish there? Exit code 1: no."""
    if path is None:
        body = {"right": str(right), "topic": topic}
        allowed = bool(_server(settings).call("POST", f"/v1/keys/{quote(name, safe='')}/test", body)["allowed"])
    else:
        from netserver.access.key_file import read_key_file

        found = next((stored.identity for stored in read_key_file(path) if stored.identity.name == name), None)
        if found is None:
            raise Failure(errors.NOT_FOUND, "unknown_key", f"no key {name!r} in {path}")
        allowed = found.may(Right(right), topic.encode("utf-8", "surrogateescape"))
    item = {"name": name, "right": str(right), "topic": topic, "allowed": allowed}
    if settings.output.form == "table":
        settings.output.write(f"{name} {'may' if allowed else 'may not'} {right} {topic}\n".encode())
        settings.output.flush()
    else:
        settings.output.items([Column(word) for word in item], [item])
    if not allowed:
        raise SystemExit(1)


@keys.command()
@click.argument("name")
@FILE_OPTION
@click.pass_obj
def revoke(settings: Settings, name: str, path: Path | None) -> None:
    """Take an identity back; its connections end. Asks, or needs --yes."""
    confirm(settings, f"key {name} will be revoked", name)
    if path is None:
        _server(settings).call("DELETE", f"/v1/keys/{quote(name, safe='')}")
    else:
        from netserver.access.key_file import revoke_key

        if not revoke_key(path, name):
            raise Failure(errors.NOT_FOUND, "unknown_key", f"no key {name!r} in {path}")
        settings.output.note(RELOAD)
    if settings.output.form == "table":
        settings.output.note(f"revoked {name}")
    else:
        settings.output.items([Column("revoked")], [{"revoked": name}])
