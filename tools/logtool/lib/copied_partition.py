"""One partition of a copy: its segments, and where the copy of it ends.

A segment is copied as long as it is at that moment, while the server goes on writing: after what was there before the
copied `state` (`Settled`) there may be the first half of a batch, or batches of a transaction of which the state does
not say that it is committed, because it came later. The copy ends before the first of them, be that in a segment that
was sealed in the meantime: then it holds all of each transaction, or nothing of it.

The ends of different partitions fit together because of an order that the engine keeps: a transaction's batches are
on disk before its marker is in the state, and nothing is written to its partitions before that. So a transaction that
the state knows stands before the end everywhere, and one that it does not know stands after it everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from engine.errors import EngineError
from engine.files.system import SystemFiles
from engine.formats.segment import HEADER_BYTES, parse_segment_name
from engine.reader import Segment, headers_of, read_segment, walk_segment
from engine.segments.damage import Damage, Found
from engine.segments.watermarks import Watermark
from tools.logtool.lib.limits import COPIES_OF_DAMAGED

FILES = SystemFiles()


class Settled(NamedTuple):
    """What of a partition was there before the state was copied: nothing of it is under way any more."""

    active_first_seq: int
    """Segments before this one, ..."""
    position: int
    """... and this one up to here."""

    def within(self, first_seq: int) -> int:
        """Position up to which a segment is settled."""
        if first_seq < self.active_first_seq:
            return 1 << 63
        return self.position if first_seq == self.active_first_seq else HEADER_BYTES


NOTHING = Settled(1, HEADER_BYTES)
"""A partition that nobody knew."""


@dataclass(slots=True)
class PartitionCopy:
    """Copies the segments of one partition.

    Attributes:
        settled: see there.
        is_live: a process may write to it; without one all that is in the files was written by processes that are gone,
            and what their later batches say of earlier ones counts.
        is_committed: whether the copied state knows a transaction.
        copy: copies a file, by its name in the directory. Raises FileNotFoundError.
        forget: takes a file out of the copy again.
        kept: names of the copied segments, in order.
        damaged: what does not agree with its checksum, and is copied as it is.
        lost: first and last numbers of the records in it.
        last_seq: last number in the copy; 0: there is none.
        end: position of the copy's end in its last segment.
        is_cut: something of the last segment was left out.
        number: of the partition, as its newest header says; 0: none can be read.
    """

    source: Path
    target: Path
    settled: Settled
    is_live: bool
    is_committed: Callable[[int], bool]
    copy: Callable[[str], None]
    forget: Callable[[str], None]
    kept: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    last_seq: int = 0
    end: int = HEADER_BYTES
    is_cut: bool = False
    number: int = 0

    def run(self) -> None:
        """Copies, checks and ends it. Raises OSError."""
        names = sorted(name for name in os.listdir(self.source) if parse_segment_name(name) is not None)
        for name in names:
            if self.is_cut:
                return
            try:
                self._take(name)
            except FileNotFoundError:  # retention was quicker: the copy begins after it
                for before in self.kept:
                    self.forget(before)
                self.kept.clear()
                self.damaged.clear()
                self.lost.clear()

    def _take(self, name: str) -> None:
        """Copies a segment, or what of it belongs to the copy."""
        for attempt in range(COPIES_OF_DAMAGED):
            if attempt:  # damage may be a write that was under way
                self.forget(name)
            self.copy(name)
            try:
                segment = read_segment(FILES, self.target / name)
            except EngineError as error:
                self.kept.append(name)
                self.damaged.append(str(error))
                return
            damage, cut, last_seq = self._look(segment)
            settled = self.settled.within(segment.header.first_seq)
            if not self.is_live or all(one.end <= settled for one in damage):
                break
        self.kept.append(name)
        self.last_seq, self.number = last_seq, segment.header.number
        self.end = segment.end if cut is None else cut
        if cut is not None:
            os.truncate(self.target / name, cut)
            self.is_cut = True
        where = self.source / name
        self.damaged += [f"{where}: bytes {one.position} to {one.end}: {one.reason}" for one in damage]
        self.lost += [(one.first_seq, one.last_seq) for one in damage]

    def _look(self, segment: Segment) -> tuple[list[Damage], int | None, int]:
        """Damage in a copied segment, where the copy ends in it, if it does, and the last number up to there."""
        settled = self.settled.within(segment.header.first_seq)
        durable, last_seq = settled, self.last_seq
        damage: list[Damage] = []
        for item in walk_segment(FILES, replace(segment, footer=None)):
            if isinstance(item, Damage):
                damage.append(item)
                continue
            if item.next_position > settled:
                cut, durable, last_seq = self._unknown(item, segment.header.segment_id, durable, last_seq)
                if cut is not None:
                    return damage, cut, last_seq
            last_seq = item.last_seq
        if damage and not segment.sealed:
            last = damage[-1]
            if last.end >= segment.end and last.position >= durable:  # the beginning of a batch
                return damage[:-1], last.position, last_seq
        return damage, None, last_seq

    def _unknown(self, found: Found, segment_id: int, durable: int, last_seq: int) -> tuple[int | None, int, int]:
        """Where the first batch is whose transaction is not known to be committed, if any; what is known to be on disk
        up to there, and the last number before."""
        for header in headers_of(found, segment_id):
            at = found.position + header.position
            if header.transaction_id and at >= durable and not self.is_committed(header.transaction_id):
                return at, durable, last_seq
            if not self.is_live:
                durable = max(durable, header.durable_mark)
            last_seq = header.last_seq
        return None, durable, last_seq

    def mark(self, before: Watermark | None) -> Watermark | None:
        """What the copy holds, as if the log had been stopped in good order; None: its headers do not tell."""
        try:
            first, last = (read_segment(FILES, self.target / name).header for name in (self.kept[0], self.kept[-1]))
        except EngineError:
            return None
        return Watermark(
            log_start=max(before.log_start if before is not None else 1, first.begins),
            active_first_seq=last.first_seq,
            committed_seq=max(self.last_seq, before.committed_seq if before is not None else 0),
            committed_position=self.end,
            durable_position=self.end,
            segment_id=last.segment_id,
        )
