"""A running server with peers that speak BlipMQ to it, a disk that can be held up, and what clients need."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from engine.partitions.partition import Partition
from netserver import blipmq
from netserver.app import Server
from netserver.blipmq.listener_state import ListenerState
from netserver.testing import running
from tests.blipmq_peer import AsyncPeer, Peer2
from tests.echo import ALONE, run, until

FORBIDDEN = (401, "not allowed by this API key")
UNKNOWN = (404, "unknown subscription or delivery tag")
FAST = {"backoff": lambda _failures: 0.01}
"""Options of a client that tries again at once."""
Settings = dict[str, dict[str, Any]]


class Place:
    """A running server and peers of it."""

    def __init__(self, server: Server, kind: type[AsyncPeer]) -> None:
        self.server = server
        self.peers: list[AsyncPeer] = []
        self._kind = kind

    async def peer(self, kind: type[AsyncPeer] | None = None, **options: Any) -> Any:
        address = self.server.addresses["blipmq"]
        peer = await (kind or self._kind).open((address.host, address.port), **options)
        self.peers.append(peer)
        return peer

    def partition(self, name: bytes) -> Partition:
        topic = self.server.log.catalog.get(name)
        assert topic is not None
        return self.server.log.partition(topic)


def with_server(
    test: Callable[[Place], Awaitable[None]],
    loop: str = "uvloop",
    data_dir: Path | None = None,
    kind: type[AsyncPeer] = AsyncPeer,
    **sections: dict[str, Any],
) -> None:
    """Run ``test`` with a server in the same event loop; keyword arguments are sections of its configuration."""
    settings = {**ALONE, **sections}
    settings["blipmq"] = {"listen": "127.0.0.1:0", **sections.get("blipmq", {})}

    async def main() -> None:
        async with running(data_dir, settings) as server:
            place = Place(server, kind)
            try:
                await test(place)
            finally:
                for peer in place.peers:
                    peer.writer.transport.abort()

    run(loop, main())


class Disk:
    """Holds up the syncs of a log until ``release``."""

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self.event = threading.Event()
        self.waiting = threading.Event()
        files = place.server.log.files
        sync = files.sync_data

        def wait(*arguments: Any) -> None:
            self.waiting.set()
            assert self.event.wait(20)
            sync(*arguments)

        monkeypatch.setattr(files, "sync_data", wait)

    def release(self) -> None:
        self.event.set()


async def take(subscription: blipmq.Subscription, count: int, *, ack: bool = True) -> list[bytes]:
    """The next messages' values."""
    found = []
    for _ in range(count):
        message = await subscription.next(10)
        found.append(message.value)
        if ack:
            await message.ack()
    return found


def blipmq_state(place: Place) -> ListenerState:
    shared = place.server.services["blipmq"].reloaders[0].__self__  # type: ignore[attr-defined]
    assert isinstance(shared, ListenerState)
    return shared


def delete(place: Place, name: bytes) -> Awaitable[None]:
    """Delete a topic; wait until nothing of it is left."""
    catalog = place.server.log.catalog
    topic = catalog.get(name)
    assert topic is not None
    catalog.delete(topic)
    return until(lambda: catalog.get(name) is None and not catalog.tombstones)


def with_server_2(
    test: Callable[[Place], Awaitable[None]], data_dir: Path | None = None, **sections: dict[str, Any]
) -> None:
    """`with_server` for peers of version 2."""
    own = {"retry_backoff_ms": "20s", **sections.get("blipmq", {})}
    with_server(test, data_dir=data_dir, kind=Peer2, **{**sections, "blipmq": own})
