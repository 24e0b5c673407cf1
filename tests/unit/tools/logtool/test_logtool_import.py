"""`logtool import blipmq-wal`: files as the original writes them, whole and damaged, into files and a server."""

from __future__ import annotations

import contextlib
import io
import json
import random
import struct
import zlib
from pathlib import Path

import pytest

from engine.reader import DirectoryReader
from netserver.testing import server
from tests.blipmq_peer import Peer
from tests.unit.conftest import Logtool
from tools.logtool.lib.blipmq_wal import Damage, NotAWal, WalRecord, read_wal

pytestmark = pytest.mark.whole

OFF = {name: {"listen": "off"} for name in ("figg", "tank", "fujin", "reliably", "kafka")}
HEADER = b"BLIPWAL\0" + struct.pack("<I", 1) + bytes(20)


def record(number: int, topic: bytes, body: bytes, qos: int = 1) -> bytes:
    payload = struct.pack(">BH", qos, len(topic)) + topic + body
    return struct.pack("<QII", number, len(payload), zlib.crc32(payload)) + payload


def found(data: bytes) -> list[WalRecord | Damage]:
    return list(read_wal(io.BytesIO(data)))


# --- the format


def test_records() -> None:
    records = [record(1, b"test", b"hello"), record(3, b"a", b""), record(2, "ü".encode(), bytes(70_000), 0)]
    one, two, three = found(HEADER + b"".join(records))
    assert one == (1, 32, 1, b"test", b"hello")
    assert two == (3, 32 + len(records[0]), 1, b"a", b"")
    assert isinstance(three, WalRecord)
    assert (three.qos, three.topic, three.body) == (0, "ü".encode(), bytes(70_000))
    assert found(HEADER) == []


@pytest.mark.parametrize("data", [b"", HEADER[:31], b"BLIPWAX\0" + HEADER[8:], HEADER[:8] + b"\2" + HEADER[9:]])
def test_other_files(data: bytes) -> None:
    with pytest.raises(NotAWal):
        found(data)


def test_every_cut_and_every_flipped_bit_costs_its_record_only() -> None:
    records = [record(n, b"topic", b"body %d" % n) for n in range(3)]
    data = HEADER + b"".join(records)
    second, third = 32 + len(records[0]), 32 + len(records[0]) + len(records[1])
    for end in range(second, third):
        one, *rest = found(data[:end])
        assert isinstance(one, WalRecord)
        assert rest == ([Damage(second, end - second, True)] if end > second else [])
        torn = found(data[:end] + records[2])  # what the original does after a torn record
        assert [item.id for item in torn if isinstance(item, WalRecord)] == [0, 2]
    for bit in range(8 * second, 8 * third):
        flipped = bytearray(data)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        items = found(bytes(flipped))
        if bit < 8 * (second + 8):  # the id has no checksum
            assert len(items) == 3
            continue
        assert [item.id for item in items if isinstance(item, WalRecord)] == [0, 2]
        assert [item for item in items if isinstance(item, Damage)] == [Damage(second, third - second, False)]


def test_any_bytes_end() -> None:
    rng = random.Random(7)
    for _ in range(300):
        data = bytearray(HEADER + b"".join(record(n, b"t", rng.randbytes(rng.randrange(50))) for n in range(5)))
        for _ in range(rng.randrange(1, 30)):
            data[rng.randrange(32, len(data))] = rng.choice((0, 1, 2, 0xFF, rng.randrange(256)))
        items = found(bytes(data))
        assert (
            sum(item.size_bytes for item in items if isinstance(item, Damage))
            + sum(19 + len(item.topic) + len(item.body) for item in items if isinstance(item, WalRecord))
            == len(data) - 32
        )


# --- the command


def test_into_files(tmp_path: Path, logtool: Logtool) -> None:
    wal = tmp_path / "blipmq.wal"
    many = b"".join(record(n, b"orders", b"%d" % n) for n in range(2, 2502))
    wal.write_bytes(HEADER + record(1, b"test", b"hello") + many + record(3000, b"x/y", b"last", 0))
    data_dir = tmp_path / "data"
    place = ("--data-dir", str(data_dir))
    assert logtool(*place, "import", "blipmq-wal", str(wal))[0] == 3, "no log there"
    with server(data_dir, OFF):
        pass
    command = (*place, "import", "blipmq-wal", str(wal), "--without-self-test", "-o", "json")
    code, text, err = logtool(*command, "--dry-run")
    expected = [{"topic": "orders", "records": 2500, "bytes": 8896}, {"topic": "x/y", "records": 1, "bytes": 4}]
    assert (code, json.loads(text)["items"]) == (0, expected)
    assert "would import 2501 records" in err
    assert DirectoryReader(data_dir).topics() == []
    code, text, err = logtool(*command)
    assert (code, json.loads(text)["items"]) == (0, expected)
    assert "imported 2501 records" in err
    assert logtool(*place, "cat", "orders")[1].split() == [str(n) for n in range(2, 2502)]
    (only,) = logtool(*place, "cat", "x/y", "-o", "jsonl")[1].splitlines()
    assert json.loads(only)["value"] == "last"
    position = 32 + len(record(1, b"test", b"hello")) + len(many)
    assert logtool(*place, "import", "blipmq-wal", str(wal), "--from-byte", str(position))[0] == 0
    assert logtool(*place, "cat", "x/y")[1] == "last\nlast\n"
    other = tmp_path / "other"
    other.write_bytes(b"x" * 100)
    assert logtool(*place, "import", "blipmq-wal", str(other))[0] == 3
    assert logtool(*place, "import", "blipmq-wal", str(tmp_path / "none"))[0] == 2


def test_through_a_server_with_damage(tmp_path: Path, logtool: Logtool) -> None:
    wal = tmp_path / "blipmq.wal"
    torn = record(2, b"t", b"torn")[:-2]
    wal.write_bytes(HEADER + record(1, b"t", b"\xff\0") + torn + record(3, b"t", b"quiet", 0) + b"tail")
    with server(tmp_path / "data", OFF) as process, contextlib.ExitStack() as connections:
        peer = connections.enter_context(Peer(process.address("blipmq")))
        subscription = peer.subscribe(b"t")
        code, text, err = logtool("--data-dir", str(process.data_dir), "import", "blipmq-wal", str(wal))
        assert code == 1
        assert "t            2" in text
        assert f"{len(torn)} bytes at byte {32 + len(record(1, b't', b'??'))}" in err
        assert "4 bytes at the end" in err
        assert peer.poll(subscription, 2)[0] == (1, b"\xff\0")
        peer.send(b"")
        assert peer.poll(subscription, 3) == []


def test_a_refused_record_tells_where_to_go_on(tmp_path: Path, logtool: Logtool) -> None:
    wal = tmp_path / "blipmq.wal"
    good = record(1, b"t", b"good")
    wal.write_bytes(HEADER + good + record(2, b"u", bytes(5000)))
    with server(tmp_path / "data", {**OFF, "topics": {"record_bytes_max": "1000"}}) as process:
        code, _, err = logtool("--data-dir", str(process.data_dir), "import", "blipmq-wal", str(wal))
        assert code == 7
        assert f"stored: 1 record; --from-byte {32 + len(good)}" in err
