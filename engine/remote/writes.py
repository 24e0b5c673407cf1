"""How writes become certain: objects that are made once, and the head, which only one writer can move on.

The rule: an answer of success is true; anything else says nothing. 412, 409 and no answer are told apart by reading
back, never by themselves: a store that got a request twice refuses the second one, and some say 409 with nothing
stored. What is there decides: our bytes, and it was done; what was there before, and it is tried again; anything else,
and somebody else was faster. What stays unclear is neither acknowledged nor deleted, and no other head is tried until
it is known what became of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from engine.remote.catalog import Catalog, Lost, PartitionKey, Tail
from engine.remote.head import Head, is_later, problem_of_next
from engine.remote.limits import COMPARE_BYTES, HEAD_BYTES_MAX
from engine.remote.names import HEAD, parse_versioned
from engine.remote.store import Absent, Bytes, Described, Refused, Steps, Stored, StoreError, Unclear, ask, pause


class Fenced(StoreError):
    """Another writer has moved the head on: nothing more may be acknowledged by this one."""

    def __init__(self, text: str, found: bytes = b"") -> None:
        super().__init__(text)
        self.found = found
        """What is stored as the head."""


class HeadLost(StoreError):
    """The head is gone, or no primary of this lineage has written what is there: a mistake, and no other primary."""


_LOST = (
    "a lifecycle rule, or a mistake; the log goes on; to store it anew, end what did it, take a new prefix, which is "
    "empty, and restart"
)


class Taken(StoreError):
    """Another object has the name of one that was to be made; names are used once, so the store is not only ours."""


def create(name: str, content: Bytes, attempts: int) -> Steps[str]:
    """Makes an object under a name that is used once; its tag.

    Raises:
        Unclear: it is not known whether it is there, or will be. Its name must not be used again.
        Taken: another object has the name.
    """
    for attempt in range(1, attempts + 1):
        try:
            tag: str = yield from ask("put_if_absent", name, content)
            return tag
        except (Refused, Unclear):
            found = yield from stored_copy(name, content)
        if found is not None:
            return found
        yield pause(attempt)
    raise Unclear(f"{name} could not be stored in {attempts} attempts")


def stored_copy(name: str, content: Bytes) -> Steps[str | None]:
    """The tag of an object if it has this content; None: it is not there, or there was no answer. Raises Taken."""
    try:
        found: Described = yield from ask("describe", name)
        same = found.size_bytes == len(content)
        for begin in range(0, len(content), COMPARE_BYTES) if same else ():
            end = min(begin + COMPARE_BYTES, len(content))
            part: bytes = yield from ask("get_range", name, begin, end)
            same = same and part == content[begin:end]
    except (Absent, Unclear):
        return None
    if not same:
        raise Taken(f"{name} is another object")
    return found.tag


def replace_head(content: bytes, tag: str | None, attempts: int) -> Steps[str]:
    """Writes the head in the place of the one with the tag (None: there is none yet); its tag.

    Raises:
        Fenced: another one was faster. HeadLost: there is none any more.
        Unclear: it is not known whether it was, or will be, written. No other head may be tried before this one.
    """
    for attempt in range(1, attempts + 1):
        try:
            if tag is None:
                written: str = yield from ask("put_if_absent", HEAD, content)
            else:
                written = yield from ask("put_if_match", HEAD, content, tag)
            return written
        except (Refused, Unclear):
            found = yield from head_now()
        if isinstance(found, Stored):
            if found.content == content:
                return found.tag
            if found.tag != tag:
                raise Fenced("another writer has moved the head on", found.content)
        elif found is None and tag is not None:
            raise HeadLost(f"the head is gone from the bucket ({_LOST})")
        yield pause(attempt)
    raise Unclear(f"the head could not be written in {attempts} attempts")


def head_now() -> Steps[Stored | Unclear | None]:
    """The head as it is stored; None: there is none; Unclear: there was no answer."""
    try:
        found: Stored = yield from ask("get", HEAD, HEAD_BYTES_MAX)
        return found
    except Absent:
        return None
    except Unclear as error:
        return error


def read_head(attempts: int) -> Steps[tuple[Head, str] | None]:
    """The head and its tag; None: there is none. Raises Unclear; Corrupt and UnsupportedFormat as `Head.unpack`."""
    for attempt in range(1, attempts + 1):
        found = yield from head_now()
        if found is None:
            return None
        if isinstance(found, Stored):
            return Head.unpack(found.content), found.tag
        yield pause(attempt)
    raise Unclear(f"the head could not be read in {attempts} attempts")


class HeadWriter:
    """The head as one writer knows it, and the only way by which it moves the head on."""

    def __init__(self, head: Head | None = None, tag: str | None = None) -> None:
        """As `read_head` found it; None where there is none yet."""
        self.head = head
        self._tag = tag
        self._pending: tuple[Head, bytes] | None = None
        self._fenced = False

    def commit(self, after: Head, attempts: int) -> Steps[None]:
        """Makes `after` the head.

        Raises:
            ValueError: it may not follow. AssertionError: the one before is still unclear.
            Fenced: for good. HeadLost. Unclear: `settle` has to be gone through until it is known.
        """
        assert self._pending is None, "first it has to be known what became of the head before"
        if self.head is not None and (problem := problem_of_next(self.head, after)) is not None:
            raise ValueError(f"a head that cannot follow: {problem}")
        self._pending = (after, after.pack())
        yield from self.settle(attempts)

    def settle(self, attempts: int) -> Steps[None]:
        """Goes on with what is unclear, if anything is. Raises as `commit`."""
        if self._fenced:
            raise Fenced("another writer has moved the head on")
        if self._pending is None:
            return
        after, content = self._pending
        try:
            self._tag = yield from replace_head(content, self._tag, attempts)
        except Fenced as problem:
            if not is_later(problem.found, self.head):
                raise HeadLost(f"the head in the bucket is not the one that was stored ({_LOST})") from problem
            self._fenced = True
            raise
        self.head, self._pending = after, None


def take_over(writer: HeadWriter, owner: str, address: str, write: str, attempts: int) -> Steps[None]:
    """Begins the next epoch: from here on every write of an earlier primary fails. Raises as `HeadWriter.commit`."""
    before = writer.head
    assert before is not None, "there is a head to take over"
    after = replace(
        before,
        epoch=before.epoch + 1,
        version=before.version + 1,
        write=write,
        owner=owner,
        address=address,
        beat=0,
        released=False,
    )
    yield from writer.commit(after, attempts)


def successor_tails(
    catalog: Catalog, ahead: int, is_remote: Callable[[PartitionKey], bool], new_id: Callable[[], int]
) -> Catalog:
    """What the primary of a new epoch says before it takes records: a new segment for each partition.

    No byte is added to a segment of the primary before, which may still write to its own file. Where records are
    acknowledged only when they are stored here (`is_remote`), numbers go on. Elsewhere up to `ahead` numbers may have
    been given out: they are lost, and are not given out again.
    """
    tails: dict[PartitionKey, Tail] = {}
    lost: list[Lost] = []
    for key, tail in catalog.tail.items():
        first = tail.committed + 1
        if not is_remote(key):
            lost.append(Lost(*key, first, first + ahead - 1))
            first += ahead
        tails[key] = Tail(new_id(), first, first - 1, 0)
    return Catalog(tail=tails, lost=tuple(lost))


def orphans(listed: Iterable[Described], named: frozenset[str], epoch: int, older_than_ms: int) -> list[str]:
    """What the primary of an epoch may delete: named nowhere, made in an earlier epoch, and old by the store's clock.

    A primary of an earlier epoch can have nothing named any more. One of our own epoch may yet be named.
    """
    found = []
    for item in listed:
        name = parse_versioned(item.name)
        if name is None or item.name in named or item.modified_ms >= older_than_ms:
            continue
        if name.epoch < epoch:
            found.append(item.name)
    return found
