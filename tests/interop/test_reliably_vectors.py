"""Exchanges captured from the original server and its Ruby client, replayed against ours byte for byte.

Where ours is meant to differ from the original, `OURS` says what it answers instead; in general an error, whatever its
text, is the last thing on its connection, while the original goes on. The start values are those of the capture.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netserver.reliably.session import factory
from netserver.reliably.values import next_value
from netserver.shell.services import Services, SessionFactory
from netserver.testing import running

VECTORS = Path(__file__).parents[1] / "data" / "reliably.jsonl"
RANDOM = (0.5, 0.25, 0.75, 0.125)
INTERVAL_MS = 20
END_WAIT_S = 0.05
QUIET_S = 0.06
LATEST_S = 10.0

ERROR = b'{"error":'
EOF = b""
# (case, connection) -> what ours sends, row by row, from the first row on that differs
OURS: dict[tuple[str, int], list[bytes]] = {
    **{("stateless_bad_state", conn): [ERROR] for conn in (*range(1, 9), 10, 11, 15, 16, 17, 18)},
    ("stateless_bad_state", 9): [b'{"data":"0"}\n'],
    ("stateful_resume_at_the_end", 2): [EOF],
    ("error_uuid_alone", 1): [ERROR],
    ("error_params_null", 1): [ERROR],
    **{("not_json", conn): [ERROR] for conn in range(1, 8)},
    ("not_json", 8): [b'{"data":"6"}\n', b'{"data":"12"}\n', ERROR],
    **{("json_not_object", conn): [ERROR] for conn in range(1, 6)},
    **{("bad_params", conn): [ERROR] for conn in (*range(1, 10), *range(11, 19))},
    # the newer connection takes over, the older one ends
    ("stateful_overlap", 1): [b'{"id":1,"data":{"value":652847386}}\n', b'{"id":2,"data":{"value":4017758818}}\n', EOF],
}


def cases() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in map(json.loads, VECTORS.read_text().splitlines()):
        if "hex" in row:
            found.setdefault(row["case"], []).append({**row, "bytes": bytes.fromhex(row["hex"])})
    assert len(found) > 25
    return found


def start_of(rows: list[dict[str, Any]], at: int) -> float:
    """Which random number the original drew for the request of row `at`: told by the first message after it."""
    for row in rows[at + 1 :]:
        if row["dir"] == "s2c" and row.get("conn") == rows[at]["conn"] and row["bytes"].endswith(b"\n"):
            data = json.loads(row["bytes"]).get("data")
            first = data["value"] if isinstance(data, dict) else data
            firsts: dict[Any, float] = {next_value(int(number * 2**32)): number for number in RANDOM}
            firsts |= {str(int(number * 256)): number for number in RANDOM}
            return firsts.get(first, 0.0)
    return 0.0


class Peer:
    """The client's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.ended = False

    async def expect(self, row: dict[str, Any], expected: bytes) -> None:
        if self.ended:
            return
        async with asyncio.timeout(LATEST_S):
            if expected and not expected.endswith(b"\n") and expected != ERROR:  # cut off by the proxy
                assert await self.reader.readexactly(len(expected)) == expected, row
                return
            line = await self.reader.readline()
        if expected.startswith(ERROR):
            assert line.startswith(ERROR), row
            if expected != ERROR:
                assert line == expected, row
            assert await self.reader.read() == b"", row
            self.ended = True
        else:
            assert line == expected, row
            self.ended = not line

    async def expect_nothing(self, row: dict[str, Any]) -> None:
        if not self.ended:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(self.reader.readexactly(1), QUIET_S)

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


async def replay(case: str, rows: list[dict[str, Any]]) -> None:
    number = 0.0

    def make(services: Services) -> SessionFactory:
        return factory(
            services,
            random_seed=lambda: int(number * 2**32),
            random_start=lambda: int(number * 256),
            end_wait_s=END_WAIT_S,
        )

    settings = {"reliably": {"interval_ms": INTERVAL_MS}}
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(running(settings=settings, protocols={"captured": make}))
        address = server.addresses["captured"]
        peers: dict[int, Peer] = {}
        ours: dict[int, Iterator[bytes]] = {
            conn: iter(answers) for (name, conn), answers in OURS.items() if name == case
        }
        for at, row in enumerate(rows):
            conn = row.get("conn")
            if conn is None:
                continue
            if conn not in peers:
                peers[conn] = Peer(*await asyncio.open_connection(address.host, address.port))
                stack.push_async_callback(peers[conn].close)
            peer = peers[conn]
            if row["dir"] == "c2s":
                if row["bytes"]:
                    number = start_of(rows, at)
                    peer.writer.write(row["bytes"])
                else:
                    await peer.close()
            elif row["note"].startswith("nothing for") and conn not in ours:
                await peer.expect_nothing(row)
            elif (expected := next(ours[conn], None) if conn in ours else row["bytes"]) is not None:
                await peer.expect(row, expected)
        for conn, answers in ours.items():
            assert next(answers, None) is None, f"connection {conn}: not everything was looked at"


@pytest.mark.parametrize("case", [case for case in cases() if case != "_about"])
def test_exchange(case: str) -> None:
    asyncio.run(replay(case, cases()[case]), debug=True)
