"""On the driver: which bytes of which files a query reads, cut into tasks at the beginnings of batches.

What is committed is asked once; tasks then read byte ranges of files that never change up to there, whether or not a
server goes on appending after them. The index of a sealed segment is in its footer; that of an active one is made by
walking it, each byte once in the life of a `Planner`.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import DataDirectoryError, EngineError
from engine.reader import DirectoryReader, PartitionReader, StoredTopic
from tools.spark.source.options import EARLIEST, LATEST, Bound, OptionError, Options, hinted
from tools.spark.source.parts import Part, Range

if TYPE_CHECKING:
    from tools.spark.archive.manifest import ArchivedPartition, Manifest

LOG = logging.getLogger("quintlog.spark")

Key = tuple[str, int]
"""Topic and partition."""


class DataLoss(EngineError):
    """Records that a query asked for are gone."""


@dataclass(frozen=True, slots=True)
class Task:
    """What one task reads: the numbers first_seq..end_seq - 1 of a partition in these ranges."""

    topic: str
    partition: int
    first_seq: int
    end_seq: int
    ranges: tuple[Range, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of files."""
        return sum(piece.end - piece.position for piece in self.ranges)


def lost(options: Options, text: str) -> None:
    """Fails, or says so where failOnDataLoss is false. Raises DataLoss."""
    if options.fail_on_data_loss:
        raise DataLoss(hinted(text, options.loss_hint))
    LOG.warning("%s", text)


def text_of(name: bytes) -> str:
    """A topic's name as Spark shows it."""
    return name.decode("utf-8", "backslashreplace")


def _processors() -> int:
    return len(os.sched_getaffinity(0))


class Planner:
    """The partitions of a data directory, of an archive, or of both, as they are at the last `refresh`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.partitions: dict[Key, Part] = {}
        self.known: set[Key] = set()
        """All that are read of topics that exist; those of archives that have no segment are no `partitions`."""
        self._found: set[str] = set()
        self._parts: dict[tuple[int, int], Part] = {}
        self._archived: dict[tuple[int, int], ArchivedPartition] = {}
        self._manifest: Manifest | None = None

    def refresh(self, *, with_empty: bool = False) -> None:
        """Looks what is there and committed now; `with_empty` also for named topics without records, in the state.

        Raises:
            DataDirectoryError, UnsupportedFormat, Corrupt, OSError: directory or archive cannot be used.
            OptionError: two topics have names that read the same.
        """
        # The directory first: what retention takes from it afterwards was archived before, if it ever was.
        directory = DirectoryReader(Path(self.options.path)) if self.options.path is not None else None
        try:
            topics = directory.topics() if directory is not None else []
            if with_empty and directory is not None:
                topics += self._without_records(directory, topics)
            wanted = self._wanted(topics)
            readers: dict[tuple[int, int], PartitionReader] = {}
            if directory is not None:
                readers = {(topic.id, index): self._reader(directory, topic, index) for topic, index in wanted}
            if self.options.archive is not None:
                self._refresh_archive(self.options.archive, directory, readers.values())
            if directory is None:
                topics = self._archived_topics()
                wanted = self._wanted(topics)
        finally:
            if directory is not None:
                directory.close()
        self.partitions.clear()
        self._found = self.options.named & {text_of(topic.name) for topic in topics}
        names: dict[str, bytes] = {}
        for topic, index in wanted:
            if names.setdefault(text_of(topic.name), topic.name) != topic.name:
                raise OptionError(f"two topics read as {text_of(topic.name)!r}, one is not UTF-8: read others")
            at = (topic.id, index)
            reader, archived = readers.get(at), self._archived.get(at)
            if reader is not None or archived is not None:
                part = self._parts.setdefault(at, Part(reader, archived))
                part.refreshed(archived)
                self.partitions[text_of(topic.name), index] = part
        self.known = {(text_of(topic.name), index) for topic, index in wanted}

    def _without_records(self, directory: DirectoryReader, found: Iterable[StoredTopic]) -> list[StoredTopic]:
        """Named topics that have no files, as far as the state can be read here."""
        missing = (self.options.named | self.options.bounded) - {text_of(topic.name) for topic in found}
        if not missing:
            return []
        try:
            from engine.directory_layout import STATE
            from tools.stored_topics import topics_of_state

            topics = topics_of_state(directory.data_dir / STATE, lambda _: None)
        except (ImportError, EngineError, OSError):  # no LMDB, another machine, a copy of the segments alone
            return []
        return [topic for topic in topics if text_of(topic.name) in missing]

    def _wanted(self, topics: Iterable[StoredTopic]) -> list[tuple[StoredTopic, int]]:
        found = [(topic, index) for topic in topics for index in range(topic.partition_count)]
        return [(topic, index) for topic, index in found if self.options.wants(text_of(topic.name), index)]

    def _reader(self, directory: DirectoryReader, topic: StoredTopic, index: int) -> PartitionReader:
        part = self._parts.get((topic.id, index))
        reader = part.reader if part is not None else None
        if reader is None:
            reader = directory.partition(topic, index)
        else:
            reader.watermarks = directory.watermarks
            if reader.changed:
                reader.refresh()
        reader.watermarks = None
        return reader

    def _refresh_archive(self, uri: str, directory: DirectoryReader | None, readers: Iterable[PartitionReader]) -> None:
        """Asks for a newer manifest only if the directory lacks what the known one does not have."""
        from tools.spark.archive.manifest import archived_partitions, place_of, shown

        place = place_of(uri)
        if self._manifest is not None:
            known = self._archived
            starts = {(reader.topic.id, reader.index): reader.log_start for reader in readers}
            needed = any(start > (known[at].next_seq if at in known else 1) for at, start in starts.items())
            if (directory is not None and not needed) or place.versions()[:1] == [self._manifest.version]:
                return
        manifest = place.manifest()
        if directory is None and not manifest.version:
            raise DataDirectoryError(f"there is no archive at {shown(uri)}")
        if directory is not None and manifest.version and manifest.directory_id != directory.directory_id:
            raise DataDirectoryError(f"{shown(uri)} is the archive of another data directory")
        self._archived, self._manifest = archived_partitions(place, manifest), manifest

    def _archived_topics(self) -> list[StoredTopic]:
        """Of topics that had the same name the newest one."""
        assert self._manifest is not None
        newest = {topic.name: topic for topic in sorted(self._manifest.topics, key=lambda topic: topic.id)}
        return [newest[name] for name in sorted(newest)]

    def missing(self) -> set[str]:
        """Topics that are named and not known."""
        return self.options.named - self._found

    def need_named(self) -> None:
        """Raises OptionError: a topic that is named is not there."""
        if missing := self.missing():
            raise OptionError(f"no topic {', '.join(sorted(missing))} with records in {self.options.where}")

    def spans(self) -> dict[Key, tuple[int, int]]:
        """What a query by batch asks for: the numbers [first, end) of each partition.

        Raises:
            OptionError: what is named is not there, or ends before it begins.
        """
        options, where = self.options, self.options.where
        self.need_named()
        named = {"assign": [(topic, index) for topic, row in (options.assigned or {}).items() for index in row]}
        named |= {"startingOffsets": list(options.start.of or ()), "endingOffsets": list(options.end.of or ())}
        for option, keys in named.items():
            if unknown := [f"{topic}:{index}" for topic, index in keys if (topic, index) not in self.known]:
                raise OptionError(f"{option}: there is no {', '.join(unknown)} among what is read of {where}")
        spans = {key: (self.resolve(key, options.start), self.resolve(key, options.end)) for key in self.partitions}
        for (topic, index), (first, end) in spans.items():
            if end < first <= self.partitions[topic, index].committed_seq + 1:
                raise OptionError(f"{topic}:{index} would begin with record {first} and end before record {end}")
        return spans

    def resolve(self, key: Key, bound: Bound) -> int:
        """The number that a bound stands for."""
        reader = self.partitions[key]
        value = (bound.of or {}).get(key)
        time_ms = bound.time_ms
        if value is None:
            value = bound.default
        elif bound.of_are_times:
            time_ms = value
        if time_ms is not None:
            return reader.seq_at_time(time_ms)
        if value == EARLIEST:
            return reader.log_start
        return reader.committed_seq + 1 if value == LATEST else value

    def plan(self, wanted: Mapping[Key, tuple[int, int]]) -> list[Task]:
        """Tasks for the numbers [first, end) of each partition; as many as minPartitions asks for, if it does.

        Raises:
            DataLoss, Corrupt: records are gone or cannot be read.
        """
        options, least = self.options, self.options.min_partitions
        readable = [side for key, span in sorted(wanted.items()) for side in self._readable(key, *span)]
        found = [task for side in readable for task in self._cut(*side, options.split_bytes)]
        sizes_bytes = [task.size_bytes for task in found]
        if least is None:  # smaller tasks where the largest ones would leave processors without work
            share_bytes = sum(sizes_bytes) // _processors() + options.open_cost_bytes
            if share_bytes >= max(sizes_bytes, default=0):
                return found
            return [task for side in readable for task in self._cut(*side, min(share_bytes, options.split_bytes))]
        if len(found) >= least:
            return found
        records_max = max(1, sum(self.partitions[key].count(first, end) for key, first, end in readable) // least)
        return [task for side in readable for task in self._cut(*side, options.split_bytes, records_max)]

    def packed(self, tasks: Sequence[Task]) -> list[tuple[Task, ...]]:
        """Small tasks together, as Spark packs files: each counts as its bytes and the cost of opening it.

        There are as many as there are processors, and as minPartitions asks for, if there is as much to do.
        """
        options, least = self.options, self.options.min_partitions
        if options.records_per_partition is not None:
            return [(task,) for task in tasks]
        costs = [options.open_cost_bytes + task.size_bytes for task in tasks]
        shared = max(options.open_cost_bytes, sum(costs) // (least or _processors()))
        packs: list[list[Task]] = []
        room = 0
        for task, cost in zip(tasks, costs, strict=True):
            if cost > room:
                packs.append([])
                room = min(options.split_bytes, shared)
            packs[-1].append(task)
            room -= cost
        return [tuple(pack) for pack in packs] if len(packs) >= (least or 0) else [(task,) for task in tasks]

    def tasks(self, key: Key, first_seq: int, end_seq: int) -> Iterator[Task]:
        """Tasks for the numbers first_seq..end_seq - 1 of one partition. Raises DataLoss, Corrupt."""
        for side in self._readable(key, first_seq, end_seq):
            yield from self._cut(*side, self.options.split_bytes)

    def _readable(self, key: Key, first_seq: int, end_seq: int) -> Iterator[tuple[Key, int, int]]:
        """What can be read of the numbers first_seq..end_seq - 1; what is lost is told. Raises DataLoss, Corrupt."""
        part = self.partitions[key]
        where = f"{key[0]}:{key[1]}"
        if max(first_seq, end_seq) > part.committed_seq + 1:
            behind = max(first_seq, end_seq) - 1
            lost(self.options, f"{where} ends with record {part.committed_seq}; asked for up to {behind}")
            end_seq = min(end_seq, part.committed_seq + 1)
        for loss in part.losses(first_seq, end_seq) if first_seq < end_seq else ():
            if loss.error is None:
                numbers = f"records {loss.first_seq} to {loss.last_seq}"
                lost(self.options, f"{where}: {numbers} were removed, by retention or `logtool topics trim`")
            elif not self.options.skip_damage:
                raise loss.error
            else:
                LOG.warning("skipped: %s; lost: records %d to %d", loss.error, loss.first_seq, loss.last_seq)
        for first, end in part.sides(max(first_seq, part.log_start), end_seq):
            yield key, first, end

    def _cut(
        self, key: Key, first_seq: int, end_seq: int, split_bytes: int, records_max: int | None = None
    ) -> Iterator[Task]:
        part = self.partitions[key]
        pieces = list(part.pieces(first_seq, end_seq))
        limits = [limit for limit in (records_max, self.options.records_per_partition) if limit is not None]
        start = first_seq
        while start < end_seq:
            stop = part.end_of(start, end_seq, min(limits)) if limits else end_seq
            # Bytes at a border of numbers are read by both tasks.
            low = bisect_right(pieces, start, key=lambda piece: piece.next_seq)
            high = bisect_left(pieces, stop, key=lambda piece: piece.first_seq)
            for taken in _gathered(pieces[low:high], split_bytes):
                yield Task(*key, start, stop, taken)
            start = stop

    def bytes_between(self, key: Key, first_seq: int, end_seq: int) -> int:
        """Bytes of files that hold these numbers."""
        return sum(piece.end - piece.position for piece in self.partitions[key].pieces(first_seq, end_seq))

    def end_within(self, key: Key, first_seq: int, end_seq: int, size_bytes: int) -> int:
        """The end of as many of these numbers as come in so many bytes, to the fineness of the index; at least some."""
        end = first_seq
        for piece in self.partitions[key].pieces(first_seq, end_seq):
            size_bytes -= piece.end - piece.position
            if size_bytes < 0 and end > first_seq:
                return end
            end = min(piece.next_seq, end_seq)
        return end_seq


def _gathered(pieces: Sequence[Range], size_bytes_max: int) -> Iterator[tuple[Range, ...]]:
    """Pieces in groups of about so many bytes, each at least one."""
    taken: list[Range] = []
    size_bytes = 0
    for piece in pieces:
        piece_bytes = piece.end - piece.position
        if taken and size_bytes + piece_bytes > size_bytes_max:
            yield _joined(taken)
            taken, size_bytes = [], 0
        taken.append(piece)
        size_bytes += piece_bytes
    if taken:
        yield _joined(taken)


def _joined(pieces: list[Range]) -> tuple[Range, ...]:
    """Neighbours in one file as one range."""
    joined: list[Range] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and last.path == piece.path and last.end == piece.position:
            joined[-1] = replace(last, end=piece.end, next_seq=piece.next_seq)
        else:
            joined.append(piece)
    return tuple(joined)
