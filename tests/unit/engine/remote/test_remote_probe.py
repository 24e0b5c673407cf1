"""A store is tried before anything rests on it: each thing that one may do wrong is found."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from engine.remote.probe import Unfit, probe
from engine.remote.store import Described, Refused, Stored, Unclear
from tests.faulty_store import MemoryStore


class Locked(MemoryStore):
    """One request at a time, so that a race has one winner."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def put_if_absent(self, name: str, content: Any) -> str:
        with self.lock:
            return super().put_if_absent(name, content)

    def put_if_match(self, name: str, content: Any, tag: str) -> str:
        with self.lock:
            return super().put_if_match(name, content, tag)


class Overwrites(Locked):
    def put_if_absent(self, name: str, content: Any) -> str:
        return self._put(name, content)


class IgnoresTags(Locked):
    def put_if_match(self, name: str, content: Any, tag: str) -> str:
        return self._put(name, content)


class MakesByTag(Locked):
    def put_if_match(self, name: str, content: Any, tag: str) -> str:
        return super().put_if_match(name, content, tag) if name in self.objects else self._put(name, content)


class OneTag(Locked):
    def _put(self, name: str, content: Any) -> str:
        super()._put(name, content)
        self.objects[name] = bytes(content), str(len(self.objects[name][0]) > 6)
        return self.objects[name][1]

    def put_if_match(self, name: str, content: Any, tag: str) -> str:
        if content in (b"stale", b"none"):
            raise Refused("by chance")
        return super().put_if_match(name, content, tag)


class ShowsOld(Locked):
    def get(self, name: str, size_max: int) -> Stored:
        return Stored(b"first", super().get(name, size_max).tag)


class CutsWrong(Locked):
    def get_range(self, name: str, begin: int, end: int) -> bytes:
        return super().get_range(name, begin, end + 1)


class ListsOld(Locked):
    def list_below(self, folder: str) -> list[Described]:
        return super().list_below(folder)[:-1]


class Racing(Locked):
    """Looks first and writes afterwards, so that all are told to be first; what is kept is that of the first one."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call
        self.looked = threading.Barrier(8)

    def put_if_absent(self, name: str, content: Any) -> str:
        if self.call == "put_if_absent" and name.endswith("race"):
            return self._race(name, content)
        return super().put_if_absent(name, content)

    def put_if_match(self, name: str, content: Any, tag: str) -> str:
        if self.call == "put_if_match" and name.endswith("race"):
            return self._race(name, content)
        return super().put_if_match(name, content, tag)

    def _race(self, name: str, content: Any) -> str:
        self.looked.wait()
        return self._put(name, content) if content.endswith(b" 0") else "a tag"


class NoWinner(Locked):
    def put_if_match(self, name: str, content: Any, tag: str) -> str:
        if name.endswith("race"):
            raise Refused("always")
        return super().put_if_match(name, content, tag)


def test_a_good_store_is_fit_and_left_as_it_was() -> None:
    store = Locked()
    store.put_if_absent("head", b"")
    probe(store, "a")
    assert list(store.objects) == ["head"]


@pytest.mark.parametrize(
    ("store", "reason"),
    [
        (Overwrites(), "makes an object that is there already"),
        (IgnoresTags(), "by the tag of what it was before"),
        (MakesByTag(), "that is not there"),
        (OneTag(), "the same tag"),
        (ShowsOld(), "does not show what was written last"),
        (CutsWrong(), "does not show what was written last"),
        (ListsOld(), "does not list what was written last"),
        (Racing("put_if_absent"), "8 of 8 writers at once"),
        (Racing("put_if_match"), "8 of 8 writers at once"),
        (NoWinner(), "0 of 8 writers at once"),
    ],
)
def test_a_store_that_would_lose_records_is_unfit(store: MemoryStore, reason: str) -> None:
    with pytest.raises(Unfit, match=reason):
        probe(store, "a")


def test_what_cannot_be_found_out_is_not_fit_either() -> None:
    class Away(Locked):
        def put_if_match(self, name: str, content: Any, tag: str) -> str:
            raise Unclear("503")

        def list_below(self, folder: str) -> list[Described]:
            raise Unclear("503")

    with pytest.raises(Unclear):
        probe(Away(), "a")
