"""Staged files that nobody commits, and those that are still needed: how long they stay, and what room they take."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from netserver.admin import staged_commits
from tests.simulated_files import LoseAll, disk_with
from tests.staged_writer import ROWS, Writer, commit_of, packed, partly, row, values, with_writer
from tests.wrong_clock import DAY, MINUTE, START_MS, YEAR, Time

pytestmark = pytest.mark.whole


def test_abandoned_files_go_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(writer: Writer) -> None:
        old, young = await writer.stage(row(b"old")), await writer.stage(row(b"young"))
        long_ago = time.time() - staged_commits.STAGED_KEEP_S - 60
        os.utime(writer.data_dir / staged_commits.DIRECTORY / old, (long_ago, long_ago))
        monkeypatch.setattr(staged_commits, "STAGED_SWEEP_S", 0)
        newest = await writer.stage(row(b"newest"))
        assert writer.files() == {young, newest}

    with_writer(test)


def test_a_clock_that_is_ahead_for_a_while_removes_no_staged_file(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(monkeypatch)
    time.offset_ms = right_ms = START_MS + 10 * YEAR  # the file system's clock is behind it, for good
    monkeypatch.setattr(staged_commits, "STAGED_SWEEP_S", 0)

    async def test(writer: Writer) -> None:
        names = set()
        for offset_ms in (0, 2 * DAY, -2 * DAY, 0):
            time.offset_ms = right_ms + offset_ms
            time.pass_on(MINUTE)
            writer.call.server.log.clock.look()
            names.add(await writer.stage(row(b"x")))
        assert writer.files() == names

    with_writer(test)


def test_what_was_staged_in_vain_goes_with_the_commit() -> None:
    """Of killed attempts, of the batch itself and of earlier ones; that of other writers and of later batches stays."""

    async def test(writer: Writer) -> None:
        other = Writer(writer.call, "another query, \xe4 & b=1")
        unnamed = await writer.stage(row(b"for nobody knows what"))
        theirs = await other.stage(row(b"theirs"), batch=1)
        await writer.stage(row(b"killed"), batch=0)
        await writer.stage(row(b"killed, too"), batch=0)
        await writer.commit(0, await writer.stage(row(b"zero"), batch=0))
        assert writer.files() == {unnamed, theirs}
        late = await writer.stage(row(b"an attempt that was slow"), batch=0)
        next_ones = [await writer.stage(row(b"one"), batch=1), await writer.stage(row(b"sixteen"), batch=16)]
        assert (await writer.commit(0, late))["repeated"]
        await writer.stage(row(b"slower"), batch=0)
        await writer.commit(1, next_ones[0])
        assert writer.files() == {unnamed, theirs, next_ones[1]}
        await writer.commit(17, unnamed)
        assert writer.files() == {theirs}
        await other.commit(1, theirs)
        assert values(writer.data_dir) == [b"zero", b"one", b"for nobody knows what", b"theirs"]

    with_writer(test)


def test_a_staged_file_is_taken_for_its_own_batch_only() -> None:
    async def test(writer: Writer) -> None:
        name = await writer.stage(row(b"x"), batch=3)
        for other in (
            commit_of(3, name, writer="another"),
            commit_of(4, name),
            commit_of(2, name),
            commit_of(48, name),
        ):
            assert await writer.call.error("POST", "/v1/commits", other) == (400, "bad_request")
        for parameters in ("?writer=w", "?batch=1", "?writer=&batch=1", "?writer=w&batch=-1", "?writer=w&batch=x",
                           "?writer=w&batch=9223372036854775808", "?writer=w&batch=" + "9" * 5000):  # fmt: skip
            error = await writer.call.error("POST", f"/v1/staged{parameters}", packed(row(b"y")))
            assert error == (400, "bad_request"), parameters
        assert writer.files() == {name}
        await writer.commit(3, name)

    with_writer(test)


def test_leftovers_take_no_room_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that came when their batch was in the log already."""
    content = packed(row(b"." * 100))

    async def test(writer: Writer) -> None:
        monkeypatch.setattr(staged_commits, "STAGING_BYTES_MAX", 3 * len(content))
        await writer.commit(1, await writer.stage(row(b"." * 100), batch=1))
        for _ in range(3):
            await writer.stage(row(b"." * 100), batch=1)
        monkeypatch.setattr(staged_commits, "STAGED_FULL_SWEEP_S", 0)
        name = await writer.stage(row(b"." * 100), batch=2)
        assert writer.files() == {name}
        waiting = {name, *[await writer.stage(row(b"." * 100), batch=2) for _ in range(2)]}
        assert await writer.call.error("POST", "/v1/staged?writer=w&batch=1", content) == (409, "limit_reached")
        assert writer.files() == waiting

    with_writer(test)


def test_what_an_incomplete_batch_needs_is_no_leftover(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = partly(tmp_path, monkeypatch)
    monkeypatch.setattr(staged_commits, "STAGED_SWEEP_S", 0)

    async def test(writer: Writer) -> None:
        await writer.stage(row(b"x"), batch=3)
        again = await writer.stage(row(b"x"), batch=4)
        later = await writer.stage(row(b"x"), batch=5)
        assert writer.files() == {*kept, again, later}
        found = await writer.commit(4, again)
        assert (found["complete"], found["records"]) == (True, 40)
        assert writer.files() == {later}
        assert values(writer.data_dir) == [fields[3] for fields in ROWS]

    with_writer(test, path=tmp_path)


def test_staged_files_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    content = packed(row(b"." * 100))

    async def test(writer: Writer) -> None:
        monkeypatch.setattr(staged_commits, "STAGING_BYTES_MAX", 3 * len(content))
        names = [await writer.stage(row(b"." * 100)) for _ in range(3)]
        assert await writer.call.error("POST", "/v1/staged", content) == (409, "limit_reached")
        await writer.commit(1, *names[:2])
        await writer.stage(row(b"." * 100))

    with_writer(test)


def test_a_staged_file_is_on_disk_with_its_name_and_its_directory(tmp_path: Path) -> None:
    disk = disk_with(tmp_path)
    name = staged_commits._store(disk, tmp_path / staged_commits.DIRECTORY, packed(row(b"v")), None)
    after = disk.after_power_cut(LoseAll())
    assert after.list_dir(tmp_path / staged_commits.DIRECTORY) == [name]
