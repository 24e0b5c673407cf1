"""Sessions as documents, for the admin API and ``logtool``: the same from a running server and from the files."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from engine.cursors.lags import Lag, Standing
from engine.sessions.types import SessionInfo
from netserver.reliably.applications import RecordsState, State


def session_item(
    info: SessionInfo[State], topic_name: Callable[[int], bytes | None], is_served: bool = True
) -> dict[str, Any]:
    """A session::

        {"uuid", "application": "numbers" or "records", "left": messages to come or null,
         "last_id", "acknowledged_id", "unacknowledged", "stored_bytes", "connected", "expires_in_seconds"}

    and for records ``topic`` (null when it was deleted; ``topic_base64`` when it is not UTF-8) and ``offset``, that of
    the last message. ``connected`` and ``expires_in_seconds`` are null where no server runs.
    """
    state = info.state
    item: dict[str, Any] = {"uuid": info.uuid, "application": "numbers", "left": None}
    if isinstance(state, RecordsState):
        item["application"] = "records"
        item["left"] = state.left
        item |= _topic(topic_name(state.topic_id))
        item["offset"] = state.offset
    else:
        item["left"] = state.count
    return item | {
        "last_id": info.last_id,
        "acknowledged_id": info.acknowledged_id,
        "unacknowledged": info.last_id - info.acknowledged_id,
        "stored_bytes": info.stored_bytes,
        "connected": info.expires_in_s is None if is_served else None,
        "expires_in_seconds": round(info.expires_in_s, 1) if is_served and info.expires_in_s is not None else None,
    }


def session_standing(info: SessionInfo[RecordsState]) -> Standing:
    """Where a session of a topic stands. Its oldest record without an acknowledgement is not stored: it is as many
    numbers before the last one as there are such records, or even older where numbers were left out."""
    offset, unacknowledged = info.state.offset, info.last_id - info.acknowledged_id
    return Standing("reliably", info.state.topic_id, 0, max(offset - unacknowledged, 0), offset + 1, unacknowledged)


def session_group(info: SessionInfo[RecordsState], topic: bytes | None, lag: Lag) -> dict[str, Any]:
    """A session of a topic as a group (``engine.cursors.groups``); its name is its uuid, and its position has no id."""
    unacknowledged = info.last_id - info.acknowledged_id
    numbers: dict[str, Any] = {"unacknowledged": unacknowledged, "lag": lag.records}
    numbers |= {"lag_seconds": lag.seconds, "lag_trend": lag.trend}
    paused = {"paused": False}
    place = {"id": None, "partition": 0, "next_offset": info.state.offset + 1, "acknowledged_offset": None}
    return {
        "name": info.uuid,
        "protocol": "reliably",
        **_topic(topic),
        **numbers,
        "created_ms": None,
        "used_ms": None,
        "positions": [place | numbers | paused],
    }


def _topic(name: bytes | None) -> dict[str, Any]:
    if name is None:
        return {"topic": None}
    try:
        return {"topic": name.decode("utf-8")}
    except UnicodeDecodeError:
        return {"topic_base64": base64.b64encode(name).decode("ascii")}
