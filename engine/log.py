"""The log: one data directory, opened by one process, with everything that belongs to it.

Layout of the directory::

    LOCK          held (flock) for life by the process that may write
    VERSION       JSON: format version and random directory id
    watermarks    what of each partition is committed (engine.segments.watermarks)
    state/        LMDB: topics, numbers, cursors, sessions (engine.state.store)
    index/        LMDB: positions by sequence number and time, rebuildable (engine.state.index)
    topics/<topic id>/topic.json, topics/<topic id>/<partition>/<first seq>.log (engine.formats.segment)
    set-aside/    bytes cut off by recovery; never removed by us

Threads: the *owner* (an event loop, or whoever drains an `engine.inbox.Inbox`) calls everything here; committer,
opener, readers, state writer and housekeeping hand their results back through `post`.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from engine.commit.committer import Committer, Part
from engine.commit.native_rounds import Watch
from engine.commit.transactions import Markers
from engine.config import EngineConfig
from engine.cursors.store import CursorStore
from engine.directory_layout import FORMAT_VERSION, TOPIC_FILE, VERSION_FILE
from engine.errors import (
    Corrupt,
    DataDirectoryError,
    EngineError,
    InvalidConfig,
    NotStored,
    ReadOnly,
    UnknownPartition,
    UnsupportedFormat,
)
from engine.files.descriptors import Handles
from engine.files.lock import LOCK_FILE, DirectoryLock
from engine.files.owners import told
from engine.files.system import DIRECTORY_MODE, Files, SystemFiles, read_whole_file, write_new_file
from engine.formats.segment import HEADER_BYTES, parse_header, parse_segment_name
from engine.histogram import Histogram
from engine.limits import LOST_RESERVATION, SMALL_FILE_BYTES_MAX, TOPIC_ID_MAX
from engine.partitions.file_worker import Opener
from engine.partitions.housekeeping import Housekeeping
from engine.partitions.partition import Partition
from engine.partitions.tail_cache import TailCache
from engine.reader import read_version
from engine.segments.buffers import BufferPool
from engine.segments.chunk import Chunk, Slab
from engine.segments.watermarks import FILE_NAME as WATERMARKS_NAME
from engine.segments.watermarks import Owner, Watermarks
from engine.slices import Slices
from engine.state.catalog import Catalog
from engine.state.clock import DoubtedClock, steady_ms, stored_clock
from engine.state.environment import DATA_FILE
from engine.state.index import Index
from engine.state.store import LmdbState, Post, Put, StateStore
from engine.state.topics import Topic, reserved_key, title

logger = logging.getLogger("quintlog.engine")


class Log:
    """The public face of the engine. Made by `open`."""

    catalog: Catalog
    state: StateStore

    def __init__(self, data_dir: Path, config: EngineConfig, post: Post, files: Files, lock: DirectoryLock) -> None:
        """Use `open`."""
        self.data_dir = data_dir
        self.config = config
        self.post = post
        self.soon = post
        """`post` for the owner itself."""
        self.slices = Slices(lambda work: self.soon(work))
        self.files = files
        self.pending_bytes = 0
        """Bytes of records that were appended but are not committed yet."""
        self.pending_chunks = 0
        """Chunks that wait for a round, or for the files of their partition."""
        self._drained: list[Callable[[], None]] = []
        self.damaged_batches = 0
        self.lost_records = 0
        """Numbers of committed records that recoveries found damaged or missing."""
        self.read_seconds = {source: Histogram() for source in ("memory", "cache", "disk")}
        """Time that reads took, by where they were answered."""
        self.tail_reads = 0
        self.removed_bytes = 0
        """Bytes of segments that retention and trimming removed."""
        self.is_new = not files.exists(data_dir / VERSION_FILE)
        """Nothing was ever in the directory."""
        self.directory_id = _check_version(files, data_dir)
        self.lock = lock
        self.error: ReadOnly | None = None
        """Why nothing more is stored at all, until a restart."""
        self._partitions: dict[tuple[int, int], Partition] = {}
        self.unopened: dict[str, str] = {}
        """Titles of partitions that could not be opened when they were last used, and why."""
        self.fetched: OrderedDict[tuple[Partition, int], Slab | EngineError] = OrderedDict()
        """Answers of reader threads, by what was asked for; see `engine.partitions.reads`."""
        self.lost_bounds: dict[tuple[int, int], int] = {}
        """Bounds of reserved numbers that were lost with the state and are being written again."""
        self.handles = Handles(files, config.open_files_max)
        if isinstance(files, SystemFiles):
            files.relieve = self.handles.relieve
        self.is_closed = False
        """Closing has begun: results of worker threads that arrive late are dropped."""
        self.buffers = BufferPool()
        self.tail = TailCache(config.tail_cache_bytes, self.buffers)

    @classmethod
    def open(
        cls,
        data_dir: Path,
        config: EngineConfig,
        post: Post,
        files: Files | None = None,
        state: StateStore | None = None,
        index: Index | None = None,
        watch: Watch | None = None,
        soon: Post | None = None,
    ) -> Log:
        """Opens a data directory, and makes it when it is missing or empty.

        Args:
            post: takes a callable from any thread and runs it on the owner's thread, in order.
            files, state, index: other implementations, for tests.
            watch: has a function called on the owner's thread whenever a descriptor is readable, and returns what ends
                that; with it most commit rounds are faster.
            soon: like `post`, but is called on the owner's thread alone, where that is cheaper.

        Raises:
            LogLocked: another process has it open.
            UnsupportedFormat: it was written by a newer version.
            DataDirectoryError: it cannot be used; the text says why and what to do.
            Corrupt: the state is damaged.
        """
        data_dir = data_dir.absolute()
        files = files or SystemFiles()
        try:
            _make_directories(data_dir)
            _known_id(files, data_dir)  # nothing is made in a directory that is refused
            lock = DirectoryLock(data_dir)
        except OSError as problem:
            raise DataDirectoryError(f"cannot use data directory {data_dir}: {told(problem)}") from problem
        with ExitStack() as stack:  # what was opened is closed again when something else cannot be
            stack.callback(lock.close)
            try:
                log = cls(data_dir, config, post, files, lock)
                log.soon = soon or post
                log._open_parts(state, index, stack, watch)
            except OSError as problem:
                raise DataDirectoryError(f"cannot use data directory {data_dir}: {told(problem)}") from problem
            stack.pop_all()
        return log

    def _open_parts(self, state: StateStore | None, index: Index | None, stack: ExitStack, watch: Watch | None) -> None:
        config = self.config
        self.files.make_dir(self.data_dir / "topics")
        self.files.sync_dir(self.data_dir)
        self.files.sync_dir(self.data_dir / "topics")  # a process that was killed may have left unsynced entries
        if state is None:
            self._look_for_state()
        self.watermarks = Watermarks(self.files, self.data_dir / WATERMARKS_NAME, self.directory_id)
        stack.callback(self.watermarks.close)
        if self.watermarks.missing and self._had_topics:
            self.report(
                f"{self.data_dir / WATERMARKS_NAME} was missing or damaged: what follows the last batches that say of "
                "themselves that they were on disk may have been acknowledged"
            )
        self.state = state or self._open_state()
        stack.callback(self.state.close)
        self.clock = DoubtedClock(known=stored_clock(self.state), doubt_ms=config.clock_doubt_ms)
        self.catalog = Catalog(self.state, config, self.now_ms)
        self.markers = Markers(self.state)
        for damage in (*self.catalog.damaged, *self.markers.damaged):
            self.report(str(damage))
        self.cursors = CursorStore(self)
        self.index = index or Index(self.data_dir / "index", self.files, config)
        stack.callback(self.index.close)
        self._adopt_topics()
        self.readers = ThreadPoolExecutor(config.reader_threads, thread_name_prefix="quintlog-reader")
        self.opener = Opener(self)
        stack.callback(self.opener.stop)
        self.committer = Committer(self, watch)
        stack.callback(self.committer.stop)
        self.housekeeping = Housekeeping(self)
        for topic_id in list(self.catalog.tombstones):
            self.opener.remove_leftovers(topic_id)

    def _open_state(self) -> LmdbState:
        try:
            return LmdbState(
                self.data_dir / "state",
                self.post,
                self.files,
                create=True,
                map_bytes=self.config.state_map_bytes,
                reader_check_interval_ms=self.config.reader_check_interval_ms,
            )
        except Corrupt as problem:
            reason = f"{problem.reason}; `logtool repair` shows what would be lost without it, and can move it aside"
            raise Corrupt(problem.path, problem.position, reason) from problem

    # --- what `state` does not know

    @property
    def _had_topics(self) -> bool:
        return bool(self.files.list_dir(self.data_dir / "topics"))

    def _look_for_state(self) -> None:
        """Says what is gone with a state that is not there although there are topics."""
        path = self.data_dir / "state" / DATA_FILE
        if self._had_topics and not (path.exists() and path.stat().st_size):
            self.report(
                f"{path} is missing: topics are taken in again from their directories. Gone are subscriptions and "
                "their positions, sessions, topics without records, deletions that were not finished, and which "
                "numbers had been given out in topics with a durability below always (theirs go on far behind)"
            )

    def _adopt_topics(self) -> None:
        """Takes in topics whose directory describes them but that `state` does not know (an older copy, or none)."""
        topics = self.data_dir / "topics"
        for name in self.files.list_dir(topics):
            topic_id = _number_of(name)
            if not topic_id or self.catalog.by_id(topic_id) is not None or topic_id in self.catalog.tombstones:
                continue
            try:
                content = read_whole_file(self.files, topics / name / TOPIC_FILE, SMALL_FILE_BYTES_MAX)
                description = json.loads(content) if content is not None else {}
                if not isinstance(description, dict) or description.get("id") != topic_id:
                    raise InvalidConfig(f"no {TOPIC_FILE} that describes topic {topic_id}")
                topic = self.catalog.adopt(description)
            except (ValueError, RecursionError, EngineError, OSError) as problem:
                self.catalog.keep_clear(topic_id)
                self.report(f"{topics / name}: a directory of no known topic, left alone: {problem}")
                continue
            indexes = [_number_of(entry) for entry in self.files.list_dir(topics / name)]
            adopted = [index for index in indexes if index is not None and self._adopt_partition(topic, index)]
            self.report(f"topic {topic.name!r} was not in the state: adopted with {len(adopted)} partitions with data")

    def _adopt_partition(self, topic: Topic, index: int) -> bool:
        """Gives a partition that has files, but no number in `state`, the number that its files say."""
        directory = self.data_dir / "topics" / str(topic.id) / str(index)
        names = [name for name in self.files.list_dir(directory) if parse_segment_name(name) is not None]
        if index in topic.numbers or index >= topic.partition_count or not names:
            return False
        wanted = 0
        for name in reversed(names):
            try:
                fd = self.files.open(directory / name)
            except OSError:
                continue
            try:
                header = parse_header(self.files.read(fd, HEADER_BYTES, 0), directory / name)
            except (Corrupt, UnsupportedFormat, OSError):
                continue
            finally:
                self.files.close(fd)
            wanted = header.number
            break
        number = self.catalog.number(topic, index, wanted=wanted)
        if topic.config.durability != "always":
            # Numbers that readers saw before they were on disk; the bound was in the state.
            mark = self.watermarks.read(Owner(number, topic.id, index))
            seen_seq = mark.committed_seq if mark is not None else parse_segment_name(names[-1]) or 0
            bound = self.lost_bounds[topic.id, index] = seen_seq + LOST_RESERVATION
            self.state.submit([Put(reserved_key(topic.id, index), bound)])
        return True

    def _look_for_files(self, topic: Topic, index: int) -> None:
        """A partition that has no number has no files, unless the state is an older copy. Raises NotStored."""
        try:
            if not self.files.exists(self.data_dir / "topics" / str(topic.id) / str(index)):
                return
            found = self._adopt_partition(topic, index)
        except OSError as problem:
            raise NotStored(f"cannot look for files of {topic!r} partition {index}: {problem}") from problem
        if found:
            self.report(f"topic {topic.name!r} partition {index} was not in the state: its files were found")

    def reserved_bound(self, topic: Topic, index: int, next_seq: int) -> int:
        """Up to which numbers of a partition, of which the next one is `next_seq`, were reserved.

        0 unless the topic has, or had, a durability below "always", or numbers were once found without records.
        """
        key = reserved_key(topic.id, index)
        try:
            stored = int(self.state.get(key) or 0)
        except Corrupt as problem:
            stored = next_seq + LOST_RESERVATION
            self.report(f"{problem}; numbers of {topic!r} partition {index} go on far behind the last one")
            self.state.submit([Put(key, stored)])
        return max(stored, self.lost_bounds.get((topic.id, index), 0))

    # --- use

    def partition(self, topic: Topic, index: int = 0) -> Partition:
        """The partition of a topic.

        Raises:
            UnknownPartition: the topic has no such one, or was deleted.
            NotStored: its files cannot be looked for now.
        """
        partition = self._partitions.get((topic.id, index))
        if partition is None:
            if not 0 <= index < topic.partition_count:
                raise UnknownPartition(f"topic {title(topic.name)} has partitions 0 to {topic.partition_count - 1}")
            if self.catalog.by_id(topic.id) is not topic:
                raise UnknownPartition(f"topic {title(topic.name)} was deleted")
            if index not in topic.numbers and not topic.deleting:
                self._look_for_files(topic, index)
            partition = self._partitions[topic.id, index] = Partition(self, topic, index)
        return partition

    def used_partition(self, topic: Topic, index: int) -> Partition | None:
        """The partition of a topic if it was used since the start."""
        return self._partitions.get((topic.id, index))

    def known_partitions(self) -> Iterable[Partition]:
        """Partitions that were used since the start."""
        return list(self._partitions.values())

    @property
    def known_count(self) -> int:
        """How many these are."""
        return len(self._partitions)

    def note_opening(self, title: str, result: object) -> None:
        """Tells once that the partition of a title cannot be opened: every use tries again."""
        if not isinstance(result, EngineError):
            self.unopened.pop(title, None)
        elif self.unopened.get(title) != str(result):
            self.unopened[title] = str(result)
            self.report(f"{title} cannot be opened: {result}")

    def drop_partitions(self, topic: Topic) -> list[Partition]:
        """Forgets the partitions of a deleted topic; returns those that were known."""
        keys = [key for key in self._partitions if key[0] == topic.id]
        dropped = [self._partitions.pop(key) for key in keys]
        for partition in dropped:
            self.unopened.pop(partition.title, None)
        return dropped

    def look_up(self) -> None:
        """Ends the commit round that is done, if one is, and starts the next: for long turns of the owner's loop."""
        self.committer.look_up()

    def drain(self, callback: Callable[[], None]) -> None:
        """Calls back when everything appended so far is committed or has failed."""
        if self.pending_chunks:
            self._drained.append(callback)
        else:
            callback()

    def close(self) -> None:
        """Stops all threads, makes everything durable, and lets go of the directory; blocking. Drain before it."""
        self.is_closed = True
        self.housekeeping.stop()
        self.opener.stop()
        self.committer.stop()
        self.housekeeping.sync_all()
        for partition in self.known_partitions():
            if partition.has_files and partition.error is None:
                self.committer.write_mark(partition, partition.active_segment)
                partition.release_reservation()
        self.readers.shutdown()
        try:
            self.watermarks.sync()
        except OSError as problem:
            self.report(f"cannot sync watermarks: {problem.strerror or problem}")
        self.watermarks.close()
        self.index.close()
        self.cursors.close()
        self.clock.save(self.state, is_last=True)
        self.state.close()
        self.handles.close()
        self.lock.close()

    # --- for the parts

    def now_ms(self) -> int:
        """Milliseconds since 1970 by the clock of the log (any thread)."""
        return self.clock.now_ms()

    steady_ms = staticmethod(steady_ms)
    """Milliseconds by a clock that nobody sets."""

    def chunk_settled(self) -> None:
        """A chunk was committed or has failed."""
        self.pending_chunks -= 1
        if not self.pending_chunks and self._drained:
            callbacks, self._drained = self._drained, []
            for callback in callbacks:
                self.post(callback)

    def check_place(self) -> None:
        """Raises ReadOnly when the data directory is not where it was opened: paths name others then (any thread).

        OSError: it cannot be told now.
        """
        if not self.lock.is_in_place():
            raise ReadOnly(
                f"data directory {self.data_dir} was moved, replaced or removed while it was in use: nothing more is "
                "stored; put it back and restart the server"
            )

    def stop_writing(self, error: ReadOnly) -> None:
        """Nothing more is stored in any topic until a restart."""
        self.error = error
        for partition in self.known_partitions():
            partition.stop_writing(error)

    def wake(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Calls readers back, from the next turn of the owner's loop on."""
        self.slices.later(partial(self.slices.call_each, "a commit round", callbacks))

    def note_index(self, part: Part, chunk: Chunk) -> None:
        """Puts a committed chunk into the index (owner's or committer's thread)."""
        header = part.active.header
        self.index.add(
            part.partition.number,
            chunk.first_seq,
            header.segment_id,
            header.first_seq,
            chunk.file_position,
            part.active.max_timestamp_ms,
        )

    @staticmethod
    def report(message: str) -> None:
        """Tells the operator of something that should not have happened (any thread)."""
        logger.error("%s", message)

    @staticmethod
    def report_exception(where: str, problem: BaseException) -> None:
        """Tells of a defect of ours, with its traceback (any thread)."""
        logger.critical("internal error in %s", where, exc_info=problem)


def _make_directories(data_dir: Path) -> None:
    """Makes the data directory with its parents, each durable. Raises OSError."""
    missing = [path for path in (data_dir, *data_dir.parents) if not path.exists()]
    data_dir.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    for path in missing:
        SystemFiles().sync_dir(path.parent)


def _number_of(name: str) -> int | None:
    """The number that a directory is named by, None for any other name."""
    if not name.isascii() or not name.isdigit() or len(name) > len(str(TOPIC_ID_MAX)) or str(int(name)) != name:
        return None
    return int(name)


def _known_id(files: Files, data_dir: Path) -> int | None:
    """The id that ``VERSION`` gives the directory, None in an empty one.

    Raises:
        DataDirectoryError, UnsupportedFormat: it is no data directory of this version.
    """
    if files.exists(data_dir / VERSION_FILE):
        return read_version(files, data_dir)
    foreign = [name for name in files.list_dir(data_dir) if name != LOCK_FILE and not name.endswith(".new")]
    if foreign:
        raise DataDirectoryError(
            f"{data_dir} has no {VERSION_FILE} file but holds {', '.join(foreign[:3])}: "
            "not a data directory of this server; choose an empty one"
        )
    return None


def _check_version(files: Files, data_dir: Path) -> int:
    """Reads ``VERSION`` (makes it in an empty directory) and returns the directory's id."""
    directory_id = _known_id(files, data_dir)
    if directory_id is not None:
        files.sync_dir(data_dir)  # a process that was killed may have left the entry unsynced; others come behind it
        return directory_id
    directory_id = secrets.randbits(63)
    content = json.dumps({"format": FORMAT_VERSION, "id": directory_id}).encode() + b"\n"
    write_new_file(files, data_dir / VERSION_FILE, content)
    return directory_id


__all__ = ["EngineError", "Log"]
