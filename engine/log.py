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
file worker, readers, state writer and housekeeping hand their results back through `call_soon_threadsafe`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from engine.commit.committer import Committer
from engine.commit.native_rounds import Watch
from engine.commit.transactions import Transaction
from engine.config import EngineConfig
from engine.context import Backlog, EngineContext
from engine.cursors.table import CursorTable
from engine.directory_layout import FORMAT_VERSION, STATE, VERSION_FILE
from engine.errors import Corrupt, DataDirectoryError, EngineError, ReadOnly
from engine.files.descriptors import Handles
from engine.files.lock import LOCK_FILE, DirectoryLock
from engine.files.owners import told
from engine.files.system import Files, SystemFiles, make_directory, write_new_file
from engine.formats.batch_header import QOS0_ATTRIBUTE
from engine.partitions.adoption import Adoption
from engine.partitions.context import PartitionContext
from engine.partitions.file_worker import FileWorker
from engine.partitions.housekeeping import Housekeeping
from engine.partitions.partition import Partition
from engine.partitions.removal import SegmentRemoval
from engine.partitions.table import PartitionTable
from engine.partitions.tail_cache import TailCache
from engine.reader import read_version
from engine.reports import report
from engine.segments.buffers import BufferPool
from engine.segments.watermarks import FILE_NAME as WATERMARKS_NAME
from engine.segments.watermarks import Watermarks
from engine.slices import Slices
from engine.state.clock import DoubtedClock, steady_ms, stored_clock
from engine.state.environment import DATA_FILE
from engine.state.index import Index
from engine.state.markers import Markers
from engine.state.store import CallSoon, LmdbState, StateStore
from engine.state.topic_catalog import Catalog
from engine.state.topic_entries import Topic

if TYPE_CHECKING:
    from engine.remote.store import ObjectStore
    from engine.shipping.shipper import Shipper, ShippingConfig


class Log:
    """The public face of the engine. Made by `open`.

    Attributes:
        is_new: nothing was ever in the directory.
        context: what all parts share.
        state, index, catalog, clock, watermarks, slices, figures: of the context.
        cursors, committer, housekeeping: parts.
    """

    def __init__(
        self,
        context: EngineContext,
        markers: Markers,
        watch: Watch | None,
        *,
        directory_id: int,
        is_new: bool,
        stack: ExitStack,
    ) -> None:
        """Use `open`. What is started is put on `stack`."""
        config = context.config
        self.context = context
        self.directory_id = directory_id
        self.is_new = is_new
        self.data_dir = context.data_dir
        self.state = context.state
        self.index = context.index
        self.catalog = context.catalog
        self.clock = context.clock
        self.watermarks = context.watermarks
        self.files = context.files
        self.handles = context.handles
        self.slices = context.slices
        self.figures = context.figures
        self.now_ms = context.now_ms
        """Milliseconds since 1970 by the clock of the log (any thread)."""
        self.shipper: Shipper | None = None
        """What stores it in object storage, if anything does."""
        adoption = Adoption(context)
        adoption.adopt_topics()
        readers = ThreadPoolExecutor(config.reader_threads, thread_name_prefix="quintlog-reader")
        self.file_worker = FileWorker(context, markers.is_committed)
        stack.callback(self.file_worker.stop)
        self.committer = Committer(context, markers, watch)
        stack.callback(self.committer.stop)
        removal = SegmentRemoval(context, self.committer, self.file_worker)
        tail_cache = TailCache(config.tail_cache_bytes, context.buffers)
        self.parts = PartitionContext(self.committer, self.file_worker, removal, adoption, tail_cache, readers)
        self.partitions = PartitionTable(context, self.parts)
        self.cursors = CursorTable(context, self.partitions, is_new=is_new)
        self.housekeeping = Housekeeping(context, self.partitions, self.committer, self.file_worker, removal)
        for topic_id in list(self.catalog.tombstones):
            self.file_worker.remove_leftovers(topic_id)

    @classmethod
    def open(
        cls,
        data_dir: Path,
        config: EngineConfig,
        call_soon_threadsafe: CallSoon,
        files: Files | None = None,
        state: StateStore | None = None,
        index: Index | None = None,
        watch: Watch | None = None,
        call_soon: CallSoon | None = None,
    ) -> Log:
        """Opens a data directory, and makes it when it is missing or empty.

        Args:
            call_soon_threadsafe: takes a callable from any thread and runs it on the owner's thread, in order.
            files, state, index: other implementations, for tests.
            watch: has a function called on the owner's thread whenever a descriptor is readable, and returns what ends
                that; with it most commit rounds are faster.
            call_soon: like `call_soon_threadsafe`, but is called on the owner's thread alone, where that is cheaper.

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
                is_new = not files.exists(data_dir / VERSION_FILE)
                directory_id = _check_version(files, data_dir)
                watermarks = _open_watermarks(files, data_dir, directory_id, is_state_given=state is not None)
                stack.callback(watermarks.close)
                state = state or _open_state(files, data_dir, config, call_soon_threadsafe)
                stack.callback(state.close)
                clock = DoubtedClock(known=stored_clock(state), doubt_ms=config.clock_doubt_ms)
                catalog = Catalog(state, config, clock.now_ms)
                markers = Markers(state)
                for damage in (*catalog.damaged, *markers.damaged):
                    report(str(damage))
                index = index or Index(data_dir / "index", files, config)
                stack.callback(index.close)
                handles = Handles(files, config.open_files_max)
                if isinstance(files, SystemFiles):
                    files.relieve = handles.relieve
                context = EngineContext(
                    data_dir=data_dir,
                    config=config,
                    files=files,
                    handles=handles,
                    lock=lock,
                    state=state,
                    index=index,
                    catalog=catalog,
                    watermarks=watermarks,
                    clock=clock,
                    buffers=BufferPool(),
                    slices=Slices(call_soon or call_soon_threadsafe),
                    call_soon=call_soon or call_soon_threadsafe,
                    call_soon_threadsafe=call_soon_threadsafe,
                    backlog=Backlog(call_soon_threadsafe),
                    now_ms=clock.now_ms,
                    steady_ms=steady_ms,
                )
                log = cls(context, markers, watch, directory_id=directory_id, is_new=is_new, stack=stack)
            except OSError as problem:
                raise DataDirectoryError(f"cannot use data directory {data_dir}: {told(problem)}") from problem
            stack.pop_all()
        return log

    # --- facts

    @property
    def config(self) -> EngineConfig:
        """The configuration in force."""
        return self.context.config

    @config.setter
    def config(self, config: EngineConfig) -> None:
        self.context.config = config

    @property
    def error(self) -> ReadOnly | None:
        """Why nothing more is stored at all, until a restart."""
        return self.context.error

    @property
    def pending_bytes(self) -> int:
        """Bytes of records that were appended but are not committed yet."""
        return self.context.backlog.bytes

    # --- use

    def partition(self, topic: Topic, index: int = 0) -> Partition:
        """The partition of a topic.

        Raises:
            UnknownPartition: the topic has no such one, or was deleted.
            NotStored: its files cannot be looked for now.
        """
        return self.partitions.get(topic, index)

    def used_partition(self, topic: Topic, index: int) -> Partition | None:
        """The partition of a topic if it was used since the start."""
        return self.partitions.used(topic, index)

    def known_partitions(self) -> Iterable[Partition]:
        """Partitions that were used since the start."""
        return self.partitions.all()

    @property
    def known_count(self) -> int:
        """How many these are."""
        return len(self.partitions)

    def transaction(self, *, qos0: bool = False) -> Transaction:
        """A new transaction; `qos0` marks its records as BlipMQ's QoS 0."""
        return Transaction(self.context, self.committer, QOS0_ATTRIBUTE if qos0 else 0)

    def poll_completion(self) -> None:
        """Ends the commit round that is done, if one is, and starts the next: for long turns of the owner's loop."""
        self.committer.poll_completion()

    def ship(self, store: ObjectStore, config: ShippingConfig) -> Shipper:
        """Begins to store all of it in object storage, until it is closed."""
        from engine.shipping.shipper import Shipper

        shipper = Shipper(self.context, self.parts, self.partitions, self.directory_id, store, config)
        self.shipper = shipper
        shipper.start()
        return shipper

    def drain(self, callback: Callable[[], None]) -> None:
        """Calls back when everything appended so far is committed or has failed."""
        self.context.backlog.when_empty(callback)

    def close(self) -> None:
        """Stops all threads, makes everything durable, and lets go of the directory; blocking. Drain before it."""
        context = self.context
        if self.shipper is not None:
            self.shipper.stop()
        context.is_closed = True
        self.housekeeping.stop()
        self.file_worker.stop()
        self.committer.stop()
        self.housekeeping.sync_all()
        for partition in self.partitions.all():
            if partition.has_files and partition.error is None:
                self.committer.write_mark(partition, partition.active_segment)
                partition.release_reservation()
        self.parts.readers.shutdown()
        try:
            self.watermarks.sync()
        except OSError as problem:
            report(f"cannot sync watermarks: {problem.strerror or problem}")
        self.watermarks.close()
        self.index.close()
        self.cursors.close()
        self.clock.save(self.state, is_last=True)
        self.state.close()
        self.handles.close()
        context.lock.close()


def _open_watermarks(files: Files, data_dir: Path, directory_id: int, *, is_state_given: bool) -> Watermarks:
    """Opens the watermarks, in a directory that holds ``topics``; says what is gone where something is missing."""
    topics, path = data_dir / "topics", data_dir / WATERMARKS_NAME
    files.make_dir(topics)
    files.sync_dir(data_dir)
    files.sync_dir(topics)  # a process that was killed may have left unsynced entries
    had_topics = bool(files.list_dir(topics))
    stored = data_dir / STATE / DATA_FILE
    if not is_state_given and had_topics and not (stored.exists() and stored.stat().st_size):
        report(
            f"{stored} is missing: topics are taken in again from their directories. Gone are subscriptions and "
            "their positions, sessions, topics without records, deletions that were not finished, and which "
            "numbers had been given out in topics with a durability below always (theirs go on far behind)"
        )
    watermarks = Watermarks(files, path, directory_id)
    if watermarks.missing and had_topics:
        report(
            f"{path} was missing or damaged: what follows the last batches that say of "
            "themselves that they were on disk may have been acknowledged"
        )
    return watermarks


def _open_state(files: Files, data_dir: Path, config: EngineConfig, call_soon_threadsafe: CallSoon) -> LmdbState:
    try:
        return LmdbState(
            data_dir / STATE,
            call_soon_threadsafe,
            files,
            create=True,
            map_bytes=config.state_map_bytes,
            reader_check_interval_ms=config.reader_check_interval_ms,
        )
    except Corrupt as problem:
        reason = f"{problem.reason}; `logtool repair` shows what would be lost without it, and can move it aside"
        raise Corrupt(problem.path, problem.position, reason) from problem


def _make_directories(data_dir: Path) -> None:
    """Makes the data directory with its parents, each durable. Raises OSError."""
    missing = [path for path in (data_dir, *data_dir.parents) if not path.exists()]
    make_directory(data_dir)
    for path in missing:
        SystemFiles().sync_dir(path.parent)


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
        files.sync_dir(data_dir)  # a process that was killed may have left the entry unsynced; others come after it
        return directory_id
    directory_id = secrets.randbits(63)
    content = json.dumps({"format": FORMAT_VERSION, "id": directory_id}).encode() + b"\n"
    write_new_file(files, data_dir / VERSION_FILE, content)
    return directory_id


__all__ = ["EngineError", "Log"]
