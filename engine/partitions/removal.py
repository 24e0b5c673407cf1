"""The removal of segments below the start of the log: after the grace time, when the raised start is on disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from engine.commit.committer import Committer
from engine.commit.target import CommitTarget
from engine.context import EngineContext
from engine.errors import EngineError, NotStored
from engine.partitions.file_worker import FileWorker
from engine.reports import report
from engine.segments.active import SealedSegment


@dataclass(slots=True)
class _PendingUnlink:
    """Files below the start of the log, to be removed when nobody reads them any more."""

    due_s: float
    partition: CommitTarget
    segments: list[SealedSegment]
    log_start: int
    """The start of the log that has to be on disk before."""


class SegmentRemoval:
    """Owner's thread only; the files are removed by the file worker's."""

    def __init__(self, context: EngineContext, committer: Committer, file_worker: FileWorker) -> None:
        self._context = context
        self._committer = committer
        self._file_worker = file_worker
        self._pending: list[_PendingUnlink] = []
        self.failing: dict[CommitTarget, str] = {}
        """Partitions whose files could not be removed, and why."""

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, partition: CommitTarget, segments: list[SealedSegment]) -> None:
        """Removes files of segments that are no longer in the log after the grace time."""
        if segments:
            due_s = time.monotonic() + self._context.config.retention_grace_ms / 1000
            self._pending.append(_PendingUnlink(due_s, partition, segments, partition.log_start))

    def forget(self, partition: CommitTarget) -> None:
        """Its topic was deleted: its files go with it."""
        self.failing.pop(partition, None)

    def unlink_due(self) -> None:
        """Has those files removed whose time has come."""
        now, marks = time.monotonic(), self._context.watermarks
        pending, self._pending = self._pending, []
        for one in pending:
            partition = one.partition
            if partition.is_deleted:
                continue  # its files go with it
            if one.due_s > now:
                self._pending.append(one)
            elif partition.marked_log_start < one.log_start or not marks.covers(partition.number):
                self._pending.append(one)
                self._committer.request_watermark(partition)
            else:
                self._remove(one)

    def _remove(self, one: _PendingUnlink) -> None:
        partition = one.partition

        def done(result: object) -> None:
            if isinstance(result, EngineError):
                self.failing[partition] = f"cannot remove old segments: {result}"
                report(f"{partition.title}: cannot remove old segments: {result}")
                self._pending.append(one)
            else:
                self.failing.pop(partition, None)

        self._file_worker.submit(lambda: remove_files(self._context, partition.number, one.segments), done)


def remove_files(context: EngineContext, number: int, segments: Sequence[SealedSegment]) -> None:
    """Unlinks segments below the start of the log of the partition with that number (file worker's thread).

    Raises:
        OSError: some of them may be there; to be called again.
        NotStored: the raised start has to be written again first; to be called again, too.
    """
    directory, behind = segments[0].path.parent, segments[-1].last_seq + 1
    context.watermarks.sync()  # the raised start is on disk before what lies below it goes
    if not context.watermarks.covers(number):
        raise NotStored("a sync of the watermarks failed, and the start of the log is written again")
    for segment in segments:
        with suppress(FileNotFoundError):  # removed by an attempt that failed later
            context.files.remove(segment.path)
            context.figures.removed_bytes += segment.size_bytes
        context.handles.forget(segment.path)  # after the removal: a reader would open it again
    context.files.sync_dir(directory)
    context.index.remove(number, behind)
