"""Groups: durable positions by name, of all protocols: how far behind they are, what is pending, where they go on."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from netserver.console.connections import place_of
from netserver.console.formatting import count_text, name_text
from netserver.console.lag_chart import lag_chart
from netserver.console.limits import CONSOLE_ROWS
from netserver.console.pages import Answer, GoTo, Page, Visit
from netserver.http.errors import BadRequest

if TYPE_CHECKING:
    from netserver.admin.access import SubscriptionsApi
    from netserver.admin.groups import GroupsApi


class GroupViews:
    """See the module."""

    def __init__(self, groups: GroupsApi, subscriptions: SubscriptionsApi) -> None:
        self._groups = groups
        self._subscriptions = subscriptions

    def views(self) -> dict[str, Callable[[Visit], Awaitable[Answer]]]:
        """By their entries in the table of rights."""
        return {
            "GET groups": self.page,
            "GET groups/NAME": self.show,
            "POST groups/NAME/reset": self.reset,
            "POST groups/NAME/redrive": self.redrive,
            "POST groups/NAME/delete": self.delete,
        }

    async def page(self, visit: Visit) -> Answer:
        """A page of them: those whose name or topic holds a text."""
        wanted, at = visit.query.get("text", ""), place_of(visit)
        items, total = await self._groups.groups_page(wanted, at, CONSOLE_ROWS)
        charts = [lag_chart(self._groups.lag_history(item)) for item in items]
        listed = [(item, which(item), chart) for item, chart in zip(map(_named, items), charts, strict=True)]
        values = {"items": listed, "wanted": wanted, "at": at, "total": total, "rows": CONSOLE_ROWS}
        return Page("groups.html", "Groups", values)

    async def show(self, visit: Visit) -> Answer:
        """One of them, with what it has delivered and nobody acknowledged."""
        found = await self._groups.show(visit.parts[1], visit.request.query)
        item, chart = _named(found), lag_chart(self._groups.lag_history(found))
        pending: list[dict[str, Any]] = []
        for position in item["positions"]:
            if position["id"] is not None and position["unacknowledged"] and len(pending) < CONSOLE_ROWS:
                runs = (await self._subscriptions.pending(b"%d" % position["id"]))["items"]
                pending += [{"partition": position["partition"], **run} for run in runs]
        values = {"item": item, "which": which(item), "pending": pending[:CONSOLE_ROWS], "positions_max": CONSOLE_ROWS}
        values["chart"] = chart
        return Page("group.html", f"Group {name_text(item['name'])}", values)

    async def reset(self, visit: Visit) -> Answer:
        """Go on at another position; first it is shown how many records come again or are passed over."""
        sure = "sure" in visit.form
        body = {"to": visit.form.get("position", ""), "dry_run": not sure}
        if "partition" in visit.form:
            body["partition"] = _whole(visit.form["partition"], "partition")
        done = await self._groups.reset(
            visit.parts[1], visit.request.query, body
        )  # at once: it is the one of the rights
        item = await self._item(visit)
        if not sure:
            values = {"item": item, "which": which(item), "done": done, "position": body["to"]}
            values["partition"] = visit.form.get("partition")
            return Page("reset.html", f"Reset group {name_text(item['name'])}?", values)
        told = f"Reset: {count_text(done['again'])} records come again, {count_text(done['passed'])} are passed over."
        return GoTo(("groups", item["name"]), told, which(item))

    async def redrive(self, visit: Visit) -> Answer:
        """Append its dead letters to its topic once more."""
        item = await self._item(visit)
        body = {"limit": _whole(visit.form["limit"], "limit")} if "limit" in visit.form else {}
        done = await self._groups.redrive(visit.parts[1], visit.request.query, body)
        told = f"{count_text(done['redriven'])} dead letters were appended once more."
        return GoTo(("groups", item["name"]), told, which(item))

    async def delete(self, visit: Visit) -> Answer:
        """Remove one whose name was typed."""
        name = name_text(visit.parts[1])
        if visit.form.get("typed") != name:
            raise BadRequest("The name that was typed is another one: nothing was removed")
        await self._groups.delete(visit.parts[1], visit.request.query)
        return GoTo(("groups",), f"Removed {name}.")

    async def _item(self, visit: Visit) -> dict[str, Any]:
        return _named(await self._groups.show(visit.parts[1], visit.request.query))


def which(item: dict[str, Any]) -> dict[str, str]:
    """What tells a group from others of its name, as parameters of its page."""
    try:
        return {"protocol": item["protocol"], "topic": item["topic"].decode()}
    except (AttributeError, UnicodeDecodeError):
        return {"protocol": item["protocol"]}


def _named(item: dict[str, Any]) -> dict[str, Any]:
    """``name`` and ``topic`` as bytes or None, however they are written."""
    found = dict(item)
    for name in ("name", "topic"):
        encoded, text = found.pop(f"{name}_base64", None), found.get(name)
        if encoded is not None:
            found[name] = base64.b64decode(encoded)
        else:
            found[name] = None if text is None else text.encode("utf-8", "surrogateescape")
    return found


def _whole(text: str, name: str) -> int:
    """Raises BadRequest."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BadRequest(f"{name} must be a number")
    return int(text)
