"""Lines of the JSON streaming protocol: bytes to requests on the server's side, bytes to messages on the client's.

One JSON text per line, UTF-8, LF between the lines; CR and other JSON white space around it mean nothing. What a side
writes is compact, with this order of keys:

====== ==================== ==================================================================================
server stateless value      ``{"data":"1232"}``
server stateful value       ``{"id":1,"data":{"value":652847386}}``, the last one with ``"crc"`` after the value
server record of a topic    ``{"id":1,"data":{"offset":17,"timestamp":1795822592000,"key":"k","value":"v"}}``
server error                ``{"error":"Unknown client 'x'"}``; non-ASCII characters are written as they are
client stateless            ``{}`` or ``{"state":"616"}``
client new session          ``{"uuid":"...","params":{"count":5}}`` or ``{"topic":"orders","offset":16}`` there
client resume, acknowledge  ``{"uuid":"...","state":3}``, ``{"uuid":"...","ack":16}``
====== ==================== ==================================================================================

Unknown fields are ignored. Which request a line is, is decided by which fields are there, whatever they hold: ``uuid``
makes it stateful, and then ``ack`` goes before ``params`` before ``state``. Numbers stay text until they are known to
be short, because turning a long one into an integer takes quadratic time.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

from netserver.reliably.limits import (
    COUNT_MAX,
    DEPTH_MAX,
    ID_MAX,
    LINE_BYTES_MAX,
    LONG_LINE_BYTES_MAX,
    NUMBER_CHARACTERS_MAX,
    OFFSET_MAX,
    STATE_DIGITS_MAX,
    UUID_BYTES_MAX,
)


class RequestError(Exception):
    """A line is not a request that the protocol allows.

    Attributes:
        text: what goes into the error message for the peer.
        kind: short fixed word for metrics.
    """

    def __init__(self, text: str, kind: str = "malformed") -> None:
        super().__init__(text)
        self.text = text
        self.kind = kind


class AnswerError(Exception):
    """A line from the server is not a message of the protocol; the text says why."""


@dataclass(frozen=True, slots=True)
class StatelessRequest:
    """Start a stateless stream (``state`` None), or go on after the value with these decimal digits."""

    state: str | None


@dataclass(frozen=True, slots=True)
class NumbersParams:
    """Parameters of a stream of ``count`` numbers (1..65535)."""

    count: int


@dataclass(frozen=True, slots=True)
class TopicParams:
    """Parameters of a stream of a topic's records.

    Attributes:
        topic: name, as UTF-8.
        offset: the records after this number; "earliest" or "latest": what that is at the start of the session.
        count: how many records, or None: follow the topic without end.
    """

    topic: bytes
    offset: int | str
    count: int | None


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Make session ``uuid`` (again, if it is there already)."""

    uuid: str
    params: NumbersParams | TopicParams


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """Go on with session ``uuid`` after message ``id``, which this acknowledges."""

    uuid: str
    id: int


@dataclass(frozen=True, slots=True)
class AckRequest:
    """Everything up to message ``id`` of session ``uuid`` has arrived."""

    uuid: str
    id: int


Request: TypeAlias = StatelessRequest | StartRequest | ResumeRequest | AckRequest


@dataclass(frozen=True, slots=True)
class Message:
    """A message from the server; ``id`` is None in a stateless stream, where ``data`` is the text of a number."""

    id: int | None
    data: Any


@dataclass(frozen=True, slots=True)
class ErrorMessage:
    """The server's last word."""

    text: str


class _Number(str):
    """The text of a JSON number."""

    __slots__ = ()


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_no_constant)
_ANSWER_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
# a string, even one that never ends (else each quote in it would be tried again), or a bracket
_BRACKETS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_DIGITS: Final = re.compile(r"-?[0-9]+", re.ASCII)
_LONG_STATE: Final = re.compile(
    rb'[ \t\r]*\{[ \t\r]*"state"[ \t\r]*:[ \t\r]*(?:"(-?[0-9]+)"|(-?(?:0|[1-9][0-9]*)))[ \t\r]*\}[ \t\r]*'
)


_LONG_STATE_START: Final = re.compile(rb'[ \t\r]*\{[ \t\r]*"state"[ \t\r]*:[ \t\r]*"?-?[0-9]')


# --- server


def may_be_long(start: bytes) -> bool:
    """Whether a line that begins like this may become longer than LINE_BYTES_MAX."""
    return _LONG_STATE_START.match(start) is not None


def parse_request(line: bytes) -> Request:
    """The request of one line (without its line feed).

    Raises:
        RequestError: it is not JSON, not an object, or its fields are not what the protocol allows.
    """
    if len(line) > LINE_BYTES_MAX:
        return _long_request(line)
    fields = _decode(line)
    if "uuid" not in fields:
        return StatelessRequest(_state_digits(fields["state"]) if "state" in fields else None)
    uuid = _uuid(fields["uuid"])
    if "ack" in fields:
        return AckRequest(uuid, _integer(fields["ack"], "ack", 0, ID_MAX))
    if "params" in fields:
        return StartRequest(uuid, _params(fields["params"]))
    if "state" in fields:
        return ResumeRequest(uuid, _integer(fields["state"], "state", 0, ID_MAX))
    raise RequestError("A message with a uuid needs params, state or ack")


def error_line(text: str) -> bytes:
    """The message that tells the peer why its stream ends. Text that UTF-8 cannot hold is replaced."""
    return b'{"error":%s}\n' % _ENCODER.encode(text).encode("utf-8", "replace")


def stateless_line(digits: str) -> bytes:
    """One value of a stateless stream, given as its decimal digits."""
    return b'{"data":"%s"}\n' % digits.encode("ascii")


def json_text(text: str) -> str:
    """``text`` as a JSON string, with quotes; only what JSON demands is escaped."""
    return _ENCODER.encode(text)


def _decode(line: bytes) -> dict[str, Any]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise RequestError("Invalid JSON: not UTF-8", "not_json") from None
    _check_depth(text)
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        raise RequestError("Invalid JSON", "not_json") from None
    if not isinstance(value, dict):
        raise RequestError("A message has to be a JSON object")
    return value


def _check_depth(text: str) -> None:
    """The parser is recursive, so depth is counted first; few brackets cannot be deep."""
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return
    depth = 0
    for token in _BRACKETS.finditer(text):
        first = text[token.start()]
        if first in "[{":
            depth += 1
            if depth > DEPTH_MAX:
                raise RequestError("Invalid JSON: nested too deeply", "not_json")
        elif first != '"':
            depth -= 1


def _long_request(line: bytes) -> Request:
    match = _LONG_STATE.fullmatch(line) if len(line) <= LONG_LINE_BYTES_MAX else None
    if match is None:
        raise RequestError("Line too long", "line_size")
    return StatelessRequest(_check_digits((match[1] or match[2]).decode("ascii")))


def _check_digits(digits: str) -> str:
    if len(digits) > STATE_DIGITS_MAX:
        raise RequestError("Number too long", "line_size")
    return digits


def _state_digits(value: object) -> str:
    """The text of a stateless ``state``: a string of digits, or a JSON integer."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return _check_digits(str(value))
    if isinstance(value, _Number) and (number := _whole(value)) is not None:
        return str(number)
    raise RequestError("Invalid state: a decimal integer is expected")


def _uuid(value: object) -> str:
    if not isinstance(value, str) or isinstance(value, _Number) or not value:
        raise RequestError("Invalid uuid: a string is expected")
    if len(_utf8(value, "uuid")) > UUID_BYTES_MAX:
        raise RequestError("Invalid uuid: too long")
    return value


def _utf8(value: str, name: str) -> bytes:
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        raise RequestError(f"Invalid {name}: half of a surrogate pair") from None


def _params(value: object) -> NumbersParams | TopicParams:
    if not isinstance(value, dict):
        raise RequestError("Invalid params: an object is expected")
    if "topic" not in value:
        return NumbersParams(_integer(value.get("count"), "count", 1, COUNT_MAX))
    topic = value["topic"]
    if not isinstance(topic, str) or isinstance(topic, _Number) or not topic:
        raise RequestError("Invalid topic: a string is expected")
    offset = value.get("offset")
    if offset not in ("earliest", "latest"):
        offset = _integer(offset, "offset", 0, OFFSET_MAX)
    count = _integer(value["count"], "count", 1, OFFSET_MAX) if "count" in value else None
    return TopicParams(_utf8(topic, "topic"), offset, count)


def _integer(value: object, name: str, minimum: int, maximum: int) -> int:
    """A JSON number that is an integer (2.0 is one) within bounds."""
    number = _whole(value) if isinstance(value, _Number) else None
    if number is None or not minimum <= number <= maximum:
        raise RequestError(f"Invalid {name}: an integer from {minimum} to {maximum} is expected")
    return number


def _whole(text: _Number) -> int | None:
    if len(text) > NUMBER_CHARACTERS_MAX:
        return None
    if _DIGITS.fullmatch(text):
        return int(text)
    number = float(text)
    return int(number) if math.isfinite(number) and number.is_integer() else None


# --- client


def stateless_request(state: str | None) -> bytes:
    """The line that starts a stateless stream, or goes on after the value ``state``."""
    return b"{}\n" if state is None else b'{"state":"%s"}\n' % state.encode("ascii")


def start_request(uuid: str, params: dict[str, Any]) -> bytes:
    """The line that makes a session."""
    return b"%s\n" % _ENCODER.encode({"uuid": uuid, "params": params}).encode("utf-8")


def resume_request(uuid: str, message_id: int) -> bytes:
    """The line that goes on with a session after a message."""
    return b'{"uuid":%s,"state":%d}\n' % (_ENCODER.encode(uuid).encode("utf-8"), message_id)


def ack_request(uuid: str, message_id: int) -> bytes:
    """The line that acknowledges everything up to a message."""
    return b'{"uuid":%s,"ack":%d}\n' % (_ENCODER.encode(uuid).encode("utf-8"), message_id)


def parse_answer(line: bytes) -> Message | ErrorMessage:
    """The message of one line from the server (without its line feed).

    Raises:
        AnswerError: it is not a message of the protocol.
    """
    try:
        value = _ANSWER_DECODER.decode(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"the server's line is not JSON: {line[:80]!r}") from error
    if not isinstance(value, dict):
        raise AnswerError(f"the server's line is not an object: {line[:80]!r}")
    if "error" in value:
        return ErrorMessage(str(value["error"]))
    message_id = value.get("id")
    if "data" not in value or isinstance(message_id, bool) or not isinstance(message_id, int | None):
        raise AnswerError(f"the server's line is not a message: {line[:80]!r}")
    return Message(message_id, value["data"])
