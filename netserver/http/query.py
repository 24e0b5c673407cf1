"""The parameters of a request's address. A name that is not known is refused: a misspelled one would do nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from multidict import MultiDict, MultiDictProxy, MultiMapping

from engine.formats.record import Record
from engine.positions import Position, parse
from netserver.http.errors import BadRequest
from netserver.http.limits import HTTP_CREDIT_MAX, HTTP_JSON_BYTES_MAX
from netserver.http.splitting import SPLITS
from netserver.limits import ADMIN_REQUESTS_REMEMBERED

if TYPE_CHECKING:
    from aiohttp import web

FORMATS: Final = ("jsonl", "json", "raw")
_TRUE: Final = {"true": True, "1": True, "": True, "false": False, "0": False}


def query_of(request: web.BaseRequest) -> MultiMapping[str]:
    """The parameters of a request's address; bytes that are no UTF-8 are surrogates in them, as in names."""
    return parsed(request.rel_url.raw_query_string)


@lru_cache(ADMIN_REQUESTS_REMEMBERED)
def parsed(text: str) -> MultiMapping[str]:
    """What stands behind the question mark; nobody may change it: the next request with the same gets it, too."""
    return MultiDictProxy(MultiDict(parse_qsl(text, keep_blank_values=True, errors="surrogateescape")))


class Parameters:
    """The parameters of one request; each is taken out by its name, `end` refuses what is left."""

    def __init__(self, query: MultiMapping[str]) -> None:
        self._left = dict(query)
        self._all = query

    def text(self, name: str, default: str | None = None) -> str | None:
        """As it was sent."""
        return self._left.pop(name, default)

    def texts(self, name: str) -> list[str]:
        """All of this name."""
        self._left.pop(name, None)
        return self._all.getall(name, [])

    def number(self, name: str, least: int, most: int) -> int | None:
        """A number in a range; None: not there. Raises BadRequest."""
        text = self._left.pop(name, None)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most):
            raise BadRequest(f"{name} must be a number from {least} to {most}")
        return int(text)

    def flag(self, name: str) -> bool:
        """``true`` or ``false``; absent: false. Raises BadRequest."""
        text = self._left.pop(name, "false")
        if text not in _TRUE:
            raise BadRequest(f"{name} must be true or false")
        return _TRUE[text]

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """One of some words. Raises BadRequest."""
        text = self._left.pop(name, default)
        if text not in choices:
            raise BadRequest(f"{name} must be one of {', '.join(choices)}")
        return text

    def position(self, name: str) -> Position | None:
        """See `engine.positions`; None: not there. Raises BadRequest."""
        text = self._left.pop(name, None)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise BadRequest(f"{name}={text[:40]!r}: {error}") from None

    def end(self) -> None:
        """Raises BadRequest: something is left."""
        if self._left:
            raise BadRequest(f"no such parameter: {', '.join(sorted(self._left))[:200]}")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records are wanted; None = any."""

    key: bytes | None = None
    contains: bytes | None = None
    where: tuple[tuple[tuple[str, ...], str], ...] = ()
    """(steps of a JSON pointer, text of the value that must be there)."""

    @property
    def everything(self) -> bool:
        """Whether every record passes."""
        return self == Filter()

    def passes_over(self, record: Record) -> bool:
        """Whether a value is too large for its JSON to be looked into, where nothing else keeps the record away."""
        return bool(self.where) and len(record.value) > HTTP_JSON_BYTES_MAX and replace(self, where=()).wants(record)

    def wants(self, record: Record) -> bool:
        """Whether a record passes."""
        if self.key is not None and record.any_key != self.key:
            return False
        if self.contains is not None and self.contains not in record.value:
            return False
        return not self.where or self._matches(record.value)

    def _matches(self, value: bytes) -> bool:
        if len(value) > HTTP_JSON_BYTES_MAX:
            return False
        try:
            document = json.loads(value)
        except (ValueError, RecursionError):
            return False
        return all(_pointed(document, steps) == expected for steps, expected in self.where)


def _pointed(document: Any, steps: tuple[str, ...]) -> str | None:
    """What a JSON pointer (RFC 6901) leads to, as text: strings as they are, all else as JSON."""
    for step in steps:
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list) and step.isascii() and step.isdigit() and int(step[:9]) < len(document):
            document = document[int(step[:9])]
        else:
            return None
    return document if isinstance(document, str) else json.dumps(document)


def parse_where(text: str) -> tuple[tuple[str, ...], str]:
    """``/pointer/into/json=value``. Raises ValueError."""
    pointer, equals, value = text.partition("=")
    if not equals or (pointer and not pointer.startswith("/")):
        raise ValueError(f"{text[:80]!r}: expected /pointer=value")
    steps = pointer.split("/")[1:]
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps), value


@dataclass(frozen=True, slots=True)
class Publish:
    """What a publish says beside its body; partition None: by the key, else by turns."""

    partition: int | None
    key: bytes
    split: str

    @classmethod
    @lru_cache(ADMIN_REQUESTS_REMEMBERED)
    def of(cls, query: str, split: str) -> Publish:
        """``query`` as the address has it, ``split`` as the body's type says. Raises BadRequest."""
        parameters = Parameters(parsed(query))
        made = cls(
            parameters.number("partition", 0, 2**31 - 1),
            (parameters.text("key") or "").encode("utf-8", "surrogateescape"),
            parameters.choice("split", SPLITS, split),
        )
        parameters.end()
        return made


@dataclass(frozen=True, slots=True)
class Read:
    """What a reader asks for.

    Attributes:
        partition: None: all of them.
        limit: so many records; None: no bound.
        size_bytes_max: of values; None: no bound.
        timeout_s: a follower ends after so long; None: never.
        credit: records that a WebSocket takes before it has said more.
        progress: say now and then how far a search is.
    """

    partition: int | None
    start: Position | None
    end: Position | None
    limit: int | None
    size_bytes_max: int | None
    follow: bool
    timeout_s: float | None
    form: str
    wanted: Filter
    credit: int
    progress: bool

    @property
    def is_plain(self) -> bool:
        """Every record from the start on is wanted, up to a number or a count of them."""
        return self.wanted.everything and self.size_bytes_max is None and not self.progress

    @classmethod
    def of(cls, query: MultiMapping[str], accept: str) -> Read:
        """Raises BadRequest."""
        parameters = Parameters(query)
        key, contains = parameters.text("key"), parameters.text("contains")
        try:
            wanted = Filter(_bytes(key), _bytes(contains), tuple(map(parse_where, parameters.texts("where"))))
        except ValueError as error:
            raise BadRequest(f"where={error}") from None
        timeout_ms = parameters.number("timeout_ms", 0, 2**40)
        made = cls(
            parameters.number("partition", 0, 2**31 - 1),
            parameters.position("from"),
            parameters.position("to"),
            parameters.number("limit", 1, 2**62),
            parameters.number("bytes", 1, 2**62),
            parameters.flag("follow"),
            None if timeout_ms is None else timeout_ms / 1000,
            parameters.choice("format", FORMATS, _form_of(accept)),
            wanted,
            parameters.number("credit", 0, HTTP_CREDIT_MAX) or 0,
            parameters.flag("progress"),
        )
        parameters.end()
        if made.form == "json" and made.follow:
            raise BadRequest("a JSON document has an end: follow=true needs format=jsonl or raw")
        if made.form != "jsonl" and made.progress:
            raise BadRequest("progress=true needs format=jsonl")
        return made


def _form_of(accept: str) -> str:
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    if "application/octet-stream" in kinds:
        return "raw"
    return "json" if "application/json" in kinds else "jsonl"


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")
