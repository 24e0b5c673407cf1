"""Damage in the middle of a topic and at the end of what was committed: each protocol delivers the next good record.

Reliability row 20 (aiokafka#321, KAFKA-6502): one corrupt record must not stop its consumers for ever.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.formats.bundle import decode_bundle
from netserver.testing import server
from tests.engine_log import EngineLog, segments
from tests.figg_peer import FiggPeer
from tests.tank_peer import Place, bundle, bundles_of, with_server

RECORDS = 30
IN_THE_MIDDLE, AT_THE_END = 10, RECORDS


@pytest.fixture(params=[(IN_THE_MIDDLE,), (AT_THE_END,), (IN_THE_MIDDLE, AT_THE_END)], ids=["middle", "end", "both"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[bytes]]:
    """A directory with damaged batches of one record each, and the values that are left."""
    path = tmp_path / "data"
    with EngineLog(path) as engine:
        for number in range(1, RECORDS + 1):
            engine.append([b"record %d" % number])
    file = segments(path)[0]
    content = bytearray(file.read_bytes())
    for number in request.param:
        content[content.index(b"record %d" % number) + 3] ^= 1
    file.write_bytes(content)
    return path, [b"record %d" % number for number in range(1, RECORDS + 1) if number not in request.param]


def test_figg(damaged: tuple[Path, list[bytes]]) -> None:
    path, left = damaged
    with server(path, {"tank": {"listen": "off"}}) as process:
        with FiggPeer(process.address("figg")) as reader, FiggPeer(process.address("figg")) as publisher:
            assert [value for _, value in reader.read(b"t", 0, len(left))] == left
            publisher.send(b"t", [b"next"])
            assert publisher.wait_for_ack(0)
        with FiggPeer(process.address("figg")) as reader:
            found = reader.read(b"t", 0, len(left) + 1)
            assert [value for _, value in found] == [*left, b"next"]
            assert found[-1][0] == RECORDS + 1, "the number of a lost record is not given again"
        assert "subscriber lost 1 damaged records" in process.log_text
        metrics = process.admin("GET", "/metrics")
        assert 'quintlog_records_skipped_total{protocol="figg",reason="damaged"}' in metrics


def test_tank(damaged: tuple[Path, list[bytes]]) -> None:
    path, left = damaged

    async def scene(place: Place) -> None:
        peer = await place.peer()
        found: list[bytes] = []
        seq = 1

        async def consume() -> bool:
            """Goes on behind what came; False: nothing came."""
            nonlocal seq
            (part,) = await peer.consume(b"t", (0, seq))
            assert part.code == 0
            values = [
                record.value for data in bundles_of(part.chunk) for record in decode_bundle(data, 0, len(data), 1)
            ]
            if values:
                assert part.base_seq is not None
                found.extend(values)
                seq = int(values[-1].split(b" ")[-1]) + 1
            return bool(values)

        while await consume():
            continue
        assert found == left
        assert await peer.produce(b"t", bundle(b"record 31")) == b"\0"
        assert await consume(), "who waits at a lost number gets what comes behind it"
        assert found == [*left, b"record 31"]

    with_server(scene, data_dir=path)
