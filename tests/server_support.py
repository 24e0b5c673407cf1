"""A real server whose surroundings fail: publish and read through Figg, wait for what it says."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from netserver.testing import ServerProcess
from tests.figg_peer import FiggPeer

FIGG_ONLY = {name: {"listen": "off"} for name in ("tank", "reliably", "blipmq", "fujin", "kafka")}


def publish(process: ServerProcess, topic: bytes, value: bytes, timeout_s: float = 10.0) -> bool:
    """Whether it was acknowledged."""
    with FiggPeer(process.address("figg"), timeout_s) as peer:
        peer.send(topic, [value])
        try:
            return peer.wait_for_ack(0)
        except TimeoutError:
            return False


def values(process: ServerProcess, topic: bytes, count: int) -> list[bytes]:
    with FiggPeer(process.address("figg")) as peer:
        return [value for _, value in peer.read(topic, 0, count)]


def wait_for_log(process: ServerProcess, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in process.log_text:
        assert time.monotonic() < deadline, f"{text!r} is not in the log:\n{process.log_text[-3000:]}"
        threading.Event().wait(0.02)


def segment(process: ServerProcess, topic_id: int = 1) -> Path:
    return max((process.data_dir / "topics" / str(topic_id) / "0").glob("*.log"))
