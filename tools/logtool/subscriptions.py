"""`subscriptions`: list, show, pending, reset, pause, resume, redrive, delete."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from engine.positions import Position
from tools.logtool.cli import Group, Settings
from tools.logtool.lib import errors
from tools.logtool.lib.address import admin_of
from tools.logtool.lib.changes import changes
from tools.logtool.lib.completing import complete_subscription
from tools.logtool.lib.errors import Failure
from tools.logtool.lib.output import (
    Column,
    Output,
    behind_text,
    count_text,
    name_text,
    number,
    time_text,
    trend_text,
)
from tools.logtool.lib.positions import POSITION
from tools.logtool.lib.stored_subscriptions import StoredSubscriptions
from tools.logtool.lib.watching import watchable
from tools.logtool.topics import confirm, extent, topic_of

if TYPE_CHECKING:
    from engine.cursors.stored_cursors import Entry


def _known(value: Any) -> str:
    return "-" if value is None else str(value)


COLUMNS = (
    number("id"),
    Column("protocol"),
    Column("group", show=_known),
    Column("topic", show=_known),
    number("qos", "QOS"),
    number("next_offset", "NEXT"),
    number("acknowledged_offset", "ACKED"),
    number("unacknowledged", "UNACKED"),
    number("lag", show=_known),
    number("lag_seconds", "BEHIND", show=behind_text),
    number("lag_trend", "TREND", show=trend_text),
    Column("paused", show=lambda paused: "yes" if paused else "-"),
    Column("used_ms", "USED", show=time_text),
)
PENDING_COLUMNS = (
    number("first_offset", "FIRST"),
    number("last_offset", "LAST"),
    number("first_tag", "TAG"),
    number("records"),
    number("deliveries"),
    Column("state"),
    number("due_ms", "DUE", show=lambda value: "-" if value is None else f"{value} ms"),
)


class _Id(click.IntRange):
    """The number of a subscription; a name says where names are taken."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not value.lstrip("+-").isdigit():
            text = f"{value!r} is no number: a subscription has an ID (`logtool subscriptions list`), a group a NAME"
            self.fail(f"{text} (`logtool groups {ctx.info_name if ctx else ''} NAME`)", param, ctx)
        return super().convert(value, param, ctx)


ID = _Id(1)


@click.group(cls=Group)
def subscriptions() -> None:
    """List, show and change durable subscriptions by number: BlipMQ's, and the positions of groups.

    `logtool groups` does the same by name.
    """


# --- where they are


def _ask(settings: Settings, path: str) -> dict[str, Any] | None:
    """What the server that runs on the address says; None: none runs on the directory."""
    admin = admin_of(settings)
    return admin.call("GET", path) if admin is not None else None


def _entry(stored: StoredSubscriptions, subscription_id: int) -> Entry:
    for entry in stored.entries:
        if entry.id == subscription_id:
            return entry
    hint = "`logtool subscriptions list` shows what is there"
    raise Failure(errors.NOT_FOUND, "unknown_subscription", f"no subscription {subscription_id}", hint)


def _show(settings: Settings, subscription_id: int) -> dict[str, Any]:
    found = _ask(settings, f"/v1/subscriptions/{subscription_id}")
    if found is not None:
        return found
    stored = StoredSubscriptions(settings)
    return stored.item(_entry(stored, subscription_id))


# --- looking


@subscriptions.command("list")
@click.argument("pattern", metavar="[GLOB]", required=False)
@watchable
@click.pass_obj
def list_subscriptions(settings: Settings, pattern: str | None) -> None:
    """List the subscriptions, or those of topics whose name matches GLOB (*, ?, [..]). From server or files.

    BEHIND is the time since the oldest record was appended that waits, TREND by how many records a second the lag
    grows; a server has to have run for some seconds to know that.
    """
    path = "/v1/subscriptions" + (f"?topic={quote(pattern, errors='surrogateescape')}" if pattern else "")
    answer = _ask(settings, path)
    if answer is not None:
        items = list(answer.get("items", []))
    else:
        stored = StoredSubscriptions(settings)
        items = [stored.item(entry) for entry in stored.entries]
        if pattern is not None:
            items = [item for item in items if fnmatchcase(topic_of(item).decode("utf-8", "surrogateescape"), pattern)]
    if settings.output.form == "table":
        for item in items:
            item["topic"] = name_text(topic_of(item)) or "-"
            item.setdefault("group", item.get("group_base64"))
    settings.output.items(COLUMNS, items)


@subscriptions.command()
@click.argument("subscription_id", metavar="ID", type=ID, shell_complete=complete_subscription)
@click.pass_obj
def show(settings: Settings, subscription_id: int) -> None:
    """Show one subscription. From server or files."""
    item = _show(settings, subscription_id)
    if settings.output.form != "table":
        settings.output.items(COLUMNS, [item])
        return
    item["topic"] = name_text(topic_of(item)) or "-"
    item.pop("log", None)
    for name in ("created", "used"):
        item[name] = time_text(item.pop(f"{name}_ms"))
    item["lag_seconds"], item["lag_trend"] = behind_text(item["lag_seconds"]), trend_text(item["lag_trend"])
    settings.output.fields({key: _known(value) for key, value in item.items()})


@subscriptions.command()
@click.argument("subscription_id", metavar="ID", type=ID, shell_complete=complete_subscription)
@click.pass_obj
def pending(settings: Settings, subscription_id: int) -> None:
    """Show what a subscription has delivered and nobody has acknowledged. From server or files."""
    answer = _ask(settings, f"/v1/subscriptions/{subscription_id}/pending")
    if answer is not None:
        items = list(answer.get("items", []))
    else:
        from engine.cursors.documents import pending_items

        items = pending_items(_entry(StoredSubscriptions(settings), subscription_id))
    settings.output.items(PENDING_COLUMNS, items)


# --- changing


@subscriptions.command()
@click.argument("subscription_id", metavar="ID", type=ID, shell_complete=complete_subscription)
@click.option("--to", "position", type=POSITION, required=True, metavar="POS", help="The next record to deliver.")
@click.option("--dry-run", is_flag=True, help="Show where it would go on, and change nothing.")
@click.pass_obj
def reset(settings: Settings, subscription_id: int, position: Position, dry_run: bool) -> None:
    """Let a subscription go on somewhere else; what it had delivered and acknowledged is forgotten.

    Through the server, or on the files when none is running. Asks, or needs --yes.
    """
    item = _show(settings, subscription_id)
    if item.get("topic") is None and "topic_base64" not in item:
        raise Failure(errors.CONFLICT, "no_topic", f"the topic of subscription {subscription_id} was deleted")
    around = extent(settings, topic_of(item), item["partition"])
    target = min(position.resolve(around), around.committed_seq + 1)
    plan = f"subscription {subscription_id} goes on at {target}, until now at {item['next_offset']}"
    if dry_run:
        settings.output.note(f"would be changed: {plan}")
    else:
        confirm(settings, plan, str(subscription_id))
        with changes(settings) as change:
            change.reset_subscription(subscription_id, target)
    _done(settings.output, "nothing was changed" if dry_run else plan, id=subscription_id, next_offset=target)


@subscriptions.command()
@click.argument("subscription_id", metavar="ID", type=ID, shell_complete=complete_subscription)
@click.pass_obj
def pause(settings: Settings, subscription_id: int) -> None:
    """Have a subscription deliver nothing until it is resumed, over restarts. Through the server, or on the files."""
    with changes(settings) as change:
        change.pause_subscription(subscription_id, True)
    _done(settings.output, f"paused {subscription_id}", id=subscription_id, paused=True)


@subscriptions.command()
@click.argument("subscription_id", metavar="ID", type=ID, shell_complete=complete_subscription)
@click.pass_obj
def resume(settings: Settings, subscription_id: int) -> None:
    """Have a paused subscription go on where it stood. Through the server, or on the files."""
    with changes(settings) as change:
        change.pause_subscription(subscription_id, False)
    _done(settings.output, f"resumed {subscription_id}", id=subscription_id, paused=False)


@subscriptions.command()
@click.argument("subscription_id", metavar="ID", type=ID, shell_complete=complete_subscription)
@click.option("--from", "source", metavar="TOPIC", help="The dead-letter topic; the server knows it.")
@click.option("--to", "target", metavar="TOPIC", help="Where they go; the subscription's topic.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many.")
@click.pass_obj
def redrive(
    settings: Settings, subscription_id: int, source: str | None, target: str | None, limit: int | None
) -> None:
    """Publish the dead letters of a subscription once more, each once, the oldest first.

    Every subscription of the topic gets them, unless --to names another one. What was redriven before is passed over.
    Through the server, or on the files (with --from) when none is running.
    """
    with changes(settings) as change:
        count = change.redrive(subscription_id, _name(source), _name(target), limit)
    _done(settings.output, f"redrove {count_text(count, 'record')}", id=subscription_id, redriven=count)


@subscriptions.command()
@click.argument("subscription_id", metavar="ID", type=ID, shell_complete=complete_subscription)
@click.pass_obj
def delete(settings: Settings, subscription_id: int) -> None:
    """Remove a subscription; its id is never used again. Through the server, or on the files. Asks, or needs --yes."""
    item = _show(settings, subscription_id)
    what = f"subscription {subscription_id} of {name_text(topic_of(item)) or 'a deleted topic'} will be removed"
    confirm(settings, what, str(subscription_id))
    with changes(settings) as change:
        change.delete_subscription(subscription_id)
    _done(settings.output, f"removed {subscription_id}", deleted=subscription_id)


def _name(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")


def _done(output: Output, text: str, **fields: Any) -> None:
    if output.form == "table":
        output.note(text)
    else:
        output.items([Column(key) for key in fields], [fields])
