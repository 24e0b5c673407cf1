"""Whether a store can do what all of this rests on. Asked before the first write, since some that say so cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Barrier

from engine.remote.limits import PROBE_RACERS
from engine.remote.names import PROBE
from engine.remote.store import Described, ObjectStore, Refused, StoreError

_CONTENT_MAX = 64


class Unfit(StoreError):
    """The store does something that would lose records."""


def probe(store: ObjectStore, nonce: str) -> None:
    """Tries conditional writes and reads after them, on objects that are removed again.

    Raises:
        Unfit: it does not do what it has to, named in a sentence.
        Unclear, Denied: it could not be found out.
    """
    folder = f"{PROBE}{nonce}/"
    try:
        _one_after_the_other(store, folder)
        _at_once(store, folder)
    finally:
        with suppress(StoreError):
            for found in store.list_below(folder):
                store.delete(found.name)


def _one_after_the_other(store: ObjectStore, folder: str) -> None:
    name = f"{folder}one"
    first = store.put_if_absent(name, b"first")
    with _refused("makes an object that is there already"):
        store.put_if_absent(name, b"again")
    second = store.put_if_match(name, b"second", first)
    with _refused("overwrites an object by the tag of what it was before"):
        store.put_if_match(name, b"stale", first)
    with _refused("overwrites an object that is not there"):
        store.put_if_match(f"{folder}none", b"none", first)
    if second == first:
        raise Unfit("the store gives different contents the same tag")
    if store.get(name, _CONTENT_MAX) != (b"second", second) or store.get_range(name, 1, 4) != b"eco":
        raise Unfit("the store does not show what was written last")
    if [(found.name, found.size_bytes, found.tag) for found in store.list_below(folder)] != [(name, 6, second)]:
        raise Unfit("the store does not list what was written last")


def _at_once(store: ObjectStore, folder: str) -> None:
    """Some have one winner only as long as nobody else asks at the same time."""
    name = f"{folder}race"
    _race(store, name, "made", lambda content: store.put_if_absent(name, content))
    found: Described = store.describe(name)
    _race(store, name, "moved on", lambda content: store.put_if_match(name, content, found.tag))


def _race(store: ObjectStore, name: str, what: str, write: Callable[[bytes], str]) -> None:
    contents = [f"{what} by {number}".encode() for number in range(PROBE_RACERS)]
    begin = Barrier(PROBE_RACERS)

    def won(content: bytes) -> bool:
        begin.wait()
        try:
            write(content)
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(PROBE_RACERS) as pool:
        winners = [content for content, first in zip(contents, pool.map(won, contents), strict=True) if first]
    if len(winners) != 1 or store.get(name, _CONTENT_MAX).content != winners[0]:
        raise Unfit(f"{len(winners)} of {PROBE_RACERS} writers at once were told that they were first")


@contextmanager
def _refused(what: str) -> Iterator[None]:
    try:
        yield
    except Refused:
        return
    raise Unfit(f"the store {what}")
