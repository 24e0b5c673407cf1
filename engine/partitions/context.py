"""What partitions share in addition to `engine.context`: who commits, makes and removes their files, and caches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from engine.commit.committer import Committer
from engine.errors import EngineError
from engine.partitions.adoption import Adoption
from engine.partitions.file_worker import FileWorker
from engine.partitions.removal import SegmentRemoval
from engine.partitions.tail_cache import TailCache
from engine.reports import report
from engine.segments.batches import ReadBatch
from engine.state.topic_entries import Topic


@dataclass(slots=True, eq=False)
class PartitionContext:
    """Handed to each partition by `engine.partitions.table.PartitionTable`."""

    committer: Committer
    file_worker: FileWorker
    removal: SegmentRemoval
    adoption: Adoption
    tail_cache: TailCache
    readers: ThreadPoolExecutor
    """Threads for reads that neither memory nor the page cache can answer."""
    fetched: OrderedDict[tuple[object, int], ReadBatch | EngineError] = field(default_factory=OrderedDict)
    """Their answers, by partition and number asked for; see `engine.partitions.reads`."""
    unopened: dict[str, str] = field(default_factory=dict)
    """Titles of partitions that could not be opened when they were last used, and why."""
    on_opened: Callable[[Topic, int], None] | None = None
    """Is told of each partition that was opened."""

    def note_opening(self, title: str, result: object) -> None:
        """Tells once that a partition cannot be opened: every use tries again."""
        if not isinstance(result, EngineError):
            self.unopened.pop(title, None)
        elif self.unopened.get(title) != str(result):
            self.unopened[title] = str(result)
            report(f"{title} cannot be opened: {result}")
