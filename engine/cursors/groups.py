"""Groups as documents: the durable positions of one name, one protocol and one topic (``engine.cursors.documents``).

A subscription without a name is a group of its own, and its id is its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Item = dict[str, Any]
COPIED = (
    "id", "partition", "next_offset", "acknowledged_offset", "unacknowledged", "lag", "lag_seconds", "lag_trend",
    "paused",
)  # fmt: skip


def grouped(items: Iterable[Item]) -> list[Item]:
    """The groups of positions, in the order of their first one."""
    found: dict[tuple[str, ...], list[Item]] = {}
    for item in items:
        parts = (item["protocol"], *name_of(item).items(), *_topic_of(item).items())
        found.setdefault(tuple(map(str, parts)), []).append(item)
    return [group_item(positions) for positions in found.values()]


def group_item(items: list[Item]) -> Item:
    """A group::

        {"name", "protocol", "topic": null when it was deleted, "unacknowledged", "lag": records that wait in all its
         partitions, or null, "lag_seconds": age of the oldest of them, or null, "lag_trend": records a second that the
         lag grows by, or null, "created_ms", "used_ms", "positions": [{"id", "partition", "next_offset",
         "acknowledged_offset", "unacknowledged", "lag", "lag_seconds", "lag_trend", "paused"}]}

    ``name`` and ``topic`` have ``_base64`` after their names where they are not UTF-8. What is not known of one
    position is not known of the group.

    Args:
        items: its positions, see ``entry_item``.
    """
    first = items[0]
    positions = sorted(items, key=lambda item: int(item["partition"]))
    return {
        **name_of(first),
        "protocol": first["protocol"],
        **_topic_of(first),
        "unacknowledged": sum(item["unacknowledged"] for item in items),
        "lag": _all(sum, [item["lag"] for item in items]),
        "lag_seconds": _all(max, [item["lag_seconds"] for item in items]),
        "lag_trend": _all(sum, [item["lag_trend"] for item in items]),
        "created_ms": min(item["created_ms"] for item in items),
        "used_ms": max(item["used_ms"] for item in items),
        "positions": [{key: item[key] for key in COPIED} for item in positions],
    }


def name_of(item: Item) -> dict[str, str]:
    """The name of a position's group: ``{"name": text}`` or ``{"name_base64": text}``."""
    if "group_base64" in item:
        return {"name_base64": item["group_base64"]}
    return {"name": str(item["id"]) if item["group"] is None else item["group"]}


def _topic_of(item: Item) -> dict[str, str | None]:
    return {key: item[key] for key in ("topic", "topic_base64") if key in item}


def _all(combine: Any, values: list[Any]) -> Any:
    return None if None in values else combine(values)
