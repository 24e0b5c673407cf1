"""Readers of a running server through Fujin, for tests: what they fetch, what is pushed to them, how they end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from netserver.app import Server
from netserver.fujin import codec
from netserver.fujin.codec_answers import Fetched, Message
from netserver.testing import running
from tests.echo import run
from tests.fujin_peer import Peer, Stream, connect

Test = Callable[[Server, Peer], Awaitable[None]]
ALONE = {name: {"listen": "off"} for name in ("figg", "tank", "blipmq", "reliably", "kafka")}


def serve(
    test: Test, loop: str = "asyncio", topics: dict[str, Any] | None = None, data: Path | None = None, **settings: Any
) -> None:
    async def main() -> None:
        async with running(data, settings={**ALONE, "topics": topics or {}, "fujin": settings}) as server:
            address = server.addresses["fujin"]
            async with connect((address.host, address.port)) as peer:
                await test(server, peer)

    run(loop, main())


def seq(message: Message) -> int:
    found = codec.parse_message_id(message.message_id)
    assert found is not None
    assert found[0] == 0
    return found[1]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def fetched(stream: Stream, limit: int, *, auto: bool = False) -> list[Message]:
    stream.send(codec.fetch(1, limit))
    event = await stream.event(auto=auto)
    assert isinstance(event, Fetched), event
    assert event.error is None, event.error
    return event.messages


async def pushed(stream: Stream, count: int) -> list[bytes]:
    return [message.value for message in await stream.messages(count)]


def came_on_any(streams: list[Stream]) -> bool:
    return any(stream.came for stream in streams)


async def ended(stream: Stream) -> None:
    """Disconnect in good order; messages may still be on their way."""
    stream.send(codec.DISCONNECT)
    assert (await stream.rest())[-1:] == codec.DISCONNECT
