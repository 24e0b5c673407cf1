"""Shipping: one thread that stores what a log has, commit after commit, and never more than one that is not known.

A turn: a cut, taken on the owner's thread (`engine.shipping.changes`); its bytes as pieces, from the files; the next
head by compare-and-swap, again and again until it is known what became of it (`engine.shipping.commits`). Sealed
segments are stored whole by a second thread, and named by the commit after that. Publishers and readers wait for
nothing here.

The first turns of a log with records copy what there is: sealed segments first, and of a partition nothing before. Then
it is *in step*: there is a copy of the state, and from there on each commit has the changes of the state that belong to
its records. A restart begins with a new copy: nobody knows the changes since the last commit of the process before.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from engine.context import EngineContext
from engine.errors import EngineError, ReadOnly
from engine.partitions.context import PartitionContext
from engine.partitions.table import PartitionTable
from engine.remote.catalog import ObjectRef, PartitionKey, SealedSegment
from engine.remote.probe import Unfit, probe
from engine.remote.store import Denied, ObjectStore, Refused, Unclear
from engine.remote.writes import Fenced
from engine.reports import report, report_exception, report_seldom
from engine.shipping.asking import Asking, Stopped
from engine.shipping.changes import Changes, Cut, PartitionCut
from engine.shipping.collection import Collection
from engine.shipping.commits import Commits
from engine.shipping.joining import stored_manifest
from engine.shipping.limits import PROBES, STATE_COPY_MS, STATE_DELTA_BYTES
from engine.shipping.lineage import Joining, Superseded
from engine.shipping.pending import Pending
from engine.shipping.scan import Scan
from engine.shipping.state_copies import store_state
from engine.shipping.uploads import Uploads, Wanted
from engine.state.store import LmdbState

CONNECTING, COPYING, STORING, STOPPED = "connecting", "copying", "storing", "stopped"


_WAY_OUT = (
    "this server takes no more records; use the other one, or, to go on with this directory, take [remote] out of the "
    "configuration or give it a prefix of its own, which is empty, and restart"
)


@dataclass(frozen=True, slots=True)
class ShippingConfig:
    """How a log is stored."""

    commit_interval_ms: int = 200
    piece_bytes: int = 4 << 20
    grace_ms: int = 3_600_000
    address: str = ""


@dataclass(slots=True)
class Progress:
    """What is known of shipping (any thread)."""

    phase: str = CONNECTING
    reason: str = ""
    """Why it has stopped."""
    lineage: str = ""
    epoch: int = 0
    version: int = 0
    commits: int = 0
    state_copies: int = 0
    records: int = 0
    """Of those that rounds have written since the start: how many are stored; and their bytes."""
    size_bytes: int = 0
    stored_s: float = 0.0
    """When something was last stored, or shipping began (monotonic)."""


class Shipper:
    """Stores a log. Made, started and stopped on the owner's thread."""

    def __init__(
        self,
        context: EngineContext,
        parts: PartitionContext,
        partitions: PartitionTable,
        directory_id: int,
        store: ObjectStore,
        config: ShippingConfig,
    ) -> None:
        assert isinstance(context.state, LmdbState), "a log with a state on disk"
        self._context = context
        self._partitions = partitions
        self._config = config
        self._state = context.state
        self._asking = Asking(store)
        self._uploads_asking = Asking(store)
        self._changes = Changes(context, parts, partitions, parts.committer, context.state, self._on_bytes)
        self._uploads = Uploads(self._uploads_asking, context.handles, self._asking.wake)
        self._joining = Joining(context.files, context.data_dir, directory_id, config.address)
        self._collection = Collection(self._asking, config.grace_ms)
        self._answers: SimpleQueue[Cut | Exception | None] = SimpleQueue()
        self._pending = Pending()
        self._on_their_way: dict[int, Wanted] = {}
        """Sealed segments that are being stored whole, by id."""
        self._refused: set[int] = set()
        """Ids of those that cannot be."""
        self._waiting: dict[PartitionKey, set[int]] = {}
        """Partitions of which nothing is stored before these segments are."""
        self._look_at: list[PartitionKey] = []
        self._rows: dict[int, SealedSegment] = {}
        """Sealed segments that are stored whole, and named by the next head."""
        self._is_in_step = self._must_copy = self._is_committing = self._is_fit = False
        self._told = ("", 0)
        self._copied_s = 0.0
        self._delta_bytes = 0
        self.progress = Progress(stored_s=time.monotonic())
        self._commits: Commits
        self._thread = threading.Thread(target=self._run, name="quintlog-shipping", daemon=True)

    # --- the owner's thread

    def start(self) -> None:
        """Begins."""
        self._changes.begin()
        self._thread.start()

    def stop(self) -> None:
        """Ends it, before the log is closed; an answer that is outstanding is not waited for."""
        self._changes.end()
        self._uploads_asking.stop()
        self._asking.stop()
        self._uploads.stop()
        self._answers.put(None)

    @property
    def problem(self) -> str:
        """Why nothing is stored now; empty: it is."""
        return self.progress.reason or self._asking.problem or self._uploads_asking.problem

    @property
    def requests(self) -> tuple[int, int]:
        """Requests to the store so far, and how many of them had no answer, or none that helps."""
        both = (self._asking, self._uploads_asking)
        return sum(one.requests for one in both), sum(one.failures for one in both)

    @property
    def lag(self) -> tuple[int, int, float]:
        """Records that are in the log and not stored, their bytes, and for how many seconds the oldest of what is
        not stored has been there."""
        began = [since for since in (self._pending.began_s, self._changes.waiting_since_s) if since is not None]
        progress, changes = self.progress, self._changes
        lag_s = time.monotonic() - min(began) if began else 0.0
        return changes.records - progress.records, changes.size_bytes - progress.size_bytes, lag_s

    @property
    def stalled_s(self) -> float:
        """For how many seconds something has been waiting and nothing was stored."""
        return min(self.lag[2], time.monotonic() - self.progress.stored_s)

    @property
    def is_idle(self) -> bool:
        """Whether all that the log has is stored, as far as it is known now."""
        if self._changes.has_any or self._is_committing:
            return False
        return not self._pending and not self._on_their_way and not self._has_more

    @property
    def _has_more(self) -> bool:
        return bool(self._rows or self._look_at or self._waiting or self._must_copy or not self._is_in_step)

    def _on_bytes(self, waiting_bytes: int) -> None:
        if waiting_bytes >= self._config.piece_bytes:
            self._asking.wake()

    # --- the thread

    def _run(self) -> None:
        with self._asking.using():
            try:
                self._join()
                while True:
                    self._turn()
                    self._asking.wait(self._config.commit_interval_ms / 1000)
            except Stopped:
                raise
            except (Fenced, Superseded) as problem:
                reason = f"object storage has another primary: {problem}; {_WAY_OUT}"
                self._stopped(reason)
                self._context.call_soon_threadsafe(lambda: self._partitions.stop_writing(ReadOnly(reason)))
            except (EngineError, OSError) as problem:
                self._stopped(str(problem))
            except Exception as problem:  # noqa: BLE001 - the log goes on without it
                report_exception("shipping", problem)
                self._stopped(f"internal error: {problem!r}; restart the server")

    def _stopped(self, reason: str) -> None:
        self.progress.phase, self.progress.reason = STOPPED, reason
        report(f"nothing more is stored in object storage until a restart: {reason}")
        self._context.call_soon_threadsafe(self._changes.end)

    def _join(self) -> None:
        """Becomes the writer of the lineage, and looks what differs from what is stored."""
        attempt = 0
        while True:
            try:
                self._look_whether_fit()
                writer = self._asking.run(self._joining.steps())
                manifest = stored_manifest(self._asking, writer)
                break
            except (Unclear, Denied) as problem:
                if not attempt:
                    report(f"object storage cannot be reached: {problem}; it is tried again and again")
                attempt += 1
                self._asking.pause(attempt)
        self._commits = Commits(self._asking, self._context, self._config.piece_bytes, writer, manifest)
        head = manifest.head
        self.progress.lineage, self.progress.epoch = head.lineage, head.epoch
        self.progress.version, self.progress.phase = head.version, COPYING
        known = manifest.topics
        unfinished = manifest.unfinished()
        scanned = Scan(
            self._context, self._partitions, dict(manifest.tails), unfinished, lambda: self._answers.put(Cut())
        )

        def begin() -> None:
            self._changes.forgotten(topic for topic in known if self._context.catalog.by_id(topic) is None)
            scanned.begin()

        self._context.call_soon_threadsafe(begin)
        self._asking.away(self._answers.get)

    def _look_whether_fit(self) -> None:
        """Raises Unfit: it was several times; Unclear, Denied: call this again."""
        for left in reversed(range(PROBES if not self._is_fit else 0)):
            try:
                probe(self._asking, secrets.token_hex(16))
                self._is_fit = True
                return
            except (Refused, Unfit) as problem:  # a network that sends twice looks like that, once
                if not left:
                    raise Unfit(str(problem)) from problem

    def _turn(self) -> None:
        self._take_uploads()
        has_work = self._pending or self._rows or self._look_at or self._is_copy_due() or self._changes.has_any
        if self._is_in_step and not has_work and all(self._waiting.values()):
            self._collect()
            return
        self._is_committing = True  # before the cut, which leaves nothing to be seen where it was
        self._commit_cut()
        self._is_committing = False

    def _commit_cut(self) -> None:
        state = self._copy_of_state() if self._is_in_step and self._is_copy_due() else None
        cut = self._cut(behind_state=state is not None)
        self._pending.take(cut)
        if self._is_in_step and not cut.has_all_changes:  # there were too many: a copy is less, and comes next
            self._must_copy = True
            if state is not None:
                self._collection.add([state.name], self._commits.manifest.head.version)
            return
        try:
            dropped = self._commits.commit(self._pending, self._chosen(), self._rows.values(), state)
        except FileNotFoundError as problem:  # retention was faster, and the next cut says so
            self._commits.put_off_merging()
            self._told = report_seldom(f"not stored yet: {problem}", self._told, self._context.now_ms())
            return
        self._stored(state)
        self._collection.add(dropped, self._commits.manifest.head.version)
        self._collect()

    def _cut(self, *, behind_state: bool) -> Cut:
        keys, self._look_at = self._look_at, []
        self._changes.request(self._answers.put, look_at=keys, behind_state=behind_state)
        cut = self._asking.away(self._answers.get)
        assert cut is not None, "None comes with Stopped"
        if isinstance(cut, Exception):
            raise cut
        return cut

    def _is_copy_due(self) -> bool:
        age_s = time.monotonic() - self._copied_s
        is_old = bool(self._delta_bytes) and age_s > STATE_COPY_MS / 1000
        return self._is_in_step and (self._must_copy or is_old or self._delta_bytes > STATE_DELTA_BYTES)

    def _copy_of_state(self) -> ObjectRef:
        self._changes.request_state(lambda: self._answers.put(Cut()))
        self._asking.away(self._answers.get)
        self._pending.changes.clear()  # they are in the copy
        self._must_copy = False
        return store_state(self._asking, self._state, self._commits.manifest.head, self._context.data_dir)

    def _chosen(self) -> list[PartitionCut]:
        """The partitions of which something can be stored now; asks for their sealed segments to be stored whole."""
        manifest = self._commits.manifest
        chosen: list[PartitionCut] = []
        for key, one in list(self._pending.partitions.items()):
            ids = {one.sealed[at].segment_id: at for at in manifest.missing(one)}
            for segment_id, at in ids.items():
                if segment_id not in self._on_their_way.keys() | self._rows.keys() | self._refused:
                    after = one.sealed[at + 1].first_seq if at + 1 < len(one.sealed) else one.active.header.first_seq
                    self._on_their_way[segment_id] = Wanted(key, one.sealed[at], after)
                    self._uploads.add(self._on_their_way[segment_id])
            missing = ids.keys() - self._refused
            if missing and key not in manifest.tails and manifest.head.state is None:
                self._waiting[key] = set(missing)
                continue
            try:
                self._commits.pieces.make_durable(one.active, one.end)
            except (OSError, ReadOnly) as problem:  # it takes no more records either
                report(f"{one.active.path} is not stored: {problem}")
                continue
            chosen.append(one)
        return chosen

    def _take_uploads(self) -> None:
        while True:
            try:
                done = self._uploads.results.get_nowait()
            except Empty:
                return
            wanted = self._on_their_way.pop(done.wanted.file.segment_id)
            self.progress.stored_s = time.monotonic()
            if done.row is None:
                self._refused.add(wanted.file.segment_id)
            elif self._commits.manifest.is_ended(done.row):
                self._collection.add([done.row.path], self._commits.manifest.head.version)
            else:
                self._rows[done.row.segment_id] = done.row
            waits_for = self._waiting.get(wanted.key)
            if waits_for is not None:
                waits_for.discard(wanted.file.segment_id)

    def _stored(self, state: ObjectRef | None) -> None:
        """A commit was done, or there was nothing to say."""
        progress, pending = self.progress, self._pending
        progress.stored_s = time.monotonic()
        if state is not None:
            progress.state_copies += 1
            self._copied_s, self._delta_bytes = time.monotonic(), 0
        self._delta_bytes += sum(len(change.key) + len(change.value or b"") for change in pending.changes)
        progress.records, progress.size_bytes = pending.records, pending.size_bytes
        progress.version, progress.commits = self._commits.manifest.head.version, self._commits.count
        self._pending, self._rows = Pending(), {}
        ready = [key for key, waits_for in self._waiting.items() if not waits_for]
        for key in ready:
            del self._waiting[key]
        self._look_at += ready
        if not self._is_in_step and not self._waiting and not self._look_at and not self._changes.has_opened:
            self._is_in_step = self._must_copy = True
            self._asking.wake()
        if progress.state_copies:
            progress.phase = STORING

    def _collect(self) -> None:
        manifest = self._commits.manifest
        self._collection.collect(manifest.head, manifest.named())
