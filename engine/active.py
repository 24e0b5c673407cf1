"""The active segment of a partition: appended to by one thread at a time, rolled, sealed, cut back after a failure."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.batch import seal
from engine.chunk import Chunk
from engine.files import Files
from engine.handles import Handles
from engine.segment import HEADER_BYTES, INDEX_INTERVAL_BYTES, Footer, IndexEntry, SegmentHeader, segment_name


@dataclass(slots=True)
class ActiveSegment:
    """The end of a partition's log.

    Positions are bytes from the beginning of the file. Everything below `position` is whole batches;
    everything below `durable_position` is on disk.
    """

    directory: Path
    header: SegmentHeader
    position: int = HEADER_BYTES
    durable_position: int = HEADER_BYTES
    last_seq: int = 0
    records: int = 0
    batches: int = 0
    max_timestamp_ms: int = 0
    last_append_ms: int = 0
    index: list[IndexEntry] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The segment's file."""
        return self.directory / segment_name(self.header.first_seq)

    def note(self, first_seq: int, position: int, max_timestamp_ms: int) -> IndexEntry | None:
        """Adds an index entry for the batch at `position` when the last one is far enough behind."""
        if self.index and position - self.index[-1].position < INDEX_INTERVAL_BYTES:
            return None
        entry = IndexEntry(first_seq, position, max(self.max_timestamp_ms, max_timestamp_ms))
        self.index.append(entry)
        return entry

    def append(self, files: Files, handles: Handles, chunks: Sequence[Chunk]) -> None:
        """Seals `chunks` for their place and writes them behind the last batch with one call.

        Raises:
            OSError: nothing is counted as written; the file may hold part of the chunks behind `position`.
        """
        position = self.position
        for chunk in chunks:
            seal(
                chunk.buffer,
                0,
                chunk.end,
                self.header.segment_id,
                position,
                self.durable_position,
                chunk.transaction_id,
            )
            chunk.segment_id = self.header.segment_id
            chunk.file_position = position
            position += chunk.end
        with handles.use(self.path) as fd:
            files.write(fd, [memoryview(chunk.buffer)[: chunk.end] for chunk in chunks], self.position)
        for chunk in chunks:
            self.note(chunk.first_seq, chunk.file_position, chunk.max_timestamp_ms)
            self.last_seq = chunk.last_seq
            self.records += chunk.records
            self.batches += chunk.batches
            self.max_timestamp_ms = max(self.max_timestamp_ms, chunk.max_timestamp_ms)
            self.last_append_ms = chunk.append_time_ms
        self.position = position

    def sync(self, files: Files, handles: Handles) -> None:
        """Makes all that was written durable. Raises OSError: nothing may be taken as durable any more."""
        position = self.position
        with handles.use(self.path) as fd:
            files.sync_data(fd)
        self.durable_position = position

    def state(self) -> tuple[int, int, int, int, int, int]:
        """What `cut` needs to come back to here."""
        return self.position, self.last_seq, self.records, self.batches, self.max_timestamp_ms, len(self.index)

    def cut(self, files: Files, handles: Handles, state: tuple[int, int, int, int, int, int]) -> None:
        """Takes back what a failed round wrote: file and counts as they were at `state`. Raises OSError."""
        with handles.use(self.path) as fd:
            files.truncate(fd, state[0])
            files.sync_data(fd)
        self.position, self.last_seq, self.records, self.batches, self.max_timestamp_ms, entries = state
        del self.index[entries:]

    def footer(self) -> Footer:
        """What the segment will say of itself once sealed."""
        return Footer(
            first_seq=self.index[0].first_seq if self.index else self.header.first_seq,
            last_seq=self.last_seq if self.records else self.header.first_seq - 1,
            records=self.records,
            batches=self.batches,
            end=self.position,
            max_timestamp_ms=self.max_timestamp_ms,
            last_append_ms=self.last_append_ms,
            index=tuple(self.index),
        )

    def seal(self, files: Files, handles: Handles) -> Footer:
        """Writes footer and trailer and makes the file durable. Raises OSError."""
        footer = self.footer()
        with handles.use(self.path) as fd:
            files.write(fd, [footer.pack(self.header.segment_id)], self.position)
            files.sync_data(fd)
        return footer


def create_segment(
    files: Files, handles: Handles, directory: Path, header: SegmentHeader, *, max_timestamp_ms: int = 0
) -> ActiveSegment:
    """Makes an empty segment file, durable with its directory entry.

    Raises:
        OSError: as the system gave it (also when a file of that name exists).
    """
    segment = ActiveSegment(directory, header, last_seq=header.first_seq - 1, max_timestamp_ms=max_timestamp_ms)
    fd = files.create(segment.path)
    try:
        files.write(fd, [header.pack()], 0)
        files.sync_data(fd)
        files.sync_dir(directory)
    except OSError:
        files.close(fd)
        files.remove(segment.path)
        raise
    handles.add(segment.path, fd)
    return segment


def new_header(topic_id: int, partition: int, number: int, first_seq: int, created_ms: int) -> SegmentHeader:
    """A header with a new random segment id."""
    return SegmentHeader(topic_id, partition, number, first_seq, secrets.randbits(64), created_ms)
