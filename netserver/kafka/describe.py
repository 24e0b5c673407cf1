"""Groups of Kafka's consumers as documents of the one list of groups: from a running server, and from its files.

What a group has committed in a topic is a group there: one that reads several topics is in the list once for each. One
that has members and no offsets yet is in it without a topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from engine.cursors.lags import Lag, Standing

from .errors import FormatError
from .schema import Array, Field, Reader, Structure
from .tables import INT32S, STRING

if TYPE_CHECKING:
    from engine.segments.missing_numbers import Gaps

    from .committed import Committed, Offsets, Place
    from .coordinator import Group, Groups

PROTOCOL: Final = "kafka"
Document = dict[str, Any]
_VERSION: Final = Struct(">h")
_ASSIGNED: Final = Structure(
    [Field("topics", Array((Field("name", STRING), Field("partitions", INT32S))))], 0, flexible=False
)


class Consumers(NamedTuple):
    """What a server that speaks Kafka knows of groups: who is in them, and what they have committed."""

    groups: Groups
    offsets: Offsets

    def has_members(self, name: str) -> bool:
        """Whether somebody is in a group."""
        group = self.groups.get(name)
        return group is not None and bool(group.members)


def next_seq(committed: Committed) -> int:
    """The next record of a group. Clients commit what they like, also what is before the first record."""
    return max(committed.offset, 1)


def standing(place: Place, committed: Committed) -> Standing:
    """Where a group stands in a partition."""
    return Standing(PROTOCOL, *place, next_seq(committed) - 1, next_seq(committed), 0)


def group_item(name: str, topic: str | None, positions: Mapping[int, tuple[Committed, Lag]]) -> Document:
    """A group in a topic (``engine.cursors.groups``), by partition; its positions have no ids, and nothing is pending.

    ``state`` and ``members`` are null: who is in a group is known to a running server alone (``membership``).
    """
    lags = [lag for _, lag in positions.values()]
    return {
        "name": name,
        "protocol": PROTOCOL,
        "topic": topic,
        "unacknowledged": 0,
        "lag": _all(sum, [lag.records for lag in lags]),
        "lag_seconds": _all(max, [lag.seconds for lag in lags]),
        "lag_trend": _all(sum, [lag.trend for lag in lags]),
        "created_ms": None,
        "used_ms": max((committed.at_ms for committed, _ in positions.values()), default=None),
        "positions": [_position(index, *positions[index]) for index in sorted(positions)],
        "state": None,
        "members": None,
    }


def _position(index: int, committed: Committed, lag: Lag) -> Document:
    return {
        "id": None,
        "partition": index,
        "next_offset": next_seq(committed),
        "acknowledged_offset": next_seq(committed) - 1,
        "unacknowledged": 0,
        "lag": lag.records,
        "lag_seconds": lag.seconds,
        "lag_trend": lag.trend,
        "paused": False,
    }


def _all(combine: Any, values: list[Any]) -> Any:
    """What is not known of one position is not known of the group."""
    return None if None in values or not values else combine(values)


def membership(group: Group | None, topic: str | None) -> Document:
    """Who is in a group::

    {"state": as Kafka calls it, "members": [{"id", "instance": or null, "client_id", "host",
                                              "partitions": those of the topic that it was told to read}]}
    """
    members = group.members.values() if group is not None else ()
    return {
        "state": group.state if group is not None else "Empty",
        "members": [
            {
                "id": one.id,
                "instance": one.instance,
                "client_id": one.client_id,
                "host": one.host,
                "partitions": assigned(one.assignment).get(topic or "", []),
            }
            for one in members
        ],
    }


def assigned(data: bytes) -> dict[str, list[int]]:
    """What a consumer was told to read: partitions by topic. Members may agree on another form: empty then."""
    try:
        topics = _ASSIGNED.read(Reader(memoryview(data), _VERSION.size))["topics"]
    except FormatError:
        return {}
    return {one["name"]: sorted(one["partitions"]) for one in topics}


def reset_item(index: int, committed: Committed, to_seq: int, gaps: Gaps) -> Document:
    """What a reset of a position to a number means (``engine.cursors.documents.reset_item``)."""
    before = next_seq(committed)
    return {
        "id": None,
        "partition": index,
        "from_offset": before,
        "next_offset": to_seq,
        "again": gaps.count(to_seq, before - 1).most,
        "passed": gaps.count(before, to_seq - 1).most,
    }
