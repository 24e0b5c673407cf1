"""Opening with damage where it hurts most: headers, footers, the end of what was committed, bad sectors.

Design: what is committed is isolated, never cut; an acknowledged number is never given again; who reads is told.
"""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path

import pytest

from engine.errors import DiskFull
from engine.files.descriptors import Handles
from engine.files.system import SystemFiles
from engine.formats.segment import HEADER_BYTES, TRAILER_BYTES, parse_header
from engine.segments.active import ActiveSegment
from engine.segments.discovery import PartitionLocation
from engine.segments.recovery import SET_ASIDE, recover_partition
from engine.segments.recovery_hints import RecoveryHints
from tests.damage import UnsyncedFiles, flip, make, mark_of, read_beside, recover
from tests.engine_log import SMALL, EngineLog, segments
from tests.hooked_files import HookedFiles

# --- headers


@pytest.mark.parametrize("which", ["sealed", "active"])
@pytest.mark.parametrize("marked", [True, False])
def test_every_bit_of_a_header_flipped_costs_nothing(tmp_path: Path, which: str, marked: bool) -> None:
    path = make(tmp_path / "d")
    mark = mark_of(path) if marked else None
    files = segments(path)
    assert len(files) >= 3
    damaged = files[0] if which == "sealed" else files[-1]
    whole = damaged.read_bytes()
    intact = parse_header(whole, damaged)
    expected = recover(path, mark)
    for bit in range(HEADER_BYTES * 8):
        flip(damaged, bit)
        recovered = recover(path, mark)
        id_is_hit = 40 * 8 <= bit < 48 * 8
        if which == "active" and not marked and id_is_hit:
            # The only place that held the id: the records are kept under another name, and that is told.
            assert any("renamed to" in note for note in recovered.report.notes)
            aside = next(damaged.parent.glob("*.damaged*"))
            assert aside.stat().st_size == len(whole)
            aside.unlink()
            for made in set(segments(path)) - set(files):
                made.unlink()
        else:
            assert [s.segment_id for s in recovered.sealed] == [s.segment_id for s in expected.sealed]
            assert (recovered.next_seq, recovered.committed_seq) == (expected.next_seq, expected.committed_seq)
            assert any("header rebuilt" in note for note in recovered.report.notes)
            rebuilt = parse_header(damaged.read_bytes(), damaged)
            assert (rebuilt.segment_id, rebuilt.first_seq) == (intact.segment_id, intact.first_seq)
        damaged.write_bytes(whole)


def test_a_rebuilt_header_is_seen_by_readers_of_the_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = make(tmp_path / "d")
    for damaged in (segments(path)[0], segments(path)[-1]):
        with damaged.open("r+b") as file:
            file.write(bytes(HEADER_BYTES))
    with caplog.at_level(logging.ERROR), EngineLog(path, topic=SMALL) as engine:
        assert [record.seq for record in engine.read()] == list(range(1, 121))
    assert caplog.text.count("header rebuilt") == 2
    assert "topic 't' partition 0: " in caplog.text
    assert read_beside(path) == (list(range(1, 121)), [])


def test_the_index_knows_the_id_of_an_active_segment_when_nothing_else_does(tmp_path: Path) -> None:
    path = make(tmp_path / "d")
    (path / "watermarks").unlink()
    with segments(path)[-1].open("r+b") as file:
        file.write(bytes(HEADER_BYTES))
    with EngineLog(path, topic=SMALL) as engine:
        assert [record.seq for record in engine.read()] == list(range(1, 121))


def test_a_stranger_with_a_damaged_header_is_not_taken_in(tmp_path: Path) -> None:
    path = make(tmp_path / "d")
    with EngineLog(path) as engine:
        engine.append([b"a stranger's record"], topic="other")
    (stranger,) = segments(path, 2)
    place = segments(path)[0].parent / "00000000000000000999.log"
    shutil.copy(stranger, place)
    flip(place, 8)
    with EngineLog(path, topic=SMALL) as engine:
        assert [record.seq for record in engine.read()] == list(range(1, 121))
    assert place.with_name(place.name + ".damaged").exists()


# --- footers


@pytest.mark.parametrize("last_sealed", [True, False])
def test_every_bit_of_a_footer_flipped_costs_nothing(tmp_path: Path, last_sealed: bool) -> None:
    path = make(tmp_path / "d")
    mark = mark_of(path)
    files = segments(path)
    damaged = files[len(files) - 2 if last_sealed else 0]
    expected = recover(path, mark)
    size_bytes = damaged.stat().st_size
    end = next(segment.end for segment in expected.sealed if segment.path == damaged)
    assert end < size_bytes - TRAILER_BYTES
    for bit in range(end * 8, size_bytes * 8):
        flip(damaged, bit)
        recovered = recover(path, mark)
        assert [(s.first_seq, s.last_seq, s.records) for s in recovered.sealed] == [
            (s.first_seq, s.last_seq, s.records) for s in expected.sealed
        ]
        assert recovered.report.lost == []
        flip(damaged, bit)


def test_the_last_batch_of_a_sealed_segment_and_its_footer_damaged_is_told(tmp_path: Path) -> None:
    path = make(tmp_path / "d")
    (segment,) = (s for s in recover(path, mark_of(path)).sealed[:1])
    with segment.path.open("r+b") as file:
        file.seek(segment.end - 100)
        file.write(bytes(segment.size_bytes - segment.end + 100))
    with EngineLog(path, topic=SMALL) as engine:
        found = [record.seq for record in engine.read()]
        (lost,) = engine.lost
        assert sorted([*found, *range(lost[0], lost[1] + 1)]) == list(range(1, 121))
        assert lost[1] == segment.last_seq


# --- the end of what was committed


@pytest.mark.parametrize("kind", ["zeros", "garbage", "truncated", "header only", "flipped body", "flipped header"])
def test_damage_at_the_end_of_what_was_committed_keeps_numbers_and_is_told(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        for number in range(10):
            engine.append([b"%d.%d" % (number, k) for k in range(10)])
    file = segments(path)[0]
    data = file.read_bytes()
    starts = [i for i in range(len(data)) if data.startswith(b"\xd9QLB", i)]
    cut = HEADER_BYTES if kind == "header only" else starts[7]
    first_lost = 1 if kind == "header only" else 71
    damaged = {
        "zeros": data[:cut] + bytes(len(data) - cut),
        "garbage": data[:cut] + b"\xa5" * (len(data) - cut),
        "truncated": data[: cut + 5],
        "header only": data[:cut],
        "flipped body": data[:-1] + bytes([data[-1] ^ 4]),
        "flipped header": data[: starts[9] + 20] + bytes([data[starts[9] + 20] ^ 4]) + data[starts[9] + 21 :],
    }[kind]
    if kind.startswith("flipped"):
        first_lost = 91
    file.write_bytes(damaged)
    with caplog.at_level(logging.ERROR), EngineLog(path) as engine:
        partition = engine.partition()
        assert (partition.last_seq, partition.committed_seq) == (100, 100)
        assert [record.seq for record in engine.read()] == list(range(1, first_lost))
        assert engine.lost == [(first_lost, 100)]
        assert f"ACKNOWLEDGED records {first_lost} to 100 are lost" in caplog.text
        assert engine.log.figures.lost_records == 101 - first_lost
        engine.append([b"next"])
        assert partition.last_seq == 101
        assert [record.seq for record in engine.read()] == [*range(1, first_lost), 101]
        assert engine.lost == [(first_lost, 100)]
    assert read_beside(path) == ([*range(1, first_lost), 101], [(first_lost, 100)])
    assert not (path / SET_ASIDE).exists(), "damage in committed data stays where it is"
    with EngineLog(path) as engine:  # told to later readers and after further starts, too
        assert [record.seq for record in engine.read()] == [*range(1, first_lost), 101]
        assert engine.lost == [(first_lost, 100)]


def test_bytes_behind_a_damaged_end_are_still_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        engine.append([b"one"])
        engine.append([b"two"])
    file = segments(path)[0]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data) + b"torn")
    with EngineLog(path) as engine:
        assert engine.values() == [b"one"]
        engine.append([b"three"])
        assert engine.values() == [b"one", b"three"]
    (kept,) = (path / SET_ASIDE).iterdir()
    assert kept.read_bytes() == b"torn"


@pytest.mark.parametrize("marked", [True, False])
def test_every_bit_of_the_last_batch_of_an_idle_partition(tmp_path: Path, marked: bool) -> None:
    """With the watermarks file the batch is known to be committed: it is told as lost. Without, nothing says so: it is
    kept in ``set-aside/`` as possibly acknowledged, and its numbers are not given again unless its header is hit."""
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        engine.append([b"first"])
        engine.append([b"last", b"of all"])
    mark = mark_of(path) if marked else None
    file = segments(path)[0]
    whole = file.read_bytes()
    start = whole.rindex(b"\xd9QLB")
    for bit in range(start * 8, len(whole) * 8):
        flip(file, bit)
        recovered = recover(path, mark)
        if marked:
            assert (recovered.committed_seq, recovered.next_seq) == (3, 4)
            assert [(lost.first_seq, lost.last_seq) for lost in recovered.report.lost] == [(2, 3)]
        else:
            header_is_hit = bit < (start + 88) * 8
            assert recovered.committed_seq == 1
            assert recovered.next_seq == (2 if header_is_hit else 4)
            assert any("possibly acknowledged" in text for text in recovered.report.texts)
            kept = max((path / SET_ASIDE).iterdir())
            assert len(kept.read_bytes()) == len(whole) - start
        file.write_bytes(whole)


def test_numbers_of_a_lost_last_batch_are_remembered_over_further_starts(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        engine.append([b"first"])
        engine.append([b"last", b"of all"])
    (path / "watermarks").unlink()
    file = segments(path)[0]
    flip(file, file.stat().st_size * 8 - 1)
    for _ in range(3):
        with EngineLog(path) as engine:
            assert engine.values() == [b"first"]
            assert engine.lost == []
            assert engine.partition().last_seq == 3
    with EngineLog(path) as engine:
        engine.append([b"next"])
        assert [record.seq for record in engine.read()] == [1, 4]


def test_numbers_go_on_behind_what_the_watermark_knows_even_when_the_records_are_not_there(tmp_path: Path) -> None:
    """Durability below "always": a power cut took records that had been acknowledged and read."""
    path = make(tmp_path / "d")
    mark = mark_of(path)
    assert mark is not None
    seen = mark._replace(committed_seq=500, durable_position=HEADER_BYTES)
    recovered = recover(path, seen)
    assert (recovered.committed_seq, recovered.next_seq) == (120, 501)
    assert any("records 121 to 500 were acknowledged, but are not in the files" in t for t in recovered.report.texts)


# --- sectors that cannot be read


class BadSectors(SystemFiles):
    """A disk that fails to read some pages of files whose name ends with `suffix`."""

    def __init__(self, suffix: str, pages: set[int]) -> None:
        self.suffix = suffix
        self.pages = pages
        self.names: dict[int, str] = {}

    def open(self, path: Path, *, write: bool = False) -> int:
        fd = super().open(path, write=write)
        self.names[fd] = path.name
        return fd

    def _check(self, fd: int, position: int, size_bytes: int) -> None:
        touched = range(position // 4096, (position + max(size_bytes, 1) - 1) // 4096 + 1)
        if self.names.get(fd, "").endswith(self.suffix) and self.pages & set(touched):
            raise OSError(5, "Input/output error")

    def read(self, fd: int, size_bytes: int, position: int) -> bytes:
        self._check(fd, position, size_bytes)
        return super().read(fd, size_bytes, position)

    def read_nowait(self, fd: int, buffer: bytearray, position: int) -> int:
        self._check(fd, position, len(buffer))
        return super().read_nowait(fd, buffer, position)


def test_a_sector_that_cannot_be_read_costs_its_batch_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = make(tmp_path / "d", size=300, per_round=10, rounds=30)
    name = segments(path)[0].name
    files = BadSectors(name, {5})
    with caplog.at_level(logging.ERROR), EngineLog(path, topic=SMALL, files=files) as engine:
        found = [record.seq for record in engine.read()]
        lost = [seq for first, last in engine.lost for seq in range(first, last + 1)]
        assert 10 <= len(lost) <= 30, "the batches that the page holds parts of"
        assert sorted([*found, *lost]) == list(range(1, 301))
    assert "the disk cannot read all of bytes" in caplog.text


@pytest.mark.parametrize("page", [0, -1])
def test_a_header_or_footer_that_cannot_be_read_costs_nothing_more(tmp_path: Path, page: int) -> None:
    path = make(tmp_path / "d", size=300, per_round=10, rounds=30)
    file = segments(path)[0]
    pages = {0 if page == 0 else file.stat().st_size // 4096}
    with EngineLog(path, topic=SMALL, files=BadSectors(file.name, pages)) as engine:
        found = [record.seq for record in engine.read()]
        lost = [seq for first, last in engine.lost for seq in range(first, last + 1)]
        assert sorted([*found, *lost]) == list(range(1, 301))
        assert len(lost) <= 30


def test_counts_of_the_active_segment_stay_right_over_a_cut(tmp_path: Path) -> None:
    """A batch that names a durable position beyond its own place would make a torn tail look committed."""

    def counts(active: ActiveSegment) -> tuple[object, ...]:
        return (
            active.position, active.durable_position, active.last_seq, active.records, active.batches,
            active.max_timestamp_ms, active.last_append_ms, len(active.index), active.path.stat().st_size,
        )  # fmt: skip

    files = HookedFiles()
    with EngineLog(tmp_path / "d", files=files) as engine:
        engine.append([b"kept"])
        active = engine.partition().active_segment
        before = counts(active)
        files.failing("write", ".log", errno.ENOSPC)
        with pytest.raises(DiskFull):
            engine.append([b"taken back"] * 10)
        assert counts(active) == before
        files.hook = lambda call, path: None
        engine.append([b"more"])
        assert active.durable_position == active.position > before[0]


def test_a_footer_that_cannot_be_read_for_another_reason_stops_the_opening(tmp_path: Path) -> None:
    path = make(tmp_path / "d")

    class Failing(UnsyncedFiles):
        def size(self, fd: int) -> int:
            raise OSError(errno.ESTALE, "Stale file handle")

    handles = Handles(Failing(), 16)
    with pytest.raises(OSError, match="Stale"):
        recover_partition(Failing(), handles, PartitionLocation(path, 1, 0, 1), RecoveryHints(mark_of(path)), 0)
    handles.close()


def test_damage_between_batches_of_a_segment_without_a_footer(tmp_path: Path) -> None:
    """The footer is rebuilt around it; records that only damage held are told to readers, not lost track of."""
    path = make(tmp_path / "d")
    file = segments(path)[0]
    content = bytearray(file.read_bytes())
    content[-10] ^= 1
    content[1000] ^= 1
    file.write_bytes(content)
    recovered = recover(path, mark_of(path))
    assert [lost.first_seq for lost in recovered.report.isolated] == [1]
    assert recovered.report.lost == []
    with EngineLog(path, topic=SMALL) as engine:
        found = [record.seq for record in engine.read()]
        ((first, last),) = engine.lost
        assert sorted([*found, *range(first, last + 1)]) == list(range(1, 121))


def test_garbage_between_batches_that_took_no_number(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        engine.append([b"1"])
        active = engine.partition().active_segment
        with engine.log.handles.use(active.path) as fd:
            engine.log.files.write(fd, [b"garbage"], active.position)
        active.position += 7
        engine.append([b"2"])
    recovered = recover(path, mark_of(path))
    assert (recovered.report.isolated, recovered.report.lost) == ([], [])
    assert recovered.committed_seq == 2


def test_acknowledged_records_that_are_cut_with_a_torn_tail_are_named(tmp_path: Path) -> None:
    """Durability below "always": written, acknowledged, and torn by the power cut before they were synced."""
    path = make(tmp_path / "d")
    mark = mark_of(path)
    assert mark is not None
    file = segments(path)[-1]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    recovered = recover(path, mark._replace(durable_position=HEADER_BYTES))
    (cut,) = recovered.report.cut
    assert cut.judgement == f"ACKNOWLEDGED: records {cut.first_seq} to 120 are damaged"
    assert recovered.next_seq == 121


def test_a_damaged_footer_behind_an_empty_segment_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        engine.append([b"1"] * 10)
        partition = engine.partition()
        engine.log.committer.roll_next(partition)
        engine.log.committer.request_watermark(partition)
        engine.inbox.run_until(lambda: bool(partition.sealed))
    file = segments(path)[0]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    (path / "watermarks").unlink()  # else it would say that the empty one is the active segment
    recovered = recover(path, None)
    assert sum("footer is damaged" in note for note in recovered.report.notes) == 1
    assert recovered.active.path == file, "nothing says that the empty one was more than a failed roll's"
    assert (recovered.committed_seq, recovered.next_seq) == (10, 11)
    assert recovered.report.lost == []


def test_garbage_behind_the_last_batch_of_a_segment_without_a_footer_is_no_loss(tmp_path: Path) -> None:
    path = make(tmp_path / "d")
    expected = recover(path, mark_of(path))
    file = segments(path)[0]
    end = expected.sealed[0].end
    file.write_bytes(file.read_bytes()[:end] + b"garbage" * 1000)
    recovered = recover(path, mark_of(path))
    assert recovered.report.lost == []
    assert [segment.last_seq for segment in recovered.sealed] == [segment.last_seq for segment in expected.sealed]
