"""kill -9 amid a burst of new topics: each acknowledged record is there, and every topic can be used again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from engine.formats.record import Record
from engine.reader import DirectoryReader
from netserver.testing import server
from tests.figg_peer import FiggPeer, publish_frame
from tests.server_support import FIGG_ONLY

TOPICS = 400


def publish_all(peer: FiggPeer, value: bytes) -> None:
    """A record to each of the topics, without waiting."""
    peer.sent = TOPICS
    peer.socket.sendall(b"".join(publish_frame(b"topic %d" % at, at, value) for at in range(TOPICS)))


@pytest.mark.parametrize("acked", [-1, 0, 150, TOPICS - 1])
def test_killed_amid_a_burst(tmp_path: Path, acked: int) -> None:
    """After that many acknowledgements; -1: as soon as anything is made."""
    with server(tmp_path / "data", FIGG_ONLY) as process:
        with FiggPeer(process.address("figg")) as peer:
            begun = time.perf_counter()
            publish_all(peer, b"before")
            if acked >= 0:
                assert peer.wait_for_ack(acked)
                print(f"{peer.acked + 1} new topics after {time.perf_counter() - begun:.2f} s")
            else:
                while not (tmp_path / "data" / "topics" / "1").exists():
                    time.sleep(0.0005)
            process.kill()
            stored = peer.acked + 1
        process.start()
        with FiggPeer(process.address("figg")) as peer:
            publish_all(peer, b"after")
            assert peer.wait_for_ack(TOPICS - 1)
        reader = DirectoryReader(tmp_path / "data")
        topics = {topic.name: reader.partition(topic) for topic in reader.topics()}
        reader_of = [topics[b"topic %d" % at] for at in range(TOPICS)]
        found = [[item.value for item in one.records(1, 3) if isinstance(item, Record)] for one in reader_of]
        reader.close()
        assert found[:stored] == [[b"before", b"after"]] * stored
        assert all(one in ([b"before", b"after"], [b"after"]) for one in found[stored:])
        assert "Traceback" not in process.log_text
        assert "lost" not in process.log_text
