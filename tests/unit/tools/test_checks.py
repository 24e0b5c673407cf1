"""Checks of files: what each says about itself against what is there. Each lie has good hashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.files.system import SystemFiles
from engine.formats.segment import Footer
from engine.reader import DirectoryReader, read_segment
from tests.stored_log import NOW_MS, StoredPartition, example, make_directory
from tools.checks import PartitionReport, check_partition, check_segment

FILES = SystemFiles()


def check(data_dir: Path) -> PartitionReport:
    reader = DirectoryReader(data_dir)
    partition = reader.partition(reader.topics()[0])
    return check_partition(partition, [check_segment(segment) for segment in partition.segments])


def test_a_sound_partition(tmp_path: Path) -> None:
    example(tmp_path)
    report = check(tmp_path)
    assert (report.findings, report.gaps) == ([], [])
    assert (report.segments, report.batches, report.records, report.first, report.last) == (3, 9, 90, 1, 90)


LIES: dict[str, tuple[Callable[[Footer], Footer], str]] = {
    "records": (lambda footer: replace(footer, records=29), "says 29 records"),
    "batches": (lambda footer: replace(footer, batches=4), "in 4 batches"),
    "last": (lambda footer: replace(footer, last_seq=31), "up to 31"),
    "time": (lambda footer: replace(footer, max_timestamp_ms=NOW_MS), "highest timestamp"),
    "index position": (
        lambda footer: replace(footer, index=(replace(footer.index[0], position=footer.index[0].position + 1),)),
        "its index",
    ),
    "index number": (lambda footer: replace(footer, index=(replace(footer.index[0], first_seq=2),)), "its index"),
    "index time": (lambda footer: replace(footer, index=(replace(footer.index[0], max_timestamp_ms=1),)), "its index"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_footer_that_lies(tmp_path: Path, name: str) -> None:
    path = example(tmp_path).paths[0]
    segment = read_segment(FILES, path)
    assert segment.footer is not None
    lie, text = LIES[name]
    content = path.read_bytes()[: segment.footer.end]
    path.write_bytes(content + lie(segment.footer).pack(segment.header.segment_id))
    (finding,) = check(tmp_path).findings
    assert finding["kind"] == "footer"
    assert text in finding["reason"]


def test_times_that_go_backwards(tmp_path: Path) -> None:
    partition = StoredPartition(tmp_path, make_directory(tmp_path))
    partition.begin_segment()
    for now_ms in (NOW_MS, NOW_MS - 1):
        partition.write([b"x"], now_ms=now_ms)
    partition.begin_segment()
    partition.write([b"x"], now_ms=NOW_MS - 2)
    partition.mark()
    findings = check(tmp_path).findings
    assert [(finding["kind"], finding["file"]) for finding in findings] == [
        ("order", str(partition.paths[0])),
        ("order", str(partition.paths[1])),
    ]


def test_gaps_between_batches_and_between_segments(tmp_path: Path) -> None:
    partition = StoredPartition(tmp_path, make_directory(tmp_path))
    partition.begin_segment()
    for next_seq in (3, 10):
        partition.next_seq = next_seq
        partition.write([b"x"] * 2)
    partition.next_seq = 20
    partition.begin_segment()
    partition.next_seq = 22
    partition.write([b"x"])
    partition.mark()
    report = check(tmp_path)
    assert (report.findings, report.gaps) == ([], [(1, 2), (5, 9), (12, 19), (20, 21)])


def test_a_watermark_above_the_records(tmp_path: Path) -> None:
    partition = example(tmp_path)
    partition.next_seq += 5
    partition.mark()
    (finding,) = check(tmp_path).findings
    assert "95 was committed last, the file ends with 90" in finding["reason"]
