"""Batches of a producer on a disk that is full for a while: whole ones, in order, where the answers say they are."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from engine.errors import NotStored
from engine.segments.batches import COMMITTED, FAILED, PENDING
from netserver.kafka.appending import Appended, append_records
from netserver.kafka.checking import Records, check_records
from tests.engine_log import EngineLog
from tests.hooked_files import HookedFiles
from tests.kafka_peer import Record, batch


class Waiter:
    def round_done(self) -> None:
        """Nothing."""


WAITER = Waiter()
SIZES = {"one write batch": [100], "several": [30_000] * 40, "many objects": [1] * 400}


def made(first: int, sizes: list[int]) -> tuple[Records, list[bytes]]:
    """A batch of a producer, from this count on."""
    values = [b"%d " % (first + at) + bytes(size) for at, size in enumerate(sizes)]
    headers = (("h", b"x"),) if len(sizes) == 400 else ()
    records = [Record(value, headers=headers) for value in values]
    return check_records(batch(*records, producer=(7, 0, first)), 1 << 20), values


def states(log: EngineLog, appended: Appended) -> set[int]:
    for write_batch, _, _ in appended.write_batches:
        log.inbox.run_until(lambda write_batch=write_batch: write_batch.state != PENDING)
    return {write_batch.state for write_batch, _, _ in appended.write_batches}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_what_fails_comes_again_in_order_and_in_one_row(tmp_path: Path, sizes: list[int]) -> None:
    files, go_on = HookedFiles(), threading.Event()
    with EngineLog(tmp_path, files=files, round_bytes_max=256 << 10) as log:
        log.append([b"first"])
        count, partition = len(sizes), log.partition()
        batches = [made(count * number, sizes) for number in range(4)]
        writes: list[str] = []

        def hook(call: str, path: Path) -> None:
            if call == "write" and path.suffix == ".log":
                assert go_on.wait(30)
                writes.append(call)
                if len(writes) == 2:
                    raise OSError(errno.ENOSPC, "full")

        files.hook = hook
        appended = [append_records(partition, records, WAITER) for records, _ in batches[:3]]
        go_on.set()
        found = [states(log, one) for one in appended]
        assert all(len(one) == 1 for one in found), "a batch is stored as a whole or not at all"
        first_failed = found.index({FAILED})
        assert found[first_failed:] == [{FAILED}] * (3 - first_failed), "nothing is stored before what failed"
        with pytest.raises(NotStored):
            append_records(partition, batches[3][0], WAITER)
        places = [one.base_seq for one in appended[:first_failed]]
        for records, _ in batches[first_failed:]:
            again = append_records(partition, records, WAITER)
            assert states(log, again) == {COMMITTED}
            places.append(again.base_seq)
        told = [
            (place + at, value)
            for place, (_, values) in zip(places, batches, strict=True)
            for at, value in enumerate(values)
        ]
        assert [(record.seq, record.value) for record in log.read()[1:]] == told
