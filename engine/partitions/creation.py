"""The first files of new partitions, many at a time.

A new topic takes four files and directories. A sync waits for the journal of the file system, and the first one writes
all that was made before it: so one thread makes everything of a step, and then many sync it at the same time::

    each topic      directory; topic.json, written aside
    each topic      topic.json synced and renamed
    each partition  directory; first segment with its header
    each partition  directory synced; the file is synced with its first batch, or now if batches wait for no sync
    each topic      directory synced
    once            `topics` synced, if it has new entries
    each partition  its watermark

Nothing of it is used before all of this has happened. What a failure leaves is found, and used, by the next attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from engine.context import EngineContext
from engine.directory_layout import TOPIC_FILE
from engine.errors import DataDirectoryError, DiskFull, EngineError
from engine.files.system import NO_DESCRIPTORS, NO_SPACE, take_from_aside, write_aside
from engine.helpers import Helpers
from engine.reports import report_exception
from engine.segments.active import ActiveSegment, removed_upon_failure, sync_segment
from engine.segments.discovery import PartitionLocation
from engine.segments.recovery import begin_partition
from engine.segments.watermarks import Owner, Watermark

DESCRIPTOR_ATTEMPTS = 20
DESCRIPTOR_ATTEMPT_S = 0.01

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be known of a partition, as it was on the owner's thread."""

    location: PartitionLocation
    title: str
    """The partition's, for messages."""
    description: bytes
    """Content of ``topic.json``."""
    synced: bool
    """Whether every record is synced before it is acknowledged."""


Created: TypeAlias = ActiveSegment | None
"""The first segment; None: there are files already, to be recovered."""
Problems: TypeAlias = dict[Path, EngineError]
"""Of the directories of topics."""


def attempt(work: Callable[[], Result]) -> Result | EngineError:
    """The result of `work`, or what went wrong."""
    try:
        return work()
    except EngineError as problem:
        return problem
    except OSError as problem:
        kind = DiskFull if problem.errno in NO_SPACE else DataDirectoryError
        return kind(f"{problem.filename or 'a file'}: {problem.strerror or problem}")
    except Exception as problem:  # noqa: BLE001 - one bad partition must not stop the opening of others
        report_exception("opening a partition", problem)
        return DataDirectoryError(f"internal error while opening: {problem!r}")


class PartitionCreator:
    """Used by the file worker's thread alone; helpers of its own do parts of what it is asked for."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._helpers = Helpers(context.config.sync_threads, "quintlog-maker")
        self._attempts_left = 0
        """How often a descriptor may be waited for."""
        self._synced_topics: set[Path] = set()
        """Directories of topics whose entries were synced since the start."""
        self._has_new_topics = False
        """`topics` has entries that may not be on disk."""

    def stop(self) -> None:
        """Ends the helpers; blocking."""
        self._helpers.stop()

    def make(self, jobs: Sequence[Job]) -> list[Created | EngineError]:
        """The first segments of partitions, durable, with their watermarks, in the order of `jobs`."""
        self._attempts_left = DESCRIPTOR_ATTEMPTS if len(jobs) > 1 else 0
        descriptions = {job.location.topic_directory: job.description for job in jobs}
        new = [directory for directory in descriptions if directory not in self._synced_topics]
        described = [self._attempt(partial(self._describe, at, descriptions[at])) for at in new]
        aside = [directory for directory, is_aside in zip(new, described, strict=True) if is_aside is True]
        problems = _problems(new, described) | _problems(aside, self._each(aside, self._take))
        begun = [problems.get(job.location.topic_directory) or self._attempt(partial(self._begin, job)) for job in jobs]
        made = self._each([*zip(jobs, begun, strict=True)], self._synced)
        changed = {
            job.location.topic_directory: None
            for job, one in zip(jobs, made, strict=True)
            if isinstance(one, ActiveSegment)
        }
        problems |= _problems([*changed], self._each([*changed], self._sync_dir))
        of_all = self._attempt(self._sync_topics)
        if isinstance(of_all, EngineError):
            problems |= dict.fromkeys(new, of_all)
        self._synced_topics.update(directory for directory in changed if directory not in problems)
        return [self._marked(job, one, problems) for job, one in zip(jobs, made, strict=True)]

    def make_topic(self, job: Job) -> None:
        """The topic's directory with its description, durable; entries that a process left that was killed, too.

        Raises:
            OSError: as the system gave it.
        """
        directory = job.location.topic_directory
        if directory not in self._synced_topics:
            if self._describe(directory, job.description):
                self._take(directory)
            self._context.files.sync_dir(directory)
            self._sync_topics()
            self._synced_topics.add(directory)

    def forget_topic(self, directory: Path) -> None:
        """The directory of a topic is going to be removed."""
        self._synced_topics.discard(directory)

    # --- steps

    def _attempt(self, work: Callable[[], Result]) -> Result | EngineError:
        return attempt(partial(self._patiently, work))

    def _each(self, items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result | EngineError]:
        """What `work`, which is done once, gives for each item, or what went wrong; by helpers."""
        return self._helpers.each(items, lambda item: attempt(partial(work, item)))

    def _patiently(self, work: Callable[[], Result]) -> Result:
        """The result of `work`; tried again while there are no descriptors, as others give theirs back soon."""
        while True:
            try:
                return work()
            except OSError as problem:
                if problem.errno not in NO_DESCRIPTORS or self._attempts_left <= 0:
                    raise
            self._attempts_left -= 1
            time.sleep(DESCRIPTOR_ATTEMPT_S)

    def _describe(self, directory: Path, description: bytes) -> bool:
        """Makes the directory; whether a description was written aside, as it has none yet."""
        files = self._context.files
        if not files.make_dir(directory) and TOPIC_FILE in files.list_dir(directory):
            return False
        self._has_new_topics = True
        write_aside(files, directory / TOPIC_FILE, description)
        return True

    def _take(self, directory: Path) -> None:
        self._patiently(partial(take_from_aside, self._context.files, directory / TOPIC_FILE))

    def _sync_dir(self, directory: Path) -> None:
        self._patiently(partial(self._context.files.sync_dir, directory))

    def _begin(self, job: Job) -> Created:
        context, location = self._context, job.location
        context.index.drop(location.number)  # a former owner of the number may have left something at a crash
        if not context.files.make_dir(location.directory) and context.files.list_dir(location.directory):
            return None  # left by a crash before the first record, or nobody knew of it
        return begin_partition(context.files, context.handles, location, context.now_ms())

    def _synced(self, of: tuple[Job, Created | EngineError]) -> Created | EngineError:
        job, begun = of
        if isinstance(begun, ActiveSegment):
            files, handles = self._context.files, self._context.handles
            with removed_upon_failure(files, handles, begun):
                self._patiently(partial(sync_segment, files, handles, begun, header=not job.synced))
        return begun

    def _sync_topics(self) -> None:
        if self._has_new_topics:
            self._context.files.sync_dir(self._context.data_dir / "topics")
            self._has_new_topics = False

    def _marked(self, job: Job, made: Created | EngineError, problems: Problems) -> Created | EngineError:
        problem = problems.get(job.location.topic_directory)
        if problem is not None or not isinstance(made, ActiveSegment):
            return problem or made
        failure = attempt(lambda: self.mark(job.location, made, 1, 0))
        return failure or made

    def mark(self, location: PartitionLocation, active: ActiveSegment, log_start: int, committed_seq: int) -> None:
        """Writes the first watermark of a partition that was opened. Raises OSError."""
        self._context.watermarks.write(
            Owner(location.number, location.topic_id, location.partition),
            Watermark(
                log_start,
                active.header.first_seq,
                committed_seq,
                active.position,
                active.durable_position,
                active.header.segment_id,
            ),
        )


def _problems(directories: Sequence[Path], outcomes: Sequence[object]) -> Problems:
    """What went wrong, by directory."""
    return {at: one for at, one in zip(directories, outcomes, strict=True) if isinstance(one, EngineError)}
