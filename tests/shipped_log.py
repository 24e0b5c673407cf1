"""What a bucket holds of a log, found from its objects alone, and compared with the log's files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.log import Log
from engine.remote.catalog import Catalog, PartitionKey, joined, unpack_page
from engine.remote.cutting import put_together
from engine.remote.head import Head
from engine.remote.names import HEAD
from engine.remote.piece import read_table, unpack_piece
from engine.remote.state_copy import StateUnpacker
from engine.remote.store import Absent
from engine.shipping.shipper import Shipper, ShippingConfig
from engine.state.store import LmdbState
from tests.engine_log import EngineLog

GET_MAX = 1 << 30


class Locked:
    """A store of tests that several threads ask."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._lock = threading.Lock()

    def __getattr__(self, call: str) -> Any:
        def asked(*arguments: Any) -> Any:
            with self._lock:
                return getattr(self._store, call)(*arguments)

        return asked


@dataclass(frozen=True, slots=True)
class Found:
    """What a bucket says."""

    head: Head
    catalog: Catalog
    files: dict[PartitionKey, dict[int, bytes]]
    """By partition and segment id: what is stored of its file."""
    state: dict[bytes, bytes] | None
    """Keys with what is stored under them; None: there is no copy."""


def found_in(store: Any) -> Found:
    """Reads everything that the head names, and checks it."""
    head = Head.unpack(store.get(HEAD, GET_MAX).content)
    pages = [unpack_page(store.get(str(ref.name), GET_MAX).content, str(ref.name)).catalog for ref in head.catalog]
    catalog = joined((*pages, head.recent))
    contents = {str(ref.name): store.get(str(ref.name), GET_MAX).content for ref in catalog.pieces}
    tables = [read_table(content, name, head.lineage) for name, content in contents.items()]
    files: dict[PartitionKey, dict[int, bytes]] = {}
    for key, segments in put_together(tables, catalog).items():
        for segment_id, parts in segments.items():
            content = b"".join(contents[str(part.piece)][part.begin : part.end] for part in parts)
            files.setdefault(key, {})[segment_id] = content
    for row in catalog.segments:
        content = store.get(row.path, GET_MAX).content
        assert len(content) == row.size_bytes
        files.setdefault(row.key, {})[row.segment_id] = content
    return Found(head, catalog, files, _state(store, head, catalog))


def _state(store: Any, head: Head, catalog: Catalog) -> dict[bytes, bytes] | None:
    if head.state is None:
        return None
    name = str(head.state.name)
    unpacker, state = StateUnpacker(name, head.lineage), {}
    for block in unpacker.feed(store.get(name, GET_MAX).content):
        state.update((change.key, change.value) for change in block)
    unpacker.end()
    for ref in catalog.deltas:
        if ref.name.version > head.state.name.version:
            name = str(ref.name)
            for change in unpack_piece(store.get(name, GET_MAX).content, name, head.lineage).changes:
                state[change.key] = change.value
    return {key: value for key, value in state.items() if value is not None}


def problem_of(found: Found, log: Log, *, whole: bool = True) -> str | None:
    """Where a bucket differs from a log that is at rest; `whole`: and where it does not have all of it."""
    assert isinstance(log.state, LmdbState)
    if whole and found.state != dict(log.state.stored()):
        return "the state differs"
    for topic in log.catalog:
        for index in topic.numbers:
            partition = log.partition(topic, index)
            if not partition.has_files:
                continue
            key = PartitionKey(topic.id, index)
            tail = found.catalog.tail.get(key)
            active = partition.active_segment
            if whole and (tail is None or (tail.committed, tail.position) != (active.last_seq, active.position)):
                return f"the tail of {key} is {tail}, not {active.last_seq}, {active.position}"
            local = {one.segment_id: one.path for one in partition.sealed} | {active.header.segment_id: active.path}
            for segment_id, content in found.files.get(key, {}).items():
                if segment_id in local and not Path(local[segment_id]).read_bytes().startswith(content):
                    return f"segment {segment_id:016x} of {key} has other bytes"
            missing = local.keys() - found.files.get(key, {}).keys()
            if whole and missing:
                return f"segments {missing} of {key} are not stored"
    return None


def shipping(log: EngineLog, store: Any, **config: Any) -> Shipper:
    """Begins to store a log, commit after commit."""
    return log.log.ship(store, ShippingConfig(**{"commit_interval_ms": 1, **config}))


def wait_stored(log: EngineLog, shipper: Shipper, store: Any) -> Found:
    """Waits until all that the log has is stored, and reads it; raises AssertionError when it is something else."""
    problem: str | None = "nothing is stored"
    found: Found

    def is_stored() -> bool:
        nonlocal problem, found
        assert not shipper.progress.reason, shipper.progress.reason
        if not shipper.is_idle or log.log.state.pending_bytes:
            return False
        try:
            found = found_in(store)
        except Absent as error:  # it was read while a later head was written, and what that does not name was removed
            problem = str(error)
            return False
        problem = problem_of(found, log.log)
        return problem is None

    wait_until(log, is_stored, lambda: problem)
    return found


def wait_until(log: EngineLog, condition: Callable[[], bool], problem: Callable[[], str | None] = lambda: None) -> None:
    """Waits for what nothing is posted for; raises AssertionError."""
    for _ in range(1500):
        with suppress(TimeoutError):
            log.inbox.run_until(condition, 0.02)
            return
    raise AssertionError(problem())
