"""`groups`: list, show, create, reset, pause, resume, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import wraps
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import click

from engine.positions import Position
from tools.logtool.cli import Group, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.address import Admin, admin_of
from tools.logtool.lib.changes import changes
from tools.logtool.lib.completing import complete_topic
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.output import (
    Column,
    behind_text,
    count_text,
    name_text,
    number,
    printable,
    time_text,
    trend_text,
)
from tools.logtool.lib.positions import POSITION
from tools.logtool.lib.watching import watchable
from tools.logtool.topics import confirm, extent, topic_of

if TYPE_CHECKING:
    from tools.logtool.lib.stored_subscriptions import StoredSubscriptions

Item = dict[str, Any]
SESSIONS = "reliably"
KAFKA = "kafka"


def _known(value: Any) -> str:
    return "-" if value is None else str(value)


def _paused(positions: list[Item]) -> str:
    """Whether a group is paused, in words: it may be in some partitions only."""
    count = sum(bool(one["paused"]) for one in positions)
    return "-" if not count else "yes" if count == len(positions) else f"{count} of {len(positions)}"


COLUMNS = (
    Column("name"),
    Column("protocol"),
    Column("topic", show=_known),
    number("partitions"),
    number("unacknowledged", "UNACKED"),
    number("lag", show=_known),
    number("lag_seconds", "BEHIND", show=behind_text),
    number("lag_trend", "TREND", show=trend_text),
    Column("paused", show=_known),
    Column("used_ms", "USED", show=lambda value: "-" if value is None else time_text(value)),
)
POSITION_COLUMNS = (
    number("partition"),
    number("id", show=_known),
    number("next_offset", "NEXT"),
    number("acknowledged_offset", "ACKED", show=_known),
    number("unacknowledged", "UNACKED"),
    number("lag", show=_known),
    number("lag_seconds", "BEHIND", show=behind_text),
    number("lag_trend", "TREND", show=trend_text),
    Column("paused", show=lambda paused: "yes" if paused else "-"),
)
MEMBER_COLUMNS = (
    Column("id", "MEMBER"),
    Column("client_id", "CLIENT"),
    Column("host"),
    Column("partitions", show=lambda numbers: ",".join(map(str, numbers)) or "-"),
)
RESET_COLUMNS = (
    number("partition"),
    number("from_offset", "FROM"),
    number("next_offset", "TO"),
    number("again"),
    number("passed"),
)


@click.group(cls=Group)
def groups() -> None:
    """Durable positions by name: of Fujin, BlipMQ, reliably (sessions of topics), Kafka and HTTP consumers."""


def which(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which of several groups of a name is meant; they come as one mapping."""

    @click.option("--protocol", metavar="NAME", help="blipmq, fujin, http, kafka or reliably.")
    @click.option("--topic", metavar="NAME", help="The one of this topic.", shell_complete=complete_topic)
    @wraps(function)
    def wrapped(protocol: str | None, topic: str | None, **rest: Any) -> Any:
        given = {"protocol": protocol, "topic": topic}
        return function(meant={key: value for key, value in given.items() if value is not None}, **rest)

    return wrapped


# --- where they are


def _path(name: str, meant: dict[str, str]) -> str:
    query = f"?{urlencode(meant, errors='surrogateescape')}" if meant else ""
    return f"/v1/groups/{quote(name, safe='', errors='surrogateescape')}{query}"


def _stored(stored: StoredSubscriptions) -> Iterator[Item]:
    """The groups of the directory's files."""
    from engine.cursors.groups import grouped

    yield from grouped(map(stored.item, stored.entries))
    yield from stored.session_groups()
    yield from stored.kafka_groups()


def _name(item: Item) -> str:
    return name_text(topic_of({"topic": item.get("name"), **_base64(item)}))


def _base64(item: Item) -> Item:
    return {"topic_base64": item["name_base64"]} if "name_base64" in item else {}


def _find(settings: Settings, name: str, meant: dict[str, str]) -> tuple[Item, StoredSubscriptions | None]:
    """The group that is meant, and the files that it is from, if it is."""
    from tools.logtool.lib.stored_subscriptions import StoredSubscriptions

    admin = admin_of(settings)
    if admin is not None:
        return admin.call("GET", _path(name, meant)), None
    stored = StoredSubscriptions(settings)
    found = [
        item
        for item in _stored(stored)
        if _name(item) == name
        and meant.get("protocol") in (None, item["protocol"])
        and meant.get("topic") in (None, name_text(topic_of(item)))
    ]
    if not found:
        hint = "`logtool groups list` shows what is there"
        raise Failure(errors.NOT_FOUND, "unknown_group", f"no group {printable(name)!r}", hint)
    if len(found) > 1:
        text = f"{len(found)} groups are called {printable(name)!r}"
        raise Failure(errors.CONFLICT, "conflict", text, "say which by --protocol or --topic")
    return found[0], stored


def _server(settings: Settings, stored: StoredSubscriptions | None) -> Admin | None:
    """Through which a group is changed, by its name; None: it was found in the files, and is changed there."""
    return admin_of(settings) if stored is None else None


def _call(admin: Admin, name: str, meant: dict[str, str], action: str, body: Item | None = None) -> Item:
    path, _, query = _path(name, meant).partition("?")
    return admin.call("POST", f"{path}/{action}?{query}", body)


# --- looking


@groups.command("list")
@click.argument("pattern", metavar="[GLOB]", required=False)
@which
@watchable
@click.pass_obj
def list_groups(settings: Settings, pattern: str | None, meant: dict[str, str]) -> None:
    """List the groups, or those whose name matches GLOB (*, ?, [..]). From server or files.

    A subscription without a name has its id for one, a session its uuid. BEHIND is the time since the oldest record was
    appended that waits, TREND by how many records a second the lag grows.
    """
    from tools.logtool.lib.stored_subscriptions import StoredSubscriptions

    admin = admin_of(settings)
    if admin is not None:
        items = list(admin.call("GET", "/v1/groups").get("items", []))
    else:
        items = list(_stored(StoredSubscriptions(settings)))
    found = [
        item
        for item in items
        if (pattern is None or fnmatchcase(_name(item), pattern))
        and meant.get("protocol") in (None, item["protocol"])
        and meant.get("topic") in (None, name_text(topic_of(item)))
    ]
    found.sort(key=lambda item: (_name(item), item["protocol"], topic_of(item)))
    if settings.output.form in ("table", "csv"):
        found = [
            item
            | {"name": _name(item), "topic": name_text(topic_of(item)), "partitions": len(item["positions"])}
            | {"paused": _paused(item["positions"])}
            for item in found
        ]
    settings.output.items(COLUMNS, found)


@groups.command()
@click.argument("name")
@which
@watchable
@click.pass_obj
def show(settings: Settings, name: str, meant: dict[str, str]) -> None:
    """Show one group with its position in each partition. From server or files.

    Of a group of Kafka's consumers also who is in it, and which partitions each reads, as the server knows it.
    """
    item, _ = _find(settings, name, meant)
    if settings.output.form == "table":
        settings.output.items(POSITION_COLUMNS, item["positions"])
        if item.get("members"):
            settings.output.items(MEMBER_COLUMNS, item["members"])
    else:
        settings.output.items(COLUMNS, [item])


# --- changing


@groups.command()
@click.argument("name")
@click.argument("topic", shell_complete=complete_topic)
@click.option("--from", "start", type=POSITION, default="earliest", metavar="POS", help="Begin here; earliest.")
@click.pass_obj
def create(settings: Settings, name: str, topic: str, start: Position) -> None:
    """Make a group of HTTP consumers of TOPIC: they read /v1/groups/NAME/records and commit where they are.

    Through the server, or on the files when none is running.
    """
    if not name or name.isdigit():
        raise Failure(errors.USAGE, "name", "a name of digits alone is that of a subscription; take another one")
    with changes(settings) as change:
        change.create_group(_bytes(name), _bytes(topic), start)
    _done(settings, f"made {printable(name)}", name=name)


@groups.command()
@click.argument("name")
@click.option("--to", "position", type=POSITION, required=True, metavar="POS", help="The next record to deliver.")
@click.option("--partition", type=click.IntRange(0), metavar="N", help="Only there.")
@click.option("--dry-run", is_flag=True, help="Show what it would mean, and change nothing.")
@which
@click.pass_obj
def reset(
    settings: Settings, name: str, position: Position, partition: int | None, dry_run: bool, meant: dict[str, str]
) -> None:
    """Let a group go on somewhere else; what it had delivered and acknowledged is forgotten.

    AGAIN counts the records that come once more, PASSED those that never come. Nobody may be in a group of Kafka's
    consumers. Through the server, or on the files when none is running. Asks, or needs --yes.
    """
    item, stored = _find(settings, name, meant)
    if item["protocol"] == SESSIONS:
        raise Failure(errors.CONFLICT, "conflict", "the position of a session moves by what its client acknowledges")
    if item["protocol"] == KAFKA and not item["positions"]:
        raise Failure(errors.CONFLICT, "conflict", f"{printable(name)!r} has committed nothing yet")
    if item.get("topic") is None and "topic_base64" not in item:
        raise Failure(errors.CONFLICT, "no_topic", f"the topic of {printable(name)!r} was deleted")
    wanted = [one for one in item["positions"] if partition in (None, one["partition"])]
    if not wanted:
        raise Failure(errors.NOT_FOUND, "unknown_partition", f"the group has no position in partition {partition}")
    admin = _server(settings, stored)
    body = {"to": position.text} | ({} if partition is None else {"partition": partition})
    if admin is not None:
        items = _call(admin, name, meant, "reset", body | {"dry_run": True})["positions"]
    else:
        assert stored is not None
        items = [_planned(settings, stored, item, one, position) for one in wanted]
    again, passed = (sum(one[key] for one in items) for key in ("again", "passed"))
    plan = f"{count_text(again, 'record')} {'comes' if again == 1 else 'come'} again, {passed} never"
    if not dry_run:
        confirm(settings, f"group {printable(name)}: {plan}", name)
        if admin is not None:
            items = _call(admin, name, meant, "reset", body)["positions"]
        else:
            with changes(settings) as change:
                if item["protocol"] == KAFKA:
                    offsets = {one["partition"]: one["next_offset"] for one in items}
                    change.reset_kafka_group(name, _bytes(item["topic"]), offsets)
                else:
                    for one in items:
                        change.reset_subscription(one["id"], one["next_offset"])
    settings.output.note(f"{'would be changed' if dry_run else 'changed'}: {plan}")
    settings.output.items(RESET_COLUMNS, items)


def _planned(settings: Settings, stored: StoredSubscriptions, item: Item, one: Item, position: Position) -> Item:
    """What a reset of one position of a group means, by the files."""
    around = extent(settings, topic_of(item), one["partition"])
    target = min(position.resolve(around), around.committed_seq + 1)
    if item["protocol"] == KAFKA:
        return stored.kafka_reset_item(item, one["partition"], target)
    return stored.reset_item(one["id"], target)


@groups.command()
@click.argument("name")
@which
@click.pass_obj
def pause(settings: Settings, name: str, meant: dict[str, str]) -> None:
    """Have a group deliver nothing until it is resumed, over restarts. Through the server, or on the files.

    What was delivered before can still be acknowledged. A session of reliably cannot be paused, nor a group of Kafka's
    consumers.
    """
    _pause(settings, name, meant, is_paused=True)


@groups.command()
@click.argument("name")
@which
@click.pass_obj
def resume(settings: Settings, name: str, meant: dict[str, str]) -> None:
    """Have a paused group go on where it stood. Through the server, or on the files."""
    _pause(settings, name, meant, is_paused=False)


def _pause(settings: Settings, name: str, meant: dict[str, str], *, is_paused: bool) -> None:
    item, stored = _find(settings, name, meant)
    if item["protocol"] == SESSIONS:
        raise Failure(errors.CONFLICT, "conflict", "a session sends what its client asks for: it cannot be paused")
    if item["protocol"] == KAFKA:
        text = "Kafka's consumers fetch what they like: their group cannot be paused"
        raise Failure(errors.CONFLICT, "conflict", text)
    admin = _server(settings, stored)
    if admin is not None:
        _call(admin, name, meant, "pause" if is_paused else "resume")
    else:
        with changes(settings) as change:
            for one in item["positions"]:
                change.pause_subscription(one["id"], is_paused)
    _done(settings, f"{'paused' if is_paused else 'resumed'} {printable(name)}", name=name, paused=is_paused)


@groups.command()
@click.argument("name")
@which
@click.pass_obj
def delete(settings: Settings, name: str, meant: dict[str, str]) -> None:
    """Remove a group with all its positions. Through the server, or on the files. Asks, or needs --yes.

    Nobody may be in a group of Kafka's consumers; what it has of other topics stays.
    """
    item, stored = _find(settings, name, meant)
    topic = name_text(topic_of(item)) or "a deleted topic"
    confirm(settings, f"{item['protocol']} group {printable(name)} of {topic} will be removed", name)
    admin = _server(settings, stored)
    if admin is not None:
        admin.call("DELETE", _path(name, meant))
    else:
        with changes(settings) as change:
            if item["protocol"] == SESSIONS:
                change.drop_session(name)
            if item["protocol"] == KAFKA:
                change.delete_kafka_group(name, _bytes(item["topic"]))
            for position in item["positions"]:
                if position["id"] is not None:
                    change.delete_subscription(position["id"])
    _done(settings, f"removed {printable(name)}", deleted=name)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _done(settings: Settings, text: str, **fields: Any) -> None:
    if settings.output.form == "table":
        settings.output.note(text)
    else:
        settings.output.items([Column(key) for key in fields], [fields])
