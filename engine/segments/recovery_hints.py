"""What is known of a partition before its files are read: recovery checks it against them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.formats.segment import HEADER_BYTES
from engine.segments.watermarks import Watermark
from engine.state.index import SeqEntry


@dataclass(frozen=True, slots=True)
class RecoveryHints:
    """What watermark, index and markers say of one partition; none of it is the truth."""

    mark: Watermark | None = None
    entry: SeqEntry | None = None
    """The last entry of the index."""
    synced: bool = True
    """Whether the index only has entries of what was synced (durability "always")."""
    is_committed: Callable[[int], bool] = bool
    """Whether a transaction was committed."""

    def segment_ids(self, first_seq: int) -> list[int]:
        """Ids that are known for the segment with this first number."""
        ids = []
        if self.mark is not None and self.mark.active_first_seq == first_seq:
            ids.append(self.mark.segment_id)
        if self.entry is not None and self.entry.segment_first_seq == first_seq:
            ids.append(self.entry.segment_id)
        return ids

    def floor(self, segment_id: int) -> int:
        """Position in the segment below which everything is committed and was on disk."""
        floor = HEADER_BYTES
        if self.mark is not None and self.mark.segment_id == segment_id:
            floor = max(floor, self.mark.durable_position)
        if self.entry is not None and self.entry.segment_id == segment_id and self.synced:
            floor = max(floor, self.entry.position)
        return floor

    @property
    def highest_seq(self) -> int:
        """The highest number that was committed, as far as they know."""
        return max(self.mark.committed_seq if self.mark else 0, self.entry.first_seq if self.entry else 0)
