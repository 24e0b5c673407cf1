"""The opener: one thread that makes the files of new partitions and recovers those of existing ones.

So that neither a burst of new topics nor a long recovery holds up the owner's thread or anybody's acknowledgement.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from engine.active import ActiveSegment
from engine.errors import DataDirectoryError, DiskFull, EngineError
from engine.files import NO_SPACE, write_new_file
from engine.headers import Place
from engine.index import HIGHEST
from engine.reading import load_footer
from engine.recovery import Known, Recovered, Report, make_partition, recover_partition
from engine.watermarks import Owner, Watermark

if TYPE_CHECKING:
    from engine.log import Log
    from engine.partition import Partition
    from engine.topics import Topic

TOPIC_FILE = "topic.json"


def _description(log: Log, topic: Topic) -> bytes:
    return json.dumps(log.catalog.describe(topic), indent=1).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class _Job:
    """What the thread needs to know of a partition, as it was on the owner's thread."""

    place: Place
    description: bytes
    """Content of ``topic.json``."""
    synced: bool
    """Whether every record is synced before it is acknowledged."""


class Opener:
    """`make` and `recover` are called on the owner's thread; their outcome comes there too."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._synced_topics: set[Path] = set()
        """Directories of topics whose entries were synced since the start."""
        self._thread = threading.Thread(target=self._run, name="quintlog-opener", daemon=True)
        self._thread.start()

    def make(self, partition: Partition) -> None:
        """Makes the first segment of `partition` once its number is durable; ends in `Partition.files_made`."""

        def numbered(error: EngineError | None) -> None:
            if error is not None:
                partition.files_made(error)
                return
            job = self._job(partition)
            self.submit(lambda: self._make(job), partition.files_made)

        try:
            self._log.catalog.number(partition.topic, partition.index, numbered)
        except EngineError as problem:  # the topic is being deleted
            refusal = problem
            self._log.post(lambda: partition.files_made(refusal))

    def recover(self, partition: Partition) -> None:
        """Opens the files of `partition`; ends in `Partition.opened`."""
        job = self._job(partition)
        self.submit(lambda: self._recover(job), partition.opened)

    def _job(self, partition: Partition) -> _Job:
        return _Job(partition.place, _description(self._log, partition.topic), partition.sync_each_round)

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
        files, handles = self._log.files, self._log.handles
        for name in files.list_dir(directory):
            if name.isdigit():
                for segment in files.list_dir(directory / name):
                    files.remove(directory / name / segment)
                    handles.forget(directory / name / segment)  # after the removal: a reader would open it again
                files.remove_dir(directory / name)
            else:
                files.remove(directory / name)
        self._synced_topics.discard(directory)
        if directory.name in files.list_dir(directory.parent):
            files.remove_dir(directory)
            files.sync_dir(directory.parent)
        for number in numbers:
            self._log.index.drop(number)
            self._log.watermarks.clear(number)

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Runs `job` on the thread and hands its result, or an EngineError, to `done` on the owner's thread."""

        def run() -> None:
            try:
                self._log.check_place()
                result = job()
            except EngineError as problem:
                result = problem
            except OSError as problem:
                kind = DiskFull if problem.errno in NO_SPACE else DataDirectoryError
                result = kind(f"{problem.filename or 'a file'}: {problem.strerror or problem}")
            except Exception as problem:  # noqa: BLE001 - one bad partition must not stop the opening of others
                self._log.report_exception("opening a partition", problem)
                result = DataDirectoryError(f"internal error while opening: {problem!r}")
            self._log.post(lambda: None if self._log.is_closed else done(result))

        self._jobs.put(run)

    def stop(self) -> None:
        """Ends the thread after the jobs so far; blocking."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _make(self, job: _Job) -> Recovered:
        log, place = self._log, job.place
        self._make_topic(job)
        log.index.drop(place.number)  # a former owner of the number may have left something at a crash
        if log.files.list_dir(place.directory):  # left by a crash before the first record, or nobody knew of it
            return self._recover(job)
        active = make_partition(log.files, log.handles, place, log.now_ms())
        self._mark(place, active, 1, 0)
        return Recovered([], active, 1, 0, 1, Report())

    def _make_topic(self, job: _Job) -> None:
        """The topic's directory with its description, durable; entries that a process left that was killed, too."""
        files, directory = self._log.files, job.place.topic_directory
        if directory in self._synced_topics:
            return
        if TOPIC_FILE in files.list_dir(directory):
            files.sync_dir(directory)
        else:
            files.make_dir(directory)
            files.sync_dir(directory.parent)
            write_new_file(files, directory / TOPIC_FILE, job.description)
        self._synced_topics.add(directory)

    def _recover(self, job: _Job) -> Recovered:
        log, place, number = self._log, job.place, job.place.number
        self._make_topic(job)
        known = Known(
            mark=log.watermarks.read(Owner(number, place.topic_id, place.partition)),
            entry=log.index.floor(number, HIGHEST),
            synced=job.synced,
            is_committed=log.markers.is_committed,
        )
        recovered = recover_partition(log.files, log.handles, place, known, log.now_ms())
        for text in recovered.report.texts:
            log.report(f"topic {place.topic_id} partition {place.partition}: {text}")
        log.lost_records += sum(lost.last_seq - lost.first_seq + 1 for lost in recovered.report.lost)
        self._mark(place, recovered.active, recovered.log_start, recovered.committed_seq)
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

    def _mark(self, place: Place, active: ActiveSegment, log_start: int, committed_seq: int) -> None:
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
