"""Groups of consumers of Kafka in a running server: members, rebalances, commits, and those who look after groups."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from netserver.app import Server
from netserver.kafka import coordinator, limits
from netserver.kafka.apis import Key
from netserver.kafka.errors import Code
from netserver.kafka.schema import Values
from tests.echo import until
from tests.kafka_peer import Peer, all_errors, by_topic, result_of, with_server

pytestmark = pytest.mark.whole
GROUP = "g"


@pytest.fixture(autouse=True)
def shorter_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "JOIN_DELAY_S", 0.02)
    monkeypatch.setattr(coordinator, "SESSION_MS_MIN", 1)


class Member:
    """A member of a group, on a connection of its own."""

    def __init__(self, peer: Peer, instance: str | None = None) -> None:
        self.peer = peer
        self.instance = instance
        self.id = ""
        self.generation = -1
        self.joined: Values = {}

    @classmethod
    async def of(cls, server: Server, instance: str | None = None) -> Member:
        return cls(await Peer.open(server.addresses["kafka"]), instance)

    async def join(self, version: int = 5, **more: Any) -> Values:
        """Join, with the id that it is given first."""
        body = {
            "group": GROUP, "session_ms": 10_000, "rebalance_ms": 10_000, "member": self.id, "instance": self.instance,
            "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b"about me"}],
        } | more  # fmt: skip
        found = await self.peer.ask(Key.JOIN_GROUP, body, version)
        if found["error"] == Code.MEMBER_ID_REQUIRED:
            self.id = found["member"]
            return await self.join(version, **more)
        if not found["error"]:
            self.id, self.generation, self.joined = found["member"], found["generation"], found
        return found

    def about(self, **more: Any) -> Values:
        return {"group": GROUP, "generation": self.generation, "member": self.id, "instance": self.instance} | more

    async def sync(self, **assignments: bytes) -> Values:
        listed = [{"member": member, "assignment": data} for member, data in assignments.items()]
        return await self.peer.ask(Key.SYNC_GROUP, self.about(assignments=listed))

    async def heartbeat(self, **more: Any) -> int:
        error: int = (await self.peer.ask(Key.HEARTBEAT, self.about(**more)))["error"]
        return error

    async def leave(self) -> None:
        gone = [{"member": self.id, "instance": self.instance}]
        assert (await self.peer.ask(Key.LEAVE_GROUP, self.about(members=gone)))["error"] == 0

    async def commit(self, offset: int, topic: str = "t", metadata: str | None = None, **more: Any) -> int:
        partitions = [{"index": 0, "offset": offset, "metadata": metadata}]
        body = self.about(topics=by_topic(topic, partitions)["topics"], **more)
        error: int = result_of(await self.peer.ask(Key.OFFSET_COMMIT, body))["error"]
        return error

    async def committed(self, version: int = 7) -> dict[tuple[str, int], tuple[int, str]]:
        found = await self.peer.ask(Key.OFFSET_FETCH, {"group": GROUP, "topics": None}, version)
        return {
            (topic["name"], one["index"]): (one["offset"], one["metadata"])
            for topic in found["topics"]
            for one in topic["partitions"]
        }

    async def state(self) -> Values:
        found: Values = (await self.peer.ask(Key.DESCRIBE_GROUPS, {"groups": [GROUP]}))["groups"][0]
        return found


async def alone(server: Server) -> Member:
    """The only member of a stable group, which has a topic."""
    member = await Member.of(server)
    await member.peer.make("t", 3)
    assert (await member.join())["error"] == 0
    assert (await member.sync(**{member.id: b"mine"}))["assignment"] == b"mine"
    return member


def test_one_member_joins_reads_and_leaves() -> None:
    async def test(server: Server) -> None:
        member = await Member.of(server)
        await member.peer.make("t", 3)
        for version, kind in ((0, 0), (1, 0), (2, 0)):
            found = await member.peer.ask(Key.FIND_COORDINATOR, {"key": GROUP, "kind": kind}, version)
            assert (found["error"], found["node"], found["port"]) == (0, 1, server.addresses["kafka"].port)
        found = await member.peer.ask(Key.FIND_COORDINATOR, {"key": "t", "kind": 2})
        assert found["error"] == Code.INVALID_REQUEST
        joined = await member.join()
        assert joined["generation"] == 1
        assert joined["leader"] == joined["member"] == member.id
        assert joined["members"] == [{"member": member.id, "instance": None, "metadata": b"about me"}]
        assert await member.heartbeat() == 0
        assert await member.commit(5) == Code.REBALANCE, "between Join and Sync"
        assert (await member.sync(**{member.id: b"mine"}))["assignment"] == b"mine"
        assert (await member.sync())["assignment"] == b"mine"
        assert await member.heartbeat() == 0
        assert await member.heartbeat(generation=7) == Code.ILLEGAL_GENERATION
        assert await member.heartbeat(member="stranger") == Code.UNKNOWN_MEMBER
        assert await member.commit(5, metadata="here") == 0
        described = await member.state()
        assert (described["state"], described["protocol_type"], described["protocol"]) == (
            "Stable",
            "consumer",
            "range",
        )
        (one,) = described["members"]
        assert (one["member"], one["client_id"], one["host"]) == (member.id, "test", "127.0.0.1")
        assert (one["metadata"], one["assignment"]) == (b"about me", b"mine")
        found = await member.peer.ask(Key.LEAVE_GROUP, {"group": GROUP, "member": member.id}, 1)
        assert found["error"] == 0
        assert (await member.state())["state"] == "Empty"
        assert await member.heartbeat() == Code.UNKNOWN_MEMBER
        assert await member.committed() == {("t", 0): (5, "here")}

    with_server(test)


def test_members_share_and_hear_of_each_other() -> None:
    async def test(server: Server) -> None:
        first = await alone(server)
        second = await Member.of(server)
        joining = asyncio.create_task(second.join())
        await until(lambda: second.id)
        while await first.heartbeat() == 0:  # until the other one's second request has come
            pass
        assert await first.heartbeat() == Code.REBALANCE
        assert await first.commit(9) == 0, "of the generation before"
        assert (await first.sync())["error"] == Code.REBALANCE
        await first.join()
        await joining
        assert first.generation == second.generation == 2
        assert first.joined["leader"] == second.joined["leader"] == first.id
        assert {one["member"] for one in first.joined["members"]} == {first.id, second.id}
        assert second.joined["members"] == []
        syncing = asyncio.create_task(second.sync())
        assert (await first.sync(**{first.id: b"A", second.id: b"B"}))["assignment"] == b"A"
        assert (await syncing)["assignment"] == b"B"
        assert (await second.join())["generation"] == 2, "a follower that says nothing new disturbs nobody"
        assert (await first.peer.ask(Key.LEAVE_GROUP, {"group": GROUP, "member": second.id}, 0))["error"] == 0
        assert await first.heartbeat() == Code.REBALANCE
        assert (await first.join())["generation"] == 3

    with_server(test)


def test_who_has_not_joined_in_time_is_out() -> None:
    async def test(server: Server) -> None:
        first = await Member.of(server)
        await first.join(rebalance_ms=50)
        await first.sync()
        second = await Member.of(server)
        assert (await second.join(rebalance_ms=50))["error"] == 0
        assert second.joined["leader"] == second.id
        assert len(second.joined["members"]) == 1
        assert await first.heartbeat() == Code.UNKNOWN_MEMBER

    with_server(test)


def test_who_is_silent_for_too_long_is_out_and_others_go_on() -> None:
    async def test(server: Server) -> None:
        first, second = [await Member.of(server) for _ in range(2)]
        await asyncio.gather(first.join(session_ms=10_000), second.join(session_ms=100))
        leader = first if first.joined["members"] else second
        others = [one for one in (first, second) if one is not leader]
        waiting = [asyncio.create_task(one.sync()) for one in others]
        await leader.sync()
        await asyncio.gather(*waiting)
        while await first.heartbeat() == 0:
            pass
        assert (await first.join())["generation"] == 2
        assert len(first.joined["members"]) == 1
        assert await second.heartbeat() == Code.UNKNOWN_MEMBER

    with_server(test)


def test_who_waits_for_a_slow_leader_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[coordinator.Member] = []
    usual = coordinator.Group._silent

    def silent(self: coordinator.Group, member: coordinator.Member) -> None:
        looked.append(member)
        usual(self, member)

    monkeypatch.setattr(coordinator.Group, "_silent", silent)

    async def test(server: Server) -> None:
        leader, other = await alone(server), await Member.of(server)
        joining = asyncio.create_task(other.join(session_ms=50))
        while await leader.heartbeat() == 0:
            pass
        await leader.join()
        await joining
        looked.clear()
        syncing = asyncio.create_task(other.sync())
        await until(lambda: len(looked) > 1)
        assert (await leader.sync(**{leader.id: b"A", other.id: b"B"}))["error"] == 0
        assert await syncing == {"throttle_ms": 0, "error": 0, "assignment": b"B"}
        syncing = asyncio.create_task(other.sync())
        await other.peer.close()
        await asyncio.gather(syncing, return_exceptions=True)
        while await leader.heartbeat() == 0:  # who is gone is out
            pass

    with_server(test)


def test_a_leader_that_never_says_who_reads_what_is_out_though_it_is_there() -> None:
    async def test(server: Server) -> None:
        leader, other = await alone(server), await Member.of(server)
        joining = asyncio.create_task(other.join(rebalance_ms=1500))
        while await leader.heartbeat() == 0:
            pass
        await leader.join(rebalance_ms=1500)
        await joining
        assert (await other.sync())["error"] == Code.REBALANCE
        assert await leader.heartbeat() == Code.UNKNOWN_MEMBER
        assert (await other.join())["leader"] == other.id
        assert (await other.sync(**{other.id: b"all"}))["assignment"] == b"all"

    with_server(test)


def test_what_members_are_told_counts_in_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MEMBERS_BYTES_MAX", 1000)

    async def test(server: Server) -> None:
        member = await Member.of(server)
        await member.join()
        assert (await member.sync(**{member.id: bytes(1000)}))["error"] == Code.GROUP_FULL
        assert (await member.sync(**{member.id: bytes(900), "gone": bytes(900)}))["error"] == 0
        assert (await member.join())["error"] == 0
        assert (await member.sync(**{member.id: bytes(900)}))["error"] == 0

    with_server(test)


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    async def test(server: Server) -> None:
        first = await Member.of(server, "i1")
        await first.peer.make("t", 3)
        assert (await first.join())["error"] == 0
        await first.sync(**{first.id: b"mine"})
        again = await Member.of(server, "i1")
        found = await again.join()
        assert (found["error"], found["generation"], found["leader"]) == (0, 1, first.id)
        assert found["member"] != first.id
        assert (await again.sync())["assignment"] == b"mine"
        assert await first.heartbeat() == Code.FENCED_INSTANCE
        assert await first.commit(1) == Code.FENCED_INSTANCE
        assert (await first.join())["error"] == Code.FENCED_INSTANCE
        assert await again.commit(2) == 0
        other = {"name": "range", "metadata": b"something else"}
        third = await Member.of(server, "i1")
        assert (await third.join(protocols=[other]))["generation"] == 2
        leaving = [{"member": "", "instance": "i1"}, {"member": "", "instance": "i2"}]
        found = await third.peer.ask(Key.LEAVE_GROUP, {"group": GROUP, "members": leaving})
        assert [one["error"] for one in found["members"]] == [0, Code.UNKNOWN_MEMBER]

    with_server(test)


def test_what_members_may_not_say() -> None:
    async def test(server: Server) -> None:
        member = await alone(server)
        other = await Member.of(server)
        assert (await other.join(group=""))["error"] == Code.INVALID_GROUP
        long = "x" * (limits.GROUP_NAME_BYTES_MAX + 1)
        assert (await other.join(group=long))["error"] == Code.INVALID_GROUP
        assert await other.commit(1, group=long) == Code.INVALID_GROUP
        assert (await other.join(instance="i" * 256))["error"] == Code.INVALID_REQUEST
        assert (await other.join(session_ms=0))["error"] == Code.SESSION_TIMEOUT
        assert (await other.join(session_ms=1 << 30))["error"] == Code.SESSION_TIMEOUT
        for number in (0, limits.PROTOCOLS_MAX + 1):
            many = [{"name": f"p{i}", "metadata": b""} for i in range(number)]
            assert (await other.join(protocols=many, group="many"))["error"] == Code.INCONSISTENT_PROTOCOL
        sticky = [{"name": "sticky", "metadata": b""}]
        assert (await other.join(protocols=sticky))["error"] == Code.INCONSISTENT_PROTOCOL
        assert (await other.join(protocol_type="connect"))["error"] == Code.INCONSISTENT_PROTOCOL
        other.id = "gone"
        assert (await other.join())["error"] == Code.UNKNOWN_MEMBER
        assert (await other.sync())["error"] == Code.UNKNOWN_MEMBER
        assert await member.heartbeat() == 0
        large = [{"name": "range", "metadata": bytes(coordinator.MEMBER_BYTES_MAX)}]
        other.id = ""
        assert (await other.join(protocols=large))["error"] == Code.GROUP_FULL
        assert await member.commit(1, metadata="x" * 5000) == Code.METADATA_TOO_LARGE
        assert await member.commit(1, "none") == Code.UNKNOWN_TOPIC
        assert await member.commit(1, generation=-1, member="") == Code.UNKNOWN_MEMBER
        assert await member.commit(1, generation=0) == Code.ILLEGAL_GENERATION
        assert await member.commit(1, group="") == Code.INVALID_GROUP
        assert await member.commit(1, group="none", generation=3) == Code.UNKNOWN_MEMBER
        assert await member.committed() == {}

    with_server(test)


def test_old_versions_join_at_once() -> None:
    async def test(server: Server) -> None:
        member = await Member.of(server)
        found = await member.peer.ask(Key.JOIN_GROUP, {
            "group": GROUP, "session_ms": 9000, "rebalance_ms": 9000, "member": "", "protocol_type": "consumer",
            "protocols": [{"name": "b", "metadata": b""}, {"name": "a", "metadata": b""}],
        }, 2)  # fmt: skip
        assert (found["error"], found["protocol"]) == (0, "b")

    with_server(test)


def test_commits_are_there_after_a_restart_and_members_are_not(tmp_path: Path) -> None:
    async def before(server: Server) -> None:
        member = await alone(server)
        assert await member.commit(7, metadata="seven") == 0
        assert await member.commit(8) == 0
        assert await member.commit(3, group="other", generation=-1, member="") == 0
        await member.peer.make("gone")
        assert await member.commit(4, "gone") == 0
        assert await member.committed() == {("t", 0): (8, ""), ("gone", 0): (4, "")}
        await member.peer.ask(Key.DELETE_TOPICS, {"names": ["gone"], "timeout_ms": 1})
        assert await member.committed() == {("t", 0): (8, "")}

    async def after(server: Server) -> None:
        member = await Member.of(server)
        for version in range(1, 8):
            body = {
                "group": GROUP,
                "topics": [{"name": "t", "partitions": [0, 1]}, {"name": "none", "partitions": [0]}],
            }
            found = await member.peer.ask(Key.OFFSET_FETCH, body, version)
            assert [one["offset"] for topic in found["topics"] for one in topic["partitions"]] == [8, -1, -1]
            assert all_errors(found) == [0, 0, 0]
        assert await member.committed(2) == {("t", 0): (8, "")}
        member.id, member.generation = "old", 1
        assert await member.heartbeat() == Code.UNKNOWN_MEMBER
        assert await member.commit(9) == Code.UNKNOWN_MEMBER
        listed = (await member.peer.ask(Key.LIST_GROUPS, {}))["groups"]
        assert {(one["group"], one["state"]) for one in listed} == {(GROUP, "Empty"), ("other", "Empty")}
        assert (await member.peer.ask(Key.LIST_GROUPS, {"states": ["Stable"]}))["groups"] == []
        found = await member.peer.ask(Key.DELETE_GROUPS, {"groups": [GROUP, "none"]})
        assert [one["error"] for one in found["results"]] == [0, Code.GROUP_NOT_FOUND]
        assert await member.committed() == {}
        assert (await member.state())["state"] == "Dead"

    with_server(before, tmp_path)
    with_server(after, tmp_path)


def test_a_group_that_somebody_is_in_is_not_deleted() -> None:
    async def test(server: Server) -> None:
        member = await alone(server)
        await member.commit(1)
        found = await member.peer.ask(Key.DELETE_GROUPS, {"groups": [GROUP]})
        assert found["results"][0]["error"] == Code.GROUP_NOT_EMPTY
        assert await member.committed() == {("t", 0): (1, "")}

    with_server(test)


def test_a_server_that_stops_waits_for_no_group() -> None:
    async def test(server: Server) -> None:
        await alone(server)
        second = await Member.of(server)
        joining = asyncio.create_task(second.join())
        await until(lambda: second.id)
        await second.peer.writer.drain()
        listener = server.listeners["kafka"]
        await until(
            lambda: any("being answered" in reason for one in server.shell.connections for reason in one.hold_reasons)
        )
        stopping = asyncio.create_task(listener.drain(asyncio.get_running_loop().time() + 20))
        assert (await joining)["error"] in (Code.COORDINATOR_NOT_AVAILABLE, 0)
        await second.peer.close()
        await stopping

    with_server(test)
