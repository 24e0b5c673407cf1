"""The file worker: one thread that makes the files of new partitions and recovers those of existing ones.

New partitions that wait at the same time are made together (`engine.partitions.creation`). So that neither a burst of
new topics nor a long recovery holds up the owner's thread or anybody's acknowledgement.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias

from engine.context import EngineContext
from engine.directory_layout import TOPIC_FILE
from engine.errors import EngineError
from engine.files.system import write_new_file
from engine.limits import PARTITIONS_MADE_TOGETHER
from engine.partitions.creation import Job, PartitionCreator, attempt
from engine.reports import report
from engine.segments.discovery import PartitionLocation
from engine.segments.recovery import Recovered, Report, recover_partition
from engine.segments.recovery_hints import RecoveryHints
from engine.segments.watermarks import Owner
from engine.state.index import HIGHEST
from engine.state.topic_entries import Topic, title

_SEGMENT_FILE = re.compile(r"[0-9]{20}\.log(\.(unused|damaged).*)?")
_TOPIC_FILE = re.compile(re.escape(TOPIC_FILE) + r"(\.(new|damaged).*)?")
"""Names of files that we make, what was renamed aside among them: others are not removed with a topic."""


class _Making(NamedTuple):
    """A new partition that waits for its files."""

    job: Job
    done: Callable[[Any], None]


_Item: TypeAlias = "Callable[[], None] | _Making"


class FileWorker:
    """`make` and `recover` are called on the owner's thread; their outcome comes there too."""

    def __init__(self, context: EngineContext, is_committed: Callable[[int], bool]) -> None:
        """`is_committed`: whether a batch with this transaction id counts (any thread)."""
        self._context = context
        self._is_committed = is_committed
        self._jobs: SimpleQueue[_Item | None] = SimpleQueue()
        self._ahead: list[_Item | None] = []
        """What was taken out of `_jobs`, and comes next."""
        self._creator = PartitionCreator(context)
        self._thread = threading.Thread(target=self._run, name="quintlog-files", daemon=True)
        self._thread.start()

    def make(self, topic: Topic, index: int, done: Callable[[Recovered | EngineError], None]) -> None:
        """Makes the first segment of a partition once its number is durable."""

        def numbered(error: EngineError | None) -> None:
            if error is not None:
                done(error)
                return
            self._jobs.put(_Making(self._job(topic, index), done))

        try:
            self._context.catalog.number(topic, index, numbered)
        except EngineError as problem:  # the topic is being deleted
            refusal = problem
            self._context.call_soon_threadsafe(lambda: done(refusal))

    def recover(self, topic: Topic, index: int, done: Callable[[Recovered | EngineError], None]) -> None:
        """Opens the files of a partition."""
        job = self._job(topic, index)
        self.submit(lambda: self._recover(job), done)

    def _job(self, topic: Topic, index: int) -> Job:
        location = PartitionLocation(self._context.data_dir, topic.id, index, topic.numbers[index])
        named = f"topic {title(topic.name)} partition {index}"
        return Job(location, named, self._description(topic), topic.config.durability == "always")

    def _description(self, topic: Topic) -> bytes:
        # without indentation: that is done in Python, and leaves a circle of 33 objects behind for each topic
        return json.dumps(self._context.catalog.describe(topic)).encode() + b"\n"

    def describe(self, topic: Topic) -> None:
        """Writes ``topic.json`` again after a change of configuration, if there is one."""
        directory = self._context.data_dir / "topics" / str(topic.id)
        content = self._description(topic)

        def job() -> None:
            if self._context.files.list_dir(directory):
                write_new_file(self._context.files, directory / TOPIC_FILE, content)

        self.submit(job, self._report_failure)

    def remove_leftovers(self, topic_id: int) -> None:
        """Removes what is left of a deleted topic; its tombstone goes when that succeeded."""
        directory = self._context.data_dir / "topics" / str(topic_id)
        numbers = self._context.catalog.deleted_numbers(topic_id)

        def done(result: object) -> None:
            self._report_failure(result)
            if not isinstance(result, EngineError):
                self._context.catalog.forget_tombstone(topic_id)

        self.submit(lambda: self._remove_topic(directory, numbers), done)

    def _report_failure(self, result: object) -> None:
        if isinstance(result, EngineError):
            report(str(result))

    def _remove_topic(self, directory: Path, numbers: list[int]) -> None:
        files = self._context.files
        self._creator.forget_topic(directory)
        if not files.is_link(directory):
            for name in files.list_dir(directory):
                if name.isdigit():
                    self._remove_directory(directory / name, _SEGMENT_FILE)
        if self._remove_directory(directory, _TOPIC_FILE):
            files.sync_dir(directory.parent)
        for number in numbers:
            self._context.index.drop(number)
            self._context.watermarks.clear(number)

    def _remove_directory(self, directory: Path, ours: re.Pattern[str]) -> bool:
        """Removes what we have made in a directory, and the directory; whether there was one. What is not ours stays,
        and so does what a link in the directory's place leads to."""
        files, handles = self._context.files, self._context.handles
        if not files.exists(directory):
            return False
        if files.is_link(directory):
            files.remove(directory)
            return True
        foreign = []
        for name in files.list_dir(directory):
            if ours.fullmatch(name):
                files.remove(directory / name)
                handles.forget(directory / name)  # after the removal: a reader would open it again
            else:
                foreign.append(name)
        if foreign:
            report(f"{directory} stays, as not all in it is ours: {', '.join(foreign[:3])}")
        else:
            files.remove_dir(directory)
        return True

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Runs `job` on the thread and hands its result, or an EngineError, to `done` on the owner's thread."""

        def checked() -> Any:
            self._context.check_directory()
            return job()

        self._jobs.put(lambda: self._answer(done, attempt(checked)))

    def _answer(self, done: Callable[[Any], None], result: object) -> None:
        self._context.call_soon_threadsafe(partial(self._tell, done, result))

    def _tell(self, done: Callable[[Any], None], result: object) -> None:
        if not self._context.is_closed:
            done(result)

    def stop(self) -> None:
        """Ends the thread after the jobs so far; blocking."""
        self._jobs.put(None)
        self._thread.join()
        self._creator.stop()

    # --- the thread

    def _run(self) -> None:
        while (item := self._ahead.pop() if self._ahead else self._jobs.get()) is not None:
            if isinstance(item, _Making):
                self._make(self._with_next(item))
            else:
                item()

    def _with_next(self, first: _Making) -> list[_Making]:
        """New partitions that follow each other in the queue."""
        found = [first]
        while len(found) < PARTITIONS_MADE_TOGETHER:
            try:
                item = self._jobs.get_nowait()
            except Empty:
                break
            if not isinstance(item, _Making):
                self._ahead.append(item)
                break
            found.append(item)
        return found

    def _make(self, waiting: list[_Making]) -> None:
        def make() -> list[Any]:
            self._context.check_directory()
            return self._creator.make([making.job for making in waiting])

        made = attempt(make)
        found: list[_Making] = []
        answers: list[Callable[[], None]] = []
        for at, making in enumerate(waiting):
            active = made if isinstance(made, EngineError) else made[at]
            if active is None:  # there are files of it already
                found.append(making)
            else:
                result = active if isinstance(active, EngineError) else Recovered([], active, 1, 0, 1, Report())
                answers.append(partial(self._tell, making.done, result))
        self._context.call_soon_threadsafe(partial(self._context.slices.call_each, "the making of files", answers))
        for making in found:
            self._answer(making.done, attempt(partial(self._recover, making.job)))

    def _recover(self, job: Job) -> Recovered:
        context, location, number = self._context, job.location, job.location.number
        self._creator.make_topic(job)
        hints = RecoveryHints(
            mark=context.watermarks.read(Owner(number, location.topic_id, location.partition)),
            entry=context.index.floor(number, HIGHEST),
            synced=job.synced,
            is_committed=self._is_committed,
        )
        recovered = recover_partition(context.files, context.handles, location, hints, context.now_ms())
        for text in recovered.report.texts:
            report(f"{job.title}: {text}")
        if recovered.report.lost:
            gaps = recovered.gaps()
            context.figures.lost_records += gaps.most((lost.first_seq, lost.last_seq) for lost in recovered.report.lost)
        self._creator.mark(location, recovered.active, recovered.log_start, recovered.committed_seq)
        self._index(number, recovered)
        return recovered

    def _index(self, number: int, recovered: Recovered) -> None:
        """Gives the index what it does not know: nothing as a rule, everything when it was lost."""
        context = self._context
        context.index.truncate(number, recovered.committed_seq)
        for segment in recovered.sealed:
            entry = context.index.floor(number, segment.last_seq)
            if entry is not None and entry.segment_id == segment.segment_id:
                continue
            footer = segment.read_footer(context.files, context.handles)
            for found in footer.index if footer is not None else ():
                context.index.add(
                    number,
                    found.first_seq,
                    segment.segment_id,
                    segment.first_seq,
                    found.position,
                    found.max_timestamp_ms,
                )
        header = recovered.active.header
        for found in recovered.active.index:
            context.index.add(
                number, found.first_seq, header.segment_id, header.first_seq, found.position, found.max_timestamp_ms
            )
