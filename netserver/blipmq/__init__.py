"""BlipMQ: the asyncio client; the server's side is ``netserver.blipmq.session``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netserver.client.lazy import exported_from

if TYPE_CHECKING:
    from netserver.blipmq.client import EARLIEST, Client, connect
    from netserver.blipmq.subscriber import Message, MessageBatch, Subscription

__all__ = ["EARLIEST", "Client", "Message", "MessageBatch", "Subscription", "connect"]

__getattr__ = exported_from(__name__, "client", "subscriber")
