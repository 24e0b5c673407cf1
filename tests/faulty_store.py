"""An object store in memory, and one that fails as object stores and networks do, by a seed."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from engine.errors import TooLarge
from engine.remote.store import Absent, Bytes, Denied, Described, Refused, Request, Stored, StoreError, Unclear

WRITES = ("put_if_absent", "put_if_match", "delete")


class MemoryStore:
    """Objects in memory. Equal content has an equal tag, as on S3; the clock goes on by one with each write."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.modified: dict[str, int] = {}
        self.clock_ms = 0

    def put_if_absent(self, name: str, content: Bytes) -> str:
        if name in self.objects:
            raise Refused(f"{name} is there")
        return self._put(name, content)

    def put_if_match(self, name: str, content: Bytes, tag: str) -> str:
        if self.objects.get(name, (b"", ""))[1] != tag:
            raise Refused(f"{name} has another tag")
        return self._put(name, content)

    def get(self, name: str, size_max: int) -> Stored:
        found = Stored(*self._found(name))
        if len(found.content) > size_max:
            raise TooLarge(name, size_max)
        return found

    def get_range(self, name: str, begin: int, end: int) -> bytes:
        return self._found(name)[0][begin:end]

    def describe(self, name: str) -> Described:
        content, tag = self._found(name)
        return Described(name, len(content), tag, self.modified[name])

    def list_below(self, folder: str) -> list[Described]:
        return [self.describe(name) for name in sorted(self.objects) if name.startswith(folder)]

    def delete(self, name: str) -> None:
        self.objects.pop(name, None)

    def _put(self, name: str, content: Bytes) -> str:
        self.clock_ms += 1
        tag = hashlib.md5(content, usedforsecurity=False).hexdigest()
        self.objects[name] = bytes(content), tag
        self.modified[name] = self.clock_ms
        return tag

    def _found(self, name: str) -> tuple[bytes, str]:
        if name not in self.objects:
            raise Absent(name)
        return self.objects[name]


@dataclass(frozen=True, slots=True)
class Faults:
    """How often what happens; the rest is as it should be."""

    conflict: float = 0.04
    """409 to a write, and nothing is done."""
    busy: float = 0.03
    """503, and nothing is done."""
    gone: float = 0.06
    """No answer; a write may arrive much later."""
    lost: float = 0.06
    """Done, and the answer is lost."""
    twice: float = 0.04
    """A write arrives twice, and the second answer is what the writer sees."""
    copy: float = 0.04
    """Done, and a copy of the write arrives again much later."""
    stale: float = 0.05
    """A list is that of the last time."""
    expired: float = 0.01
    """The credentials have run out."""
    arrival: float = 0.25
    """Something that was late arrives before a request."""


QUIET = Faults(0, 0, 0, 0, 0, 0, 0, 0, 0)


class FaultyStore(MemoryStore):
    """A store behind a network that loses, doubles and delays; `calls` counts what happened."""

    def __init__(self, random: Random, faults: Faults | None = None) -> None:
        super().__init__()
        self.random = random
        self.faults = faults or Faults()
        self.late: list[Request] = []
        self.calls: Counter[str] = Counter()
        self._lists: dict[str, list[Described]] = {}

    def ask(self, request: Request) -> Any:
        """The answer, or an error that a store may give."""
        if self.late and self.random.random() < self.faults.arrival:
            self.arrive(self.late.pop(self.random.randrange(len(self.late))))
        kind = self._kind(request.call)
        self.calls[kind] += 1
        if kind in ("busy", "expired", "conflict"):
            raise {"busy": Unclear, "expired": Denied, "conflict": Refused}[kind](kind)
        if kind == "gone" and request.call in WRITES:
            self.late.append(request)
        if kind == "gone":
            raise Unclear(kind)
        if kind in ("lost", "twice"):
            self.arrive(request)
        if kind == "lost":
            raise Unclear(kind)
        if kind == "copy":
            self.late.append(request)
        return self._answer(request, kind == "stale")

    def arrive(self, request: Request) -> None:
        """A request comes that nobody waits for."""
        try:
            getattr(MemoryStore, request.call)(self, *request.arguments)
        except StoreError:
            self.calls["late and refused"] += 1

    def calm(self) -> None:
        """All that is late arrives, and nothing fails from now on."""
        while self.late:
            self.arrive(self.late.pop())
        self.faults = QUIET

    def _kind(self, call: str) -> str:
        draw = self.random.random()
        more = ("twice", "copy", "conflict")[: 0 if call not in WRITES else 2 if call == "delete" else 3]
        for name in ("expired", "busy", "gone", "lost", "stale", *more):
            draw -= getattr(self.faults, name)
            if draw < 0:
                return name
        return "done"

    def _answer(self, request: Request, is_stale: bool) -> Any:
        answer = getattr(MemoryStore, request.call)(self, *request.arguments)
        if request.call == "list_below":
            folder = request.arguments[0]
            found, self._lists[folder] = self._lists.get(folder, []) if is_stale else answer, answer
            return found
        return answer


class Asked:
    """A `FaultyStore` as code sees a store."""

    def __init__(self, store: FaultyStore) -> None:
        self.store = store

    def __getattr__(self, call: str) -> Any:
        return lambda *arguments: self.store.ask(Request(call, arguments))


def without(faults: Faults, *names: str) -> Faults:
    """Faults, some of them never."""
    return replace(faults, **dict.fromkeys(names, 0.0))
