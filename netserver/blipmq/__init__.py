"""BlipMQ: the asyncio client; the server's side is ``netserver.blipmq.session``."""

from netserver.blipmq.client import EARLIEST, Client, connect
from netserver.blipmq.subscriber import Message, MessageBatch, Subscription

__all__ = ["EARLIEST", "Client", "Message", "MessageBatch", "Subscription", "connect"]
