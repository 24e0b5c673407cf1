"""Shares of the room for topics: nobody uses up all of it, in few requests or in many."""

from __future__ import annotations

import dataclasses

import pytest

from engine.errors import LimitReached
from engine.limits import MAKER_HALF_LIFE_S, MAKER_ROOM_MIN, MAKERS_MAX, PARTITIONS_PER_TOPIC_MAX
from engine.state.shares import Shares
from netserver.shell.makers import maker_of
from netserver.tank import messages
from netserver.tank.messages import CreateCode
from tests import tank_peer
from tests.tank_peer import Place

TOPICS, PARTITIONS = 100_000, 200_000


class Room:
    """Counts what there is, as the catalog does."""

    def __init__(self) -> None:
        self.now_s = 5.0
        self.shares = Shares(lambda: self.now_s)
        self.topics, self.partitions = TOPICS, PARTITIONS

    def make(self, maker: str, partitions: int = 1) -> bool:
        try:
            self.shares.check(maker, partitions, self.topics, self.partitions)
        except LimitReached:
            return False
        self.shares.take(maker, partitions)
        self.topics -= 1
        self.partitions -= partitions
        return True

    def make_all(self, maker: str, partitions: int = 1) -> int:
        """As many as there may be; how many."""
        count = 0
        while self.make(maker, partitions):
            count += 1
        return count


def test_the_largest_topic_of_the_protocol_can_be_made_and_leaves_room() -> None:
    room = Room()
    assert room.make_all("a", PARTITIONS_PER_TOPIC_MAX) == 1
    assert room.make_all("a") > 1000
    assert room.make("b", 30_000)


def test_who_makes_topics_leaves_as_many_to_others() -> None:
    room = Room()
    assert room.make_all("a") == TOPICS // 2
    assert room.make_all("b") == TOPICS // 4
    assert room.make("c")
    assert not room.make("a")


def test_many_makers_leave_something_to_one_more() -> None:
    room = Room()
    for number in range(12):
        assert room.make_all(f"maker {number}") >= MAKER_ROOM_MIN
    assert room.make("the next")


def test_with_time_a_log_grows_as_large_as_it_may() -> None:
    room = Room()
    room.make_all("a")
    for _ in range(60):
        room.now_s += MAKER_HALF_LIFE_S
        room.make_all("a")
    assert room.topics < TOPICS // 1000


def test_a_small_log_can_be_filled_by_one() -> None:
    room = Room()
    room.topics = room.partitions = MAKER_ROOM_MIN
    for _ in range(MAKER_ROOM_MIN):
        assert room.make("a")


def test_few_makers_are_remembered() -> None:
    room = Room()
    for number in range(MAKERS_MAX + 10):
        room.make(f"maker {number}")
    assert len(room.shares._taken) == MAKERS_MAX


@pytest.mark.parametrize(
    ("peer", "maker"),
    [
        ("192.0.2.7:4711", "figg 192.0.2.7"),
        ("[2001:db8:1:2:3:4:5:6]:4711", "figg 2001:db8:1:2::/64"),
        ("[fe80::1%eth0]:4711", "figg fe80::/64"),
        ("?", "figg "),
    ],
)
def test_hosts_that_cannot_be_told_apart_are_one_maker(peer: str, maker: str) -> None:
    assert maker_of("figg", peer) == maker


def test_three_requests_do_not_use_up_all_partitions() -> None:
    async def test(place: Place) -> None:
        hostile = await place.peer()
        codes = [await hostile.create(name, 65_535) for name in (b"a", b"b", b"c")]
        assert codes == [CreateCode.CREATED, CreateCode.SYSTEM_ERROR, CreateCode.SYSTEM_ERROR]
        again = await place.peer()  # another connection of the same host
        assert await again.create(b"d", 65_535) == CreateCode.SYSTEM_ERROR
        assert await again.create(b"e", 100) == CreateCode.CREATED
        place.server.log.catalog.create(b"f", partition_count=65_535)  # the operator

    tank_peer.with_server(test)


def test_topics_of_one_protocol_leave_room_to_the_others() -> None:
    async def test(place: Place) -> None:
        log = place.server.log
        log.catalog.set_defaults(dataclasses.replace(log.config, topics_max=100))
        peer = await place.peer()
        peer.send(*(messages.CreateTopicRequest(1, b"t%d" % number, 1, b"") for number in range(60)))
        codes = [(await peer.answer(messages.CreateTopicResponse)).code for _ in range(60)]
        assert codes.count(CreateCode.CREATED) == 50
        assert log.catalog.get_or_create(b"mine", "figg 127.0.0.1").name == b"mine"

    tank_peer.with_server(test)
