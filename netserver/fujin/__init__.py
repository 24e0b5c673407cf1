"""Fujin: the server's side (``codec``, ``frames``, ``session``, ``listener``) and the Python client, which this package
exports.

::

    from netserver import fujin

    async with fujin.connect("127.0.0.1:4848", ca="data/fujin-certificate.pem") as client:
        await client.publish("orders", b"one")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from netserver.client.lazy import exported_from

if TYPE_CHECKING:
    from netserver.fujin.client import Client, Message, MessageBatch, Subscription, Transaction, connect

__all__ = ["Client", "Message", "MessageBatch", "Subscription", "Transaction", "connect"]

__getattr__ = exported_from(__name__, "client")
