"""Durable subscriptions of all protocols: how far behind they are, what is pending, where they go on."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from engine.cursors.documents import REDRIVE_OWNER
from engine.errors import Corrupt
from engine.partitions.extent import Extent
from engine.positions import parse
from engine.reports import report
from netserver.admin.slices import sliced
from netserver.console.connections import place_of
from netserver.console.limits import CONSOLE_ROWS
from netserver.console.pages import Answer, GoTo, Page, Visit
from netserver.http.errors import BadRequest

if TYPE_CHECKING:
    from engine.cursors.entries import Entry
    from netserver.admin.access import SubscriptionsApi
    from netserver.admin.api import Api
    from netserver.admin.served import Served


class SubscriptionViews:
    """See the module."""

    def __init__(self, server: Served, api: Api, subscriptions: SubscriptionsApi) -> None:
        self._server = server
        self._api = api
        self._subscriptions = subscriptions

    def views(self) -> dict[str, Callable[[Visit], Awaitable[Answer]]]:
        """By their entries in the table of rights."""
        return {
            "GET subscriptions": self.page,
            "GET subscriptions/NAME": self.show,
            "POST subscriptions/NAME/reset": self.reset,
            "POST subscriptions/NAME/redrive": self.redrive,
            "POST subscriptions/NAME/delete": self.delete,
        }

    async def page(self, visit: Visit) -> Answer:
        """A page of them, oldest first: those whose topic or group holds a text."""
        wanted, at = visit.query.get("text", "").encode("utf-8", "surrogateescape"), place_of(visit)
        items: list[dict[str, Any]] = []
        count = 0
        async for entry in sliced(self._server.log.slices, self._server.log.cursors.entries()):
            topic = self._server.log.catalog.by_id(entry.topic_id)
            name = topic.name if topic is not None else b""
            if entry.owner == REDRIVE_OWNER or not (wanted in name or wanted in entry.name):
                continue
            if at <= count < at + CONSOLE_ROWS:
                items += await self._item(entry)
            count += 1
        values = {"items": items, "wanted": visit.query.get("text", ""), "at": at, "total": count, "rows": CONSOLE_ROWS}
        return Page("subscriptions.html", "Subscriptions", values)

    async def show(self, visit: Visit) -> Answer:
        """One of them, with what it has delivered and nobody acknowledged."""
        number = visit.parts[1]
        item = _named(await self._subscriptions.show(number))
        pending = (await self._subscriptions.pending(number))["items"]
        values = {"item": item, "pending": list(islice(pending, CONSOLE_ROWS)), "pending_count": len(pending)}
        return Page("subscription.html", f"Subscription {item['id']}", values)

    async def reset(self, visit: Visit) -> Answer:
        """Go on at another position; first it is shown how many records come again or are passed over."""
        number = visit.parts[1]
        item = _named(await self._subscriptions.show(number))
        partition = await self._api.opened(self._api.find(item["topic"]), item["partition"])
        try:
            position = parse(visit.form.get("position", ""))
        except ValueError as error:
            raise BadRequest(f"The position is not understood: {error}") from None
        next_seq = min(position.resolve(Extent(partition)), partition.committed_seq + 1)
        if visit.form.get("sure") != str(next_seq):
            old, count = item["next_offset"], partition.gaps.count
            values = {
                "item": item,
                "position": visit.form["position"],
                "next_seq": next_seq,
                "again": count(next_seq, old - 1).most,
                "passed": count(old, next_seq - 1).most,
            }
            return Page("reset.html", f"Reset subscription {item['id']}?", values)
        await self._subscriptions.reset(number, {"next_offset": next_seq})
        return GoTo(("subscriptions", number), f"It goes on at {next_seq}.")

    async def redrive(self, visit: Visit) -> Answer:
        """Append its dead letters to its topic once more."""
        limit = visit.form.get("limit", "")
        if limit and not (limit.isascii() and limit.isdigit() and len(limit) < 19):
            raise BadRequest("limit must be a number")
        done = await self._subscriptions.redrive(visit.parts[1], {"limit": int(limit)} if limit else {})
        return GoTo(("subscriptions", visit.parts[1]), f"{done['redriven']} dead letters were appended once more.")

    async def delete(self, visit: Visit) -> Answer:
        """Remove it."""
        if visit.form.get("typed", "").encode() != visit.parts[1]:
            raise BadRequest("The number that was typed is another one: nothing was removed")
        await self._subscriptions.delete(visit.parts[1])
        return GoTo(("subscriptions",), f"Removed subscription {visit.parts[1].decode()}.")

    # --- inside

    async def _item(self, entry: Entry) -> list[dict[str, Any]]:
        """As the API has it, but names as bytes; none when its entry is damaged."""
        try:
            return [_named(await self._subscriptions.item(entry))]
        except Corrupt as problem:
            report(str(problem))
            return []


def _named(item: dict[str, Any]) -> dict[str, Any]:
    """``topic`` and ``group`` as bytes or None, however they are written."""
    found = dict(item)
    for name in ("topic", "group"):
        encoded = found.pop(f"{name}_base64", None)
        text = found.get(name)
        found[name] = base64.b64decode(encoded) if encoded is not None else None if text is None else text.encode()
    return found
