"""What becomes of a write, answer by answer; and steps gone through with a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from engine.remote import writes
from engine.remote.catalog import Catalog, Lost, PartitionKey, Tail
from engine.remote.head import Head
from engine.remote.names import HEAD
from engine.remote.store import Absent, Denied, ObjectStore, Refused, StoreError, Unclear, run
from engine.remote.writes import (
    Fenced,
    HeadLost,
    HeadWriter,
    Taken,
    create,
    orphans,
    read_head,
    replace_head,
    successor_tails,
    take_over,
)
from tests.faulty_store import Asked, Faults, FaultyStore, MemoryStore
from tests.remote_objects import head

LOST: Any = "the answer is lost"
GONE: Any = "it comes later"


class Scripted(MemoryStore):
    """A store whose answers to writes and reads are said beforehand: an error, LOST, GONE, or None for as it is."""

    def __init__(self, **script: list[Any]) -> None:
        super().__init__()
        self.script = script
        self.asked: list[str] = []
        self.late: list[Callable[[], Any]] = []

    def _scripted(self, call: str, *arguments: Any) -> Any:
        self.asked.append(call)
        real = lambda: getattr(MemoryStore, call)(self, *arguments)  # noqa: E731
        said = self.script[call].pop(0) if self.script.get(call) else None
        if said is GONE:
            self.late.append(real)
        if said is LOST:
            real()
        if said in (LOST, GONE):
            raise Unclear(said)
        if said is not None:
            raise said
        return real()

    def put_if_absent(self, *arguments: Any) -> Any:
        return self._scripted("put_if_absent", *arguments)

    def put_if_match(self, *arguments: Any) -> Any:
        return self._scripted("put_if_match", *arguments)

    def get(self, *arguments: Any) -> Any:
        return self._scripted("get", *arguments)

    def describe(self, *arguments: Any) -> Any:
        return self._scripted("describe", *arguments)


def no_wait(attempts: int) -> None:
    """For pauses."""


def refused() -> Refused:
    return Refused("412 or 409")


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        ({}, ["put_if_absent"]),
        ({"put_if_absent": [LOST]}, ["put_if_absent", "describe"]),
        ({"put_if_absent": [refused()]}, ["put_if_absent", "describe", "put_if_absent"]),
        ({"put_if_absent": [LOST], "describe": [Unclear("")]}, ["put_if_absent", "describe"] * 2),
        ({"put_if_absent": [Unclear("503"), LOST]}, ["put_if_absent", "describe"] * 2),
    ],
)
def test_an_object_is_there_in_the_end(script: dict[str, list[Any]], asked: list[str]) -> None:
    store = Scripted(**script)
    tag = run(create("pieces/x", b"content", 3), store, no_wait)
    assert store.objects == {"pieces/x": (b"content", tag)}
    assert store.asked == asked


def test_an_object_that_stays_unclear_is_not_claimed() -> None:
    waits: list[int] = []
    with pytest.raises(Unclear, match="pieces/x could not be stored in 3 attempts"):
        run(create("pieces/x", b"content", 3), Scripted(put_if_absent=[GONE, GONE, GONE]), waits.append)
    assert waits == [1, 2, 3]


@pytest.mark.parametrize("other", [b"CONTENT", b"conten", b"content and more", b""])
def test_another_object_of_the_name_is_not_ones_own(other: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "COMPARE_BYTES", 3)
    store = MemoryStore()
    store.put_if_absent("pieces/x", other)
    with pytest.raises(Taken, match="pieces/x is another object"):
        run(create("pieces/x", memoryview(b"content"), 3), store, no_wait)


def test_who_is_not_let_in_is_told_at_once() -> None:
    with pytest.raises(Denied):
        run(create("pieces/x", b"", 3), Scripted(put_if_absent=[Denied("403")]), no_wait)


HEAD_LOST = [
    ({}, ["put"]),
    ({"put": [LOST]}, ["put", "get"]),
    ({"put": [refused()]}, ["put", "get", "put"]),
    ({"put": [GONE]}, ["put", "get", "put"]),
    ({"put": [LOST], "get": [Unclear("")]}, ["put", "get"] * 2),
]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("script", "asked"), HEAD_LOST)
def test_the_head_is_written_in_the_end(first: bool, script: dict[str, list[Any]], asked: list[str]) -> None:
    put = "put_if_absent" if first else "put_if_match"
    store = Scripted(**{put if call == "put" else call: list(said) for call, said in script.items()})
    tag = None if first else MemoryStore.put_if_absent(store, HEAD, b"before")
    assert run(replace_head(b"after", tag, 3), store, no_wait) == store.objects[HEAD][1]
    assert store.objects[HEAD][0] == b"after"
    assert store.asked == [put if call == "put" else call for call in asked]


def test_a_head_that_comes_late_does_no_harm() -> None:
    store = Scripted(put_if_match=[GONE])
    tag = MemoryStore.put_if_absent(store, HEAD, b"1")
    tag = run(replace_head(b"2", tag, 3), store, no_wait)
    run(replace_head(b"3", tag, 3), store, no_wait)
    with pytest.raises(Refused):
        store.late[0]()
    assert store.objects[HEAD][0] == b"3"


@pytest.mark.parametrize("answer", [refused(), Unclear("504")])
def test_a_faster_writer_fences(answer: StoreError) -> None:
    store = Scripted(put_if_match=[answer])
    MemoryStore.put_if_absent(store, HEAD, b"another's")
    with pytest.raises(Fenced, match="moved the head on"):
        run(replace_head(b"after", "old tag", 3), store, no_wait)
    with pytest.raises(Fenced, match="moved the head on"):
        run(replace_head(b"after", None, 3), store, no_wait)


def test_a_head_that_is_gone_is_no_fence() -> None:
    with pytest.raises(HeadLost, match="the head is gone from the bucket"):
        run(replace_head(b"after", "tag", 3), MemoryStore(), no_wait)


BARE = replace(head(), catalog=(), state=None, recent=Catalog())


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (replace(BARE, epoch=3, version=8).pack(), Fenced),
        (replace(BARE, owner="two", version=8).pack(), Fenced),
        (replace(BARE, epoch=1, owner="two").pack(), HeadLost),
        (replace(BARE, version=6).pack(), HeadLost),
        (replace(BARE, lineage="d" * 32, epoch=3).pack(), HeadLost),
        (b"something else", HeadLost),
    ],
)
def test_only_another_primary_fences_and_not_what_was_put_back(content: bytes, error: type[StoreError]) -> None:
    store = MemoryStore()
    writer = HeadWriter()
    run(writer.commit(head(), 1), store, no_wait)
    store.delete(HEAD)
    MemoryStore.put_if_absent(store, HEAD, content)
    with pytest.raises(error):
        run(writer.commit(after(head()), 1), store, no_wait)


def test_the_head_is_read_in_the_end() -> None:
    assert run(read_head(2), MemoryStore(), no_wait) is None
    store = Scripted(get=[Unclear("")])
    tag = MemoryStore.put_if_absent(store, HEAD, head().pack())
    assert run(read_head(2), store, no_wait) == (head(), tag)
    with pytest.raises(Unclear, match="could not be read in 2 attempts"):
        run(read_head(2), Scripted(get=[Unclear(""), Unclear("")]), no_wait)


def after(before: Head, number: int = 1) -> Head:
    return replace(before, version=before.version + 1, write=f"{number:032x}")


def test_a_writer_goes_on_only_when_it_knows() -> None:
    store = Scripted(put_if_match=[Unclear("")] * 2)
    writer = HeadWriter()
    run(writer.commit(head(), 1), store, no_wait)
    run(writer.settle(1), store, no_wait)  # nothing is unclear
    with pytest.raises(ValueError, match="cannot follow: it is not the next version"):
        run(writer.commit(head(), 1), store, no_wait)
    with pytest.raises(Unclear, match="could not be written in 1 attempts"):
        run(writer.commit(after(head()), 1), store, no_wait)
    assert writer.head == head()
    with pytest.raises(AssertionError, match="first it has to be known"):
        run(writer.commit(after(head(), 2), 1), store, no_wait)
    with pytest.raises(Unclear):
        run(writer.settle(1), store, no_wait)
    run(writer.settle(1), store, no_wait)
    assert writer.head == after(head())
    assert Head.unpack(store.objects[HEAD][0]) == writer.head


def test_a_takeover_fences_the_one_before_for_good() -> None:
    store = MemoryStore()
    old = HeadWriter()
    run(old.commit(head(), 1), store, no_wait)
    found = run(read_head(1), store, no_wait)
    assert found is not None
    new = HeadWriter(*found)
    run(take_over(new, "two", "two.example", "c" * 32, 1), store, no_wait)
    assert new.head == replace(
        head(), epoch=3, version=8, write="c" * 32, owner="two", address="two.example", beat=0, released=False
    )
    with pytest.raises(Fenced):
        run(old.commit(after(head()), 1), store, no_wait)
    store.delete(HEAD)
    for _ in range(2):
        with pytest.raises(Fenced):
            run(old.settle(1), store, no_wait)


def test_a_new_primary_takes_new_segments_and_leaves_out_what_was_given_out() -> None:
    stored, local = PartitionKey(1, 0), PartitionKey(1, 1)
    catalog = Catalog(tail={stored: Tail(5, 1, 9, 100), local: Tail(6, 1, 20, 100)})
    ids = iter([77, 78])
    assert successor_tails(catalog, 16, lambda key: key == stored, lambda: next(ids)) == Catalog(
        tail={stored: Tail(77, 10, 9, 0), local: Tail(78, 37, 36, 0)}, lost=(Lost(1, 1, 21, 36),)
    )


def test_only_what_no_head_can_name_is_an_orphan() -> None:
    store = MemoryStore()
    names = {
        "old": "pieces/0000000001-0000000000000000003-0000000000000001",
        "named": "pieces/0000000001-0000000000000000003-0000000000000002",
        "own": "pieces/0000000002-0000000000000000003-0000000000000003",
        "later": "pieces/0000000003-0000000000000000003-0000000000000003",
        "other": "pieces/something",
        "young": "pieces/0000000001-0000000000000000003-0000000000000009",
    }
    for name in names.values():
        store.put_if_absent(name, b"")
    young = store.modified[names["young"]]
    listed = store.list_below("pieces/")
    assert orphans(listed, frozenset([names["named"]]), 2, young) == [names["old"]]


def test_steps_meet_a_store_that_fails() -> None:
    """`run` hands over what a store answers and raises, as the model does."""
    store = FaultyStore(Random(3), Faults(expired=0))
    seen: ObjectStore = Asked(store)
    made = 0
    for number in range(60):
        try:
            run(create(f"pieces/{number}", b"%d" % number, 4), seen, no_wait)
        except Unclear:
            continue
        made += 1
        assert store.objects[f"pieces/{number}"][0] == b"%d" % number
    assert made > 50


def test_an_absent_object_is_told() -> None:
    with pytest.raises(Absent):
        MemoryStore().get("x", 1)
