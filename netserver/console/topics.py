"""Topics: a list with filter and pages, one topic with its partitions and settings, and what operators change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from engine.config import TopicConfig, spelled, spelled_settings
from engine.config import settings as topic_settings
from engine.cursors.documents import REDRIVE_OWNER
from netserver.admin.globs import MAGIC, matcher
from netserver.admin.slices import sliced
from netserver.console.formatting import name_text, part_of_path
from netserver.console.limits import CONSOLE_PARTITIONS_SUMMED, CONSOLE_ROWS
from netserver.console.lists import part_of
from netserver.console.pages import Answer, GoTo, Page, Visit
from netserver.http.errors import BadRequest

if TYPE_CHECKING:
    from engine.state.topic_entries import Topic
    from netserver.admin.api import Api, Document
    from netserver.admin.served import Served

DEFAULT: Final = "default"
UNCHANGED: Final = ""


class TopicViews:
    """See the module."""

    def __init__(self, server: Served, api: Api) -> None:
        self._server = server
        self._api = api

    def views(self) -> dict[str, Callable[[Visit], Awaitable[Answer]]]:
        """By their entries in the table of rights."""
        return {
            "GET topics": self.page,
            "POST topics": self.create,
            "GET topics/TOPIC": self.topic,
            "POST topics/TOPIC/settings": self.change,
            "POST topics/TOPIC/trim": self.trim,
            "POST topics/TOPIC/delete": self.delete,
        }

    async def page(self, visit: Visit) -> Answer:
        """A page of topics: all, or those whose name matches or holds a text."""
        log, wanted = self._server.log, visit.query.get("name", "")
        names = (topic.name for topic in log.catalog)
        part = await part_of(log.slices, _matching(names, wanted), CONSOLE_ROWS, *marks_of(visit.query))
        topics = [topic for name in part.keys if (topic := log.catalog.get(name)) is not None]
        values = {
            "rows": await self._rows(topics),
            "part": part,
            "wanted": wanted,
            "before": mark_text(part.before),
            "after": mark_text(part.after),
        }
        return Page("topics.html", "Topics", values)

    async def topic(self, visit: Visit) -> Answer:
        """One topic."""
        topic = self._api.find(visit.parts[1])
        first = _number(visit.query.get("partition", "0"), topic.partition_count - 1)
        indexes = range(first, min(first + CONSOLE_ROWS, topic.partition_count))
        values = {
            "topic": topic,
            "partitions": await self._partitions(topic, indexes),
            "first": first,
            "next_first": indexes.stop if indexes.stop < topic.partition_count else None,
            "row": (await self._rows([topic]))[0],
            "settings": _settings(topic),
            "groups": await self._groups(topic),
        }
        return Page("topic.html", name_text(topic.name), values)

    async def create(self, visit: Visit) -> Answer:
        """A new topic."""
        name, count = visit.form.get("name", ""), visit.form.get("partitions", "1")
        if not count.isascii() or not count.isdigit():
            raise BadRequest("partitions must be a number")
        await self._api.create_topic({"name": name, "partitions": int(count[:10])})
        return GoTo(("topics", name.encode()), f"Made {name}.")

    async def change(self, visit: Visit) -> Answer:
        """Other settings; an empty field leaves one as it is."""
        topic = self._api.find(visit.parts[1])
        changes = {name: value for name, value in visit.form.items() if value != UNCHANGED}
        if not changes:
            return GoTo(("topics", topic.name), "Nothing was changed.")
        before = spelled_settings(topic.settings)
        await self._api.configure_topic(topic.name, {"config": changes})
        now = spelled_settings(topic.settings)
        told = "; ".join(f"{name}: {before.get(name, DEFAULT)} → {now.get(name, DEFAULT)}" for name in changes)
        return GoTo(("topics", topic.name), f"Changed {told}.")

    async def trim(self, visit: Visit) -> Answer:
        """Raise the start of a partition's log."""
        topic = self._api.find(visit.parts[1])
        index, before = (_whole(visit.form, name) for name in ("partition", "before"))
        done = await self._api.trim(topic.name, {"partition": index, "before": before})
        told = f"Partition {index} begins with {done['first_offset']} now."
        return GoTo(("topics", topic.name), told)

    async def delete(self, visit: Visit) -> Answer:
        """Delete a topic whose name was typed."""
        topic = self._api.find(visit.parts[1])
        if visit.form.get("typed") != name_text(topic.name):
            raise BadRequest("The name that was typed is another one: nothing was deleted")
        await self._api.delete_topic(topic.name)
        return GoTo(("topics",), f"Deleted {name_text(topic.name)}.")

    # --- inside

    async def _rows(self, topics: Iterable[Topic]) -> list[dict[str, Any]]:
        """Sums over the partitions of each; None where there are too many of them to look."""
        listed = list(topics)
        looked = [topic for topic in listed if len(topic.numbers) <= CONSOLE_PARTITIONS_SUMMED]
        sizes = await self._api.closed_sizes((topic, index) for topic in looked for index in tuple(topic.numbers))
        rows = []
        for topic in listed:
            row: dict[str, Any] = {"topic": topic, "records": None, "size_bytes": None, "errors": 0}
            if len(topic.numbers) <= CONSOLE_PARTITIONS_SUMMED:
                numbers = sliced(self._server.log.slices, tuple(topic.numbers))
                items = [self._api.partition_item(topic, index, sizes) async for index in numbers]
                row["records"] = sum(map(_records, items))
                row["size_bytes"] = sum(item.get("size_bytes", 0) for item in items)
                row["errors"] = sum("error" in item for item in items)
            rows.append(row)
        return rows

    async def _partitions(self, topic: Topic, indexes: range) -> list[dict[str, Any]]:
        used = [index for index in indexes if index in topic.numbers]
        sizes = await self._api.closed_sizes((topic, index) for index in used)
        empty = {"records": 0, "size_bytes": 0, "first_offset": None, "next_offset": None, "error": ""}
        items = []
        async for index in sliced(self._server.log.slices, indexes):
            found = self._api.partition_item(topic, index, sizes) if index in topic.numbers else {"partition": index}
            items.append({**empty, **found, "records": _records(found)})
        return items

    async def _groups(self, topic: Topic) -> list[dict[str, Any]]:
        """Name and protocol of those of this topic; the first hundred."""
        found: dict[tuple[str, bytes], None] = {}
        async for entry in sliced(self._server.log.slices, self._server.log.cursors.entries()):
            if entry.topic_id == topic.id and entry.owner != REDRIVE_OWNER and len(found) < CONSOLE_ROWS:
                found[entry.owner, entry.name or b"%d" % entry.id] = None
        return [{"protocol": protocol, "name": name} for protocol, name in found]


def _matching(names: Iterable[bytes], wanted: str) -> Iterator[bytes]:
    """The names that match a pattern, or hold a text. Raises BadGlob."""
    if MAGIC.search(wanted):
        matches = matcher(wanted)
        return (name for name in names if matches(name.decode("utf-8", "surrogateescape")))
    needle = wanted.encode("utf-8", "surrogateescape")
    return (name for name in names if needle in name)


def marks_of(query: dict[str, str]) -> tuple[bytes | None, bytes | None]:
    """Where a page of a list begins or ends: (after, before)."""
    after, before = query.get("after"), query.get("before")
    return (None if after is None else unquote_to_bytes(after), None if before is None else unquote_to_bytes(before))


def mark_text(mark: bytes | None) -> str | None:
    """A mark as a parameter."""
    return None if mark is None else part_of_path(mark)


def _records(item: Document) -> int:
    if "records" in item:
        return int(item["records"])
    return max(int(item.get("next_offset", 1)) - int(item.get("first_offset", 1)), 0)


def _settings(topic: Topic) -> list[dict[str, str]]:
    """Every setting of a topic, its own or the server's default."""
    known, config = topic_settings(TopicConfig), topic.config.to_mapping()
    return [
        {"name": spelled(name, how), "value": config[name], "own": topic.settings.get(name, ""), "help": how.help}
        for name, how in known.items()
    ]


def _number(text: str, most: int) -> int:
    return min(int(text[:10]), most) if text.isascii() and text.isdigit() else 0


def _whole(form: dict[str, str], name: str) -> int:
    """Raises BadRequest."""
    text = form.get(name, "").replace(",", "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise BadRequest(f"{name} must be a number")
    return int(text)
