"""Reading of whole objects: each is compared with what names it, and blocks of the next ones are under way meanwhile.

What is missing, shorter, longer or other than its name in the head or in a page says is `Corrupt`, with the object's
name. An answer that does not come is asked for again for a while.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from operator import itemgetter
from types import TracebackType
from typing import NamedTuple, Self, TypeAlias, TypeVar

import xxhash

from engine.errors import Corrupt
from engine.remote.catalog import ObjectRef, SealedSegment
from engine.remote.limits import READ_ATTEMPTS, READ_BLOCK_BYTES, READ_PAUSE_S, READ_REQUESTS
from engine.remote.store import Absent, ObjectStore, Unclear

T = TypeVar("T")
OnBytes: TypeAlias = Callable[[int], None]
Wait: TypeAlias = Callable[[float], object]


class Wanted(NamedTuple):
    """An object as it has to be."""

    name: str
    size_bytes: int
    hash: str
    """xxh3-64, 16 hexadecimal digits."""

    @classmethod
    def of(cls, ref: ObjectRef | SealedSegment) -> Wanted:
        """What a head or a page says of it."""
        name = str(ref.name) if isinstance(ref, ObjectRef) else ref.path
        return cls(name, ref.size_bytes, ref.hash)


class Objects:
    """Objects of one bucket.

    Raises (its methods): Corrupt, with the object's name; Unclear, Denied.
    """

    def __init__(self, store: ObjectStore, on_bytes: OnBytes = lambda _: None, wait: Wait | None = None) -> None:
        """`on_bytes` is told how much more was read."""
        self.store = store
        self._on_bytes = on_bytes
        self._ended = threading.Event()
        self._wait = wait or self._ended.wait
        self._pool = ThreadPoolExecutor(READ_REQUESTS, thread_name_prefix="quintlog-read")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._pool.shutdown(cancel_futures=True)

    def patiently(self, ask: Callable[[], T]) -> T:
        """What `ask` gives, asked again while there is no answer."""
        for attempt in range(READ_ATTEMPTS - 1):
            try:
                return ask()
            except Unclear:
                if self._ended.is_set():
                    raise
                self._wait(READ_PAUSE_S * 2**attempt)
        return ask()

    def whole(self, wanted: Wanted) -> bytes:
        """An object that fits into memory."""
        return b"".join(self._checked(wanted, self._blocks([wanted])))

    def each(self, wanted: Iterable[Wanted]) -> Iterator[tuple[Wanted, Iterator[bytes]]]:
        """Several, one after the other, each in blocks; the last step of it raises Corrupt when it is another one.
        What is not read of an object is left out."""
        for item, blocks in groupby(self._blocks(wanted), key=itemgetter(0)):
            yield item, self._checked(item, blocks)

    def _blocks(self, wanted: Iterable[Wanted]) -> Iterator[tuple[Wanted, Future[bytes]]]:
        jobs = ((item, begin) for item in wanted for begin in range(0, item.size_bytes, READ_BLOCK_BYTES))
        under_way: deque[tuple[Wanted, Future[bytes]]] = deque()
        for item, begin in jobs:
            under_way.append((item, self._pool.submit(self._block, item, begin)))
            if len(under_way) == READ_REQUESTS:
                yield under_way.popleft()
        yield from under_way

    def _block(self, item: Wanted, begin: int) -> bytes:
        end = min(begin + READ_BLOCK_BYTES, item.size_bytes)
        try:
            content = self.patiently(lambda: self.store.get_range(item.name, begin, end))
        except Absent as error:
            raise Corrupt(item.name, None, "the object is missing from the bucket") from error
        if len(content) != end - begin:
            raise Corrupt(
                item.name, begin + len(content), f"the object is cut short, it should have {item.size_bytes} bytes"
            )
        return content

    def _checked(self, item: Wanted, blocks: Iterable[tuple[Wanted, Future[bytes]]]) -> Iterator[bytes]:
        digest = xxhash.xxh3_64()
        for _, block in blocks:
            content = block.result()
            digest.update(content)
            self._on_bytes(len(content))
            yield content
        if digest.hexdigest() != item.hash:
            raise Corrupt(item.name, None, "the object is damaged (checksum)")
