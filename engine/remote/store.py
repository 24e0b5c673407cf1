"""What a log needs of an object store, as little as possible, and how it is asked.

A store has conditional writes and shows what was written at once. All else may go wrong: an answer may be lost, a
request may come late or twice, and a refusal may be of one's own earlier attempt. So what decides about writes
(`engine.remote.writes`) does no I/O: it is made of *steps*, generators that give requests and are sent what a store
answers or raises. `run` asks a real store; tests ask one that loses, doubles and delays.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from engine.errors import EngineError

Bytes: TypeAlias = bytes | memoryview
T = TypeVar("T")


class StoreError(EngineError):
    """What object storage did not do, or did not say that it did."""


class Absent(StoreError):
    """No object has this name."""


class Refused(StoreError):
    """The condition of a write did not hold, or so the store says: what is there decides."""


class Unclear(StoreError):
    """There was no answer, or one that the store is in trouble: a write was done or will be, or not."""


class Denied(StoreError):
    """The store does not let us in: credentials are wrong or have run out. Nothing was done."""


@dataclass(frozen=True, slots=True)
class Described:
    """An object without its content."""

    name: str
    size_bytes: int
    tag: str
    """Of this content; what conditional writes compare."""
    modified_ms: int
    """By the clock of the store."""


class Stored(NamedTuple):
    """An object's content, and its tag."""

    content: bytes
    tag: str


class ObjectStore(Protocol):
    """Objects below one prefix. Every call waits for its answer, from any thread.

    Raises (all of them): Unclear, Denied.
    """

    def put_if_absent(self, name: str, content: Bytes) -> str:
        """Makes an object; its tag. Raises Refused."""

    def put_if_match(self, name: str, content: Bytes, tag: str) -> str:
        """Overwrites the object that has this tag; the new tag. Raises Refused."""

    def get(self, name: str, size_max: int) -> Stored:
        """A whole object. Raises Absent; TooLarge: it has more than `size_max` bytes."""

    def get_range(self, name: str, begin: int, end: int) -> bytes:
        """Bytes begin..end - 1, less only at the end of the object. Raises Absent."""

    def describe(self, name: str) -> Described:
        """Raises Absent."""

    def list_below(self, folder: str) -> list[Described]:
        """The objects whose names begin with `folder`, which ends in a slash; possibly not the newest ones."""

    def delete(self, name: str) -> None:
        """Removes an object; one that is not there is fine."""


class Request(NamedTuple):
    """A call of `ObjectStore` by name, or a `pause` after so many failed attempts."""

    call: str
    arguments: tuple[Any, ...]


Steps: TypeAlias = Generator[Request, Any, T]


def ask(call: str, *arguments: Any) -> Steps[Any]:
    """What a store answers to a call; raises what it raises."""
    answer = yield Request(call, arguments)
    if isinstance(answer, StoreError):
        raise answer
    return answer


def pause(attempts: int) -> Request:
    """Asks for a while without requests, longer after more attempts."""
    return Request("pause", (attempts,))


def run(steps: Steps[T], store: ObjectStore, wait: Callable[[int], None]) -> T:
    """Goes through steps with a store; `wait` is called for each pause with the number of attempts so far.

    Raises what the steps raise, and what `wait` raises to end them.
    """
    answer: Any = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if request.call == "pause":
            wait(*request.arguments)
            answer = None
            continue
        try:
            answer = getattr(store, request.call)(*request.arguments)
        except StoreError as error:
            answer = error
