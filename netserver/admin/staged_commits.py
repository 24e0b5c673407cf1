"""Appending large batches exactly once: tasks *stage* files of rows, then one *commit* appends all of them.

This is what a job on many machines needs: its tasks may fail, be repeated and run twice, and only what the commit names
counts. A commit has the name of a writer and a number that rises from batch to batch; a batch that is in the log
already is not appended again, whoever repeats it (engine/state/writer_ledger.py).

A batch up to the size of a transaction becomes visible as a whole. A larger one is appended in parts, each of them a
transaction that also records how far the batch has come; a repeat goes on there with the files of the first attempt.

A staged file, as it is received and stored, is a sequence of msgpack arrays, one for each row::

    [topic, partition or nil, key or nil, value, headers or nil, timestamp in ms or nil]

topic, key and value are bin, headers an array of bin, name and value in turn. Without a partition, rows with a key go
where the key's hash says, and the others of a file into one partition.

The name of a staged file: the batch it is for, if that was told (hash of the writer's name, number), a random part, and
the xxh3-64 of its content, so that a file that a power cut has torn is found. Once a batch is in the log, what else was
staged for it or for earlier ones of its writer, by attempts that failed or were killed, is a *leftover*: no commit will
name it, and it goes with the commit. Without a batch in its name it goes after a day.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack
import xxhash

from engine.commit.transactions import ROW_OVERHEAD_BYTES, Transaction, check_size
from engine.errors import DiskFull, LimitReached, NotStored
from engine.files.system import NO_SPACE, Files, SystemFiles, read_whole_file, write_new_file
from engine.limits import KEY_BYTES_MAX
from engine.partitions.partition import Partition
from engine.state.writer_ledger import STAGED, Entry, Ledger, content_hash, unusable
from netserver.admin.api import Api, Conflict, NotFound, int_field
from netserver.admin.bodies import Body
from netserver.admin.slices import sliced
from netserver.client.partitioning import partition_of
from netserver.http.errors import BadRequest
from netserver.limits import (
    ADMIN_BODY_BYTES,
    COMMIT_FILES_MAX,
    STAGED_AT_ONCE,
    STAGED_FULL_SWEEP_S,
    STAGED_KEEP_S,
    STAGED_SLICE_ROWS,
    STAGED_SWEEP_S,
    STAGING_BYTES_MAX,
    WRITER_NAME_BYTES_MAX,
)

if TYPE_CHECKING:
    from engine.state.clock import DoubtedClock
    from netserver.admin.served import Served

BATCH_DIGITS: Final = len(str(2**63))
DIRECTORY: Final = STAGED
STAGED_MODE: Final = 0o600
_NAME: Final = re.compile(
    r"(?:(?P<writer>[0-9a-f]{16})-(?P<batch>[0-9a-f]{1,16})-)?[0-9a-f]{16}-[0-9a-f]{16}", re.ASCII
)


class StagedRow(NamedTuple):
    """One row of a staged file."""

    topic: bytes
    partition: int | None
    key: bytes
    value: bytes
    headers: tuple[bytes, ...]
    timestamp_ms: int | None

    @property
    def size_bytes(self) -> int:
        """What the row counts in a transaction."""
        return len(self.value) + len(self.key) + sum(map(len, self.headers))


class Batch(NamedTuple):
    """What a staged file is for."""

    writer: str
    number: int

    @property
    def tag(self) -> str:
        """How the names of its files begin."""
        return f"{writer_tag(self.writer)}-{self.number:x}-"


class Staging:
    """The staged files of a server and their commits."""

    def __init__(self, server: Served, api: Api) -> None:
        self._server = server
        self._api = api
        self._directory = server.data_dir / DIRECTORY
        self._ledger = Ledger(server.log.state)
        self._receiving = asyncio.Semaphore(STAGED_AT_ONCE)
        self._committing = asyncio.Lock()
        self._swept_at = 0.0
        self._stored_bytes = 0
        self._in_commit: set[str] = set()

    async def stage(self, content: Body, batch: Batch | None = None) -> dict[str, Any]:
        """Keep a file of rows until a commit names it: one of `batch`, when that is told.

        Raises:
            BadRequest: it is not what it should be. LimitReached, DiskFull, NotStored: it is not kept.
        """
        async with self._receiving:
            await self._sweep(STAGED_SWEEP_S)
            if self._stored_bytes + len(content) > STAGING_BYTES_MAX:
                await self._sweep(STAGED_FULL_SWEEP_S)
            if self._stored_bytes + len(content) > STAGING_BYTES_MAX:
                raise LimitReached(f"staged files take up to {STAGING_BYTES_MAX} bytes; commit or drop some")
            name = await asyncio.to_thread(self._store, content, batch)
            self._stored_bytes += len(content)
        return {"name": name, "size_bytes": len(content)}

    def _store(self, content: Body, batch: Batch | None) -> str:
        name = _store(SystemFiles(), self._directory, content, batch)
        os.utime(self._directory / name, ns=(1_000_000 * self._server.log.now_ms(),) * 2)  # for its age
        return name

    async def drop(self, names: Sequence[str]) -> dict[str, Any]:
        """Remove staged files that no commit will name; those of a batch that is partly in the log stay."""
        _check_names(names)
        kept, _ = await self._needed()
        dropped = [name for name in names if name not in kept]
        await self._remove(dropped)
        return {"dropped": len(dropped)}

    async def progress(self, writer: str) -> dict[str, Any]:
        """The last batch of a writer. Raises NotFound."""
        entry = self._ledger.get(writer)
        if entry is None:
            raise NotFound(f"no writer {writer!r}")
        return _describe(entry, repeated=True)

    async def commit(self, wanted: Batch, names: Sequence[str]) -> dict[str, Any]:
        """Append what the files hold, in the order of their names' list; a batch that is in the log changes nothing.

        Raises:
            BadRequest, NotFound: it names what is not there. Conflict: an earlier batch is not complete.
            EngineError: the batch is not in the log, or only its first parts; the same commit may be repeated.
        """
        if not names or len(names) > COMMIT_FILES_MAX:
            raise BadRequest(f"a commit names 1 to {COMMIT_FILES_MAX} staged files")
        _check_names(names, wanted)
        writer, batch = wanted
        async with self._committing:
            entry = self._ledger.get(writer)
            if entry is None:
                async for _ in sliced(self._server.log.slices, self._ledger.forget_old(self._server.log.clock)):
                    pass
            elif batch <= entry.batch and (entry.is_complete or batch < entry.batch):
                await self._open(entry)
                await self._remove(names)
                await self._remove_leftovers(entry)
                return _describe(entry, repeated=True)
            elif not entry.is_complete and batch != entry.batch:
                raise Conflict(
                    f"batch {entry.batch} of {writer!r} is only partly in the log ({entry.records} records): repeat "
                    "that one first, or give up the rest: logtool commits abandon"
                )
            if entry is None or entry.is_complete:
                entry = Entry(writer, batch, tuple(names), 0, 0, 0, 0, 0, ())
            else:
                entry = await asyncio.to_thread(_with_staged_anew, self._directory, entry, names)
            self._in_commit = {*names, *entry.files}
            try:
                entry = await _Commit(self._server, self._api, self._ledger, self._directory).run(entry)
                await self._remove(self._in_commit)
                await self._remove_leftovers(entry)
            finally:
                self._in_commit = set()
        return _describe(entry._replace(files=()), repeated=False)

    async def batches(self) -> dict[str, Any]:
        """The last batch of each writer, and how many staged files an incomplete one needs and lacks."""
        slices = self._server.log.slices
        entries = [entry async for entry in sliced(slices, self._ledger.entries())]
        items = []
        async for entry in sliced(slices, await asyncio.to_thread(sorted, entries)):
            lacking = sum([not (self._directory / name).exists() for name in entry.needed])
            items.append(entry.item() | {"needed_files": len(entry.needed), "missing_files": lacking})
        return {"schema": 1, "items": items}

    async def abandon(self, writer: str, batch: int) -> dict[str, Any]:
        """Give up the rest of a batch that is partly in the log: what is in the log stays, its staged files go, and the
        writer's next batch is taken. Whoever repeats the batch is told that it was given up.

        Raises:
            NotFound: no such writer. Conflict: it is not the writer's last batch, or it is complete.
        """
        async with self._committing:
            entry = self._ledger.get(writer)
            if entry is None:
                raise NotFound(f"no writer {writer!r}")
            if entry.batch != batch:
                raise Conflict(f"the last batch of {writer!r} is {entry.batch}")
            if entry.is_complete and not entry.is_given_up:
                raise Conflict(f"batch {batch} of {writer!r} is complete: there is nothing to abandon")
            put = self._ledger.put(entry.given_up(self._server.log.now_ms()))
            await self._api.durable(lambda done: self._server.log.state.submit([put], done))
            await self._remove(entry.files)
            await self._remove_leftovers(entry)
        return entry.given_up(0).item() | {"removed_files": len(entry.files)}

    async def _open(self, entry: Entry) -> None:
        """After a crash behind the marker: a driver that is told that its batch is in the log has to find it there."""
        for topic_id, index in entry.partitions:
            topic = self._server.log.catalog.by_id(topic_id)
            if topic is not None:
                await self._api.opened(topic, index)

    async def _remove(self, names: Iterable[str]) -> None:
        self._stored_bytes -= await asyncio.to_thread(_unlink, [self._directory / name for name in names])

    async def _remove_leftovers(self, done: Entry) -> None:
        """What else was staged for a batch that is complete or given up, and for earlier ones of its writer."""
        tag = writer_tag(done.writer)
        self._stored_bytes -= await asyncio.to_thread(_remove_leftovers, self._directory, {tag: done.batch})

    async def _sweep(self, pause_s: float) -> None:
        """Look for abandoned files and leftovers, unless that was done within the last `pause_s` seconds."""
        if time.monotonic() - self._swept_at < pause_s and self._swept_at:
            return
        self._swept_at = time.monotonic()
        kept, done = await self._needed()
        self._stored_bytes = await asyncio.to_thread(_sweep, self._directory, kept, done, self._server.log.clock)

    async def _needed(self) -> tuple[set[str], dict[str, int]]:
        """Files that a commit has named and not finished; the last batch in the log, by writer's tag."""
        kept, done = set(self._in_commit), {}
        async for entry in sliced(self._server.log.slices, self._ledger.entries()):
            kept.update(entry.files)
            done[writer_tag(entry.writer)] = entry.batch - (not entry.is_complete)
        return kept | self._in_commit, done


class _Commit:
    """One run through the files of a batch."""

    def __init__(self, server: Served, api: Api, ledger: Ledger, directory: Path) -> None:
        self._server = server
        self._api = api
        self._ledger = ledger
        self._directory = directory
        self._partitions: dict[tuple[bytes, int], Partition] = {}

    async def run(self, entry: Entry) -> Entry:
        """Append all that is not in the log yet; the last entry, still with the names of the files."""
        transaction = self._begin()
        appended = 0
        async for file, number, rows in self._slices(entry.files, entry.file, entry.row):
            for at, row in enumerate(rows, number):
                partition = await self._partition(row, entry.files[file])
                if not transaction.has_room(partition, row.size_bytes) and appended:
                    if entry.parts == 0:  # nothing may be found wrong once a part of it is in the log
                        await self._check(entry.files, file, at)
                    entry = await self._append(transaction, entry, file, at, appended, is_last=False)
                    transaction, appended = self._begin(), 0
                transaction.append(
                    partition, row.value, key=row.key, headers=row.headers, timestamp_ms=row.timestamp_ms
                )
                appended += 1
        return await self._append(transaction, entry, len(entry.files), 0, appended, is_last=True)

    def _begin(self) -> Transaction:
        return self._server.log.transaction()

    async def _append(
        self, transaction: Transaction, entry: Entry, file: int, row: int, rows: int, *, is_last: bool
    ) -> Entry:
        """Commit a part together with the entry that tells of it."""
        entry = entry._replace(
            file=file,
            row=row,
            parts=entry.parts + 1,
            records=entry.records + rows,
            time_ms=self._server.log.now_ms(),
            partitions=tuple((partition.topic.id, partition.index) for partition in transaction.partitions),
        )
        transaction.also = (self._ledger.put(entry._replace(files=()) if is_last else entry),)
        size_bytes = transaction.size_bytes - rows * ROW_OVERHEAD_BYTES
        await self._api.durable(transaction.commit)
        self._server.http.records_published += rows
        self._server.http.published_bytes += size_bytes
        return entry

    async def _check(self, names: Sequence[str], file: int, row: int) -> None:
        async for number, _, rows in self._slices(names, file, row):
            for found in rows:
                check_size((await self._partition(found, names[number])).config, found.size_bytes)

    async def _slices(
        self, names: Sequence[str], file: int, row: int
    ) -> AsyncIterator[tuple[int, int, list[StagedRow]]]:
        """(number of the file, number of the first row, rows), from a row on."""
        for number in range(file, len(names)):
            found = await asyncio.to_thread(_load, self._directory / names[number], row if number == file else 0)
            while found:  # they go slice by slice: 500,000 rows at once take 40 ms to take apart
                start, rows = found.pop()
                yield number, start, rows
                await asyncio.sleep(0)

    async def _partition(self, row: StagedRow, name: str) -> Partition:
        log = self._server.log
        index = row.partition
        if index is None:
            index = partition_of(row.key or name.encode(), log.catalog.get_or_create(row.topic).partition_count)
        partition = self._partitions.get((row.topic, index))
        if partition is None:
            partition = await self._api.opened_or_made(row.topic, index)
            self._partitions[row.topic, index] = partition
        return partition


def read_rows(content: Body) -> Iterator[StagedRow]:
    """The rows of a staged file. Raises ValueError: it is not one."""
    count, end = 0, 0
    unpacker = msgpack.Unpacker(raw=False, max_buffer_size=ADMIN_BODY_BYTES)
    unpacker.feed(content)
    try:
        for fields in unpacker:  # a loop of Python, so that other threads get their turn
            yield _row(fields)
            count += 1
            end = unpacker.tell()
    except (msgpack.UnpackException, UnicodeDecodeError) as error:
        raise ValueError(f"row {count}: {error}") from None
    if end != len(content) or not count:
        raise ValueError(f"cut off after row {count}" if count else "there are no rows")


def _row(fields: Any) -> StagedRow:
    match fields:
        case [bytes(topic), int() | None as partition, bytes() | None as key, bytes(value), headers, timestamp_ms]:
            key, headers = key or b"", headers or []
        case _:
            raise ValueError("a row is [topic, partition, key, value, headers, timestamp]")
    if len(key) > KEY_BYTES_MAX:
        raise ValueError(f"a key of {len(key)} bytes; up to {KEY_BYTES_MAX} are allowed")
    if not isinstance(headers, list) or len(headers) % 2 or not all(isinstance(part, bytes) for part in headers):
        raise ValueError("headers are names and values in turn")
    if timestamp_ms is not None and not (isinstance(timestamp_ms, int) and 0 <= timestamp_ms < 2**63):
        raise ValueError("a timestamp is in milliseconds since 1970")
    if partition is not None and partition < 0:
        raise ValueError("a partition is 0 or more")
    return StagedRow(topic, partition, key, value, tuple(headers), timestamp_ms)


def batch_field(body: Mapping[str, Any]) -> Batch:
    """Writer and batch of a document. Raises BadRequest."""
    writer = body.get("writer")
    if not isinstance(writer, str) or any("\ud800" <= character <= "\udfff" for character in writer):
        raise BadRequest("writer must be a text, without halves of surrogate pairs")
    if not writer or len(writer.encode()) > WRITER_NAME_BYTES_MAX:
        raise BadRequest(f"writer must have 1 to {WRITER_NAME_BYTES_MAX} bytes")
    return Batch(writer, int_field(body, "batch"))


def batch_parameters(query: Mapping[str, str]) -> Batch | None:
    """Writer and batch of a request's parameters, if it has any. Raises BadRequest."""
    if "writer" not in query and "batch" not in query:
        return None
    number = query.get("batch", "")
    is_number = number.isascii() and number.isdigit() and len(number) <= BATCH_DIGITS
    return batch_field({"writer": query.get("writer"), "batch": int(number) if is_number else number})


def names_field(body: dict[str, Any]) -> list[str]:
    """``names`` of a document. Raises BadRequest."""
    names = body.get("names")
    if not isinstance(names, list):
        raise BadRequest("names must be a list of the names of staged files")
    return names


def writer_tag(writer: str) -> str:
    """Names a writer in names of files."""
    return xxhash.xxh3_64_hexdigest(writer.encode())


def _check_names(names: Sequence[Any], batch: Batch | None = None) -> None:
    """Raises BadRequest: they are not names of staged files, or are for another batch than `batch`."""
    if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        raise BadRequest("names must be those that POST /v1/staged has answered")
    tag = batch.tag if batch is not None else ""
    for name in names:
        if batch is not None and not name.startswith(tag) and name.count("-") > 1:
            raise BadRequest(f"{name} was staged for another batch than {batch.number} of {batch.writer!r}")
    if len(set(names)) != len(names):
        raise BadRequest("a staged file is named twice")


def _describe(entry: Entry, *, repeated: bool) -> dict[str, Any]:
    return entry.item() | {"repeated": repeated}


# --- in threads of their own


def _store(files: Files, directory: Path, content: Body, batch: Batch | None) -> str:
    """Keeps a file of rows; its name. It is on disk, with its name, when this returns."""
    try:
        for _ in read_rows(content):
            pass
    except ValueError as error:
        raise BadRequest(f"not a file of rows: {error}") from None
    name = f"{batch.tag if batch else ''}{secrets.token_hex(8)}-{xxhash.xxh3_64_hexdigest(content)}"
    try:
        files.make_dir(directory)
        files.sync_dir(directory.parent)  # its entry, which a process that was killed may have left unsynced
        write_new_file(files, directory / name, content, STAGED_MODE)
    except OSError as error:
        text = f"cannot keep a staged file in {directory}: {error.strerror}"
        raise (DiskFull(text) if error.errno in NO_SPACE else NotStored(text)) from None
    return name


def _with_staged_anew(directory: Path, entry: Entry, names: Sequence[str]) -> Entry:
    """An incomplete batch with files of the same content in place of those that are lost.

    Raises:
        Conflict: for one of them there is none. The rows in the log come first in the lost file: rows in another order
            would be doubled, or left out.
    """
    lost = dict(unusable(SystemFiles(), directory, entry))
    anew = {content_hash(name): name for name in names if name not in lost and (directory / name).exists()}
    for name, reason in lost.items():
        if content_hash(name) not in anew:
            raise Conflict(
                f"batch {entry.batch} of {entry.writer!r} is partly in the log ({entry.records} records), and its "
                f"staged file {name} cannot be used: {reason}. Stage exactly the same rows in the same order and "
                "repeat the batch, or give up the rest: logtool commits abandon"
            )
    files = tuple(anew[content_hash(name)] if name in lost else name for name in entry.files)
    return entry._replace(files=files)


def _load(path: Path, first: int) -> list[tuple[int, list[StagedRow]]]:
    """(number of the first row, rows) from row `first` on, the last slice first: who takes them takes from the end."""
    try:
        content = read_whole_file(SystemFiles(), path, ADMIN_BODY_BYTES)
        if content is None:
            raise FileNotFoundError
    except FileNotFoundError:
        raise NotFound(f"no staged file {path.name}: it was dropped, or nobody committed it for too long") from None
    except OSError as error:
        raise NotStored(f"cannot read {path}: {error.strerror}") from None
    if xxhash.xxh3_64_hexdigest(content) != path.name.rpartition("-")[2]:
        raise NotStored(f"{path} is damaged: its checksum does not match; stage its rows again")
    rows = islice(read_rows(content), first, None)
    slices = []
    while some := list(islice(rows, STAGED_SLICE_ROWS)):
        slices.append((first, some))
        first += len(some)
    return slices[::-1]


def _unlink(paths: Iterable[Path]) -> int:
    """Bytes that were freed."""
    freed = 0
    for path in paths:
        try:
            size_bytes = path.stat().st_size
            path.unlink()
        except OSError as error:
            if error.errno != errno.ENOENT:
                continue  # the next look for abandoned files takes it
        else:
            freed += size_bytes
    return freed


def _is_leftover(name: str, done: Mapping[str, int]) -> bool:
    """Whether a file was staged for a batch that `done` (writer's tag to the last batch) has, or for an earlier one."""
    found = _NAME.fullmatch(name)
    return found is not None and int(found["batch"] or "0", 16) <= done.get(found["writer"], -1)


def _remove_leftovers(directory: Path, done: Mapping[str, int]) -> int:
    """Bytes that were freed."""
    return _unlink([directory / name for name in SystemFiles().list_dir(directory) if _is_leftover(name, done)])


def _sweep(directory: Path, kept: set[str], done: Mapping[str, int], clock: DoubtedClock) -> int:
    """Removes abandoned files and leftovers; bytes that stay."""
    stored = 0
    try:
        found = list(os.scandir(directory))
    except OSError:
        return 0
    for file in found:
        try:
            status = file.stat()
            is_old = clock.age_ms(status.st_mtime_ns // 1_000_000) > STAGED_KEEP_S * 1000
            if (is_old or _is_leftover(file.name, done)) and file.name not in kept:
                os.unlink(file.path)
            else:
                stored += status.st_size
        except OSError:
            continue
    return stored
