"""A question that every server of the JSON streaming protocol answers at once, on a connection of its own."""

from __future__ import annotations

import asyncio

from netserver.client.tls import ClientTls
from netserver.errors import TlsFailed
from netserver.reliably import codec


async def answers(host: str, port: int, tls: ClientTls | None, timeout_s: float) -> bool:
    """Whether a stateless stream begins there: a topic may have nothing to send for hours, a stream of numbers has."""
    try:
        async with asyncio.timeout(timeout_s):
            context = tls.context() if tls is not None else None
            name = (tls.server_name or host) if tls is not None else None
            reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
            try:
                writer.write(codec.stateless_request(None))
                codec.parse_answer((await reader.readline()).rstrip(b"\n"))
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError, codec.AnswerError, TlsFailed, ValueError):  # ValueError: a line without an end
        return False
    return True
