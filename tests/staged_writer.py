"""A writer of batches against a running server, for tests: what it stages and commits, and what is stored then."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import msgpack
import pytest

import engine.commit.transactions
from engine.files.system import Files, SystemFiles
from engine.formats.record import Record
from engine.reader import DirectoryReader, Loss
from netserver.admin import staged_commits
from netserver.testing import running
from tests.echo import ALONE, run
from tests.unit.netserver.admin.test_admin import Caller

Row = list[Any]


def row(value: bytes, topic: bytes = b"t", partition: int | None = 0, **more: Any) -> Row:
    return [topic, partition, more.get("key"), value, more.get("headers"), more.get("timestamp_ms")]


def packed(*rows: Row) -> bytes:
    return b"".join(msgpack.packb(fields) for fields in rows)


def stored(data_dir: Path, topic: bytes = b"t", partition: int = 0, files: Files | None = None) -> list[Record]:
    """What readers of the files see."""
    reader = DirectoryReader(data_dir, files or SystemFiles())
    try:
        if topic not in [found.name for found in reader.topics()]:
            return []
        found = reader.partition(reader.topic(topic), partition).records(1, 1 << 62)
        records = [record for record in found if not isinstance(record, Loss)]
    finally:
        reader.close()
    return records


def values(data_dir: Path, topic: bytes = b"t", partition: int = 0) -> list[bytes]:
    return [record.value for record in stored(data_dir, topic, partition)]


def commit_of(batch: int, *names: str, writer: str = "query") -> dict[str, Any]:
    return {"writer": writer, "batch": batch, "names": list(names)}


class Writer:
    """One writer of batches."""

    def __init__(self, call: Caller, name: str = "query") -> None:
        self.call = call
        self.name = name
        self.data_dir = call.server.data_dir

    async def stage(self, *rows: Row, batch: int | None = None) -> str:
        parameters = "" if batch is None else f"?writer={quote(self.name)}&batch={batch}"
        status, document = await self.call("POST", "/v1/staged" + parameters, packed(*rows))
        assert status == 201, document
        return str(document["name"])

    async def try_commit(self, batch: int, *names: str) -> tuple[int, Any]:
        return await self.call("POST", "/v1/commits", commit_of(batch, *names, writer=self.name))

    async def commit(self, batch: int, *names: str) -> Any:
        status, document = await self.try_commit(batch, *names)
        assert status == 200, document
        return document

    def files(self) -> set[str]:
        return set(os.listdir(self.data_dir / staged_commits.DIRECTORY))


def with_writer(
    test: Callable[[Writer], Awaitable[None]],
    settings: dict[str, dict[str, Any]] | None = None,
    path: Path | None = None,
) -> None:
    async def main() -> None:
        async with running(path, {**ALONE, **(settings or {})}) as server, aiohttp.ClientSession() as http:
            await test(Writer(Caller(server, http)))

    run("asyncio", main())


ROWS = [row(b"%d" % number + b"." * 100) for number in range(40)]


@contextmanager
def stopping_after_two_parts() -> Iterator[None]:
    """A commit ends when two of its parts are in the log."""
    append, calls = staged_commits._Commit._append, 0

    async def stop_after_two(self: Any, *args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise staged_commits.NotStored("stopped")
        return await append(self, *args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_commits._Commit, "_append", stop_after_two)
        yield


def partly(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Batch 4 of two files, of which two parts are in the log; the names of the files."""
    monkeypatch.setattr(engine.commit.transactions, "TRANSACTION_BYTES_MAX", 2000)
    kept: list[str] = []

    async def test(writer: Writer) -> None:
        kept.extend([await writer.stage(*ROWS[:20], batch=4), await writer.stage(*ROWS[20:], batch=4)])
        with stopping_after_two_parts():
            assert (await writer.try_commit(4, *kept))[0] == 503

    with_writer(test, path=path)
    return kept
