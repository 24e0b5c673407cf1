"""The opener: one thread that makes the files of new partitions and recovers those of existing ones.

New partitions that wait at the same time are made together (`engine.partitions.creation`). So that neither a burst of
new topics nor a long recovery holds up the owner's thread or anybody's acknowledgement.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from engine.directory_layout import TOPIC_FILE
from engine.errors import EngineError
from engine.files.system import write_new_file
from engine.limits import PARTITIONS_MADE_TOGETHER
from engine.partitions.creation import Job, Maker, attempt
from engine.partitions.reads import load_footer
from engine.segments.gaps import gaps_of
from engine.segments.recovery import Known, Recovered, Report, recover_partition
from engine.segments.watermarks import Owner
from engine.state.index import HIGHEST

if TYPE_CHECKING:
    from engine.log import Log
    from engine.partitions.partition import Partition
    from engine.state.topics import Topic


_SEGMENT_FILE = re.compile(r"[0-9]{20}\.log(\.(unused|damaged).*)?")
_TOPIC_FILE = re.compile(re.escape(TOPIC_FILE) + r"(\.(new|damaged).*)?")
"""Names of files that we make, what was renamed aside among them: others are not removed with a topic."""


def _description(log: Log, topic: Topic) -> bytes:
    return json.dumps(log.catalog.describe(topic), indent=1).encode() + b"\n"


class _Making(NamedTuple):
    """A new partition that waits for its files."""

    job: Job
    done: Callable[[Any], None]


_Item: TypeAlias = "Callable[[], None] | _Making"


class Opener:
    """`make` and `recover` are called on the owner's thread; their outcome comes there too."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._jobs: SimpleQueue[_Item | None] = SimpleQueue()
        self._ahead: list[_Item | None] = []
        """What was taken out of `_jobs`, and comes next."""
        self._maker = Maker(log)
        self._thread = threading.Thread(target=self._run, name="quintlog-opener", daemon=True)
        self._thread.start()

    def make(self, partition: Partition) -> None:
        """Makes the first segment of `partition` once its number is durable; ends in `Partition.files_made`."""

        def numbered(error: EngineError | None) -> None:
            if error is not None:
                partition.files_made(error)
                return
            self._jobs.put(_Making(self._job(partition), partition.files_made))

        try:
            self._log.catalog.number(partition.topic, partition.index, numbered)
        except EngineError as problem:  # the topic is being deleted
            refusal = problem
            self._log.post(lambda: partition.files_made(refusal))

    def recover(self, partition: Partition) -> None:
        """Opens the files of `partition`; ends in `Partition.opened`."""
        job = self._job(partition)
        self.submit(lambda: self._recover(job), partition.opened)

    def _job(self, partition: Partition) -> Job:
        return Job(partition.place, _description(self._log, partition.topic), partition.sync_each_round)

    def describe(self, topic: Topic) -> None:
        """Writes ``topic.json`` anew after a change of configuration, if there is one."""
        directory = self._log.data_dir / "topics" / str(topic.id)
        content = _description(self._log, topic)

        def job() -> None:
            if self._log.files.list_dir(directory):
                write_new_file(self._log.files, directory / TOPIC_FILE, content)

        self.submit(job, self._report_failure)

    def remove_topic(self, topic: Topic, partitions: list[Partition]) -> None:
        """Removes the files of a deleted topic once no round can touch them, then its tombstone."""
        for partition in partitions:
            partition.removed()
        self._log.committer.after_round(lambda: self.remove_leftovers(topic.id))

    def remove_leftovers(self, topic_id: int) -> None:
        """Removes what is left of a deleted topic; its tombstone goes when that succeeded."""
        directory = self._log.data_dir / "topics" / str(topic_id)
        numbers = self._log.catalog.buried_numbers(topic_id)

        def done(result: object) -> None:
            self._report_failure(result)
            if not isinstance(result, EngineError):
                self._log.catalog.bury(topic_id)

        self.submit(lambda: self._remove_topic(directory, numbers), done)

    def _report_failure(self, result: object) -> None:
        if isinstance(result, EngineError):
            self._log.report(str(result))

    def _remove_topic(self, directory: Path, numbers: list[int]) -> None:
        files = self._log.files
        self._maker.forget_topic(directory)
        if not files.is_link(directory):
            for name in files.list_dir(directory):
                if name.isdigit():
                    self._remove_directory(directory / name, _SEGMENT_FILE)
        if self._remove_directory(directory, _TOPIC_FILE):
            files.sync_dir(directory.parent)
        for number in numbers:
            self._log.index.drop(number)
            self._log.watermarks.clear(number)

    def _remove_directory(self, directory: Path, ours: re.Pattern[str]) -> bool:
        """Removes what we have made in a directory, and the directory; whether there was one. What is not ours stays,
        and so does what a link in the directory's place leads to."""
        files, handles = self._log.files, self._log.handles
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
            self._log.report(f"{directory} stays, as not all in it is ours: {', '.join(foreign[:3])}")
        else:
            files.remove_dir(directory)
        return True

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Runs `job` on the thread and hands its result, or an EngineError, to `done` on the owner's thread."""

        def checked() -> Any:
            self._log.check_place()
            return job()

        self._jobs.put(lambda: self._answer(done, attempt(self._log, checked)))

    def _answer(self, done: Callable[[Any], None], result: object) -> None:
        self._log.post(lambda: None if self._log.is_closed else done(result))

    def stop(self) -> None:
        """Ends the thread after the jobs so far; blocking."""
        self._jobs.put(None)
        self._thread.join()
        self._maker.stop()

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
            self._log.check_place()
            return self._maker.make([making.job for making in waiting])

        made = attempt(self._log, make)
        for at, making in enumerate(waiting):
            active = made if isinstance(made, EngineError) else made[at]
            if active is None:
                self._answer(making.done, attempt(self._log, lambda job=making.job: self._recover(job)))  # type: ignore[misc]
            elif isinstance(active, EngineError):
                self._answer(making.done, active)
            else:
                self._answer(making.done, Recovered([], active, 1, 0, 1, Report()))

    def _recover(self, job: Job) -> Recovered:
        log, place, number = self._log, job.place, job.place.number
        self._maker.make_topic(job)
        known = Known(
            mark=log.watermarks.read(Owner(number, place.topic_id, place.partition)),
            entry=log.index.floor(number, HIGHEST),
            synced=job.synced,
            is_committed=log.markers.is_committed,
        )
        recovered = recover_partition(log.files, log.handles, place, known, log.now_ms())
        for text in recovered.report.texts:
            log.report(f"topic {place.topic_id} partition {place.partition}: {text}")
        if recovered.report.lost:
            gaps = gaps_of(recovered.sealed, recovered.active)
            log.lost_records += gaps.most((lost.first_seq, lost.last_seq) for lost in recovered.report.lost)
        self._maker.mark(place, recovered.active, recovered.log_start, recovered.committed_seq)
        self._index(number, recovered)
        return recovered

    def _index(self, number: int, recovered: Recovered) -> None:
        """Gives the index what it does not know: nothing as a rule, everything when it was lost."""
        log = self._log
        log.index.truncate(number, recovered.next_seq - 1)
        for segment in recovered.sealed:
            entry = log.index.floor(number, segment.last_seq)
            if entry is not None and entry.segment_id == segment.segment_id:
                continue
            footer = load_footer(log, segment)
            for found in footer.index if footer is not None else ():
                log.index.add(
                    number,
                    found.first_seq,
                    segment.segment_id,
                    segment.first_seq,
                    found.position,
                    found.max_timestamp_ms,
                )
        header = recovered.active.header
        for found in recovered.active.index:
            log.index.add(
                number, found.first_seq, header.segment_id, header.first_seq, found.position, found.max_timestamp_ms
            )
