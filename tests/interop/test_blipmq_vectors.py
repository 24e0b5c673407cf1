"""Every captured exchange with the original BlipMQ daemon, replayed against the running server byte for byte.

The configuration is that of the capture (``_about``). Different on purpose:

- subscription ids (ours begin at 1; the original's own start-up subscription takes 1), so they are translated;
- an acknowledgement that comes after the retry timer is taken (``late_ack``);
- ``startup_subscription_1``: there is no such subscription;
- HELLO with version 2 is accepted, so it is left out of ``hello_errors`` unless it is switched off.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netserver.blipmq import codec
from netserver.blipmq.codec import Decoder, FrameType
from netserver.testing import ServerProcess, server
from tests.blipmq_peer import Peer

ROWS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).resolve().parents[1] / "data" / "blipmq.jsonl").read_text().splitlines()
]
SETTINGS = {
    "blipmq": {
        "max_retries": 3,
        "retry_backoff_ms": 100,
        "fsync_policy": "every_n:64",
        "allowed_api_keys": "dev-key-1",
    }
}
CASES = list(dict.fromkeys(row["case"] for row in ROWS if row["case"] != "_about"))
CID = 1 << 63
HELLO_2_STEPS = (9, 10)
EXCEPTIONS = {"startup_subscription_1"}


@pytest.fixture(scope="module")
def quintlog() -> Iterator[ServerProcess]:
    with server(settings=SETTINGS) as process:
        yield process


def test_hello_without_version_2() -> None:
    with server(settings={"blipmq": {**SETTINGS["blipmq"], "version_2": "false"}}) as process:
        replay_case(process, [row for row in ROWS if row["case"] == "hello_errors"])


class Replay:
    """One case on its connections; ids of the capture are translated as they are given out."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.ids: dict[int, int] = {}
        self.connect()

    def connect(self) -> None:
        self.peer = Peer(self.address, login=False)
        self.subscribes: dict[int, int] = {}  # cid -> frames that asked for a subscription

    def send(self, raw: bytes) -> None:
        """A client's write, with our subscription ids in POLLs and ACKs."""
        out = bytearray(raw)
        position = 0
        while len(out) - position >= 21:
            length = int.from_bytes(out[position : position + 4], "big")
            kind = out[position + 4]
            if length == 17 and kind in (FrameType.POLL, FrameType.ACK):
                theirs = int.from_bytes(out[position + 13 : position + 21], "big")
                out[position + 13 : position + 21] = self.ids.get(theirs, theirs).to_bytes(8, "big")
            position += 4 + length
        self.peer.send(bytes(out))

    def expect(self, raw: bytes) -> None:
        """The server's next frame, which has to be this one but for the id of a new subscription."""
        decoder = Decoder()
        decoder.receive(raw)
        expected = decoder.next_frame()
        got = self.peer.frame()
        assert expected is not None
        if expected.type == FrameType.ACK and got.type == FrameType.ACK and codec.parse_ack(expected.payload):
            ours = codec.parse_ack(got.payload)
            assert ours > 0
            assert ours not in self.ids.values(), "an id was used again"
            self.ids[codec.parse_ack(expected.payload)] = ours
            assert got.cid == expected.cid
            return
        assert got == expected

    def silence(self) -> None:
        """Nothing more has come: the answer to a PING is the next frame."""
        self.peer.send(codec.ping(CID))
        answer = self.peer.frame()
        assert answer.cid == CID
        assert answer.type == FrameType.PONG or codec.parse_nack(answer.payload) == (401, "unauthenticated")


@pytest.mark.parametrize("case", [case for case in CASES if case not in EXCEPTIONS])
def test_captured_exchange(quintlog: ServerProcess, case: str) -> None:
    rows = [row for row in ROWS if row["case"] == case]
    if case == "hello_errors":
        rows = [row for row in rows if row["step"] not in HELLO_2_STEPS]
        assert len(rows) == 12
    replay_case(quintlog, rows)


def replay_case(process: ServerProcess, rows: list[dict[str, Any]]) -> None:
    replay = Replay(process.address("blipmq"))
    case = rows[0]["case"]
    in_frame = False
    for index, row in enumerate(rows):
        note = row["note"]
        if row["dir"] == "c2s":
            if "connection" in note and "HELLO" in note and index:
                replay.peer.close()
                replay.connect()
            replay.send(bytes.fromhex(row["hex"]))
            in_frame = case == "split_frame"
        elif row["hex"]:
            if case == "late_ack" and "refused although" in note:
                replay.silence()
                break
            replay.expect(bytes.fromhex(row["hex"]))
        elif "closes" in note:
            assert replay.peer.at_eof()
        elif "waits" in note:
            time.sleep(0.4)  # as the capture did: longer than the first two back-offs (100 and 200 ms)
        elif not in_frame:
            replay.silence()
    if not rows[-1]["note"].endswith("closes the connection"):
        replay.silence()
    replay.peer.close()


def test_nothing_is_left_out() -> None:
    assert len(CASES) == 31
    assert set(CASES) >= EXCEPTIONS


def test_a_late_ack_is_taken(quintlog: ServerProcess) -> None:
    with Peer(quintlog.address("blipmq")) as peer:
        subscription = peer.subscribe(b"late ack")
        peer.publish(b"late ack", b"m")
        assert peer.poll(subscription) == [(1, b"m")]
        time.sleep(0.15)  # the first back-off is 100 ms
        assert peer.ack(subscription, 1) == []
        assert peer.poll(subscription) == []
        assert peer.ack(subscription, 1) == [(404, "unknown subscription or delivery tag")]


def test_there_is_no_subscription_of_the_server_itself(quintlog: ServerProcess) -> None:
    with Peer(quintlog.address("blipmq")) as peer:
        peer.publish(b"test", b"m", qos=0)
        assert peer.poll(2**40) == []
