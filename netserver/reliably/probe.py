"""A question that every server of the JSON streaming protocol answers at once, on a connection of its own."""

from __future__ import annotations

import asyncio
import ssl

from netserver.reliably import codec


async def answers(host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float) -> bool:
    """Whether a stateless stream begins there: a topic may have nothing to send for hours, a stream of numbers has."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(
                host, port, ssl=tls, server_hostname=host if tls is not None else None
            )
            try:
                writer.write(codec.stateless_request(None))
                codec.parse_answer((await reader.readline()).rstrip(b"\n"))
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError, codec.AnswerError, ValueError):  # ValueError: a line without an end
        return False
    return True
