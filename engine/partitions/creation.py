"""The first files of new partitions, many at a time.

A new topic takes four files and directories, each with a sync of its own that waits for the journal of the file system.
Syncs that wait at the same time share one write of it, so that a burst of new topics is made by many threads::

    each topic      directory; topic.json: written aside, synced, renamed
    each partition  directory; first segment: made with its header, synced, its directory synced
    each topic      directory synced
    once            `topics` synced, if it has new entries
    each partition  its watermark

Nothing of it is used before all of this has happened. What a failure leaves is found, and used, by the next attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from engine.errors import DataDirectoryError, DiskFull, EngineError
from engine.files.system import NO_DESCRIPTORS, NO_SPACE, replace_file
from engine.reader import TOPIC_FILE
from engine.segments.active import ActiveSegment
from engine.segments.discovery import Place
from engine.segments.recovery import begin_partition
from engine.segments.watermarks import Owner, Watermark

if TYPE_CHECKING:
    from engine.log import Log

DESCRIPTOR_ATTEMPTS = 20
DESCRIPTOR_ATTEMPT_S = 0.01

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be known of a partition, as it was on the owner's thread."""

    place: Place
    description: bytes
    """Content of ``topic.json``."""
    synced: bool
    """Whether every record is synced before it is acknowledged."""


Made: TypeAlias = ActiveSegment | None
"""The first segment; None: there are files already, to be recovered."""
Problems: TypeAlias = dict[Path, EngineError | None]
"""Of the directories of topics."""


def attempt(log: Log, work: Callable[[], Result]) -> Result | EngineError:
    """The result of `work`, or what went wrong."""
    try:
        return work()
    except EngineError as problem:
        return problem
    except OSError as problem:
        kind = DiskFull if problem.errno in NO_SPACE else DataDirectoryError
        return kind(f"{problem.filename or 'a file'}: {problem.strerror or problem}")
    except Exception as problem:  # noqa: BLE001 - one bad partition must not stop the opening of others
        log.report_exception("opening a partition", problem)
        return DataDirectoryError(f"internal error while opening: {problem!r}")


class Maker:
    """Used by the opener's thread alone; helpers of its own do parts of what it is asked for."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._pool = ThreadPoolExecutor(log.config.sync_threads, thread_name_prefix="quintlog-maker")
        self._synced_topics: set[Path] = set()
        """Directories of topics whose entries were synced since the start."""
        self._has_new_topics = False
        """`topics` has entries that may not be on disk."""

    def stop(self) -> None:
        """Ends the helpers; blocking."""
        self._pool.shutdown()

    def make(self, jobs: Sequence[Job]) -> list[Made | EngineError]:
        """The first segments of partitions, durable, with their watermarks, in the order of `jobs`."""
        descriptions = {job.place.topic_directory: job.description for job in jobs}
        new = [directory for directory in descriptions if directory not in self._synced_topics]
        problems = self._each(new, lambda directory: self._describe(directory, descriptions[directory]))
        made = list(self._each(jobs, partial(self._begin, problems)).values())
        begun = {
            job.place.topic_directory: None
            for job, one in zip(jobs, made, strict=True)
            if isinstance(one, ActiveSegment)
        }
        problems |= self._each([*begun], self._log.files.sync_dir)
        of_all = attempt(self._log, self._sync_topics)
        if isinstance(of_all, EngineError):
            problems |= dict.fromkeys(new, of_all)
        self._synced_topics.update(directory for directory in begun if problems.get(directory) is None)
        return [self._marked(job, one, problems) for job, one in zip(jobs, made, strict=True)]

    def make_topic(self, job: Job) -> None:
        """The topic's directory with its description, durable; entries that a process left that was killed, too.

        Raises:
            OSError: as the system gave it.
        """
        directory = job.place.topic_directory
        if directory not in self._synced_topics:
            self._describe(directory, job.description)
            self._log.files.sync_dir(directory)
            self._sync_topics()
            self._synced_topics.add(directory)

    def forget_topic(self, directory: Path) -> None:
        """The directory of a topic is going to be removed."""
        self._synced_topics.discard(directory)

    # --- steps

    def _each(self, items: Sequence[Item], work: Callable[[Item], Result]) -> dict[Item, Result | EngineError]:
        """What `work` gives for each item, or what went wrong; by helpers when there are several."""

        def one(item: Item) -> Result | EngineError:
            return attempt(self._log, lambda: work(item))

        def patiently(some: Sequence[Item]) -> list[Result | EngineError]:
            return [attempt(self._log, partial(_with_descriptors, partial(work, item))) for item in some]

        if len(items) < 2:
            return {item: one(item) for item in items}
        # A stretch for each helper: to hand over each item costs more than most of them do.
        size = -(-len(items) // self._log.config.sync_threads)
        stretches = [items[at : at + size] for at in range(0, len(items), size)]
        return dict(zip(items, chain.from_iterable(self._pool.map(patiently, stretches)), strict=True))

    def _describe(self, directory: Path, description: bytes) -> None:
        files = self._log.files
        if TOPIC_FILE not in files.list_dir(directory):
            self._has_new_topics = True
            files.make_dir(directory)
            replace_file(files, directory / TOPIC_FILE, description)

    def _begin(self, problems: Problems, job: Job) -> Made:
        log, place = self._log, job.place
        problem = problems.get(place.topic_directory)
        if problem is not None:
            raise problem
        log.index.drop(place.number)  # a former owner of the number may have left something at a crash
        if log.files.list_dir(place.directory):  # left by a crash before the first record, or nobody knew of it
            return None
        return begin_partition(log.files, log.handles, place, log.now_ms())

    def _sync_topics(self) -> None:
        if self._has_new_topics:
            self._log.files.sync_dir(self._log.data_dir / "topics")
            self._has_new_topics = False

    def _marked(self, job: Job, made: Made | EngineError, problems: Problems) -> Made | EngineError:
        problem = problems.get(job.place.topic_directory)
        if problem is not None or not isinstance(made, ActiveSegment):
            return problem or made
        failure = attempt(self._log, lambda: self.mark(job.place, made, 1, 0))
        return failure or made

    def mark(self, place: Place, active: ActiveSegment, log_start: int, committed_seq: int) -> None:
        """Writes the first watermark of a partition that was opened. Raises OSError."""
        self._log.watermarks.write(
            Owner(place.number, place.topic_id, place.partition),
            Watermark(
                log_start,
                active.header.first_seq,
                committed_seq,
                active.position,
                active.durable_position,
                active.header.segment_id,
            ),
        )


def _with_descriptors(work: Callable[[], Result]) -> Result:
    """The result of `work`; tried again while there are no descriptors, as other helpers give theirs back soon."""
    for _ in range(DESCRIPTOR_ATTEMPTS - 1):
        try:
            return work()
        except OSError as problem:
            if problem.errno not in NO_DESCRIPTORS:
                raise
        time.sleep(DESCRIPTOR_ATTEMPT_S)
    return work()
