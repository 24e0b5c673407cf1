"""Figg: the server's side (``codec``, ``frames``, ``session``) and the Python client, which this package exports.

::

    from netserver import figg

    async with figg.connect("127.0.0.1:8119") as client:
        await client.publish("orders", b"one")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from netserver.client.lazy import exported_from

if TYPE_CHECKING:
    from netserver.figg.client import EARLIEST, LATEST, Client, Record, RecordBatch, Start, Subscription, connect

__all__ = ["EARLIEST", "LATEST", "Client", "Record", "RecordBatch", "Start", "Subscription", "connect"]

__getattr__ = exported_from(__name__, "client")
