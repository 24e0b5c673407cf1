"""What clients are told of the rates of their identity: how long to pause (``throttle_ms``).

They are held to it in any case: a connection that has published too much is not read, and one that was sent too much
has its next Fetch answered later. But clients that know it wait by themselves, and do not take the server for dead.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .schema import Encoded, Values

if TYPE_CHECKING:
    from netserver.shell.connection import Connection


def produce_pause_ms(connection: Connection) -> int:
    """Until a connection is read again."""
    return _ms(connection.brakes.input.left_s) if connection.brakes is not None else 0


def fetch_pause_ms(connection: Connection, answer: Values) -> int:
    """Until the next Fetch is answered, once this answer was sent."""
    meter, topics = connection.visitor.meter, answer["topics"]
    if meter is None or not isinstance(topics, Encoded):
        return 0
    return _ms(meter.debt_s(incoming=False, size_bytes=topics.size_bytes))


def _ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)
