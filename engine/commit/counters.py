"""What the metrics tell of commit rounds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Plain sums, read by the metrics at a scrape."""

    rounds: int = 0
    failed_rounds: int = 0
    """Of them: those of which a part failed."""
    failed_parts: int = 0
    records: int = 0
    bytes: int = 0
    files: int = 0
    sync_failures: int = 0
    round_sizes: list[tuple[int, int, int, float]] = field(default_factory=list)
    """(records, bytes, files, sync seconds) of rounds since the last scrape; at most `ROUND_SIZES_MAX`."""
