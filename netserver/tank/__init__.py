"""TANK: the asyncio client; the server's side is ``netserver.tank.session``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netserver.client.lazy import exported_from

if TYPE_CHECKING:
    from netserver.tank.client import Client, connect
    from netserver.tank.messages import PartitionRange, StatusResponse, TopicEntry
    from netserver.tank.records import EARLIEST, LATEST, Batching, Fetched, Part, Record, RecordBatch, Start, after
    from netserver.tank.subscriber import Subscription

__all__ = [
    "EARLIEST",
    "LATEST",
    "Batching",
    "Client",
    "Fetched",
    "Part",
    "PartitionRange",
    "Record",
    "RecordBatch",
    "Start",
    "StatusResponse",
    "Subscription",
    "TopicEntry",
    "after",
    "connect",
]

__getattr__ = exported_from(__name__, "client", "messages", "records", "subscriber")
