"""Streams of a topic's records: following, resuming, what the log has lost, what a slow client costs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import NotStored
from netserver.reliably import topic_stream
from netserver.reliably.applications import ApplicationCodec, Offsets, RecordsState
from netserver.reliably.values import Numbers, NumbersState
from tests.reliably_peer import Peer, Place, place, run


def start(topic: str = "t", offset: int | str = 0, uuid: str = "u", **more: Any) -> dict[str, Any]:
    return {"uuid": uuid, "params": {"topic": topic, "offset": offset, **more}}


def resume(message_id: int, uuid: str = "u") -> dict[str, Any]:
    return {"uuid": uuid, "state": message_id}


async def offsets(peer: Peer, count: int) -> list[int]:
    """Offsets of the next messages, whose values are their offsets (see `numbered`)."""
    messages = [await peer.message() for _ in range(count)]
    ids = [message["id"] for message in messages]
    assert ids == list(range(ids[0], ids[0] + count))
    for message in messages:
        assert message["data"]["value"] == str(message["data"]["offset"])
    return [message["data"]["offset"] for message in messages]


def numbered(here: Place, first: int, last: int, topic: str = "t") -> None:
    """Records whose values are their offsets."""
    here.publish(topic, *(b"%d" % number for number in range(first, last + 1)))


# --- what a message looks like


@pytest.mark.parametrize(
    ("key", "value", "fields"),
    [
        (b"", b"plain", b'"value":"plain"'),
        (b"", b"", b'"value":""'),
        (b"k\xc3\xa9", b'\xe2\x98\x83"\\\n\x00', b'"key":"k\xc3\xa9","value":"\xe2\x98\x83\\"\\\\\\n\\u0000"'),
        (b"\xff", b"\xfe\x00", b'"key_base64":"/w==","value_base64":"/gA="'),
        (b"k", b"\xed\xa0\x80", b'"key":"k","value_base64":"7aCA"'),
        (b"", "\u2028\x7f\U0001f600".encode(), '"value":"\u2028\x7f\U0001f600"'.encode()),
    ],
)
def test_fields(key: bytes, value: bytes, fields: bytes) -> None:
    async def test() -> None:
        async with place() as here:
            here.publish("t", value, key=key)
            peer = await here.peer(start())
            line = await peer.line()
            head, _, rest = line.partition(b'"timestamp":')
            timestamp, _, rest = rest.partition(b",")
            assert head == b'{"id":1,"data":{"offset":1,'
            assert abs(int(timestamp) - here.server.log.now_ms()) < 60_000
            assert rest == fields + b"}}\n"
            json.loads(line)

    run(test())


# --- where it begins, where it ends


@pytest.mark.parametrize(("offset", "first"), [(0, 1), (1, 2), (9, 10), (10, 11), ("earliest", 1), ("latest", 11)])
def test_begin(offset: int | str, first: int) -> None:
    async def test() -> None:
        async with place() as here:
            numbered(here, 1, 10)
            await here.committed()
            peer = await here.peer(start(offset=offset))
            await here.until(lambda: "u" in here.sessions)
            numbered(here, 11, 20)
            assert await offsets(peer, 20 - first + 1) == list(range(first, 21))
            await peer.nothing()

    run(test())


def test_count_ends_it() -> None:
    async def test() -> None:
        async with place() as here:
            numbered(here, 1, 3)
            peer = await here.peer(start(count=5))
            assert await offsets(peer, 3) == [1, 2, 3]
            numbered(here, 4, 9)
            assert await offsets(peer, 2) == [4, 5]
            assert await peer.rest() == []
            again = await here.peer(resume(4))
            assert await offsets(again, 1) == [5]
            assert await again.rest() == []

    run(test())


def test_following_a_topic_that_grows() -> None:
    async def test() -> None:
        async with place() as here:
            here.server.log.catalog.create(b"t")
            peers = [await here.peer(start(uuid=f"u{n}")) for n in range(5)]
            await here.until(lambda: len(here.sessions) == 5)
            for block in range(20):
                numbered(here, 100 * block + 1, 100 * block + 100)
                for peer in peers:
                    assert await offsets(peer, 100) == list(range(100 * block + 1, 100 * block + 101))
            peers[0].send({"uuid": "u0", "ack": 1990})
            await here.until(lambda: here.sessions.position("u0")[0] == 1990)

    run(test())


def test_a_long_topic_is_read_whole() -> None:
    async def test() -> None:
        async with place() as here:
            for block in range(20):
                numbered(here, 1000 * block + 1, 1000 * block + 1000)
            peer = await here.peer(start())
            assert await offsets(peer, 20_000) == list(range(1, 20_001))

    run(test())


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (start("nothing"), "Unknown topic 'nothing'"),
        (start("né"), "Unknown topic 'né'"),
        (start("t", -1), "Invalid offset: an integer from 0 to 9223372036854775807 is expected"),
        (start("t", 0, count=0), "Invalid count: an integer from 1 to 9223372036854775807 is expected"),
    ],
)
def test_refusals(request_: dict[str, Any], text: str) -> None:
    async def test() -> None:
        async with place() as here:
            here.publish("t", b"x")
            peer = await here.peer(request_)
            assert await peer.error() == text
            assert len(here.server.log.catalog) == 1

    run(test())


# --- resuming


def test_the_same_records_again_under_the_same_ids(tmp_path: Path) -> None:
    async def first() -> list[bytes]:
        async with place(None, tmp_path / "data") as here:
            here.publish("t", *(b"%d" % n * 50 for n in range(700)), key=b"k")
            peer = await here.peer(start())
            lines = await peer.lines(700)
            await peer.close()
            for position in (0, 1, 300, 699):
                again = await here.peer(resume(position))
                assert await again.lines(700 - position) == lines[position:]
                await again.close()
            return lines

    async def second(lines: list[bytes]) -> None:
        async with place(None, tmp_path / "data") as here:  # the topic is not open yet
            peer = await here.peer(resume(699))
            assert await peer.lines(1) == lines[699:]
            here.publish("t", b"more")
            message = await peer.message()
            assert (message["id"], message["data"]["offset"]) == (701, 701)
            other = await here.peer(start(uuid="v", offset=650))
            assert [json.loads(line)["data"] for line in await other.lines(50)] == [
                json.loads(line)["data"] for line in lines[650:]
            ]

    lines = asyncio.run(first())
    run(second(lines))


def test_a_new_stream_of_a_topic_that_is_not_open_yet(tmp_path: Path) -> None:
    async def first() -> None:
        async with place(None, tmp_path / "data") as here:
            numbered(here, 1, 10)
            await here.committed()

    async def second() -> None:
        async with place(None, tmp_path / "data") as here:
            peer = await here.peer(start(offset=4), {"uuid": "u", "ack": 0})
            assert await offsets(peer, 6) == [5, 6, 7, 8, 9, 10]

    asyncio.run(first())
    run(second())


# --- what is gone


def test_retention_before_the_start() -> None:
    async def test() -> None:
        async with place() as here:
            partition = await trimmed(here)
            start_at = partition.log_start
            peer = await here.peer(start(offset=3))
            assert await peer.error() == f"Records 4 to {start_at - 1} of the topic have been removed by retention"
            assert "u" not in here.sessions
            fine = await here.peer(start(offset="earliest"))
            assert (await fine.message())["data"]["offset"] == start_at
            exact = await here.peer(start(offset=start_at - 1, uuid="v"))
            assert (await exact.message())["data"]["offset"] == start_at

    run(test())


def test_an_offset_beyond_the_end() -> None:
    async def test() -> None:
        async with place() as here:
            numbered(here, 1, 10)
            await here.committed()
            peer = await here.peer(start(offset=11))
            assert await peer.error() == "Offset 11 is beyond the end of the topic, which is 10"
            assert "u" not in here.sessions

    run(test())


def test_a_session_that_is_newer_than_the_log() -> None:
    """An older copy of the segments was put back, under the state that knows more."""

    async def test() -> None:
        async with place() as here:
            numbered(here, 1, 10)
            await here.committed()
            topic = here.server.log.catalog.get(b"t")
            assert topic is not None
            here.sessions.register("u", RecordsState(topic.id, 500, None), None)
            peer = await here.peer(resume(0))
            assert await peer.error() == "Offset 500 is beyond the end of the topic, which is 10"

    run(test())


async def trimmed(here: Place) -> Any:
    """A topic of several segments from which retention has taken the first."""
    catalog = here.server.log.catalog
    catalog.create(b"t", settings={"segment_bytes": 64 << 10})
    partition = here.server.log.partition(catalog.get(b"t"))  # type: ignore[arg-type]
    for block in range(10):
        here.publish("t", *(b"%d" % n * 200 for n in range(50 * block, 50 * block + 50)))
        await here.committed()
    await here.until(lambda: len(partition.sealed) >= 2)
    partition.trim(200)
    assert 1 < partition.log_start <= 200
    return partition


def test_retention_of_what_was_not_acknowledged() -> None:
    async def test() -> None:
        async with place() as here:
            catalog = here.server.log.catalog
            catalog.create(b"t", settings={"segment_bytes": 64 << 10})
            partition = here.server.log.partition(catalog.get(b"t"))  # type: ignore[arg-type]
            here.publish("t", b"x" * 100)
            peer = await here.peer(start())
            await peer.line()
            for _ in range(10):
                here.publish("t", *(b"y" * 1000 for _ in range(50)))
                await here.committed()
            lines = await peer.lines(500)
            await peer.close()
            await here.until(lambda: len(partition.sealed) >= 2)
            partition.trim(200)
            again = await here.peer(resume(1))
            gone = f"Records 2 to {partition.log_start - 1} of the topic have been removed by retention"
            assert await again.error() == gone
            later = await here.peer(resume(partition.log_start - 1))
            assert await later.lines(10) == lines[partition.log_start - 2 : partition.log_start + 8]

    run(test())


def test_a_deleted_topic() -> None:
    async def test() -> None:
        async with place() as here:
            here.publish("t", b"x")
            catalog = here.server.log.catalog
            peer = await here.peer(start())
            await peer.line()
            idle = await here.peer(start(uuid="v", offset="latest"))
            await here.until(lambda: "v" in here.sessions)
            topic = catalog.get(b"t")
            assert topic is not None
            catalog.delete(topic)
            assert await peer.error() == "The topic of this stream has been deleted"
            assert await idle.error() == "The topic of this stream has been deleted"
            here.publish("t", b"another topic of the same name")
            again = await here.peer(resume(1))
            assert await again.error() == "The topic of this stream has been deleted"

    run(test())


def test_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def first() -> None:
        async with place(None, tmp_path / "data") as here:
            for block in range(4):
                numbered(here, 10 * block + 1, 10 * block + 10)
                await here.committed()
            peer = await here.peer(start())
            await offsets(peer, 40)

    async def second() -> None:
        (segment,) = (tmp_path / "data" / "topics").glob("*/*/*.log")
        content = bytearray(segment.read_bytes())
        at = content.index(b"15", content.index(b"14"))  # in the second batch
        content[at] ^= 1
        segment.write_bytes(content)
        async with place(None, tmp_path / "data") as here:
            behind = await here.peer(resume(5))
            assert await offsets(behind, 5) == [6, 7, 8, 9, 10]
            assert await behind.error() == "Record 11 of the topic can no longer be read"
            fresh = await here.peer(start(uuid="v"))
            assert await offsets(fresh, 30) == [*range(1, 11), *range(21, 41)]
            assert here.server.counters["json"].skipped["damaged"] >= 10
            ahead = await here.peer(resume(20))
            assert await offsets(ahead, 20) == list(range(21, 41))

    asyncio.run(first())
    run(second())


def test_a_topic_that_cannot_be_read_is_a_pause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(topic_stream, "RETRY_S", 0.05)

    async def first() -> None:
        async with place(None, tmp_path / "data") as here:
            numbered(here, 1, 10)
            peer = await here.peer(start())
            await offsets(peer, 10)

    async def second() -> None:
        (segment,) = (tmp_path / "data" / "topics").glob("*/*/*.log")
        aside = segment.with_suffix(".aside")
        segment.rename(aside)
        segment.mkdir()  # opening fails
        async with place(None, tmp_path / "data") as here:
            peer = await here.peer(resume(5))
            await peer.nothing(0.3)
            refused = await here.peer(start(uuid="v"))
            assert await refused.error() == "Topic 't' cannot be read now"
            segment.rmdir()
            aside.rename(segment)
            assert await offsets(peer, 5) == [6, 7, 8, 9, 10]

    asyncio.run(first())
    run(second())


# --- flow


def test_clients_that_do_not_read_cost_little() -> None:
    async def test() -> None:
        async with place() as here:
            for _ in range(40):
                here.publish("t", *(b"z" * 1000 for _ in range(1000)))
                await here.committed()
            peers = [await here.peer(start(uuid=f"u{n}"), limit=4096) for n in range(3)]
            await here.until(lambda: len(here.shared.sessions) == 3)
            made: list[int] = []
            while made != (now := [here.sessions.position(f"u{n}")[2] for n in range(3)]) or not all(now):
                made = now
                await asyncio.sleep(0.3)
            assert all(number < 20_000 for number in made), made
            other = await here.peer(start(uuid="v", offset=39_990))
            await other.lines(10)
            assert len(await peers[0].lines(40_000)) == 40_000

    run(test())


def test_a_large_record() -> None:
    async def test() -> None:
        async with place() as here:
            here.publish("t", b"\0" * (1 << 20), b"\xff" * (1 << 20), b"small")
            peer = await here.peer(start())
            assert (await peer.message())["data"]["value"] == "\0" * (1 << 20)
            assert (
                len((await peer.message())["data"]["value_base64"]) == (1 << 20) * 4 // 3 + 4 - (1 << 20) * 4 // 3 % 4
            )
            assert (await peer.message())["data"]["value"] == "small"

    run(test())


def test_both_applications_have_their_own_states() -> None:
    async def test() -> None:
        async with place() as here:
            here.publish("t", b"x")
            peer = await here.peer(start())
            await peer.line()
            numbers = await here.peer({"uuid": "u", "params": {"count": 2}})  # the same name, another application
            assert len(await numbers.rest()) == 2
            assert await peer.rest() == []
            assert isinstance(here.sessions.state("u"), NumbersState)

    run(test())


# --- stored forms


def test_stored_forms() -> None:
    codec = ApplicationCodec()
    for state in (NumbersState(3, 2**32 - 1, 7), RecordsState(5, 2**63 - 1, None), RecordsState(1, 0, 9)):
        assert codec.unpack_state(codec.pack_state(state)) == state
    for numbers in (Numbers(b"abcdefgh"), Numbers(b"abcdefgh", 5)):
        assert codec.unpack_messages(codec.pack_messages(numbers), 2) == numbers
    records = Offsets.of([1, 2, 3, 7, 9, 10])
    assert records.runs == [(1, 3), (7, 1), (9, 2)]
    again = codec.unpack_messages(codec.pack_messages(records), 6)
    assert isinstance(again, Offsets)
    assert list(again) == [1, 2, 3, 7, 9, 10] == [again[n] for n in range(6)]
    for start_at in range(7):
        for stop_at in range(7):
            assert list(again[start_at:stop_at]) == [1, 2, 3, 7, 9, 10][start_at:stop_at]
    assert again[-1] == 10
    with pytest.raises(IndexError):
        again[6]
    with pytest.raises(ValueError, match="one piece"):
        again[::2]


def test_a_topic_whose_files_cannot_be_looked_for(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with place() as here:
            log = here.server.log
            topic = log.catalog.create(b"t")
            directory = log.data_dir / "topics" / str(topic.id)
            directory.mkdir()
            (directory / "0").write_bytes(b"no directory")
            peer = await here.peer(start())
            assert "cannot look for files" in await peer.error()

    run(test())
    assert "error in the session" not in caplog.text


def test_a_session_whose_topic_cannot_be_looked_for_expires_after_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise NotStored("cannot look for files")

    async def test() -> None:
        async with place() as here:
            here.publish("t", b"x")
            first = await here.peer(start())
            await first.message()
            await first.close()
            await here.until(lambda: here.sessions.info("u").expires_in_s is not None)
            monkeypatch.setattr(here.server.log, "partition", refuse)
            peer = await here.peer(resume(0))
            assert "cannot look for files" in await peer.error()
            await here.until(lambda: here.sessions.info("u").expires_in_s is not None)

    run(test())
