"""BlipMQ: the asyncio client; the server's side is ``netserver.blipmq.session``."""

from netserver.blipmq.client import Client, connect
from netserver.blipmq.subscriber import Message, MessageBatch, Subscription

__all__ = ["Client", "Message", "MessageBatch", "Subscription", "connect"]
