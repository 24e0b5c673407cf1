"""Random schedules of several primaries over a hostile object store, with the code that decides about writes.

Each writer takes itself for the primary whenever it likes: that acknowledged records stay must not depend on clocks.
Partition 0 of the topic is acknowledged when the head has it; of partition 1 numbers are given out, and acknowledged,
before anything is stored, up to `ahead` above what the head has. `run` goes through one schedule and says what broke.
`CONTROLS` are defects, each in one step: some schedule has to break with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

from engine.remote import writes
from engine.remote.catalog import Catalog, ObjectRef, Page, PartitionKey, Tail, joined, pack_page, unpack_page
from engine.remote.head import Head
from engine.remote.names import CATALOG, HEAD, PIECES, Versioned
from engine.remote.piece import Piece, Section, pack_piece, piece_ref, unpack_piece
from engine.remote.store import Absent, Denied, ObjectStore, Refused, Request, Steps, Stored, StoreError, Unclear, ask
from engine.remote.writes import Fenced, HeadLost, HeadWriter
from tests.faulty_store import Faults, FaultyStore

LINEAGE = "0" * 32
STORED, LOCAL = PartitionKey(1, 0), PartitionKey(1, 1)
AHEAD = 4
ATTEMPTS = 6
WRITERS = 3
ANY_AGE_MS = 1 << 60
STEPS = ("create", "stored_copy", "replace_head", "head_now", "read_head", "take_over", "successor_tails", "orphans")
"""What of `engine.remote.writes` the model goes through, by name."""


@dataclass(slots=True)
class World:
    """What the writers told others."""

    random: Random
    control: str = ""
    acknowledged: list[tuple[PartitionKey, int, bytes]] = field(default_factory=list)
    unique: Iterator[int] = field(default_factory=lambda: count(1))

    def new(self) -> int:
        """A number that was not there before, in the place of a random one."""
        return next(self.unique)

    def write(self) -> str:
        """The id of a write."""
        return f"{self.new():032x}"

    def nonce(self) -> int:
        """Of a name."""
        return 0 if self.control == "names without a nonce" else self.new()


@dataclass(slots=True)
class Primary:
    """One reign of one writer."""

    world: World
    owner: str
    writer: HeadWriter
    waiting: list[bytes] = field(default_factory=list)
    """Records of the local partition that were acknowledged and are not stored."""

    @property
    def head(self) -> Head:
        assert self.writer.head is not None
        return self.writer.head

    def begin(self) -> Steps[None]:
        """Takes the head, or makes the first one; afterwards no earlier primary can write."""
        found = yield from writes.read_head(ATTEMPTS)
        if found is None:
            tails = {key: Tail(self.world.new(), 1, 0, 0) for key in (STORED, LOCAL)}
            first = Head(
                LINEAGE, 1, 1, 1, self.world.write(), self.owner, "", 0, 1000, False, AHEAD, recent=Catalog(tail=tails)
            )
            yield from self.writer.commit(first, ATTEMPTS)
            return
        self.writer = HeadWriter(*found)
        if self.world.control == "give out numbers before the fence":
            self.give_out()
        yield from writes.take_over(self.writer, self.owner, "", self.world.write(), ATTEMPTS)
        pages = yield from self.pages()
        new = writes.successor_tails(
            joined((*pages, self.head.recent)), AHEAD, lambda key: key == STORED, self.world.new
        )
        yield from self.move(recent=joined((self.head.recent, new)))

    def pages(self) -> Steps[list[Catalog]]:
        """The pages that the head names."""
        found = []
        for ref in self.head.catalog:
            stored: Stored = yield from ask("get", str(ref.name), 1 << 20)
            found.append(unpack_page(stored.content, str(ref.name)).catalog)
        return found

    def move(self, **changes: Any) -> Steps[None]:
        """Writes the next head."""
        version = self.head.version + 1
        after = replace(self.head, version=version, write=self.world.write(), **changes)
        yield from self.writer.commit(after, ATTEMPTS)

    def give_out(self) -> None:
        """A record of the local partition: acknowledged at once, as long as its number may be given out."""
        if len(self.waiting) < AHEAD:
            record = b"local %d" % self.world.new()
            self.waiting.append(record)
            number = self.head.recent.tail[LOCAL].committed + len(self.waiting)
            self.world.acknowledged.append((LOCAL, number, record))

    def commit(self) -> Steps[None]:
        """Stores a record and what waits, as one piece and one head."""
        record = b"stored %d" % self.world.new()
        local, tails = tuple(self.waiting), self.head.recent.tail
        parts = {STORED: (record,)} | ({LOCAL: local} if local else {})
        sections, data, new = [], [], dict(tails)
        for key, records in parts.items():
            tail, content = tails[key], b"\n".join(records)
            end, last = tail.position + len(content), tail.committed + len(records)
            sections.append(Section(*key, tail.segment, tail.position, end, tail.committed + 1, last))
            data.append(content)
            new[key] = replace(tail, committed=last, position=end)
        name = Versioned(PIECES, self.head.epoch, self.head.version + 1, self.world.nonce())
        piece = Piece(LINEAGE, name, tuple(sections), tuple(data))
        content = pack_piece(piece)
        number = new[STORED].committed
        try:
            yield from writes.create(str(name), content, self.world.random.choice((1, 2, ATTEMPTS)))
        except Unclear:
            return  # the same records go into another piece
        if self.world.control == "acknowledge before the head":
            self.world.acknowledged.append((STORED, number, record))
        recent = replace(self.head.recent, tail=new, pieces=(*self.head.recent.pieces, piece_ref(piece, content)))
        yield from self.move(recent=recent)
        del self.waiting[: len(local)]
        self.world.acknowledged.append((STORED, number, record))

    def fold(self) -> Steps[None]:
        """Puts what the head says into a page; it goes on with the tails."""
        name = Versioned(CATALOG, self.head.epoch, self.head.version + 1, self.world.new())
        recent = self.head.recent
        content = pack_page(Page(LINEAGE, self.head.epoch, self.head.version + 1, recent))
        yield from writes.create(str(name), content, ATTEMPTS)
        page = ObjectRef(name, len(content), "0" * 16)
        yield from self.move(catalog=(*self.head.catalog, page), recent=Catalog(tail=recent.tail))

    def collect(self) -> Steps[None]:
        """Deletes what no head can name."""
        pages = yield from self.pages()
        whole = joined((*pages, self.head.recent))
        named = frozenset(str(ref.name) for ref in (*self.head.catalog, *whole.pieces))
        for folder in (PIECES, CATALOG):
            listed = yield from ask("list_below", folder)
            for orphan in writes.orphans(listed, named, self.head.epoch, ANY_AGE_MS):
                yield from ask("delete", orphan)


def writer(world: World, owner: str) -> Steps[None]:
    """Takes itself for the primary again and again."""
    while True:
        primary = Primary(world, owner, HeadWriter())
        try:
            yield from primary.begin()
            for _ in range(world.random.randint(1, 5)):
                for _ in range(world.random.randrange(3)):
                    primary.give_out()
                draw = world.random.random()
                yield from primary.collect() if draw < 0.2 else primary.fold() if draw < 0.3 else primary.commit()
        except (Fenced, HeadLost, Unclear, Denied, Absent):
            yield Request("pause", (1,))


def run(seed: int, control: str = "", faults: Faults | None = None) -> tuple[str | None, int]:
    """One schedule: what broke (None: nothing), and how many records were acknowledged."""
    random = Random(seed)
    store = FaultyStore(random, faults)
    world = World(random, control)
    writers = [writer(world, name) for name in "XYZ"]
    wanted = [next(steps) for steps in writers]
    stuck = [0] * WRITERS
    try:
        for step in range(random.randint(30, 160)):
            # Bursts: one runs while the others hang, as a paused machine does.
            index = random.randrange(WRITERS) if step % 40 > 5 else seed % WRITERS
            if random.random() < 0.03:
                stuck[index] = step + random.randint(5, 60)
            if stuck[index] <= step:
                wanted[index] = answered(store.ask, writers[index], wanted[index])
        store.calm()
        return broken(world, store), len(world.acknowledged)
    except writes.Taken as error:
        return str(error), len(world.acknowledged)
    finally:
        for steps in writers:
            steps.close()


def answered(ask: Callable[[Request], Any], steps: Steps[None], request: Request) -> Request:
    """The next request of a writer, whose last one is answered now."""
    answer: Any = None
    if request.call != "pause":
        try:
            answer = ask(request)
        except StoreError as error:
            answer = error
    return steps.send(answer)


def log_of(store: ObjectStore) -> tuple[dict[tuple[PartitionKey, int], bytes], Catalog]:
    """All records by partition and number, as a reader finds them, and the whole catalog. Raises Absent, ValueError."""
    try:
        head = Head.unpack(store.get(HEAD, 1 << 20).content)
    except Absent:
        return {}, Catalog()
    pages = [unpack_page(store.get(str(ref.name), 1 << 20).content, str(ref.name)).catalog for ref in head.catalog]
    whole = joined((*pages, head.recent))
    found: dict[tuple[PartitionKey, int], bytes] = {}
    for ref in whole.pieces:
        piece = unpack_piece(store.get(str(ref.name), 1 << 20).content, str(ref.name), LINEAGE)
        for section, data in zip(piece.sections, piece.data, strict=True):
            for number, record in enumerate(bytes(data).split(b"\n"), section.first):
                key = PartitionKey(section.topic, section.partition), number
                if key in found:
                    raise ValueError(f"number {key} is stored twice")
                found[key] = record
    return found, whole


def broken(world: World, store: ObjectStore) -> str | None:
    """What is not as it has to be: a record or a number."""
    try:
        log, whole = log_of(store)
    except (Absent, ValueError) as error:
        return f"the log cannot be read: {error}"
    given: dict[tuple[PartitionKey, int], bytes] = {}
    for key, number, record in world.acknowledged:
        if given.setdefault((key, number), record) != record:
            return f"number {number} of {key} was given to two records"
        stored = log.get((key, number))
        if stored == record:
            continue
        is_told = any(lost.key == key and lost.first <= number <= lost.last for lost in whole.lost)
        is_ahead = key in whole.tail and number > whole.tail[key].committed
        if stored is not None or key == STORED or not (is_told or is_ahead):
            return f"{record!r} was acknowledged as {number}; the log has {stored!r}"
    return None


# --- defects ---


def _overwrite(content: bytes, tag: str | None, attempts: int) -> Steps[str]:
    """Takes whatever tag the head has now."""
    for _ in range(attempts):
        found = yield from writes.head_now()
        current = found.tag if isinstance(found, Stored) else None
        try:
            if current is None:
                written: str = yield from ask("put_if_absent", HEAD, content)
            else:
                written = yield from ask("put_if_match", HEAD, content, current)
            return written
        except (Refused, Unclear):
            continue
    raise Unclear("overwrite")


def _believe(content: bytes, tag: str | None, attempts: int) -> Steps[str]:
    """No answer counts as a good one."""
    try:
        return (yield from REAL["replace_head"](content, tag, 1))
    except Unclear:
        return "believed"


def _exists(name: str, content: bytes, attempts: int) -> Steps[str]:
    """A refusal is believed to be of one's own earlier attempt."""
    try:
        tag: str = yield from ask("put_if_absent", name, content)
        return tag
    except Refused:
        return "believed"


def _any_copy(name: str, content: bytes) -> Steps[str | None]:
    """What has the name is taken for one's own."""
    try:
        yield from ask("describe", name)
        return "believed"
    except (Absent, Unclear):
        return None


def _old_head(attempts: int) -> Steps[Any]:
    """Starts from a head without being able to tell it from a later one."""
    found = yield from REAL["read_head"](attempts)
    return None if found is None else (replace(found[0], recent=Catalog(tail=found[0].recent.tail)), found[1])


def _no_gap(catalog: Catalog, ahead: int, is_remote: Any, new_id: Callable[[], int]) -> Catalog:
    """Numbers go on after the stored ones though later ones were given out."""
    return REAL["successor_tails"](catalog, ahead, lambda key: True, new_id)  # type: ignore[no-any-return]


def _collect_all(listed: Any, named: frozenset[str], epoch: int, older_than_ms: int) -> list[str]:
    """What a later primary has made as well."""
    return REAL["orphans"](listed, named, 1 << 32, older_than_ms)  # type: ignore[no-any-return]


REAL: dict[str, Callable[..., Any]] = {name: getattr(writes, name) for name in STEPS}
CONTROLS: dict[str, dict[str, Callable[..., Any]]] = {
    "overwrite the head": {"replace_head": _overwrite},
    "believe a lost answer": {"replace_head": _believe},
    "believe a refusal": {"create": _exists},
    "names without a nonce": {"stored_copy": _any_copy},
    "forget what the head says": {"read_head": _old_head},
    "no gap after a takeover": {"successor_tails": _no_gap},
    "collect later epochs": {"orphans": _collect_all},
    "acknowledge before the head": {},
    "give out numbers before the fence": {},
}


@contextmanager
def defect(control: str) -> Iterator[None]:
    """The code with one defect."""
    for name, wrong in CONTROLS[control].items():
        setattr(writes, name, wrong)
    try:
        yield
    finally:
        for name in CONTROLS[control]:
            setattr(writes, name, REAL[name])
