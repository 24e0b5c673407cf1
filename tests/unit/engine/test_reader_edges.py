"""The reader beside a server, when what it reads is cut, damaged, foreign, or removed while it looks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.config import TopicConfig
from engine.errors import Corrupt
from engine.files.system import SystemFiles
from engine.formats.record import BatchError, Record
from engine.reader import DirectoryReader, Loss, PartitionReader, read_segment
from engine.segments.damage import Damage
from tests.engine_log import EngineLog, segments

SMALL = TopicConfig(segment_bytes=64 << 10)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several sealed segments and an active one: records 1 to 120, a gap, 131 to 140."""
    path = tmp_path_factory.mktemp("reader") / "image"
    with EngineLog(path, topic=SMALL) as engine:
        for number in range(12):
            engine.append([b"%d.%d " % (number, k) + b"." * 2000 for k in range(10)])
        partition = engine.partition()
        partition.last_seq = 130  # as after publishes that failed
        engine.log.committer.roll_next(partition)
        engine.append([b"behind the gap"] * 10)
    return path


@pytest.fixture
def data(image: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(image, tmp_path / "data"))


def opened(data: Path, **options: object) -> tuple[DirectoryReader, PartitionReader]:
    reader = DirectoryReader(data, **options)  # type: ignore[arg-type]
    return reader, reader.partition(reader.topic(b"t"))


def numbers(partition: PartitionReader, first: int = 1, end: int = 1 << 40) -> tuple[list[int], list[tuple[int, int]]]:
    items = list(partition.records(first, end))
    lost = [(item.damage.first_seq, item.damage.last_seq) for item in items if isinstance(item, Loss)]
    return [item.seq for item in items if isinstance(item, Record)], lost


EVERYTHING = [*range(1, 121), *range(131, 141)]


def test_ranges_across_segments_and_gaps(data: Path) -> None:
    reader, partition = opened(data)
    assert numbers(partition) == (EVERYTHING, [])
    for first, end in ((1, 2), (30, 95), (120, 131), (121, 130), (125, 135), (140, 141), (141, 200)):
        assert numbers(partition, first, end) == ([seq for seq in EVERYTHING if first <= seq < end], [])
    assert not partition.changed
    assert partition.unreadable == []
    reader.close()


def test_without_watermarks_the_files_say_what_is_there(data: Path) -> None:
    (data / "watermarks").unlink()
    reader, partition = opened(data)
    assert reader.watermarks is None
    assert partition.changed, "there is nothing to ask whether something changed"
    assert partition.committed_seq == 140
    assert numbers(partition) == (EVERYTHING, [])
    segments(data)[-1].unlink()
    partition.refresh()
    assert partition.committed_seq == 120
    for file in segments(data):
        file.unlink()
    partition.refresh()
    assert (partition.committed_seq, partition.log_start) == (0, 1)
    assert numbers(partition) == ([], [])


def test_a_damaged_newest_header_does_not_hide_the_watermark(data: Path) -> None:
    newest = segments(data)[-1]
    content = newest.read_bytes()
    newest.write_bytes(bytes(30) + content[30:])
    _, partition = opened(data)
    assert partition.mark is not None
    assert [error.path for error in partition.unreadable] == [str(newest)]
    assert numbers(partition)[0] == list(range(1, 121))


def test_files_of_another_place_are_not_read(data: Path) -> None:
    first, second = segments(data)[:2]
    shutil.copy(second, first.with_name("00000000000000000002.log"))
    _, partition = opened(data)
    (error,) = partition.unreadable
    assert "another place's file" in error.reason
    assert numbers(partition) == (EVERYTHING, [])


def test_a_file_that_is_removed_while_it_looks(data: Path) -> None:
    class Vanishing(SystemFiles):
        def open(self, path: Path, *, write: bool = False) -> int:
            if path.name == first.name:
                raise FileNotFoundError
            return super().open(path, write=write)

    first = segments(data)[0]
    _, partition = opened(data, files=Vanishing())
    assert partition.log_start == int(segments(data)[1].stem)
    assert numbers(partition)[0] == [seq for seq in EVERYTHING if seq >= partition.log_start]


def test_damage_at_the_end_of_a_sealed_segment_is_named_by_the_next(data: Path) -> None:
    file = segments(data)[0]
    segment = read_segment(SystemFiles(), file)
    content = bytearray(file.read_bytes())
    content[segment.end - 20_000 : segment.end] = bytes(20_000)
    file.write_bytes(content)
    _, partition = opened(data)
    found, lost = numbers(partition)
    ((low, high),) = lost
    assert high == int(segments(data)[1].stem) - 1
    assert sorted([*found, *range(low, high + 1)]) == EVERYTHING
    assert numbers(partition, high + 1)[1] == [], "who begins behind it is not told"


def test_losses_are_sentences() -> None:
    path = Path("f.log")
    assert str(Loss(path, Damage(5, 9, 3, 4, "checksum")).text).endswith("lost: records 3 to 4")
    assert "no later batch tells" in Loss(path, Damage(5, 9, 3, 2, "checksum")).text


def test_a_damaged_footer_is_a_finding_and_costs_nothing(data: Path) -> None:
    file = segments(data)[0]
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    segment = read_segment(SystemFiles(), file)
    assert isinstance(segment.footer_problem, Corrupt)
    assert segment.sealed
    _, partition = opened(data)
    assert numbers(partition)[0] == EVERYTHING


def test_times_are_found_by_footers_and_batches(data: Path) -> None:
    _, partition = opened(data)
    stamps = {record.seq: record.timestamp_ms for record in partition.records(1, 141) if isinstance(record, Record)}
    for seq in (1, 2, 60, 120, 131, 140):
        found = partition.seq_at_time(stamps[seq])
        assert stamps[found] >= stamps[seq]
        assert all(stamp < stamps[seq] for number, stamp in stamps.items() if number < found)
    assert partition.seq_at_time(max(stamps.values()) + 1) == partition.committed_seq + 1
    assert partition.seq_at_time(0) == 1


def test_a_batch_that_does_not_decode_is_a_loss(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksums are right, so it was written like that: a defect of whoever wrote it, which stops nobody."""

    def broken(*_: object) -> None:
        raise BatchError("written by a defect")

    _, partition = opened(data)
    monkeypatch.setattr("engine.reader.records", broken)
    found, lost = numbers(partition)
    assert found == []
    assert lost[0][0] == 1
    assert lost[-1][1] == 140


def test_a_deleted_topic_gives_way_to_the_new_one_of_its_name(data: Path) -> None:
    shutil.copytree(data / "topics" / "1", data / "topics" / "9")
    description = data / "topics" / "9" / "topic.json"
    description.write_text(description.read_text().replace('"id": 1', '"id": 9'))
    reader = DirectoryReader(data)
    assert [topic.id for topic in reader.topics()] == [9]
    (data / "topics" / "10").mkdir()
    assert [topic.id for topic in reader.topics()] == [9], "one without a description is not seen"
    reader.close()


def test_times_behind_damage_and_of_keys(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        for number in range(1, 11):
            engine.append([b"%d" % number], timestamps_ms=[number * 1000])
    file = segments(tmp_path / "d")[0]
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    _, partition = opened(tmp_path / "d")
    assert partition.seq_at_time(1) == 2, "the first one is damaged"
    assert partition.seq_at_time(5000) == 5
    assert partition.seq_at_time(10_001) == 11


def test_a_segment_in_which_nothing_is_left(data: Path) -> None:
    file = segments(data)[0]
    segment = read_segment(SystemFiles(), file)
    content = file.read_bytes()
    file.write_bytes(content[:72] + bytes(segment.end - 72) + content[segment.end :])
    _, partition = opened(data)
    found, lost = numbers(partition)
    second = int(segments(data)[1].stem)
    assert lost == [(1, second - 1)]
    assert found == [seq for seq in EVERYTHING if seq >= second]
    assert partition.seq_at_time(0) == second


def test_two_readers_of_one_directory_close_by_themselves(data: Path) -> None:
    (data / "watermarks").write_bytes(b"damaged")
    first, second = DirectoryReader(data), DirectoryReader(data)
    assert [error.reason for error in first.damaged] == ["watermarks file has no valid header"]
    first.close()
    second.close()


def transaction(engine: EngineLog, *values: bytes) -> None:
    outcome: list[object] = []
    made = engine.log.transaction()
    for value in values:
        made.append(engine.partition(), value)
    made.append(engine.partition("other"), b"x")
    made.commit(outcome.append)
    engine.inbox.run_until(lambda: bool(outcome))
    assert outcome == [None]


def test_without_watermarks_the_last_transaction_does_not_count(tmp_path: Path) -> None:
    """Only its marker could tell whether it is committed, and that is in the state, which readers do not have."""
    path = tmp_path / "d"
    with EngineLog(path) as engine:
        transaction(engine, b"1" * 100_000, b"2" * 100_000)  # a batch each
        (path / "watermarks").unlink()
        assert opened(path)[1].committed_seq == 0, "it is all there is"
        transaction(engine, b"3")
        assert opened(path)[1].committed_seq == 2, "another one came behind it"
        engine.append([b"4"])
        assert opened(path)[1].committed_seq == 4
        transaction(engine, b"5", b"6")
        assert opened(path)[1].committed_seq == 4


def test_other_things_among_the_topics_are_left_alone(data: Path) -> None:
    (data / "topics" / "notes.txt").write_text("not ours")
    (data / "topics" / "lost+found").mkdir()
    reader, partition = opened(data)
    assert [topic.name for topic in reader.topics()] == [b"t"]
    assert numbers(partition) == (EVERYTHING, [])
    reader.close()


def test_damage_before_the_wanted_number_is_not_told(data: Path) -> None:
    """The first wanted record lies behind it, in the same segment."""
    path = segments(data)[0]
    content = bytearray(path.read_bytes())
    content[content.index(b"0.3 ")] ^= 1
    path.write_bytes(content)
    reader, partition = opened(data)
    ((first, last),) = numbers(partition)[1]
    assert numbers(partition, last + 1, last + 3) == ([last + 1, last + 2], [])
    for seq in range(first, last + 1):
        assert numbers(partition, seq, last + 2) == ([last + 1], [(first, last)])
    reader.close()


def test_a_time_in_a_long_segment_is_found_by_the_index_in_its_footer(tmp_path: Path) -> None:
    with EngineLog(tmp_path / "d") as engine:
        for minute in range(400):
            engine.append([b"x" * 4000] * 4, timestamps_ms=[minute * 60_000] * 4)
        engine.log.committer.roll_next(engine.partition())
        engine.append([b"last"], timestamps_ms=[400 * 60_000])
    reader, partition = opened(tmp_path / "d")
    assert partition.segments[0].footer is not None
    assert len(partition.segments[0].footer.index) > 2
    for minute in (0, 1, 100, 250, 399, 400):
        assert partition.seq_at_time(minute * 60_000) == minute * 4 + 1
    assert partition.seq_at_time(401 * 60_000) == 1602
    reader.close()
