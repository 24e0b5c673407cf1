"""Sealed segments on their way into the store, one after the other, beside the commits: a thread of its own."""

from __future__ import annotations

import mmap
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import xxhash

from engine.files.descriptors import Handles
from engine.remote.catalog import PartitionKey, SealedSegment
from engine.remote.names import SegmentName
from engine.remote.store import StoreError
from engine.remote.writes import create
from engine.reports import report, report_exception
from engine.segments.active import SealedSegment as SegmentFile
from engine.shipping.asking import Asking, Stopped
from engine.shipping.limits import ATTEMPTS, HASH_BYTES, SEGMENT_OBJECT_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Wanted:
    """A sealed segment that is to be stored whole."""

    key: PartitionKey
    file: SegmentFile
    next: int
    """First number of the segment after it."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What became of it."""

    wanted: Wanted
    row: SealedSegment | None
    """None: it is not stored, as it is too large, damaged or gone."""


class Uploads:
    """The thread. `results` has what is done; `on_done` is called for each, by the thread."""

    def __init__(self, asking: Asking, handles: Handles, on_done: Callable[[], None]) -> None:
        self._asking = asking
        self._handles = handles
        self._on_done = on_done
        self._jobs: queue.SimpleQueue[Wanted | None] = queue.SimpleQueue()
        self.results: queue.SimpleQueue[Uploaded] = queue.SimpleQueue()
        self.size_bytes = 0
        """Stored since the start."""
        threading.Thread(target=self._run, name="quintlog-uploads", daemon=True).start()

    def add(self, wanted: Wanted) -> None:
        """Queues a segment (any thread)."""
        self._jobs.put(wanted)

    def stop(self) -> None:
        """Ends the thread, when it has done what it does (not waited for)."""
        self._jobs.put(None)

    def _run(self) -> None:
        with self._asking.using():
            while (wanted := self._asking.away(self._jobs.get)) is not None:
                try:
                    row = self._uploaded(wanted)
                except Exception as problem:
                    if isinstance(problem, Stopped):
                        raise
                    report_exception(f"storing {wanted.file.path}", problem)
                    row = None
                self.results.put(Uploaded(wanted, row))
                self._on_done()

    def _uploaded(self, wanted: Wanted) -> SealedSegment | None:
        file, key = wanted.file, wanted.key
        if file.size_bytes > SEGMENT_OBJECT_BYTES_MAX:
            return None
        name = str(SegmentName(*key, file.first_seq, file.segment_id))
        try:
            with self._handles.use(file.path) as fd, mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
                digest, size = self._stored(name, mapped), len(mapped)
        except FileNotFoundError:  # retention took it
            return None
        except (StoreError, OSError, ValueError) as problem:
            report(f"{file.path} cannot be stored whole, its pieces are kept: {problem}")
            return None
        self.size_bytes += size
        return SealedSegment(
            *key, file.first_seq, wanted.next, file.records, size, file.segment_id, file.max_timestamp_ms, name, digest
        )

    def _stored(self, name: str, mapped: mmap.mmap) -> str:
        """Stores the bytes of a file; their hash."""
        with memoryview(mapped) as content:
            self._asking.certainly(partial(create, name, content, ATTEMPTS))
            digest = xxhash.xxh3_64()
            for at in range(0, len(content), HASH_BYTES):  # the interpreter is not let go of while it is read
                digest.update(content[at : at + HASH_BYTES])
            return digest.hexdigest()
