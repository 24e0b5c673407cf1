"""Metrics in Prometheus' text form, read from plain integers at the scrape.

Hot paths never touch a metric object: they add to ``netserver.shell.counters`` and to the engine's own sums.
``/metrics`` has no label with topic names; series per topic are apart, bounded in number, and rendered in a thread.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.formats import batch
from engine.histogram import TIME_BUCKETS_S, Histogram
from engine.sessions.store import Sessions
from engine.state.clock import wall_ms
from engine.state.index import Index
from engine.state.store import LmdbState, StateStore
from netserver.admin.lags import CURSOR_PROTOCOLS, LAG_PROTOCOLS, CursorSums, lag_then, open_for_next_time
from netserver.admin.slices import sliced
from netserver.admin.stored_sizes import StoredSizes
from netserver.limits import METRICS_GROUPS, METRICS_TOPICS
from netserver.shell.counters import COUNT_BUCKETS, SIZE_BUCKETS_BYTES, Counters
from netserver.version import product_version

if TYPE_CHECKING:
    from engine.cursors.lags import Key
    from engine.log import Log
    from netserver.admin.served import Served

PREFIX: Final = "quintlog_"
OTHER: Final = "_other"
Samples = Iterable[tuple[Sequence[str], float]]


def counter(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """A family of counters; ``name`` without ``_total``."""
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """A family of gauges."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def single(name: str, text: str, value: float) -> Metric:
    """A gauge without labels."""
    return gauge(name, text, (), [((), value)])


def histogram(
    name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], Histogram]]
) -> Metric:
    """A family of histograms."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for values, source in samples:
        buckets: list[Any] = []
        reached = 0
        for bound, count in zip((*source.bounds, float("inf")), source.counts, strict=True):
            reached += count
            buckets.append(("+Inf" if bound == float("inf") else f"{bound:.10g}", reached))
        family.add_metric(values, buckets, source.total)
    return family


class Rounds:
    """Histograms of commit rounds, fed from the list that the committer's thread fills."""

    def __init__(self) -> None:
        self.records = Histogram(COUNT_BUCKETS)
        self.size_bytes = Histogram(SIZE_BUCKETS_BYTES)
        self.files = Histogram(COUNT_BUCKETS)
        self.sync = Histogram(TIME_BUCKETS_S)

    def take(self, rounds: list[tuple[int, int, int, float]]) -> None:
        """Count and remove the entries (records, bytes, files, seconds of syncing) that are there now."""
        known = len(rounds)
        for records, size_bytes, files, sync_s in rounds[:known]:
            self.records.observe(records)
            self.size_bytes.observe(size_bytes)
            self.files.observe(files)
            self.sync.observe(sync_s)
        del rounds[:known]


class ServerCollector(Collector):
    """Reads everything that is not about single topics. Runs in the event loop's thread.

    Attributes:
        lmdb: figures of each environment; asking LMDB may wait for its writer, so a thread does it before.
        stored: sizes of all partitions; a thread looks at the directories of those that are not in use.
        cursors: of the subscriptions.
    """

    def __init__(self, server: Served) -> None:
        self._server = server
        self.lmdb: dict[str, dict[str, int]] = {}
        self.stored = StoredSizes(server.log)
        self.cursors = CursorSums(server.log)

    def collect(self) -> Iterator[Metric]:
        """All families."""
        started = time.perf_counter()
        yield from self._process()
        yield from self._protocols([*self._server.counters.values(), self._server.http])
        yield from self._identities()
        yield from self._commits()
        yield from self._storage()
        yield from self._remote()
        yield from self._cursors()
        taken_s = time.perf_counter() - started
        yield single("scrape_seconds", "Time that this scrape took to collect.", taken_s)

    def _process(self) -> Iterator[Metric]:
        server = self._server
        compiled = "yes" if not str(batch.__file__).endswith(".py") else "no"
        labels = ("version", "format", "compiled")
        yield gauge("build_info", "What runs here.", labels, [((product_version(), "1", compiled), 1)])
        yield single("start_time_seconds", "When the server started (seconds since 1970).", server.started_at)
        yield single("ready", "1: it publishes and reads.", float(server.ready))
        yield single("config_reload_success", "1: the latest reload was taken over.", float(server.reload_success))
        text = "Until the certificate that a listener shows expires; below 0: it has."
        now_s = wall_ms() / 1000
        left = [((name,), expires_at_s - now_s) for name, expires_at_s in sorted(server.certificates.items())]
        yield gauge("certificate_expires_in_seconds", text, ("listener",), left)
        yield single("config_reload_time_seconds", "When the configuration was last loaded.", server.reload_time)
        yield single("recovery_seconds", "Time that opening the log took at the start.", server.open_seconds)
        yield histogram("loop_lag_seconds", "How late the event loop ran a timer.", (), [((), server.loop_lag)])
        turns = server.shell.turns
        text = "CPU time of turns of the event loop above 20 ms: everybody waits meanwhile."
        yield histogram("loop_slow_turn_seconds", text, (), [((), turns.slow)])
        text = "CPU time of the longest turn of the event loop since the start."
        yield single("loop_turn_seconds_max", text, turns.longest_s)
        collection = server.collection
        text = "CPU time of the longest look for objects in circles since the start."
        yield single("collection_seconds_max", text, collection.longest_s)
        text = "Objects in circles that the interpreter had to look for: few, or there is a defect."
        yield counter("collected_objects", text, (), [((), collection.found)])
        text = "Looks at all objects, because memory had grown without a reason: a defect."
        yield counter("full_collections", text, (), [((), collection.looks)])

    @staticmethod
    def _protocols(all_counters: list[Counters]) -> Iterator[Metric]:
        label = ("protocol",)

        def each(name: str) -> list[tuple[Sequence[str], float]]:
            return [((counters.name,), getattr(counters, name)) for counters in all_counters]

        def by_word(name: str) -> list[tuple[Sequence[str], float]]:
            return [
                ((counters.name, word), value)
                for counters in all_counters
                for word, value in getattr(counters, name).items()
            ]

        yield counter("records_published", "Records stored.", label, each("records_published"))
        yield counter("published_bytes", "Their bytes as received.", label, each("published_bytes"))
        yield counter("records_delivered", "Records sent to readers.", label, each("records_delivered"))
        yield counter("delivered_bytes", "Their bytes as sent.", label, each("delivered_bytes"))
        text = "Records that a reader's protocol could not carry, or that damage or retention took."
        yield counter("records_skipped", text, ("protocol", "reason"), by_word("skipped"))
        yield counter("backpressure_seconds", "Time that connections were not read.", label, each("backpressure_s"))
        text = "Connections closed for what they sent."
        yield counter("protocol_errors", text, ("protocol", "kind"), by_word("protocol_errors"))
        yield counter("session_errors", "Connections ended by a defect of ours.", label, each("session_errors"))
        yield counter("auth_failures", "Failed logins.", label, each("auth_failures"))
        yield gauge("connections", "Open connections.", label, each("connections"))
        yield counter("connections", "Connections accepted.", label, each("connections_total"))
        yield counter("connections_closed", "Connections ended.", ("protocol", "reason"), by_word("closed"))
        acks = [
            ((counters.name, durability), source)
            for counters in all_counters
            for durability, source in counters.ack_seconds.items()
        ]
        text = "Time from receiving a record to acknowledging it."
        yield histogram("publish_ack_seconds", text, ("protocol", "durability"), acks)
        delays = [((c.name,), c.delivery_delay) for c in all_counters if any(c.delivery_delay.counts)]
        yield histogram("delivery_delay_seconds", "Time from commit to the socket, live readers.", label, delays)

    def _identities(self) -> Iterator[Metric]:
        access = self._server.access
        meters = list(access.meters.values())
        label = ("identity",)
        both = ("identity", "direction")
        paces = [((one.name, "in"), one.incoming) for one in meters]
        paces += [((one.name, "out"), one.outgoing) for one in meters]
        text = "Requests and connections that were refused for want of rights."
        yield counter("access_refusals", text, (), [((), access.audit.refused)])
        text = "Bytes of identities with quotas: published, and sent to them."
        yield counter("identity_bytes", text, both, [(labels, pace.size_bytes) for labels, pace in paces])
        text = "Records of identities with quotas: published, and sent to them."
        yield counter("identity_records", text, both, [(labels, pace.records) for labels, pace in paces])
        text = "Time that connections of an identity were told to wait for its rate."
        yield counter("identity_waited_seconds", text, both, [(labels, pace.waited_s) for labels, pace in paces])
        counts = [((one.name,), float(one.connections)) for one in meters]
        yield gauge("identity_connections", "Open connections of identities with quotas.", label, counts)
        text = "Things that an identity did not get because its quota was used up."
        refused = [((one.name, quota), count) for one in meters for quota, count in one.refused.items()]
        yield counter("identity_quota_refusals", text, ("identity", "quota"), refused)

    def _commits(self) -> Iterator[Metric]:
        server = self._server
        sums = server.log.committer.counters
        rounds = server.rounds
        rounds.take(sums.round_sizes)
        results = [(("ok",), sums.rounds - sums.failed_rounds), (("failed",), sums.failed_rounds)]
        text = "Commit rounds; failed: at least one partition of it."
        yield counter("commit_rounds", text, ("result",), results)
        yield histogram("round_records", "Records of a commit round.", (), [((), rounds.records)])
        yield histogram("round_bytes", "Bytes of a commit round.", (), [((), rounds.size_bytes)])
        yield histogram("round_files", "Files of a commit round.", (), [((), rounds.files)])
        yield histogram("sync_seconds", "Time that syncing to disk took.", ("kind",), [(("data",), rounds.sync)])
        yield counter(
            "sync_failures", "Failed syncs; each makes one partition read-only.", (), [((), sums.sync_failures)]
        )
        text = "Age of the oldest record that is not synced though its topic is to be (durability interval)."
        yield single("unsynced_age_seconds", text, server.log.committer.interval_syncs.oldest_age_s())
        if isinstance(server.log.state, LmdbState):
            text = "Time that committing changes of topics, cursors and sessions took, syncs included."
            yield histogram("state_commit_seconds", text, (), [((), server.log.state.commit_seconds)])
        yield single("pending_bytes", "Bytes of records on their way to the disk.", server.log.pending_bytes)
        limit = server.shell.pressure.total_bytes_max
        yield single("pending_limit_bytes", "Bound of them, above which nobody is read.", limit)

    def _storage(self) -> Iterator[Metric]:
        engine = self._server.log
        disk = os.statvfs(self._server.data_dir)
        stored = self.stored
        text = "Partitions that take no records, or cannot be opened."
        yield single("topics", "Topics.", len(engine.catalog))
        yield single("partitions", "Partitions of all topics.", stored.partitions)
        yield single("partitions_read_only", text, stored.read_only)
        text = "Partitions with records that nobody has used since the start: damage to them is not known yet."
        yield single("partitions_unopened", text, stored.unopened)
        yield single("segments", "Segment files of all partitions.", stored.segments)
        yield single("stored_bytes", "Bytes in them.", stored.size_bytes)
        reads = [((source,), found) for source, found in engine.figures.read_seconds.items()]
        yield histogram("read_seconds", "Time that reads took, by where they were answered.", ("source",), reads)
        yield single("open_files", "Segment files that are open.", len(engine.handles))
        yield single("disk_free_bytes", "Room for us on the disk.", disk.f_bavail * disk.f_frsize)
        yield single("disk_size_bytes", "Size of the disk.", disk.f_blocks * disk.f_frsize)
        yield counter("damaged_batches", "Batches found damaged.", (), [((), engine.figures.damaged_batches)])
        text = "Committed records that were found damaged or missing when a partition was opened."
        yield counter("lost_records", text, (), [((), engine.figures.lost_records)])
        text = "Bytes of segments that retention or trimming removed."
        yield counter("retention_deleted_bytes", text, (), [((), engine.figures.removed_bytes)])
        for name, text in (
            ("used_bytes", "Bytes of an LMDB file that are in use."),
            ("map_bytes", "Address space of an LMDB environment."),
            ("readers", "Readers of an LMDB environment."),
        ):
            found = [((kind,), figures[name]) for kind, figures in self.lmdb.items()]
            yield gauge(f"lmdb_{name}", text, ("env",), found)
        keeping = engine.housekeeping
        text = "When housekeeping last went through all topics."
        yield single("housekeeping_last_success_time_seconds", text, keeping.last_success_ms / 1000)
        yield single("housekeeping_failing_topics", "Partitions it failed at.", len(keeping.failing))

    def _remote(self) -> Iterator[Metric]:
        shipper = self._server.log.shipper
        progress = shipper.progress if shipper is not None else None
        records, size_bytes, seconds = shipper.lag if shipper is not None else (0, 0, 0.0)
        requests, failures = shipper.requests if shipper is not None else (0, 0)
        yield single("remote", "1: the log is stored in object storage, too.", float(shipper is not None))
        text = "1: nothing is stored there now; /v1/status says why."
        yield single("remote_failing", text, float(shipper is not None and bool(shipper.problem)))
        text = "1: nothing more is stored there until a restart."
        yield single("remote_stopped", text, float(progress is not None and progress.phase == "stopped"))
        text = "For how long something has been waiting for object storage and nothing was stored."
        yield single("remote_stalled_seconds", text, shipper.stalled_s if shipper is not None else 0.0)
        yield single("remote_lag_records", "Records that are not in object storage yet.", records)
        yield single("remote_lag_bytes", "Their bytes.", size_bytes)
        text = "Time since the oldest record or change that is not in object storage yet."
        yield single("remote_lag_seconds", text, seconds)
        yield single(
            "remote_head_version", "Version of the head in object storage.", progress.version if progress else 0
        )
        commits = progress.commits if progress is not None else 0
        yield counter("remote_commits", "Commits to object storage.", (), [((), commits)])
        yield counter("remote_requests", "Requests to object storage.", (), [((), requests)])
        text = "Those that had no answer, or were refused for want of rights."
        yield counter("remote_request_failures", text, (), [((), failures)])

    def _cursors(self) -> Iterator[Metric]:
        cursors = self._server.log.cursors
        owners = [name for name in (*self._server.counters, "http") if name in CURSOR_PROTOCOLS]
        label = ("protocol",)
        yield single("subscriptions", "Durable subscriptions of all protocols.", len(cursors))
        yield from self._sessions()
        for name, text, field in (
            ("acks", "Records acknowledged by consumers.", "acknowledged"),
            ("nacks", "Records given back by consumers.", "given_back"),
            ("redeliveries", "Records delivered again.", "redelivered"),
            ("dead_letters", "Records given up and put into a dead letter topic.", "dead_letters"),
            ("subscription_records_given_up", "Records delivered as often as max_retries allows.", "given_up"),
            ("subscription_records_dropped", "Records that went beyond queue_capacity.", "dropped"),
            ("subscription_records_lost", "Records that retention or damage took before their consumer.", "lost"),
            ("subscriptions_expired", "Subscriptions removed because nobody used them.", "expired"),
        ):
            yield counter(name, text, label, [((owner,), getattr(cursors.totals(owner), field)) for owner in owners])
        unacked, lag = self.cursors.unacked, self.cursors.lag
        text = "Records delivered and not acknowledged, of all subscriptions."
        yield gauge("unacked_records", text, label, [((owner,), unacked.get(owner, 0)) for owner in owners])
        owners = [name for name in (*self._server.counters, "http") if name in LAG_PROTOCOLS]
        text = "Records that wait in the subscription that is furthest behind."
        yield gauge("subscription_lag_records_max", text, label, [((owner,), lag.get(owner, 0)) for owner in owners])
        text = "Time since the oldest record was appended that waits for a subscription."
        seconds = [((owner,), self.cursors.lag_s.get(owner, 0.0)) for owner in owners]
        yield gauge("subscription_lag_seconds_max", text, label, seconds)

    def _sessions(self) -> Iterator[Metric]:
        found = [(name, services.sessions) for name, services in self._server.services.items()]
        label = ("protocol",)

        def each(value: Callable[[Sessions[Any, Any]], float]) -> list[tuple[Sequence[str], float]]:
            return [((name,), value(sessions)) for name, sessions in found if sessions is not None]

        text = "Sessions that clients can resume."
        yield gauge("sessions", text, label, each(lambda sessions: len(sessions)))
        text = "Bytes of their messages that were not acknowledged."
        yield gauge("sessions_stored_bytes", text, label, each(lambda sessions: sessions.stored_bytes))
        text = "Sessions made."
        yield counter("sessions_registered", text, label, each(lambda sessions: sessions.registered))
        text = "Sessions resumed with messages to send again."
        yield counter("sessions_replayed", text, label, each(lambda sessions: sessions.replays))
        text = "Sessions removed because nobody resumed them."
        yield counter("sessions_expired", text, label, each(lambda sessions: sessions.expired))


def lmdb_figures(state: StateStore, index: Index) -> dict[str, dict[str, int]]:
    """Figures of the LMDB environments by name; a state that is not in LMDB has none."""
    found = {"index": index.info()}
    if isinstance(state, LmdbState):
        found["state"] = state.info()
    return found


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """What ``/metrics/topics`` tells of one partition."""

    topic: str
    partition: int
    size_bytes: int
    first_offset: int
    next_offset: int
    records: int


@dataclass(slots=True)
class GroupFacts:
    """What ``/metrics/topics`` tells of one group; ``seconds`` None: not known."""

    labels: tuple[str, str, str]
    records: int = 0
    seconds: float | None = None


class TopicCollector(Collector):
    """Series per topic from facts gathered before, so that a thread may render them."""

    def __init__(
        self, facts: list[PartitionFacts], other_bytes: int, families: Sequence[str], groups: Sequence[GroupFacts] = ()
    ) -> None:
        self._groups = groups
        self._facts = facts
        self._other_bytes = other_bytes
        self._families = {family.removeprefix(PREFIX) for family in families}

    def collect(self) -> Iterator[Metric]:
        """The wanted families."""
        labels = ("topic", "partition")
        sources: tuple[tuple[str, str, Callable[[PartitionFacts], float]], ...] = (
            ("topic_bytes", "Bytes of a partition's segment files.", lambda fact: fact.size_bytes),
            ("topic_first_offset", "First offset that can be read.", lambda fact: fact.first_offset),
            ("topic_next_offset", "Offset that the next record will have, or more.", lambda fact: fact.next_offset),
            ("topic_records_ever", "Records that it has had since it was made, at most.", lambda fact: fact.records),
        )
        for name, text, value in sources:
            if self._families and name not in self._families:
                continue
            samples: list[tuple[Sequence[str], float]] = [
                ((fact.topic, str(fact.partition)), value(fact)) for fact in self._facts
            ]
            if name == "topic_bytes" and self._other_bytes:
                samples.append(((OTHER, ""), self._other_bytes))
            yield gauge(name, text, labels, samples)
        of_group = ("protocol", "group", "topic")
        if not self._families or "group_lag_records" in self._families:
            records = [(group.labels, group.records) for group in self._groups]
            yield gauge("group_lag_records", "Records that wait for a group.", of_group, records)
        if not self._families or "group_lag_seconds" in self._families:
            seconds = [(group.labels, group.seconds) for group in self._groups if group.seconds is not None]
            yield gauge("group_lag_seconds", "Age of the oldest record that waits for a group.", of_group, seconds)


class Metrics:
    """Everything that is scraped of one server."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self.collector = ServerCollector(server)
        self._one_at_a_time = asyncio.Lock()  # anybody may ask, also a hundred at once
        self._registry = CollectorRegistry()
        self._registry.register(self.collector)
        ProcessCollector(registry=self._registry)

    async def render(self) -> bytes:
        """The content of ``/metrics``."""
        engine = self._server.log
        loop = asyncio.get_running_loop()
        self.collector.lmdb = await loop.run_in_executor(None, lmdb_figures, engine.state, engine.index)
        async with self._one_at_a_time:
            await self.collector.stored.measure()
            await self.collector.cursors.measure()
            return generate_latest(self._registry)

    async def render_topics(self, matches: Callable[[str], object], families: Sequence[str]) -> bytes:
        """The content of ``/metrics/topics``: partitions that are open, of topics whose name matches."""
        facts: list[PartitionFacts] = []
        other_bytes = 0
        topics: set[str] = set()
        log = self._server.log
        async for partition in sliced(log.slices, log.known_partitions()):
            name = partition.topic.name.decode("utf-8", "backslashreplace")
            if not partition.is_open or not matches(name):
                continue
            size_bytes = partition.committed_end + sum(segment.size_bytes for segment in partition.sealed)
            if name not in topics and len(topics) >= METRICS_TOPICS:
                other_bytes += size_bytes
                continue
            topics.add(name)
            log_start, last = partition.log_start, partition.committed_seq
            records = partition.gaps.count(1, last).most
            facts.append(PartitionFacts(_label(name), partition.index, size_bytes, log_start, last + 1, records))
        registry = CollectorRegistry()
        groups = await group_facts(log, matches)
        registry.register(TopicCollector(facts, other_bytes, families, groups))
        return await asyncio.get_running_loop().run_in_executor(None, generate_latest, registry)


async def group_facts(log: Log, matches: Callable[[str], object]) -> list[GroupFacts]:
    """The lag of groups of topics whose name matches; of those beyond `METRICS_GROUPS` together, as ``_other``."""
    found: dict[tuple[str, str, str], GroupFacts] = {}
    async for key, standing in sliced(log.slices, log.cursors.lags.standings()):
        waiting = log.cursors.lags.waiting(standing) if standing is not None else None
        if standing is None or waiting is None or standing.owner not in LAG_PROTOCOLS:
            continue
        topic = waiting.partition.topic
        name = topic.name.decode("utf-8", "backslashreplace")
        if not matches(name):
            continue
        if waiting.records is None:
            open_for_next_time(waiting.partition)
            continue
        labels = standing.owner, _label(_group_name(log, key)), _label(name)
        if labels not in found and len(found) >= METRICS_GROUPS:
            labels = OTHER, OTHER, OTHER
        fact = found.setdefault(labels, GroupFacts(labels))
        fact.records += waiting.records
        if labels[0] != OTHER and waiting.partition.is_open:
            seconds = (await lag_then(log, key, standing)).seconds
            fact.seconds = max(fact.seconds or 0.0, seconds) if seconds is not None else fact.seconds
    return list(found.values())


def _group_name(log: Log, key: Key) -> str:
    """The name of a group by one of its positions."""
    if isinstance(key, tuple):
        return key[0]
    entry = log.cursors.entry(key) if isinstance(key, int) else None
    return entry.name.decode("utf-8", "backslashreplace") if entry is not None and entry.name else str(key)


def _label(name: str) -> str:
    """A topic's name without control characters: the page is looked at on terminals, too."""
    if name.isprintable():
        return name
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)
