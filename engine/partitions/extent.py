"""What a position (``engine.positions``) is resolved against in a log that is open."""

from __future__ import annotations

from engine.partitions.partition import Partition


class Extent:
    """An open partition, as it is now."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.log_start = partition.log_start
        self.committed_seq = partition.committed_seq

    def seq_before_end(self, count: int) -> int:
        """The number from which at least so many records follow."""
        if count <= 0:
            return self.committed_seq + 1
        return self._partition.gaps.newest(self.log_start, self.committed_seq, count)

    def seq_after_first(self, count: int) -> int:
        """The number after the first so many records, or before it where it is not known how many there are."""
        most = self._partition.gaps.count(self.log_start, self.committed_seq).most
        return self.seq_before_end(most - count)

    def seq_at_time(self, timestamp_ms: int) -> int:
        """A number at or before the first record of that time or a later one."""
        return self._partition.seq_at_time(timestamp_ms)
