"""The JSON streaming protocol: the server's side (``codec``, ``session``, ...) and the client, which this exports.

::

    from netserver import reliably

    async with reliably.connect("127.0.0.1:4001", params={"count": 1000}) as numbers:
        async for message in numbers:
            print(message.id, message.data)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from netserver.client.lazy import exported_from

if TYPE_CHECKING:
    from netserver.reliably.client import ChecksumMismatch, Position, Session, connect, patient_backoff
    from netserver.reliably.codec import Message

__all__ = ["ChecksumMismatch", "Message", "Position", "Session", "connect", "patient_backoff"]

__getattr__ = exported_from(__name__, "client", "codec")
