"""Patterns of topics in a SUBSCRIBE of version 2: tokens between dots, ``*`` for one, ``>`` at the end for one or more.

A pattern is taken apart once. Patterns with wildcards in the same places have one shape; a topic's name is looked up
once a shape, not compared with each pattern, so that a new topic costs little beside many thousands of patterns.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from netserver.blipmq.codec import PayloadError
from netserver.blipmq.limits import PATTERN_TOKENS_MAX

Entry = TypeVar("Entry")


class Shape(NamedTuple):
    """Where the wildcards are.

    Attributes:
        size: tokens of a topic, at least so many if ``is_open``.
        is_open: it ends with ``>``.
        places: of the tokens that have to be equal.
    """

    size: int
    is_open: bool
    places: tuple[int, ...]

    def tokens_at(self, tokens: list[bytes]) -> Any:
        """The tokens that have to be equal; None: the topic has too few or too many for this shape."""
        if len(tokens) != self.size and not (self.is_open and len(tokens) > self.size):
            return None
        return itemgetter(*self.places)(tokens) if self.places else ()


class Pattern:
    """One pattern.

    Raises:
        PayloadError: it has too many tokens
    """

    __slots__ = ("_beginning", "_ending", "shape", "wanted")

    def __init__(self, text: bytes) -> None:
        tokens = text.split(b".", PATTERN_TOKENS_MAX)
        if len(tokens) > PATTERN_TOKENS_MAX:
            raise PayloadError("the pattern has too many tokens")
        is_open = tokens[-1] == b">"
        fixed = tokens[:-1] if is_open else tokens
        places = tuple(place for place, token in enumerate(fixed) if token != b"*")
        self.shape = Shape(len(tokens), is_open, places)
        self.wanted = self.shape.tokens_at(tokens)
        first = next((place for place, token in enumerate(fixed) if token == b"*"), len(fixed))
        self._beginning = b"".join(token + b"." for token in tokens[: min(first, len(tokens) - 1)])
        self._ending = b"" if is_open or tokens[-1] == b"*" else b"." * (len(tokens) > 1) + tokens[-1]

    def matches(self, name: bytes) -> bool:
        """Whether it stands for the topic of this name."""
        return (
            name.startswith(self._beginning)
            and name.endswith(self._ending)
            and self.shape.tokens_at(tokens_of(name)) == self.wanted
        )


class PatternIndex(Generic[Entry]):
    """Patterns, each with something that belongs to it."""

    def __init__(self) -> None:
        self._shapes: dict[Shape, dict[Any, dict[Entry, None]]] = {}

    def add(self, pattern: Pattern, entry: Entry) -> None:
        """``entry`` is found for each topic that the pattern stands for."""
        self._shapes.setdefault(pattern.shape, {}).setdefault(pattern.wanted, {})[entry] = None

    def remove(self, pattern: Pattern, entry: Entry) -> None:
        """No longer; one that is not there is fine."""
        found = self._shapes.get(pattern.shape, {})
        entries = found.get(pattern.wanted, {})
        entries.pop(entry, None)
        if found and not entries:
            found.pop(pattern.wanted, None)
            if not found:
                del self._shapes[pattern.shape]

    def find(self, name: bytes) -> list[Entry]:
        """What belongs to the patterns that stand for this topic."""
        tokens = tokens_of(name)
        found: list[Entry] = []
        for shape, patterns in self._shapes.items():
            wanted = shape.tokens_at(tokens)
            if wanted is not None and wanted in patterns:
                found += patterns[wanted]
        return found


def tokens_of(name: bytes) -> list[bytes]:
    """The tokens of a topic's name, as many as a pattern can tell apart: the last one of very many has the rest."""
    return name.split(b".", PATTERN_TOKENS_MAX)


def is_pattern(topic: bytes) -> bool:
    """Whether a topic of a SUBSCRIBE stands for several."""
    if b"*" not in topic:
        return topic == b">" or topic.endswith(b".>")
    tokens = topic.split(b".")
    return b"*" in tokens or tokens[-1] == b">"
