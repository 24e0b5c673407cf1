"""Transactions of Kafka's producers: who is in one, and what became of the last one of each transactional id.

A producer that names itself (its transactional id) gets a number and an epoch. Who comes later with the same name gets
a higher epoch, and the one before is fenced: nothing of it is taken any more. Of each name is known::

    idle -> open        the first partition or group is added; on disk before it is answered
    open -> committed   records, offsets of groups and this outcome become durable in one commit of the log
    open -> aborted     by its producer; or with a higher epoch: its time is over, a new one comes, the server has ended

Records and offsets are in memory until the commit, so nobody sees any of them, and one that was open when the server
ended is lost: it is found as open at the next start, and fenced, so that what was added after that is not committed
without what came before. One whose end was not answered is found as what it is.

Keys and values, with H = BLAKE2b-128 of the name in UTF-8::

    n/ H  ->  [name, producer id, epoch, epoch before it or -1, is open, outcome, timeout ms, time of the log in ms]

Names that nobody has used for a week are forgotten.
"""

from __future__ import annotations

import hashlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from engine.errors import EngineError
from engine.limits import TRANSACTION_PARTITIONS_MAX
from engine.state.store import Delete, Put
from netserver.admin.slices import sliced

from .appending import new_producer_id, room_bytes_of
from .committed import Committed, Offsets, Place
from .errors import Code
from .gathering import Gathered, Sequence, pack, size_of_offset
from .limits import (
    EPOCH_MAX,
    IDS_FORGOTTEN_MAX,
    IDS_KEPT_MS,
    IDS_LOOK_S,
    IDS_MAX,
    PLACE_BYTES,
    SEQUENCES_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_OFFSETS_MAX,
    TRANSACTIONS_BYTES_MAX,
)
from .waiting import durable, opened

if TYPE_CHECKING:
    import asyncio

    from engine.commit.transactions import Transaction
    from engine.log import Log
    from engine.state.store import OnDone
    from netserver.shell.counters import Counters

    from .checking import Records

log = logging.getLogger("quintlog.kafka")

PREFIX: Final = b"n/"
NONE, COMMITTED, ABORTED = 0, 1, 2


class TransactionError(Exception):
    """Why a request of a transaction is not carried out."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


class Stored(NamedTuple):
    """What is on disk of a name."""

    producer: int
    epoch: int
    epoch_before: int
    """What the producer had that was given this one in its place; -1: another one got it, or nobody."""
    is_open: bool
    outcome: int
    timeout_ms: int
    time_ms: int


class Named:
    """A transactional id.

    Attributes:
        open: its transaction, if it is in one.
        is_busy: a change of it is on its way to the disk.
        sequences: how far its producer has counted.
    """

    def __init__(self, name: str, stored: Stored) -> None:
        self.name = name
        self.stored = stored
        self.open: Gathered | None = None
        self.is_busy = False
        self.sequences: dict[Place, Sequence] = {}


def key_of(name: str) -> bytes:
    """Where the state has it."""
    return PREFIX + hashlib.blake2b(name.encode(), digest_size=16).digest()


def _put(name: str, stored: Stored) -> Put:
    return Put(key_of(name), [name, *stored])


class Transactions:
    """Those of all producers. Owner's thread only.

    Attributes:
        size_bytes: of all open ones.
        ended: how many ended, by how.
    """

    def __init__(self, engine: Log, loop: asyncio.AbstractEventLoop, offsets: Offsets, counters: Counters) -> None:
        self._log = engine
        self._loop = loop
        self._offsets = offsets
        self._counters = counters
        self._named: dict[str, Named] = {}
        self._by_group: dict[str, set[Named]] = {}
        self._looked_s = 0.0
        self._sequences = 0  # that are known, at most
        self.size_bytes = 0
        self.ended = {"committed": 0, "aborted": 0, "timed out": 0}
        lost: list[Put] = []
        for _, value in engine.state.scan(PREFIX, lambda error: log.error("a transactional id is lost: %s", error)):
            name, stored = value[0], Stored(*value[1:])
            if stored.is_open:
                stored = self._fenced(stored)
                lost.append(_put(name, stored))
            self._named[name] = Named(name, stored)
        if lost:
            engine.state.submit(lost)

    # --- names

    def get(self, name: str, producer: int, epoch: int) -> Named:
        """The name of a producer. Raises TransactionError: it is not this producer's, or not any more."""
        one = self._named.get(name)
        if one is None or one.stored.producer != producer or producer < 0:
            raise TransactionError(Code.UNKNOWN_PRODUCER)
        if one.stored.epoch != epoch:
            raise TransactionError(Code.OLD_EPOCH)
        return one

    def _idle(self, name: str, producer: int, epoch: int) -> Named:
        one = self.get(name, producer, epoch)
        if one.is_busy:
            raise TransactionError(Code.CONCURRENT_TRANSACTIONS)
        return one

    async def init(self, name: str, timeout_ms: int, producer: int, epoch: int) -> Stored:
        """Give a producer a number and an epoch; the one that had the name before is fenced.

        Args:
            producer, epoch: what it has got before; -1: nothing.

        Raises:
            TransactionError; EngineError: it cannot be kept now.
        """
        self._check_state()
        self._forget_unused()
        one = self._named.get(name)
        now_ms = self._log.now_ms()
        if one is None:
            if len(self._named) >= IDS_MAX:
                raise TransactionError(Code.POLICY)
            one = self._named[name] = Named(name, Stored(-1, -1, -1, False, NONE, timeout_ms, now_ms))
        if one.is_busy:
            raise TransactionError(Code.CONCURRENT_TRANSACTIONS)
        known = one.stored
        if producer >= 0 and known.producer >= 0 and (producer, epoch) != known[:2]:
            if (producer, epoch) == (known.producer, known.epoch_before) and one.open is None:
                return known  # it comes again: the answer was lost
            raise TransactionError(Code.OLD_EPOCH)
        outcome = known.outcome if one.open is None else ABORTED
        stored = Stored(known.producer, known.epoch + 1, epoch if producer >= 0 else -1, False, outcome, timeout_ms,
                        now_ms)  # fmt: skip
        if known.producer < 0 or stored.epoch > EPOCH_MAX:
            stored = stored._replace(producer=new_producer_id(), epoch=0, epoch_before=-1)
        await durable(partial(self._init, one, stored))
        return stored

    def _init(self, one: Named, stored: Stored, on_done: OnDone) -> None:
        if one.open is not None:  # whatever becomes of the change, it is not committed any more
            self._end(one, "aborted")
            one.stored = one.stored._replace(outcome=ABORTED)

        def done(error: EngineError | None) -> None:
            if error is None:
                one.sequences.clear()
            elif one.stored.producer < 0:
                self._named.pop(one.name, None)
            on_done(error)

        self._store(one, stored, done)

    def _store(self, one: Named, stored: Stored, on_done: OnDone) -> None:
        """Keep this of a name; until it is on disk nothing else happens to it."""
        one.is_busy = True

        def done(error: EngineError | None) -> None:
            one.is_busy = False
            if error is None:
                one.stored = stored
            on_done(error)

        self._log.state.submit([_put(one.name, stored)], done)

    def _check_state(self) -> None:
        """Nothing can be kept until a restart, and one whose commit was under way may be committed: nobody knows.

        Raises:
            EngineError.
        """
        if self._log.state.error is not None:
            raise self._log.state.error.again()

    def _forget_unused(self) -> None:
        """Forget names that nobody has used for long; looked for once in a while."""
        now_s = self._loop.time()
        if now_s - self._looked_s < IDS_LOOK_S:
            return
        self._looked_s = now_s
        before_ms = self._log.now_ms() - IDS_KEPT_MS
        old = [
            one.name
            for one in self._named.values()
            if one.open is None and not one.is_busy and one.stored.time_ms < before_ms
        ][:IDS_FORGOTTEN_MAX]
        for name in old:
            del self._named[name]
        if old:
            self._log.state.submit([Delete(key_of(name)) for name in old])

    # --- an open one

    async def add(
        self, name: str, producer: int, epoch: int, places: list[Place] | None = None, group: str | None = None
    ) -> None:
        """Partitions that the transaction will have records of, or a group that it will have offsets of; the first ones
        begin it. Raises TransactionError; EngineError: it cannot begin now."""
        one = self._idle(name, producer, epoch)
        if one.open is None:
            await durable(partial(self._begin, one))
            one = self._idle(name, producer, epoch)
        gathered = one.open
        if gathered is None:  # its time is over already
            raise TransactionError(Code.INVALID_TXN_STATE)
        more = [place for place in places or () if place not in gathered.partitions]
        size_bytes = PLACE_BYTES * len(more)
        if group is not None and group not in gathered.groups:
            size_bytes += PLACE_BYTES + len(group.encode())
        self._grow(gathered, size_bytes)
        gathered.partitions.update(more)
        if group is not None:
            gathered.groups.add(group)
            self._by_group.setdefault(group, set()).add(one)

    def _begin(self, one: Named, on_done: OnDone) -> None:
        self._check_state()

        def done(error: EngineError | None) -> None:
            if error is None:
                one.open = Gathered()
                one.open.timer = self._loop.call_later(one.stored.timeout_ms / 1000, self._time_is_over, one)
            on_done(error)

        self._store(one, one.stored._replace(is_open=True, time_ms=self._log.now_ms()), done)

    def _grow(self, gathered: Gathered, size_bytes: int) -> None:
        """Raises TransactionError: it is too large, or all together are."""
        if (
            gathered.size_bytes + size_bytes > TRANSACTION_BYTES_MAX
            or self.size_bytes + size_bytes > TRANSACTIONS_BYTES_MAX
        ):
            raise TransactionError(Code.LIST_TOO_LARGE)
        gathered.size_bytes += size_bytes
        self.size_bytes += size_bytes

    def gather(self, name: str, place: Place, records: Records) -> None:
        """Take records of a partition; a batch that comes again is taken once. Raises TransactionError."""
        one = self._idle(name, records.producer_id, records.producer_epoch)
        gathered = one.open
        if gathered is None or place not in gathered.partitions:
            raise TransactionError(Code.INVALID_TXN_STATE)
        if gathered.failed is not None:
            raise TransactionError(gathered.failed)
        sequence = one.sequences.get(place) or Sequence()
        if sequence.has(records):
            return
        if not sequence.follows(records) and not gathered.is_earlier(place, records):
            gathered.missing[place] = records.first_sequence  # it may come again, behind what it has overtaken
            raise TransactionError(Code.OUT_OF_SEQUENCE)
        try:
            if place not in gathered.records and len(gathered.records) >= TRANSACTION_PARTITIONS_MAX:
                raise TransactionError(Code.LIST_TOO_LARGE)
            self._grow(gathered, room_bytes_of(records))
        except TransactionError as error:
            gathered.failed = error.code
            raise
        gathered.take(place, records, sequence)
        if place not in one.sequences:
            one.sequences[place] = sequence
            self._sequences += 1
            if self._sequences > SEQUENCES_MAX:
                self._forget_sequences()

    def _forget_sequences(self) -> None:
        """Forget how far those have counted that are in no transaction; some have been forgotten meanwhile."""
        for one in self._named.values():
            if one.open is None:
                one.sequences.clear()
        self._sequences = sum(len(one.sequences) for one in self._named.values())

    def may_have_offsets(self, name: str, producer: int, epoch: int, group: str) -> Gathered:
        """The transaction of a producer, which has this group. Raises TransactionError."""
        gathered = self._idle(name, producer, epoch).open
        if gathered is None or group not in gathered.groups:
            raise TransactionError(Code.INVALID_TXN_STATE)
        return gathered

    def gather_offsets(self, gathered: Gathered, group: str, places: dict[Place, Committed]) -> None:
        """Take offsets of a group. Raises TransactionError: they are too many."""
        if gathered.offset_count + len(places) > TRANSACTION_OFFSETS_MAX or not self._offsets.has_room(len(places)):
            raise TransactionError(Code.TOO_MANY_OFFSETS)
        self._grow(gathered, sum(size_of_offset(group, one) for one in places.values()))
        gathered.offsets.setdefault(group, {}).update(places)

    def has_offsets(self, group: str, place: Place) -> bool:
        """Whether an open transaction has an offset of a group: what is committed may soon be another one."""
        return any(
            place in one.open.offsets.get(group, ()) for one in self._by_group.get(group, ()) if one.open is not None
        )

    # --- its end

    async def end(self, name: str, producer: int, epoch: int, *, commit: bool) -> None:
        """Commit or abort. The same again changes nothing, another end is refused.

        Raises:
            TransactionError; EngineError: not now, it stays open.
        """
        one = self._idle(name, producer, epoch)
        gathered = one.open
        self._check_state()
        if gathered is None:
            if one.stored.outcome != (COMMITTED if commit else ABORTED):
                raise TransactionError(Code.INVALID_TXN_STATE)
        elif not commit:
            await durable(partial(self._abort, one))
        elif gathered.failed is not None or gathered.missing:
            raise TransactionError(Code.INVALID_TXN_STATE)
        else:
            await self._commit(one, gathered)

    def _abort(self, one: Named, on_done: OnDone) -> None:
        assert one.open is not None
        self._let_go(one.open)
        if one.open.failed is not None or one.open.missing:  # its producer may go on with those, or behind them
            one.sequences.clear()
        one.open.failed = Code.INVALID_TXN_STATE

        def done(error: EngineError | None) -> None:
            if error is None:
                self._end(one, "aborted")
            on_done(error)
            self._end_if_late(one)

        self._store(one, one.stored._replace(is_open=False, outcome=ABORTED, time_ms=self._log.now_ms()), done)

    async def _commit(self, one: Named, gathered: Gathered) -> None:
        one.is_busy = True
        transaction = self._log.transaction()
        try:
            for place, records in gathered.records.items():
                topic = self._log.catalog.by_id(place[0])
                if topic is not None and not topic.deleting:  # else they would be gone by now
                    partition = self._log.partition(topic, place[1])
                    await opened(partition)
                    async for _ in sliced(self._log.slices, pack(transaction, partition, records, self._log.now_ms())):
                        pass
        except BaseException:
            one.is_busy = False
            self._end_if_late(one)
            raise
        await durable(partial(self._commit_packed, one, gathered, transaction))

    def _commit_packed(self, one: Named, gathered: Gathered, transaction: Transaction, on_done: OnDone) -> None:
        stored = one.stored._replace(is_open=False, outcome=COMMITTED, time_ms=self._log.now_ms())
        puts, kept = [_put(one.name, stored)], []
        for group, places in gathered.offsets.items():
            more, keep = self._offsets.prepared(group, places)
            puts += more
            kept.append(keep)
        records = sum(batch.count for batches in gathered.records.values() for batch in batches)
        size_bytes = transaction.size_bytes

        def done(error: EngineError | None) -> None:
            transaction.rollback()  # lets go of its records
            one.is_busy = False
            if error is None:
                one.stored = stored
                for keep in kept:
                    keep()
                self._counters.records_published += records
                self._counters.published_bytes += size_bytes
                self._end(one, "committed")
            on_done(error)
            self._end_if_late(one)

        if transaction.partitions:
            transaction.also = tuple(puts)
            transaction.commit(done)
        else:
            self._log.state.submit(puts, done)

    def _let_go(self, gathered: Gathered) -> None:
        """Nothing of it is wanted any more."""
        self.size_bytes -= gathered.size_bytes
        gathered.size_bytes = 0
        gathered.records, gathered.offsets = {}, {}

    def _end(self, one: Named, how: str) -> None:
        gathered, one.open = one.open, None
        assert gathered is not None
        assert gathered.timer is not None
        gathered.timer.cancel()
        self._let_go(gathered)
        for group in gathered.groups:
            found = self._by_group[group]
            found.discard(one)
            if not found:
                del self._by_group[group]
        self.ended[how] += 1

    def _time_is_over(self, one: Named) -> None:
        assert one.open is not None
        one.open.is_late = True
        self._end_if_late(one)

    def _end_if_late(self, one: Named) -> None:
        if one.open is None or not one.open.is_late or one.is_busy:
            return
        if self._log.context.is_closed or self._log.state.error is not None:
            return  # a start does the same
        log.info("the transaction of %r is aborted: it took longer than %d ms", one.name, one.stored.timeout_ms)
        self._end(one, "timed out")
        one.stored = self._fenced(one.stored)
        one.sequences.clear()
        self._log.state.submit([_put(one.name, one.stored)])  # if that fails it stays open there, as after a crash

    def _fenced(self, stored: Stored) -> Stored:
        return stored._replace(
            epoch=stored.epoch + 1, epoch_before=-1, is_open=False, outcome=ABORTED, time_ms=self._log.now_ms()
        )
