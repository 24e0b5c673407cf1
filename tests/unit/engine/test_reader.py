"""Reading a data directory from outside: what is committed, what damage costs, what is being written meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.errors import DataDirectoryError, UnknownPartition, UnknownTopic, UnsupportedFormat
from engine.formats.record import Record
from engine.reader import DirectoryReader, Loss, PartitionReader
from tests.stored_log import NOW_MS, StoredPartition, example, make_directory


def opened(data_dir: Path) -> PartitionReader:
    reader = DirectoryReader(data_dir)
    return reader.partition(reader.topic(b"orders"))


def numbers(partition: PartitionReader, first: int = 0, end: int = 1 << 63) -> list[int]:
    found = list(partition.records(first, end))
    assert not [item for item in found if isinstance(item, Loss)]
    return [item.seq for item in found if isinstance(item, Record)]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def test_topics(tmp_path: Path) -> None:
    example(tmp_path)
    reader = DirectoryReader(tmp_path)
    (topic,) = reader.topics()
    assert (topic.id, topic.name, topic.partition_count, topic.created_ms) == (1, b"orders", 1, NOW_MS)
    assert topic.config == {"retention_ms": "7d"}
    assert reader.topic(b"orders") == topic
    with pytest.raises(UnknownTopic):
        reader.topic(b"other")
    with pytest.raises(UnknownPartition):
        reader.partition(topic, 1)


def test_all_records(tmp_path: Path) -> None:
    example(tmp_path)
    partition = opened(tmp_path)
    assert (partition.log_start, partition.committed_seq, len(partition.segments)) == (1, 90, 3)
    records = [item for item in partition.records(0, 1 << 63) if isinstance(item, Record)]
    assert [record.value for record in records] == [b"value %d" % seq for seq in range(1, 91)]
    assert [record.timestamp_ms for record in records] == [NOW_MS + (seq - 1) // 10 * 60_000 for seq in range(1, 91)]


@pytest.mark.parametrize("first", [1, 2, 10, 11, 29, 30, 31, 60, 61, 89, 90, 91, 500])
@pytest.mark.parametrize("end", [1, 2, 11, 30, 31, 32, 61, 90, 91, 1 << 63])
def test_ranges(tmp_path: Path, first: int, end: int) -> None:
    example(tmp_path)
    assert numbers(opened(tmp_path), first, end) == list(range(first, min(end, 91)))


def test_nothing_beyond_the_watermark_is_read(tmp_path: Path) -> None:
    stored = example(tmp_path)
    stored.write([b"not committed"])
    with stored.paths[-1].open("ab") as file:
        file.write(b"\xd9QLB torn")
    assert numbers(opened(tmp_path)) == list(range(1, 91))


def test_refresh_sees_appends_and_rolls(tmp_path: Path) -> None:
    stored = example(tmp_path)
    partition = opened(tmp_path)
    assert not partition.changed
    stored.write([b"x"] * 5)
    stored.mark()
    assert partition.changed
    partition.refresh()
    assert not partition.changed
    assert numbers(partition, 85) == list(range(85, 96))
    stored.begin_segment()
    stored.write([b"y"] * 5)
    assert numbers(partition, 85) == list(range(85, 96))
    stored.mark()
    partition.refresh()
    assert numbers(partition, 85) == list(range(85, 101))
    assert [segment.sealed for segment in partition.segments] == [True, True, True, False]


def test_a_segment_rolled_after_the_watermark_was_read(tmp_path: Path) -> None:
    """The watermark names a segment as active that is sealed by now, and a newer file is there."""
    stored = example(tmp_path)
    stored.begin_segment()
    assert numbers(opened(tmp_path)) == list(range(1, 91))


def test_log_start_hides_what_retention_took(tmp_path: Path) -> None:
    stored = example(tmp_path)
    stored.log_start = 35
    stored.mark()
    partition = opened(tmp_path)
    assert partition.log_start == 35
    assert [segment.header.first_seq for segment in partition.segments] == [31, 61]
    stored.paths[0].unlink()
    assert numbers(opened(tmp_path), 35) == list(range(35, 91))


def test_a_segment_that_vanishes_between_refresh_and_reading(tmp_path: Path) -> None:
    stored = example(tmp_path)
    partition = opened(tmp_path)
    stored.paths[0].unlink()
    with pytest.raises(FileNotFoundError):
        list(partition.records(1, 91))
    partition.refresh()
    assert numbers(partition) == list(range(31, 91))


def test_without_watermarks_whole_batches_count(tmp_path: Path) -> None:
    stored = example(tmp_path)
    stored.write([b"x"] * 5)
    with stored.paths[-1].open("ab") as file:
        file.write(b"\xd9QLB torn")
    (tmp_path / "watermarks").unlink()
    partition = opened(tmp_path)
    assert partition.committed_seq == 95
    items = list(partition.records(0, 1 << 63))
    assert [item.seq for item in items if isinstance(item, Record)] == list(range(1, 96))


def test_damaged_watermarks_are_told(tmp_path: Path) -> None:
    example(tmp_path)
    flip(tmp_path / "watermarks", 9)
    reader = DirectoryReader(tmp_path)
    assert [error.reason for error in reader.damaged] == ["watermarks header is damaged (checksum)"]
    assert numbers(reader.partition(reader.topic(b"orders"))) == list(range(1, 91))


@pytest.mark.parametrize(("segment", "lost"), [(0, (1, 10)), (1, (31, 40)), (2, (61, 70))])
def test_a_flipped_bit_costs_its_batch_and_is_told(tmp_path: Path, segment: int, lost: tuple[int, int]) -> None:
    stored = example(tmp_path)
    flip(stored.paths[segment], 72 + 100)
    items = list(opened(tmp_path).records(0, 1 << 63))
    losses = [item for item in items if isinstance(item, Loss)]
    assert [(loss.damage.first_seq, loss.damage.last_seq) for loss in losses] == [lost]
    assert f"records {lost[0]} to {lost[1]}" in losses[0].text
    read = [item.seq for item in items if isinstance(item, Record)]
    assert read == [seq for seq in range(1, 91) if not lost[0] <= seq <= lost[1]]


def test_damage_at_the_end_of_a_segment_is_named_by_what_follows(tmp_path: Path) -> None:
    stored = example(tmp_path)
    size = stored.paths[0].stat().st_size
    segments = opened(tmp_path).segments
    assert segments[0].footer is not None
    with stored.paths[0].open("r+b") as file:
        file.seek(segments[0].footer.index[0].position)
        batches = file.read(segments[0].footer.end - 72)
        last = batches.rindex(b"\xd9QLB") + 72
        file.seek(last)
        file.write(bytes(40))
    assert stored.paths[0].stat().st_size == size
    losses = [item for item in opened(tmp_path).records(0, 1 << 63) if isinstance(item, Loss)]
    assert [(loss.damage.first_seq, loss.damage.last_seq) for loss in losses] == [(21, 30)]


def test_damage_at_the_committed_end_is_named_by_the_watermark(tmp_path: Path) -> None:
    stored = example(tmp_path)
    data = bytearray(stored.paths[2].read_bytes())
    last = data.rindex(b"\xd9QLB")
    data[last + 1] ^= 1
    stored.paths[2].write_bytes(data)
    losses = [item for item in opened(tmp_path).records(85, 1 << 63) if isinstance(item, Loss)]
    assert [(loss.damage.first_seq, loss.damage.last_seq) for loss in losses] == [(81, 90)]


def test_a_damaged_segment_header_hides_one_file(tmp_path: Path) -> None:
    stored = example(tmp_path)
    flip(stored.paths[1], 20)
    partition = opened(tmp_path)
    assert [error.path for error in partition.unreadable] == [str(stored.paths[1])]
    assert numbers(partition) == [*range(1, 31), *range(61, 91)]


def test_a_damaged_footer_costs_nothing(tmp_path: Path) -> None:
    stored = example(tmp_path)
    flip(stored.paths[0], stored.paths[0].stat().st_size - 60)
    partition = opened(tmp_path)
    assert partition.segments[0].footer_problem is not None
    found = [item.seq for item in partition.records(0, 1 << 63) if isinstance(item, Record)]
    assert found == list(range(1, 91))


@pytest.mark.parametrize(
    ("minutes", "seq"),
    [(-5, 1), (0, 1), (0.5, 11), (1, 11), (2.5, 31), (3, 31), (7.5, 81), (8, 81), (8.5, 91), (99, 91)],
)
def test_seq_at_time(tmp_path: Path, minutes: float, seq: int) -> None:
    example(tmp_path)
    assert opened(tmp_path).seq_at_time(NOW_MS + int(minutes * 60_000)) == seq


def test_seq_at_time_never_below_the_start_of_the_log(tmp_path: Path) -> None:
    stored = example(tmp_path)
    stored.log_start = 45
    stored.mark()
    assert opened(tmp_path).seq_at_time(0) == 45


def test_many_partitions(tmp_path: Path) -> None:
    watermarks = make_directory(tmp_path)
    for index in (0, 2):
        stored = StoredPartition(tmp_path, watermarks, index=index, number=1 + index)
        stored.begin_segment(partitions=3)
        stored.write([b"%d" % index])
        stored.mark()
    reader = DirectoryReader(tmp_path)
    topic = reader.topic(b"orders")
    values = [
        [r.value for r in reader.partition(topic, index).records(0, 99) if isinstance(r, Record)] for index in range(3)
    ]
    assert values == [[b"0"], [], [b"2"]]


def test_of_two_topics_with_one_name_the_newer_counts(tmp_path: Path) -> None:
    watermarks = make_directory(tmp_path)
    for topic_id in (9, 10):
        stored = StoredPartition(tmp_path, watermarks, topic_id=topic_id, number=topic_id)
        stored.begin_segment()
        stored.write([b"%d" % topic_id])
        stored.mark()
    assert [topic.id for topic in DirectoryReader(tmp_path).topics()] == [10]


def test_damaged_topic_description(tmp_path: Path) -> None:
    example(tmp_path)
    (tmp_path / "topics/1/topic.json").write_text('{"id": 1')
    reader = DirectoryReader(tmp_path)
    assert reader.topics() == []
    assert "not the description of a topic" in reader.damaged[0].reason


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, DataDirectoryError),
        ("{", DataDirectoryError),
        (json.dumps({"format": 2, "id": 1}), UnsupportedFormat),
    ],
)
def test_other_directories_are_refused(tmp_path: Path, content: str | None, error: type[Exception]) -> None:
    if content is not None:
        (tmp_path / "VERSION").write_text(content)
    with pytest.raises(error):
        DirectoryReader(tmp_path)


def test_nothing_is_written(tmp_path: Path) -> None:
    example(tmp_path)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")}
    partition = opened(tmp_path)
    numbers(partition)
    partition.seq_at_time(NOW_MS)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")} == before
