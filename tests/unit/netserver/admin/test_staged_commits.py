"""Batches that are appended exactly once: staged files, commits, repeats, parts, what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

import engine.commit.transactions
import quintlog
from engine.commit.target import CommitTarget
from engine.commit.transactions import Transaction
from engine.state.writer_ledger import Entry, Ledger
from netserver.admin import staged_commits
from netserver.admin.api import Api
from netserver.testing import server
from tests.echo import ALONE
from tests.lmdb_state import data_file_replaced
from tests.staged_writer import (
    ROWS,
    Writer,
    commit_of,
    packed,
    partly,
    row,
    stopping_after_two_parts,
    stored,
    values,
    with_writer,
)
from tests.unit.conftest import Logtool
from tools.spark.sink.client import RETRIED

pytestmark = pytest.mark.whole


def test_others_have_their_turns_while_all_writers_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.slices.SLICES_S", 0.0)
    writers = 200

    async def test(writer: Writer) -> None:
        log = writer.call.server.log
        ledger = Ledger(log.state)
        puts = [ledger.put(Entry(f"{number}", 1, (), 1, 0, 1, 1, log.now_ms(), ())) for number in range(writers)]
        await Api.durable(lambda done: log.state.submit(puts, done))
        put_off: list[object] = []
        later = log.slices.later
        monkeypatch.setattr(log.slices, "later", lambda work: (put_off.append(work), later(work)))
        dropped = await writer.stage(row(b"1"))
        assert len(put_off) > writers - 5
        for call in (
            writer.commit(1, await writer.stage(row(b"2"))),
            writer.call("GET", "/v1/commits"),
            writer.call("POST", "/v1/staged/drop", {"names": [dropped]}),
        ):
            put_off.clear()
            await call
            assert len(put_off) > writers - 5

    with_writer(test)


def test_rows_go_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """To take 500,000 rows apart at the end of a commit stopped everybody for 40 ms."""
    monkeypatch.setattr(staged_commits, "STAGED_SLICE_ROWS", 10)
    left: list[int] = []
    append = Transaction.append

    def watched(self: Transaction, partition: CommitTarget, value: bytes, **more: Any) -> None:
        if value == b"49":
            left.append(sum(type(one) is staged_commits.StagedRow for one in gc.get_objects()))
        append(self, partition, value, **more)

    monkeypatch.setattr(Transaction, "append", watched)

    async def test(writer: Writer) -> None:
        name = await writer.stage(*(row(b"%d" % number) for number in range(50)))
        await writer.commit(1, name)
        assert len(left) == 1
        assert left[0] <= 10

    with_writer(test)


def test_a_batch_of_more_partitions_than_a_round_may_have_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.commit.transactions, "TRANSACTION_PARTITIONS_MAX", 2)
    committed: list[int] = []
    commit = Transaction.commit

    def watched(self: Transaction, on_done: Any) -> None:
        committed.append(len(self.partitions))
        commit(self, on_done)

    monkeypatch.setattr(Transaction, "commit", watched)

    async def test(writer: Writer) -> None:
        topics = [b"a", b"b", b"a", b"c", b"c", b"a", b"d"]
        await writer.commit(1, await writer.stage(*(row(b"%d" % at, topic) for at, topic in enumerate(topics))))
        assert committed == [2, 2, 1]
        for topic in set(topics):
            expected = [b"%d" % at for at, one in enumerate(topics) if one == topic]
            assert values(writer.data_dir, topic) == expected

    with_writer(test)


def test_a_batch_is_appended_whole_in_the_order_of_its_files() -> None:
    async def test(writer: Writer) -> None:
        late = await writer.stage(row(b"3", key=b"k", timestamp_ms=77), row(b"4", b"u", headers=[b"name", b"value"]))
        early = await writer.stage(row(b"1"), row(b"2"))
        assert writer.files() == {late, early}
        found = await writer.commit(0, early, late)
        assert (found["records"], found["parts"], found["repeated"], found["complete"]) == (4, 1, False, True)
        records = stored(writer.data_dir)
        assert [record.value for record in records] == [b"1", b"2", b"3"]
        assert (records[2].key, records[2].timestamp_ms) == (b"k", 77)
        assert stored(writer.data_dir, b"u")[0].headers == (b"name", b"value")
        assert writer.files() == set()

    with_writer(test)


def test_a_repeated_batch_changes_nothing_and_its_files_go() -> None:
    async def test(writer: Writer) -> None:
        await writer.commit(7, await writer.stage(row(b"one"), row(b"two")))
        for batch in (7, 3):
            found = await writer.commit(batch, await writer.stage(row(b"two"), row(b"one")))
            assert (found["repeated"], found["batch"]) == (True, 7)
        assert writer.files() == set()
        found = await writer.commit(8, await writer.stage(row(b"three")))
        assert not found["repeated"]
        assert values(writer.data_dir) == [b"one", b"two", b"three"]
        other = Writer(writer.call, "another query")
        await other.commit(7, await writer.stage(row(b"four")))
        assert values(writer.data_dir)[3:] == [b"four"]
        assert (await writer.call("GET", "/v1/commits/query"))[1]["batch"] == 8
        assert await writer.call.error("GET", "/v1/commits/nobody") == (404, "not_found")

    with_writer(test)


def test_repeats_are_known_after_a_restart(tmp_path: Path) -> None:
    async def first(writer: Writer) -> None:
        await writer.commit(1, await writer.stage(row(b"once")))

    async def second(writer: Writer) -> None:
        assert (await writer.commit(1, await writer.stage(row(b"twice"))))["repeated"]
        assert values(writer.data_dir) == [b"once"]

    with_writer(first, path=tmp_path)
    with_writer(second, path=tmp_path)


def test_rows_without_a_partition_go_by_key_or_by_file() -> None:
    async def test(writer: Writer) -> None:
        await writer.call("POST", "/v1/topics", {"name": "t", "partitions": 4})
        rows = [row(b"%d" % number, partition=None, key=b"k%d" % (number % 10)) for number in range(100)]
        await writer.commit(1, await writer.stage(*rows))
        places: dict[bytes, set[int]] = {}
        for partition in range(4):
            for record in stored(writer.data_dir, partition=partition):
                places.setdefault(record.key, set()).add(partition)
        assert len(places) == 10
        assert all(len(found) == 1 for found in places.values())
        assert len(set.union(*places.values())) > 1
        before = [len(values(writer.data_dir, partition=partition)) for partition in range(4)]
        await writer.commit(2, await writer.stage(*(row(b"no key", partition=None) for _ in range(20))))
        after = [len(values(writer.data_dir, partition=partition)) for partition in range(4)]
        assert sorted(b - a for a, b in zip(before, after, strict=True)) == [0, 0, 0, 20]

    with_writer(test)


def test_a_batch_larger_than_a_transaction_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.commit.transactions, "TRANSACTION_BYTES_MAX", 2000)

    async def test(writer: Writer) -> None:
        rows = [row(b"%d" % number + b"." * 100, b"tu"[number % 2 :][:1]) for number in range(60)]
        names = [await writer.stage(*rows[start : start + 25]) for start in range(0, 60, 25)]
        found = await writer.commit(1, *names)
        assert found["records"] == 60
        assert found["parts"] >= 5
        assert values(writer.data_dir) == [fields[3] for fields in rows[::2]]
        assert values(writer.data_dir, b"u") == [fields[3] for fields in rows[1::2]]
        assert (await writer.commit(1, await writer.stage(row(b"again"))))["repeated"]

    with_writer(test)


def test_what_is_wrong_in_a_later_part_is_found_before_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.commit.transactions, "TRANSACTION_BYTES_MAX", 2000)

    async def test(writer: Writer) -> None:
        rows = [row(b"." * 100) for _ in range(50)]
        for wrong, status in ((row(b"x", partition=5), 404), (row(b"x" * 3000), 413)):
            found, document = await writer.try_commit(1, await writer.stage(*rows), await writer.stage(wrong))
            assert found == status, document
            assert values(writer.data_dir) == []
            assert await writer.call.error("GET", "/v1/commits/query") == (404, "not_found")

    with_writer(test)


def test_a_batch_that_is_partly_there_is_finished_with_its_first_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engine.commit.transactions, "TRANSACTION_BYTES_MAX", 2000)
    rows = [row(b"%d" % number + b"." * 100) for number in range(40)]
    kept: list[str] = []

    async def first(writer: Writer) -> None:
        kept.extend([await writer.stage(*rows[:30]), await writer.stage(*rows[30:])])
        with stopping_after_two_parts():
            assert (await writer.try_commit(4, *kept))[0] == 503

    async def second(writer: Writer) -> None:
        there = values(writer.data_dir)
        assert there == [fields[3] for fields in rows[: len(there)]]
        assert 0 < len(there) < 40
        assert (await writer.call("GET", "/v1/commits/query"))[1]["complete"] is False
        assert (await writer.try_commit(5, await writer.stage(row(b"next"))))[0] == 409
        assert (await writer.call("POST", "/v1/staged/drop", {"names": kept}))[1] == {"dropped": 0}
        other = await writer.stage(*reversed(rows))
        found = await writer.commit(4, other)
        assert (found["records"], found["repeated"]) == (40, False)
        assert values(writer.data_dir) == [fields[3] for fields in rows]
        assert not writer.files() & {*kept, other}

    with_writer(first, path=tmp_path)
    with_writer(second, path=tmp_path)


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_lost_file_is_replaced_by_one_of_the_same_content(
    is_missing: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = partly(tmp_path, monkeypatch)
    lost = tmp_path / staged_commits.DIRECTORY / kept[1]
    lost.unlink()
    if not is_missing:
        lost.write_bytes(b"damaged")

    async def test(writer: Writer) -> None:
        before = values(writer.data_dir)
        status, document = await writer.try_commit(4, await writer.stage(*reversed(ROWS)))
        assert status == 409
        assert f"partly in the log ({len(before)} records)" in document["detail"]
        assert kept[1] in document["detail"]
        assert (await writer.try_commit(5, await writer.stage(row(b"next"))))[0] == 409
        found = await writer.commit(4, await writer.stage(*ROWS[:20]), await writer.stage(*ROWS[20:]))
        assert (found["records"], found["complete"]) == (40, True)
        assert values(writer.data_dir) == [fields[3] for fields in ROWS]
        await writer.commit(5, await writer.stage(row(b"next")))

    with_writer(test, path=tmp_path)


def test_the_rest_of_a_batch_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = partly(tmp_path, monkeypatch)
    (tmp_path / staged_commits.DIRECTORY / kept[1]).unlink()

    async def test(writer: Writer) -> None:
        call, before = writer.call, values(writer.data_dir)
        (item,) = (await call("GET", "/v1/commits"))[1]["items"]
        assert (item["complete"], item["abandoned"]) == (False, False)
        assert (item["needed_files"], item["missing_files"]) == (1, 1), "the first file is in the log"
        assert item["records"] == len(before)
        assert await call.error("POST", "/v1/commits/query/abandon", {"batch": 3}) == (409, "conflict")
        assert await call.error("POST", "/v1/commits/nobody/abandon", {"batch": 4}) == (404, "not_found")
        for _ in range(2):
            status, found = await call("POST", "/v1/commits/query/abandon", {"batch": 4})
            assert (status, found["abandoned"], found["complete"], found["records"]) == (200, True, False, len(before))
        assert writer.files() == set()
        repeated = await writer.commit(4, await writer.stage(*ROWS))
        assert (repeated["repeated"], repeated["abandoned"], repeated["complete"]) == (True, True, False)
        assert values(writer.data_dir) == before
        assert (await writer.commit(5, await writer.stage(row(b"next"))))["complete"]
        assert values(writer.data_dir) == [*before, b"next"]
        assert await call.error("POST", "/v1/commits/query/abandon", {"batch": 5}) == (409, "conflict")

    with_writer(test, path=tmp_path)


@pytest.mark.parametrize("is_running", [True, False])
def test_commits_on_the_command_line(
    is_running: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, logtool: Logtool
) -> None:
    path = tmp_path / "data"
    kept = partly(path, monkeypatch)
    (path / staged_commits.DIRECTORY / kept[1]).unlink()
    place = ("--data-dir", str(path))
    code, out, err = logtool(*place, "verify")
    assert (code, kept[1] in err) == (1, True), "verify finds it"
    assert logtool(*place, "repair")[0] == 1, "and so does repair"
    with server(path, ALONE) if is_running else contextlib.nullcontext():
        code, out, _ = logtool(*place, "commits", "list")
        assert out.splitlines()[1].split()[:3] == ["query", "4", "incomplete"]
        assert logtool(*place, "commits", "abandon", "query", "--no-input")[0] == 2
        assert logtool(*place, "commits", "abandon", "nobody", "--yes")[0] == 5
        code, out, err = logtool(*place, "commits", "abandon", "query", "--yes")
        assert (code, "of its records stay" in err) == (0, True), err
        code, out, _ = logtool(*place, "commits", "list")
        assert out.splitlines()[1].split()[:3] == ["query", "4", "abandoned"]
        assert logtool(*place, "commits", "abandon", "query", "--yes")[0] == 6
    assert list((path / staged_commits.DIRECTORY).iterdir()) == []
    code, out, err = logtool(*place, "verify")
    assert code == 0, out + err


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        packed(row(b"v"))[:-1],
        packed(row(b"v")) + b"\x96",
        packed([b"t", 0, None, b"v", None]),
        packed([b"t", 0, None, "text", None, None]),
        packed(["t", 0, None, b"v", None, None]),
        packed([b"t", -1, None, b"v", None, None]),
        packed([b"t", 0, b"k" * 256, b"v", None, None]),
        packed([b"t", 0, None, b"v", [b"odd"], None]),
        packed([b"t", 0, None, b"v", [b"name", 1], None]),
        packed([b"t", 0, None, b"v", None, -1]),
        packed([b"t", 0, None, b"v", None, 1 << 63]),
        packed([b"t", True, None, b"v", None, "late"]),
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
    ],
)
def test_what_is_no_file_of_rows_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        list(staged_commits.read_rows(content))


def test_what_is_refused() -> None:
    async def test(writer: Writer) -> None:
        call = writer.call
        assert await call.error("POST", "/v1/staged", b"nonsense") == (400, "bad_request")
        name = await writer.stage(row(b"v"))
        good = {"writer": "w", "batch": 1, "names": [name]}
        for change in (
            {"writer": ""},
            {"writer": 1},
            {"writer": "w" * 2000},
            {"writer": "\ud800"},
            {"batch": -1},
            {"batch": "1"},
            {"names": []},
            {"names": name},
            {"names": ["../LOCK"]},
            {"names": [name, name]},
            {"names": [1]},
        ):
            assert await call.error("POST", "/v1/commits", good | change) == (400, "bad_request"), change
        missing = "0" * 16 + "-" + "0" * 16
        assert await call.error("POST", "/v1/commits", good | {"names": [name, missing]}) == (404, "not_found")
        (writer.data_dir / staged_commits.DIRECTORY / name).write_bytes(packed(row(b"other")))
        assert await call.error("POST", "/v1/commits", good) == (503, "not_stored")
        assert (await call("POST", "/v1/staged/drop", {"names": [name, missing]}))[1] == {"dropped": 2}
        assert writer.files() == set()
        assert values(writer.data_dir) == []

    with_writer(test)


def test_commits_of_many_writers_at_once_are_each_whole() -> None:
    async def test(writer: Writer) -> None:
        writers = [Writer(writer.call, f"writer {number}") for number in range(8)]
        names = [await other.stage(*(row(other.name.encode()) for _ in range(300))) for other in writers]
        await asyncio.gather(*(other.commit(1, name) for other, name in zip(writers, names, strict=True)))
        found = values(writer.data_dir)
        assert len(found) == 2400
        assert all(len(set(found[start : start + 300])) == 1 for start in range(0, 2400, 300))

    with_writer(test)


@pytest.mark.parametrize("page", ["data", "meta"])
def test_a_state_that_cannot_be_written_is_to_be_tried_again(
    page: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a failed write of its meta page LMDB refuses even to read, until a restart: no defect of the request. It is
    told once, although there is a subscription whose position has to wait."""

    async def failing(writer: Writer) -> None:
        server = writer.call.server
        await writer.commit(0, await writer.stage(row(b"one")))
        async with (
            await quintlog.blipmq.connect(str(server.addresses["blipmq"]), version=2) as client,
            client.subscribe("t", group="g", start=quintlog.blipmq.EARLIEST) as subscription,
        ):
            message = await anext(aiter(subscription))
            name = await writer.stage(row(b"two"))
            with data_file_replaced(server.data_dir / "state", "/dev/null", os.O_RDONLY, meta_only=page == "meta"):
                assert await writer.call.error("POST", "/v1/commits", commit_of(1, name)) == (503, "not_stored")
            code = "not_stored" if page == "data" else "unavailable"
            assert code in RETRIED
            await message.ack()
            caplog.clear()
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                assert await writer.call.error("POST", "/v1/commits", commit_of(1, name)) == (503, code)
                assert (await writer.call("GET", "/v1/commits"))[0] == (200 if page == "data" else 503)
                assert (await writer.call("GET", "/readyz", headers={}))[0] == 503
                assert (await writer.call("GET", "/v1/status"))[0] == 200
                assert (await writer.call("GET", "/metrics", headers={}))[0] == 200
                await asyncio.sleep(0.1)
            told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
            assert [text for text in told if "turn of the event loop" not in text] == []

    async def again(writer: Writer) -> None:
        (name,) = writer.files()
        assert not (await writer.commit(1, name))["repeated"]
        assert values(writer.data_dir) == [b"one", b"two"]

    with_writer(failing, {"blipmq": {"listen": "127.0.0.1:0"}}, tmp_path)
    with_writer(again, path=tmp_path)
