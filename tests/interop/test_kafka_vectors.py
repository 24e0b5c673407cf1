"""Captured exchanges of a real broker, replayed against ours: the answers have to be equal.

Different on purpose, and only this:

- Offsets begin with 1 here, so those in answers are one higher, and those in requests that are replayed are, too.
- Ours has another name and address, knows no leader epochs and topic ids, and tells reasons in its own words.
- A topic that is made by asking for it is answered at once. A removed one tells no default configurations.
- Batches come back as they are cut here, and uncompressed: their records are compared.
- What the original misses or answers with -1 (offset deltas that leave numbers out, codec 7), and times in the future,
  which are none of ours.
- There are no fetch sessions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from netserver.app import Server
from netserver.kafka.apis import Key
from netserver.kafka.codec import Head, decode_request, decode_response, encode_request, frame_bounds
from netserver.kafka.errors import FormatError
from netserver.kafka.schema import Values
from tests.kafka_batches import resealed
from tests.kafka_peer import Peer, with_server

VECTORS = Path(__file__).parents[1] / "data" / "kafka.jsonl"
ROWS = [json.loads(line) for line in VECTORS.read_text().splitlines()][1:]
CASES = (
    "raw_create_topics", "raw_metadata", "raw_produce", "raw_produce_errors", "raw_idempotent", "raw_fetch",
    "raw_list_offsets", "raw_delete_records", "raw_admin",
)  # fmt: skip
OUR_OWN = {
    ("raw_metadata", 7): "made at once",
    ("raw_produce_errors", 19): "an unknown codec is told as such, not by -1",
    ("raw_produce_errors", 29): "acks of 2: the log start is told to nobody",
    ("raw_idempotent", 25): "a repeat is known for longer than five batches",
    ("raw_idempotent", 27): "and by its records, however they are cut",
    ("raw_fetch", 1): "cut at batches, not at bytes",
    ("raw_fetch", 27): "leader epochs are not kept",
    ("raw_txn_errors", 5): "the older one is fenced at once",
    ("raw_admin", 1): "configurations are in another order and have other values",
}
"""Where the answer to a request is another one, each for a reason of the module."""
INSTEAD = {("raw_produce", 13): 1, ("raw_produce_errors", 9): 2, ("raw_produce_errors", 25): 0}
"""So many records are sent instead of a request: of a version that is not offered, with offset deltas that leave
numbers out, with a time in the future."""
OFFSETS = {"offset", "end", "stable_end", "log_start"}
IGNORED = {
    "brokers",
    "cluster_id",
    "message",
    "leader_epoch",
    "append_ms",
    "producer",
    "id",
    "operations",
    "throttle_ms",
}


def shifted(values: Any, by: int) -> Any:
    """Values with offsets moved by so much; those that mean something else stay."""
    if isinstance(values, list):
        return [shifted(one, by) for one in values]
    if not isinstance(values, dict):
        return values
    return {
        name: value + by if name in OFFSETS and value >= 0 else shifted(value, by) for name, value in values.items()
    }


def plain(values: Any) -> Any:
    """What is to be equal of an answer."""
    if isinstance(values, list):
        return [plain(one) for one in values]
    if isinstance(values, dict):
        ignored = IGNORED | ({"log_start"} if values.get("error") else set())
        return {name: plain(value) for name, value in values.items() if name not in ignored}
    return values


def exchanges(cases: tuple[str, ...] = CASES) -> Iterator[tuple[str, int, bytes, bytes | None]]:
    """(case, step, request, answer); None where there is none to be compared."""
    rows = [row for row in ROWS if row["case"] in cases]
    for row, behind in zip(rows, [*rows[1:], None], strict=True):
        if row["dir"] == "c2s" and row["hex"]:
            answer = bytes.fromhex(behind["hex"]) if behind is not None and behind["dir"] == "s2c" else None
            yield row["case"], row["step"], bytes.fromhex(row["hex"]), answer


class Replay:
    """All cases in their order over one connection, as they were captured."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.compared: list[Key] = []
        self.different: list[str] = []

    async def step(self, case: str, step: int, frame: bytes, expected: bytes | None) -> None:
        """Send a request and compare its answer."""
        for _ in range(INSTEAD.get((case, step), 0)):
            await self.peer.produce("w.one", b"instead")
        if (case, step) in INSTEAD:
            return
        try:
            found = frame_bounds(memoryview(frame), 0, len(frame))
        except FormatError:  # a request that is not offered here: the connection would be closed
            return
        assert found is not None
        head = found[0]
        request = decode_request(memoryview(frame), head)
        body = shifted(request.body, 1) if head.key in (Key.FETCH, Key.DELETE_RECORDS) else request.body
        self.peer.writer.write(encode_request(head, request.client_id, body))
        if head.key == Key.PRODUCE and not body["acks"]:
            return
        answer = await self.peer.frame()
        assert answer, f"{case} {step}: the connection was closed"
        got = decode_response(memoryview(answer), head)
        if expected is None or (case, step) in OUR_OWN:
            return
        wanted = shifted(decode_response(memoryview(expected), head), 1)
        self.compare(f"{case} {step}", head, got, wanted)

    def compare(self, place: str, head: Head, got: Values, wanted: Values) -> None:
        self.compared.append(head.key)
        for values in (got, wanted):
            values.get("topics", []).sort(key=lambda topic: topic["name"])
            for topic in values.get("topics", []):
                topic.get("partitions", []).sort(key=lambda partition: partition["index"])
                for partition in topic.get("partitions", []):
                    partition["has records"] = bool(partition.pop("records", None))
                    partition["aborted"] = partition.get("aborted") or None  # no list, or none in it
        if plain(got) != plain(wanted):
            self.different.append(f"{place}: {plain(got)}\n  instead of {plain(wanted)}")


def test_the_answers_are_those_of_the_original() -> None:
    async def test(server: Server) -> None:
        replay = Replay(await Peer.open(server.addresses["kafka"]))
        for case, step, frame, answer in exchanges():
            if (case, step) == ("raw_fetch", 35):
                break  # what follows is about connections: test_kafka_session.py
            await replay.step(case, step, frame, answer)
        assert not replay.different, "\n".join(replay.different)
        assert len(replay.compared) >= 45

    with_server(test, settings={"topics": {"record_bytes_max": "1000000"}})


def errors_of(values: Any) -> list[int]:
    """All error codes of an answer, and the offsets of groups, in their order."""
    if isinstance(values, list):
        return [code for one in values for code in errors_of(one)]
    if not isinstance(values, dict):
        return []
    own = [values["error"]] if "error" in values else []
    own += [values["offset"]] if "metadata" in values else []
    return own + [code for one in values.values() for code in errors_of(one)]


def with_producer(body: Values, head: Head, ids: dict[int, int]) -> Values:
    """A request with the producer ids of this server in the place of the captured ones."""
    if "producer" in body:
        body["producer"] = ids.get(body["producer"], body["producer"])
    for topic in body["topics"] if head.key == Key.PRODUCE else ():
        for partition in topic["partitions"]:
            data = bytes(partition["records"])
            captured = int.from_bytes(data[43:51], "big")
            partition["records"] = resealed(data, producer_id=ids.get(captured, captured))
    return body


def test_transactions_fail_and_succeed_as_in_the_original() -> None:
    async def test(server: Server) -> None:
        peer = await Peer.open(server.addresses["kafka"])
        await peer.make("w.one")
        await peer.make("w.three", 3)
        ids: dict[int, int] = {}
        different, compared = [], 0
        for case, step, frame, expected in exchanges(("raw_txn", "raw_txn_errors")):
            try:
                found = frame_bounds(memoryview(frame), 0, len(frame))
            except FormatError:  # of a version that is not offered
                continue
            assert found is not None
            head = found[0]
            if head.key in (Key.FETCH, Key.LIST_OFFSETS):
                continue  # they are about offsets, and these are others here
            request = decode_request(memoryview(frame), head)
            peer.writer.write(encode_request(head, "x", with_producer(request.body, head, ids)))
            got = decode_response(memoryview(await peer.frame()), head)
            assert expected is not None
            wanted = decode_response(memoryview(expected), head)
            if head.key == Key.INIT_PRODUCER_ID and not wanted["error"]:
                ids[wanted["producer"]] = got["producer"]
                assert got["epoch"] == wanted["epoch"]
            compared += 1
            if errors_of(got) != errors_of(wanted) and (case, step) not in OUR_OWN:
                different.append(f"{case} {step}: {errors_of(got)} instead of {errors_of(wanted)}")
        assert not different, "\n".join(different)
        assert compared >= 24

    with_server(test)
