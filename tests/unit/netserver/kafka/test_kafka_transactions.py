"""Kafka's transactions in a running server: all of one becomes visible or nothing, and each error is told."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.limits import STATE_ROUND_BYTES_MAX
from engine.state.store import Put, pack_submission
from netserver.access.rights import Right
from netserver.app import Server
from netserver.kafka import limits, transactions
from netserver.kafka.apis import Key
from netserver.kafka.checking import check_records
from netserver.kafka.committed import Committed, key_of
from netserver.kafka.errors import Code
from netserver.kafka.gathering import pack, size_of_offset
from netserver.kafka.listener_state import ListenerState
from tests.access_place import place
from tests.echo import until
from tests.engine_log import EngineLog
from tests.kafka_peer import Peer, Record, batch, produce, result_of, with_server
from tests.kafka_producer import TRANSACTIONAL, Producer

pytestmark = pytest.mark.whole


async def begun(server: Server, topic: str = "t", partitions: int = 2, **more: Any) -> Producer:
    """A producer in a transaction that has partition 0."""
    peer = await Peer.open(server.addresses["kafka"])
    await peer.make(topic, partitions)
    producer = Producer(peer)
    assert await producer.init(**more) == 0
    assert await producer.add(topic) == [0]
    return producer


async def values(peer: Peer, topic: str = "t", index: int = 0) -> list[bytes | None]:
    return [record.value for record in await peer.records(topic, index=index)]


async def committed(peer: Peer, topic: str = "t", group: str = "g", stable: bool = False) -> tuple[int, int]:
    """Error and offset of a group in partition 0."""
    body = {"group": group, "topics": [{"name": topic, "partitions": [0]}], "stable": stable}
    found = result_of(await peer.ask(Key.OFFSET_FETCH, body))
    return found["error"], found["offset"]


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Callable[[], ListenerState]:
    """What the listener of the server keeps."""
    made: list[ListenerState] = []
    usual = ListenerState.__init__

    def init(self: ListenerState, *args: Any) -> None:
        usual(self, *args)
        made.append(self)

    monkeypatch.setattr(ListenerState, "__init__", init)
    return lambda: made[-1]


def test_nothing_is_visible_before_the_commit_and_all_after_it_also_after_a_restart(
    state: Callable[[], ListenerState], tmp_path: Path
) -> None:
    async def test(server: Server) -> None:
        producer = await begun(server)
        reader = await Peer.open(server.addresses["kafka"])
        headers = (("h", b"x"), ("none", None))
        assert await producer.produce("t", b"a", Record(None, b"k", headers=headers)) == 0
        assert await producer.add("t", 1) == [0]
        assert await producer.produce("t", *[b"%d" % n for n in range(600)], index=1) == 0
        assert await producer.produce("t", b"c") == 0
        assert await producer.group() == 0
        assert await producer.offset("t", 7, metadata="far") == 0
        assert await committed(reader) == (0, -1)
        assert await committed(reader, stable=True) == (Code.UNSTABLE_OFFSET, -1)
        for index in (0, 1):
            assert (await reader.fetch("t", 1, index, isolation=0))["end"] == 1
        await reader.produce("t", b"between")
        assert await producer.end() == 0
        found = await reader.records("t", isolation=1)
        assert [(one.value, one.key) for one in found] == [(b"between", None), (b"a", None), (None, b"k"), (b"c", None)]
        assert found[2].headers == headers
        assert await values(reader, index=1) == [b"%d" % n for n in range(600)]
        assert await committed(reader, stable=True) == (0, 7)
        assert await producer.end() == 0, "again"
        assert await producer.end(commit=False) == Code.INVALID_TXN_STATE
        assert state().transactions.size_bytes == 0
        assert state().transactions.ended == {"committed": 1, "aborted": 0, "timed out": 0}

    async def again(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        assert await committed(peer, stable=True) == (0, 7)
        assert len(await values(peer)) == 4

    with_server(test, tmp_path)
    with_server(again, tmp_path)


def test_nothing_of_an_aborted_one_is_there_and_the_next_goes_on(state: Callable[[], ListenerState]) -> None:
    async def test(server: Server) -> None:
        producer = await begun(server)
        assert await producer.produce("t", b"a") == 0
        assert await producer.group() == 0
        assert await producer.offset("t", 7) == 0
        assert await producer.end(commit=False) == 0
        assert await producer.end(commit=False) == 0, "again"
        assert await producer.end() == Code.INVALID_TXN_STATE
        assert await producer.produce("t", b"b") == Code.INVALID_TXN_STATE, "not in a transaction"
        assert await committed(producer.peer, stable=True) == (0, -1)
        assert await producer.add("t") == [0]
        assert await producer.produce("t", b"b") == 0
        assert await producer.end() == 0
        assert await values(producer.peer) == [b"b"]
        assert state().transactions.size_bytes == 0

    with_server(test)


def test_offsets_alone_are_committed_too() -> None:
    async def test(server: Server) -> None:
        producer = await begun(server)
        assert await producer.end(commit=False) == 0
        assert await producer.offset("t", 7) == Code.INVALID_TXN_STATE, "of a group that was not added"
        assert await producer.group() == 0
        assert await producer.offset("t", 7, group="other") == Code.INVALID_TXN_STATE
        assert await producer.offset("t", 7) == 0
        assert await producer.offset("t", 7, metadata="x" * 5000) == Code.METADATA_TOO_LARGE
        assert await producer.offset("none", 7) == Code.UNKNOWN_TOPIC
        assert await producer.offset("t", 9, member="nobody", generation=3) == Code.UNKNOWN_MEMBER
        assert await producer.offset("t", 8) == 0
        assert await producer.end() == 0
        assert await committed(producer.peer) == (0, 8)

    with_server(test)


def test_members_that_are_gone_have_no_offsets_in_a_transaction() -> None:
    async def test(server: Server) -> None:
        producer = await begun(server)
        joining = {
            "group": "g", "session_ms": 10_000, "rebalance_ms": 10_000, "member": "", "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }  # fmt: skip
        joined = await producer.peer.ask(Key.JOIN_GROUP, joining, 3)
        assert joined["error"] == 0
        assert await producer.group() == 0
        member = {"member": joined["member"], "generation": joined["generation"]}
        assert await producer.offset("t", 1, **member) == 0, "also while it is told what to read"
        assert await producer.offset("t", 2, **member | {"generation": 7}) == Code.ILLEGAL_GENERATION
        assert await producer.offset("t", 2, **member | {"member": "gone"}) == Code.UNKNOWN_MEMBER
        assert await producer.offset("t", 3) == 0, "as older versions say it"
        assert await producer.end() == 0
        assert await committed(producer.peer) == (0, 3)

    with_server(test)


def test_who_comes_later_with_the_same_name_fences_the_one_before() -> None:
    async def test(server: Server) -> None:
        old = await begun(server)
        assert await old.produce("t", b"old") == 0
        assert await old.group() == 0
        new = Producer(await Peer.open(server.addresses["kafka"]))
        assert await new.init() == 0
        assert (new.id, new.epoch) == (old.id, old.epoch + 1)
        assert await old.produce("t", b"old") == Code.OLD_EPOCH
        assert await old.end(version=1) == Code.OLD_EPOCH
        assert await old.end() == Code.PRODUCER_FENCED
        assert await old.end(commit=False) == Code.PRODUCER_FENCED
        assert await old.add("t", version=1) == [Code.OLD_EPOCH]
        assert await old.add("t") == [Code.PRODUCER_FENCED]
        assert await old.group() == Code.PRODUCER_FENCED
        assert await old.offset("t", 1) == Code.OLD_EPOCH
        assert await old.init(again=True, version=3) == Code.OLD_EPOCH
        assert await old.init(again=True) == Code.PRODUCER_FENCED
        assert await new.end() == Code.INVALID_TXN_STATE, "the old one's was aborted"
        assert await new.end(commit=False) == 0
        assert await new.add("t") == [0]
        assert await new.produce("t", b"new") == 0
        assert await new.end() == 0
        assert await values(new.peer) == [b"new"]

    with_server(test)


def test_a_producer_gets_its_next_epoch_once_also_if_it_asks_twice() -> None:
    async def test(server: Server) -> None:
        producer = await begun(server)
        before = producer.id, producer.epoch
        assert await producer.init(again=True) == 0
        assert (producer.id, producer.epoch) == (before[0], before[1] + 1)
        given = producer.id, producer.epoch
        producer.id, producer.epoch = before
        assert await producer.init(again=True) == 0, "the answer was lost"
        assert (producer.id, producer.epoch) == given
        assert await producer.add("t") == [0]
        producer.id, producer.epoch = before
        assert await producer.init(again=True) == Code.PRODUCER_FENCED, "somebody has gone on"

    with_server(test)


def test_after_the_last_epoch_there_is_another_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "EPOCH_MAX", 1)

    async def test(server: Server) -> None:
        producer = await begun(server)
        first = producer.id
        assert await producer.init() == 0
        assert (producer.id, producer.epoch) == (first, 1)
        assert await producer.init() == 0
        assert producer.id != first
        assert producer.epoch == 0
        producer.id, producer.epoch = first, 1
        assert await producer.end() == Code.UNKNOWN_PRODUCER

    with_server(test)


def test_errors_of_requests() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("t")
        producer = Producer(peer)
        for timeout_ms in (0, -1, 900_001):
            assert await producer.init(timeout_ms) == Code.INVALID_TXN_TIMEOUT
        for name in ("", "x" * 1025):
            assert await Producer(peer, name).init() == Code.INVALID_REQUEST
        for work in (producer.end(), producer.group(), producer.offset("t", 1), producer.produce("t", b"x")):
            assert await work == (Code.UNKNOWN_PRODUCER if work.__name__ != "produce" else Code.INVALID_RECORD)
        assert await producer.add("t") == [Code.UNKNOWN_PRODUCER]
        assert await producer.init(900_000) == 0
        assert await producer.end() == Code.INVALID_TXN_STATE
        assert await producer.produce("t", b"x") == Code.INVALID_TXN_STATE
        assert await producer.add("t", 0, 9) == [Code.NOT_ATTEMPTED, Code.UNKNOWN_TOPIC]
        assert await producer.group("") == Code.INVALID_GROUP
        known, producer.id = producer.id, 5
        assert await producer.end() == Code.UNKNOWN_PRODUCER
        assert await producer.add("t") == [Code.UNKNOWN_PRODUCER]
        producer.id = known
        assert await producer.add("t") == [0]
        plain = produce("t", batch(b"x", producer=(producer.id, 0, 0))) | {"transactional_id": "mine"}
        assert result_of(await peer.ask(Key.PRODUCE, plain))["error"] == Code.INVALID_RECORD
        marked = produce("t", batch(b"x", producer=(producer.id, 0, 0), attributes=TRANSACTIONAL))
        assert result_of(await peer.ask(Key.PRODUCE, marked))["error"] == Code.INVALID_RECORD
        found = await peer.ask(Key.FIND_COORDINATOR, {"key": "mine", "kind": 1})
        assert (found["error"], found["node"]) == (0, 1)

    with_server(test)


def test_a_batch_that_comes_again_is_taken_once_and_one_that_leaves_out_something_ends_it() -> None:
    async def test(server: Server) -> None:
        producer = await begun(server)
        last = (1 << 31) - 1
        assert await producer.produce("t", b"a", b"b", sequence=last - 1) == 0, "any count where none is known"
        assert await producer.produce("t", b"c", sequence=0) == 0, "after the last one comes 0"
        assert await producer.produce("t", b"a", b"b", sequence=last - 1) == 0
        assert await producer.produce("t", b"c", sequence=0) == 0
        assert await producer.end() == 0
        assert await values(producer.peer) == [b"a", b"b", b"c"]
        assert await producer.add("t") == [0]
        assert await producer.produce("t", b"d", sequence=1) == 0
        assert await producer.produce("t", b"f", sequence=3) == Code.OUT_OF_SEQUENCE
        assert await producer.produce("t", b"e", sequence=2) == 0, "one of them is still missing"
        assert await producer.end() == Code.INVALID_TXN_STATE
        assert await producer.end(commit=False) == 0
        assert await producer.add("t") == [0]
        assert await producer.produce("t", b"g", sequence=9) == 0, "wherever its producer goes on"
        assert await producer.end() == 0
        assert await values(producer.peer) == [b"a", b"b", b"c", b"g"]

    with_server(test)


def test_batches_that_overtake_each_other_are_committed_in_order() -> None:
    """A client that has several under way may send a later one on its next connection before it repeats the first."""

    async def test(server: Server) -> None:
        producer = await begun(server)
        assert await producer.produce("t", b"c", b"d", sequence=12) == 0, "nothing is known of the producer"
        assert await producer.produce("t", b"-", sequence=10) == Code.OUT_OF_SEQUENCE
        assert await producer.produce("t", b"b", sequence=11) == 0
        assert await producer.produce("t", b"a", sequence=10) == 0
        for first, values_ in ((10, [b"a"]), (11, [b"b"]), (12, [b"c", b"d"])):
            assert await producer.produce("t", *values_, sequence=first) == 0, "it comes again"
        assert await producer.end() == 0
        assert await producer.add("t") == [0]
        assert await producer.produce("t", b"-", sequence=9) == Code.OUT_OF_SEQUENCE, "too late"
        assert await producer.produce("t", b"f", sequence=15) == Code.OUT_OF_SEQUENCE
        assert await producer.produce("t", b"e", sequence=14) == 0
        assert await producer.end() == Code.INVALID_TXN_STATE, "one is missing"
        assert await producer.produce("t", b"f", sequence=15) == 0
        assert await producer.end() == 0
        assert await values(producer.peer) == [b"a", b"b", b"c", b"d", b"e", b"f"]

    with_server(test)


@pytest.mark.parametrize("bound", ["TRANSACTION_BYTES_MAX", "TRANSACTIONS_BYTES_MAX", "TRANSACTION_PARTITIONS_MAX"])
def test_what_is_too_large_is_told_and_can_only_be_aborted(
    monkeypatch: pytest.MonkeyPatch, state: Callable[[], ListenerState], bound: str
) -> None:
    monkeypatch.setattr(transactions, bound, 1 if "PARTITIONS" in bound else 10_000)

    async def test(server: Server) -> None:
        producer = await begun(server)
        assert await producer.add("t", 1) == [0]
        assert await producer.produce("t", b"x" * 5000) == 0
        index = 1 if "PARTITIONS" in bound else 0
        assert await producer.produce("t", b"x" * 5000, index=index) == Code.LIST_TOO_LARGE
        assert await producer.produce("t", b"small") == Code.LIST_TOO_LARGE
        assert await producer.end() == Code.INVALID_TXN_STATE
        assert await producer.end(commit=False) == 0
        assert state().transactions.size_bytes == 0
        assert await producer.add("t") == [0]
        assert await producer.produce("t", b"small", sequence=0) == 0
        assert await producer.end() == 0
        assert await values(producer.peer) == [b"small"]

    with_server(test)


def test_offsets_and_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "TRANSACTION_OFFSETS_MAX", 1)
    monkeypatch.setattr(transactions, "IDS_MAX", 1)

    async def test(server: Server) -> None:
        producer = await begun(server)
        assert await producer.group() == 0
        assert await producer.offset("t", 1) == 0
        assert await producer.offset("t", 2) == Code.TOO_MANY_OFFSETS
        assert await producer.group("x" * (limits.GROUP_NAME_BYTES_MAX + 1)) == Code.INVALID_GROUP
        assert await Producer(producer.peer, "other").init() == Code.POLICY
        assert limits.TRANSACTION_OFFSETS_MAX < limits.ELEMENTS_MAX

    with_server(test)


def test_the_name_of_a_group_counts_with_each_of_its_offsets() -> None:
    name, committed = "g" * limits.GROUP_NAME_BYTES_MAX, Committed(1, "m" * limits.COMMIT_METADATA_BYTES_MAX)
    put = Put(key_of(name, (1, 1)), [name, *committed])
    assert pack_submission([put], None).size_bytes <= size_of_offset(name, committed)
    assert limits.TRANSACTION_BYTES_MAX <= STATE_ROUND_BYTES_MAX


def test_one_that_takes_too_long_is_aborted_and_its_producer_fenced(state: Callable[[], ListenerState]) -> None:
    async def test(server: Server) -> None:
        producer = await begun(server)
        assert await producer.group() == 0
        assert await producer.offset("t", 3) == 0
        assert await producer.produce("t", b"a") == 0
        (named,) = state().transactions._named.values()
        assert named.open is not None
        state().transactions._time_is_over(named)
        assert state().transactions.size_bytes == 0
        short = Producer(await Peer.open(server.addresses["kafka"]), "short")
        assert await short.init(1) == 0
        await short.add("t")
        await until(lambda: state().transactions.ended["timed out"] == 2)
        assert await producer.produce("t", b"a") == Code.OLD_EPOCH
        assert await producer.end() == Code.PRODUCER_FENCED
        assert await committed(producer.peer, stable=True) == (0, -1)
        assert await producer.init(again=True) == Code.PRODUCER_FENCED
        assert await producer.init() == 0
        assert await values(producer.peer) == []

    with_server(test)


def test_a_topic_that_is_deleted_amid_takes_its_records_along() -> None:
    async def test(server: Server) -> None:
        producer = await begun(server)
        await producer.peer.make("other")
        assert await producer.add("other") == [0]
        assert await producer.group() == 0
        assert await producer.produce("t", b"a") == 0
        assert await producer.produce("other", b"b") == 0
        assert await producer.offset("other", 5) == 0
        await producer.peer.ask(Key.DELETE_TOPICS, {"names": ["other"], "timeout_ms": 1000})
        assert await producer.produce("other", b"c") == Code.UNKNOWN_TOPIC
        await producer.peer.make("other")
        assert await producer.produce("other", b"c") == Code.INVALID_TXN_STATE, "another topic, which was not added"
        assert await producer.end() == 0
        assert await values(producer.peer) == [b"a"]
        assert await values(producer.peer, "other") == []
        assert await committed(producer.peer, "other") == (0, -1)

    with_server(test)


def test_an_open_one_is_lost_with_the_server_and_an_ended_one_is_known(tmp_path: Path) -> None:
    kept: list[Producer] = []

    async def first(server: Server) -> None:
        ended = await begun(server)
        assert await ended.produce("t", b"a") == 0
        assert await ended.end() == 0
        opened = Producer(ended.peer, "open")
        assert await opened.init() == 0
        assert await opened.add("t") == [0]
        assert await opened.produce("t", b"lost") == 0
        kept.extend((ended, opened))

    async def second(server: Server) -> None:
        ended, opened = kept
        ended.peer = opened.peer = await Peer.open(server.addresses["kafka"])
        assert await opened.add("t") == [Code.PRODUCER_FENCED]
        assert await opened.end() == Code.PRODUCER_FENCED
        assert await opened.end(version=0) == Code.OLD_EPOCH
        assert await opened.init() == 0
        assert await opened.end() == Code.INVALID_TXN_STATE
        assert await ended.end() == 0, "its answer may have been lost"
        assert await ended.end(commit=False) == Code.INVALID_TXN_STATE
        assert await ended.add("t") == [0]
        assert await ended.produce("t", b"b") == 0, "it goes on counting"
        assert await ended.end() == 0
        assert await values(ended.peer) == [b"a", b"b"]

    with_server(first, tmp_path)
    with_server(second, tmp_path)


def test_on_a_full_disk_it_stays_open_and_is_committed_later(
    monkeypatch: pytest.MonkeyPatch, state: Callable[[], ListenerState]
) -> None:
    async def test(server: Server) -> None:
        producer = await begun(server)
        assert await producer.produce("t", b"a") == 0
        files = server.log.context.files
        usual = type(files).write

        def full(*_: Any) -> Any:
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(type(files), "write", full)
        assert await producer.end() == Code.COORDINATOR_NOT_AVAILABLE
        assert await producer.end() == Code.COORDINATOR_NOT_AVAILABLE
        monkeypatch.setattr(type(files), "write", usual)
        assert await producer.end() == 0
        assert await values(producer.peer) == [b"a"]
        assert state().transactions.size_bytes == 0

    with_server(test)


def test_while_one_change_is_on_its_way_another_has_to_come_again(state: Callable[[], ListenerState]) -> None:
    async def test(server: Server) -> None:
        producer = await begun(server)
        other = Producer(await Peer.open(server.addresses["kafka"]))
        assert await producer.produce("t", b"a") == 0
        (named,) = state().transactions._named.values()
        named.is_busy = True
        assert await other.init() == Code.CONCURRENT_TRANSACTIONS
        assert await producer.end() == Code.CONCURRENT_TRANSACTIONS
        assert await producer.add("t", 1) == [Code.CONCURRENT_TRANSACTIONS]
        assert await producer.produce("t", b"a") == Code.CONCURRENT_TRANSACTIONS
        named.is_busy = False
        assert await producer.end() == 0

    with_server(test)


def test_a_connection_that_is_lost_at_the_commit_loses_nothing(state: Callable[[], ListenerState]) -> None:
    async def test(server: Server) -> None:
        producer = await begun(server)
        assert await producer.produce("t", *[b"%d" % n for n in range(1000)]) == 0
        producer.peer.send(Key.END_TXN, producer.who | {"commit": True})
        (named,) = state().transactions._named.values()
        await until(lambda: named.is_busy or named.open is None)
        await producer.peer.close()
        producer.peer = await Peer.open(server.addresses["kafka"])
        await until(lambda: not named.is_busy)
        assert await producer.end() == 0
        assert len(await values(producer.peer)) == 1000

    with_server(test)


def test_how_far_producers_have_counted_is_bounded(
    monkeypatch: pytest.MonkeyPatch, state: Callable[[], ListenerState]
) -> None:
    monkeypatch.setattr(transactions, "SEQUENCES_MAX", 2)

    async def test(server: Server) -> None:
        first = await begun(server)
        assert await first.produce("t", b"a") == 0
        assert await first.end() == 0
        second = Producer(first.peer, "second")
        assert await second.init() == 0
        assert await second.add("t", 0, 1) == [0, 0]
        for index in (0, 1):
            assert await second.produce("t", b"b", index=index) == 0
        known = {name: len(one.sequences) for name, one in state().transactions._named.items()}
        assert known == {"mine": 0, "second": 2}
        assert await second.produce("t", b"b", sequence=0) == 0, "it comes again"
        assert await second.end() == 0
        assert await values(first.peer) == [b"a", b"b"]

    with_server(test)


def test_names_that_nobody_uses_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, state: Callable[[], ListenerState], tmp_path: Path
) -> None:
    monkeypatch.setattr(transactions, "IDS_KEPT_MS", -1)
    monkeypatch.setattr(transactions, "IDS_LOOK_S", -1.0)

    async def test(server: Server) -> None:
        producer = await begun(server)
        assert await Producer(producer.peer, "second").init() == 0
        assert await Producer(producer.peer, "third").init() == 0
        assert set(state().transactions._named) == {"mine", "third"}, "one that is open stays"

    async def again(server: Server) -> None:
        assert set(state().transactions._named) == {"mine", "third"}

    with_server(test, tmp_path)
    with_server(again, tmp_path)


def test_who_may_publish_nothing_has_no_transactional_id(tmp_path: Path) -> None:
    async def test() -> None:
        identities = {"nobody": {right.value: [] for right in Right}}
        async with place(tmp_path, identities) as here:
            peer = Peer(*await here.streams("kafka", "nobody"))
            producer = Producer(peer)
            assert await producer.init() == Code.TRANSACTION_FORBIDDEN
            assert await producer.group() == Code.GROUP_FORBIDDEN
            joining = {"group": "g", "session_ms": 10_000, "member": "", "protocol_type": "consumer", "protocols": ()}
            assert (await peer.ask(Key.JOIN_GROUP, joining | {"rebalance_ms": 1}))["error"] == Code.GROUP_FORBIDDEN

    asyncio.run(test())


def test_a_large_one_is_packed_in_short_steps(tmp_path: Path) -> None:
    with EngineLog(tmp_path) as log:
        large = check_records(batch(*[b"%d" % n for n in range(20_000)], attributes=TRANSACTIONAL), 1000)
        small = [check_records(batch(b"%d" % n, Record(b"x", headers=(("h", b"v"),))), 1000) for n in range(30)]
        transaction = log.log.transaction()
        partition = log.partition()
        steps = 0
        for _ in pack(transaction, partition, [large, *small], 1):
            steps += 1
        assert steps >= 30 + 20_000 // limits.PACKED_RECORDS
        outcome: list[object] = []
        transaction.commit(outcome.append)
        log.inbox.run_until(lambda: bool(outcome))
        assert outcome == [None]
        wanted = [b"%d" % n for n in range(20_000)]
        for n in range(30):
            wanted += [b"%d" % n, b"x"]
        assert log.values() == wanted
