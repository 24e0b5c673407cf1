"""One commit: the bytes of a cut as pieces, then the pages, then the head that names them. One thread only."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from engine.context import EngineContext
from engine.errors import TooLarge
from engine.remote.catalog import Catalog, ObjectRef, PartitionKey, SealedSegment, Tail
from engine.remote.cutting import split
from engine.remote.names import Versioned
from engine.remote.piece import Section
from engine.remote.writes import HeadWriter, create
from engine.shipping.asking import Asking
from engine.shipping.changes import PartitionCut
from engine.shipping.limits import ATTEMPTS, MERGE_PAUSE_S, PIECES_PER_COMMIT_MAX, RECENT_MS
from engine.shipping.manifest import Manifest
from engine.shipping.pending import Pending
from engine.shipping.pieces import Pieces


class Commits:
    """Makes commits of one lineage.

    Attributes:
        manifest: what is stored.
        count: commits so far.
        pieces: makes pieces.
    """

    def __init__(
        self, asking: Asking, context: EngineContext, piece_bytes: int, writer: HeadWriter, manifest: Manifest
    ) -> None:
        self._asking = asking
        self._piece_bytes = piece_bytes
        self._writer = writer
        self.manifest = manifest
        self.pieces = Pieces(asking, context.files, context.handles)
        self.count = 0
        self._paths: dict[int, Path] = {}
        """Files of segments, by id."""
        self._merge_after_s = 0.0
        self._folded_s = time.monotonic()

    def commit(
        self,
        pending: Pending,
        partitions: Iterable[PartitionCut],
        rows: Iterable[SealedSegment],
        state: ObjectRef | None,
    ) -> list[Versioned | str]:
        """Stores what is pending, of the partitions only these.

        Returns:
            objects that nothing needs any more, once their readers are gone.

        Raises:
            OSError: a file is gone; a later cut knows why. Behind, Fenced, Taken, TooLarge, ReadOnly. Stopped.
        """
        manifest = self.manifest
        partitions, rows = list(partitions), tuple(rows)
        sections: list[Section] = []
        tails: dict[PartitionKey, Tail] = {}
        starts: dict[PartitionKey, int] = {}
        for one in partitions:
            found, tail = manifest.sections(one)
            sections += found
            if tail is not None and tail != manifest.tails.get(one.key):
                tails[one.key] = tail
            starts |= manifest.start_of(one)
            self._paths |= {file.segment_id: file.path for file in one.sealed}
            self._paths[one.active.header.segment_id] = one.active.path
        gone = tuple(topic for topic in pending.gone if topic in manifest.topics)
        manifest.forget(gone, [(one.key, one.segment_ids()) for one in partitions])
        merged, versions = self._mergeable()
        refs, deltas, stored = self._store_pieces([*merged, *sections], pending)
        topics = tuple(topic for topic in pending.topics.values() if manifest.topics.get(topic.id) != topic)
        more = Catalog(topics, gone, rows, starts, tails, (), tuple(refs), (), tuple(deltas))
        more = replace(more, done=manifest.done_after(more, versions))
        if more == Catalog() and state is None:
            return []
        step = manifest.step(more, state, fold=time.monotonic() - self._folded_s > RECENT_MS / 1000)
        for name, content in step.pages:
            self._asking.certainly(partial(create, str(name), content, ATTEMPTS))
        if step.pages:
            self._folded_s = time.monotonic()
        self._asking.certainly(
            partial(self._writer.commit, step.head, ATTEMPTS), again=partial(self._writer.settle, ATTEMPTS)
        )
        self.count += 1
        return manifest.stored(step, more, stored)

    def put_off_merging(self) -> None:
        """A file was not there: perhaps one of those that were to be merged, which no later cut tells of."""
        self._merge_after_s = time.monotonic() + MERGE_PAUSE_S

    def _mergeable(self) -> tuple[list[Section], list[int]]:
        if time.monotonic() < self._merge_after_s:
            return [], []
        return self.manifest.mergeable(self._piece_bytes, self._paths)

    def _store_pieces(
        self, sections: list[Section], pending: Pending
    ) -> tuple[list[ObjectRef], list[ObjectRef], dict[Versioned, list[Section]]]:
        """References of the pieces with records and of those with changes of the state, and what is in which."""
        head = self.manifest.head
        groups = split(sections, self._piece_bytes)
        if len(groups) > PIECES_PER_COMMIT_MAX:
            raise TooLarge(f"{len(groups)} pieces in one commit", PIECES_PER_COMMIT_MAX)
        refs: list[ObjectRef] = []
        deltas: list[ObjectRef] = []
        stored: dict[Versioned, list[Section]] = {}
        changes = pending.changes
        for group in groups or [[]] * bool(changes):
            ref = self.pieces.store(head.lineage, head.epoch, head.version + 1, group, self._paths, changes)
            if changes:
                deltas.append(ref)
            if group:
                refs.append(ref)
                stored[ref.name] = group
            changes = []
        return refs, deltas, stored
