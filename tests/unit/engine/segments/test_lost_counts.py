"""What damage costs is told in records, not in numbers, where a publisher left out very many of these."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

import quintlog
from engine.formats.batch_header import MAGIC_BYTES
from engine.formats.bundle import check_bundle
from engine.formats.bundle_encode import encode_bundle
from engine.positions import Position
from engine.reader import DirectoryReader
from netserver.testing import server
from tests.engine_log import EngineLog, segments
from tools.logtool.lib.backup_copy import Backup
from tools.logtool.lib.errors import Failure
from tools.logtool.topics import ServerExtent

GAP = 1 << 40


def put(log: EngineLog, number: int, *values: bytes) -> None:
    """A bundle whose first record has this number."""
    bundle = encode_bundle(values, None, [1] * len(values))
    info = check_bundle(bundle, 0, len(bundle))
    log.settle(log.partition().append_bundle(bundle, 0, len(bundle), info, first_seq=number))


def damage(path: Path, batch: int) -> None:
    """Makes one batch's header unreadable, so that only its neighbours tell which numbers it had."""
    content = bytearray(path.read_bytes())
    at = -1
    for _ in range(batch):
        at = content.index(MAGIC_BYTES, at + 1)
    content[at] ^= 1
    path.write_bytes(content)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with the records 1, GAP, GAP + 1, each in a batch of its own, in a sealed segment; and one behind."""
    path = tmp_path / "data"
    with EngineLog(path) as log:
        log.append([b"first"])
        put(log, GAP, b"second")
        log.append([b"third"])
        log.log.committer.roll_next(log.partition())
        log.append([b"fourth"])
    return path


def test_readers_are_told_records(data: Path) -> None:
    damage(segments(data)[0], 2)
    with server(data) as process:
        for protocol in ("figg", "tank"):
            host, port = process.address(protocol)
            with quintlog.connect(protocol, f"{host}:{port}") as client:
                found = iter(client.subscribe("t", start=1 if protocol == "tank" else 0))
                assert [next(found).value for _ in range(2)] == [b"first", b"third"], protocol
        with socket.create_connection(process.address("reliably"), 20) as client, client.makefile("rb") as lines:
            client.sendall(json.dumps({"uuid": "u", "params": {"topic": "t", "offset": 0}}).encode() + b"\n")
            assert [json.loads(lines.readline())["data"]["offset"] for _ in range(2)] == [1, GAP + 1]
        metrics = process.admin("GET", "/metrics").splitlines()
        told = [line for line in metrics if 'reason="damaged"' in line and not line.endswith(" 0.0")]
        assert len(told) == 3
        assert all(float(line.rpartition(" ")[2]) <= 6 for line in told), "3 at most, and a reader may come by twice"
        assert "lost 3 damaged records" in process.log_text
        assert 'quintlog_topic_records_ever{partition="0",topic="t"} 4.0' in process.admin("GET", "/metrics/topics")
        (partition,) = process.admin("GET", "/v1/topics/t")["partition_details"]
        assert (partition["next_offset"], partition["records"]) == (GAP + 3, 4)
        with pytest.raises(Failure, match="does not tell how many records"):
            Position("before_end", 2).resolve(ServerExtent(1, GAP + 2, partition["records"]))


def test_positions_count_records(data: Path) -> None:
    reader = DirectoryReader(data)
    partition = reader.partition(reader.topic(b"t"))
    assert [Position("before_end", count).resolve(partition) for count in (0, 2, 4)] == [GAP + 3, GAP + 1, 1]
    assert [Position("after_first", count).resolve(partition) for count in (1, 2, 9)] == [GAP, GAP + 1, GAP + 3]
    reader.close()


def test_a_backup_says_how_many_records_it_has(data: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    assert Backup(data, tmp_path / "copy", lambda _: None).run().records == 4


def test_lost_records_are_counted_when_a_partition_is_opened(tmp_path: Path) -> None:
    """The end of a segment is damaged, with its footer; what follows was left out by a publisher."""
    path = tmp_path / "data"
    with EngineLog(path) as log:
        log.append([b"first"])
        log.append([b"second"])
        log.log.committer.roll_next(log.partition())
        put(log, GAP, b"third")
    file = segments(path)[0]
    file.write_bytes(file.read_bytes()[: file.read_bytes().rindex(MAGIC_BYTES)] + bytes(200))
    with EngineLog(path) as log:
        assert log.partition().committed_seq == GAP
        assert log.log.figures.lost_records == 1
        assert log.partition().gaps.count(1, GAP).most == 3


def test_a_segment_that_is_gone_took_records_along(tmp_path: Path) -> None:
    """Its numbers are no gap that a publisher left: nobody knows how many of them were records."""
    path = tmp_path / "data"
    with EngineLog(path) as log:
        for first in (1, 11, 31, 41):  # 10 to 20 are left out
            put(log, first + 10 * (first == 11), *[b"x"] * 10)
            log.log.committer.roll_next(log.partition())
    segments(path)[2].unlink()
    reader = DirectoryReader(path)
    assert reader.partition(reader.topic(b"t")).gaps().count(1, 50).most == 40
    reader.close()
    with EngineLog(path) as log:
        gaps = log.partition().gaps
        assert gaps.count(1, 50).most == 40
        assert gaps.count(11, 20).most == 0
        assert gaps.count(31, 40).most == 10
