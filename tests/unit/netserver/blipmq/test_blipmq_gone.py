"""BlipMQ subscriptions of version 2 whose topic or group was deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from netserver import blipmq
from netserver.blipmq import codec
from netserver.blipmq.codec import FrameType
from netserver.blipmq.push import TAG_SHIFT
from netserver.errors import Refused
from tests import blipmq_place
from tests.blipmq_peer import Peer2
from tests.blipmq_place import UNKNOWN, Place, blipmq_state, delete
from tests.echo import until


def with_server(test: Callable[[Place], Awaitable[None]]) -> None:
    blipmq_place.with_server(test, kind=Peer2, blipmq={"retry_backoff_ms": "20s"})


def with_client(test: Callable[[blipmq.Client, Place], Awaitable[None]]) -> None:
    async def with_place(place: Place) -> None:
        async with blipmq.connect(str(place.server.addresses["blipmq"]), version=2) as client:
            await test(client, place)

    with_server(with_place)


@pytest.mark.parametrize("group", [b"", b"g"])
def test_a_topic_that_was_deleted_and_is_published_to_again_goes_on(group: bytes) -> None:
    async def test(place: Place) -> None:
        one, two, publisher = await place.peer(), await place.peer(), await place.peer()
        subscription = await one.join(b"t", group=group)
        await publisher.publish(b"t", b"old")
        (old,) = await one.delivered(1)
        for number in (1, 2):
            await delete(place, b"t")
            assert await one.until_pong() == []
            await publisher.publish(b"t", b"first", b"second")
            first, second = await one.delivered(2)
            assert (first.body, second.body) == (b"first", b"second")
            assert first.tag == (number << TAG_SHIFT) + 1, "no tag comes again"
            assert [nack.text for nack in await one.ack(subscription, old.tag)] == [UNKNOWN[1]]
            assert await one.ack(subscription, first.tag) == []
            assert [nack.text for nack in await one.ack(subscription, first.tag)] == [UNKNOWN[1]]
            old = second
        if group:  # another member has the new group, and what was left behind
            new = await two.join(b"t", group=group)
            one.writer.transport.abort()
            (second,) = await two.delivered(1)
            assert (second.tag, second.body) == (2, b"second")
            assert await two.ack(new, 2) == []
            assert not place.server.log.cursors.loaded()[0].deliveries.unacknowledged

    with_server(test)


def test_all_members_of_a_group_go_on_with_the_next_topic_of_its_name() -> None:
    async def test(place: Place) -> None:
        peers = [await place.peer() for _ in range(3)]
        publisher = await place.peer()
        for peer in peers:
            await peer.join(b"t", group=b"g")
        await delete(place, b"t")
        await publisher.publish(b"t", *(b"%d" % number for number in range(3000)))
        found: set[bytes] = set()

        async def take(peer: Peer2) -> None:
            while True:
                found.update(await peer.bodies(1))

        tasks = [asyncio.ensure_future(take(peer)) for peer in peers]
        await until(lambda: len(found) == 1024)
        for task in tasks:
            task.cancel()
        assert len(place.server.log.cursors) == 1

    with_server(test)


def test_members_are_told_when_their_group_is_deleted() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        group = await peer.join(b"t", group=b"g")
        cursor = place.server.log.cursors.get(group)
        assert cursor is not None
        place.server.log.cursors.delete(cursor)
        frame = await peer.frame()
        assert (frame.type, frame.cid) == (FrameType.NACK, 77)
        assert codec.parse_nack(frame.payload) == (404, "the group was deleted")
        await delete(place, b"t")
        await peer.publish(b"t", b"x")
        assert await peer.until_pong() == [], "nothing goes on"
        assert place.server.log.cursors.ids() == []

    with_server(test)


def test_who_is_gone_is_not_told_of_new_topics() -> None:
    async def test(place: Place) -> None:
        peer = await place.peer()
        for group in (b"", b"g"):
            await peer.join(b"t", group=group)
        shared = blipmq_state(place)
        assert [len(found) for found in shared.names.values()] == [2]
        peer.writer.transport.abort()
        await until(lambda: not shared.names)

    with_server(test)


@pytest.mark.parametrize("group", ["", "g"])
def test_the_client_goes_on_with_a_topic_that_was_made_anew(group: str) -> None:
    async def test(client: blipmq.Client, place: Place) -> None:
        subscription = await client.subscribe("t", group=group, start=blipmq.EARLIEST)
        for body in (b"old", b"new"):
            await client.publish("t", body)
            message = await subscription.next(10)
            assert message.value == body
            await message.ack()
            await subscription.flush()
            await delete(place, b"t")

    with_client(test)


def test_the_client_is_told_that_its_group_was_deleted() -> None:
    async def test(client: blipmq.Client, place: Place) -> None:
        subscription = await client.subscribe("t", group="g")
        cursor = place.server.log.cursors.get(subscription.id)
        assert cursor is not None
        place.server.log.cursors.delete(cursor)
        with pytest.raises(Refused, match="the group was deleted"):
            await subscription.next(10)

    with_client(test)
