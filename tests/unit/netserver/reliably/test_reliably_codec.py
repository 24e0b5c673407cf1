"""Requests and messages of the JSON streaming protocol: what is accepted, what is refused, what hostile input costs."""

from __future__ import annotations

import contextlib
import json

import pytest

from netserver.reliably import codec
from netserver.reliably.codec import (
    AckRequest,
    AnswerError,
    ErrorMessage,
    Message,
    NumbersParams,
    Request,
    RequestError,
    ResumeRequest,
    StartRequest,
    StatelessRequest,
    TopicParams,
    parse_answer,
    parse_request,
)
from netserver.reliably.limits import DEPTH_MAX, LINE_BYTES_MAX, LONG_LINE_BYTES_MAX, STATE_DIGITS_MAX
from netserver.reliably.stateless import StatelessStream
from netserver.reliably.values import random_start
from tests.cpu import cpu_seconds

pytestmark = pytest.mark.checked


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        (b"{}", StatelessRequest(None)),
        (b' \t{ "hello" : [1, {"a": NULL}] }'.replace(b"NULL", b"null"), StatelessRequest(None)),
        (b'{"state":"616"}\r', StatelessRequest("616")),
        (b'{"state":"-3","colour":"red","data":{"x":[1,null]}}', StatelessRequest("-3")),
        (b'{"state":7}', StatelessRequest("7")),
        (b'{"state":-7.0}', StatelessRequest("-7")),
        (b'{"state":"007"}', StatelessRequest("007")),
        (b'{"state":%s}' % (b"7" * 5000), StatelessRequest("7" * 5000)),
        (b'{"uuid":"42","params":{"count":5}}', StartRequest("42", NumbersParams(5))),
        (b'{"uuid":"42","params":{"count":2.0,"x":1}}', StartRequest("42", NumbersParams(2))),
        (b'{"uuid":"42","params":{"count":6.5535e4}}', StartRequest("42", NumbersParams(65535))),
        (
            b'{"uuid":"\\u0041\\ud83d\\ude00","params":{"count":1}}',
            StartRequest("A\U0001f600", NumbersParams(1)),
        ),
        (b'{"uuid":"u","state":3}', ResumeRequest("u", 3)),
        (b'{"uuid":"u","state":0}', ResumeRequest("u", 0)),
        (b'{"uuid":"u","state":-0}', ResumeRequest("u", 0)),
        (b'{"uuid":"u","ack":4294967295}', AckRequest("u", 4294967295)),
        (b'{"uuid":"u","state":3,"params":{"count":1},"ack":16}', AckRequest("u", 16)),
        (b'{"uuid":"u","state":"junk","params":{"count":1}}', StartRequest("u", NumbersParams(1))),
        (b'{"uuid":"u","state":1,"state":2}', ResumeRequest("u", 2)),
        (b'{"uuid":"u","params":{"topic":"t","offset":0}}', StartRequest("u", TopicParams(b"t", 0, None))),
        (
            b'{"uuid":"u","params":{"topic":"\\u00e9","offset":9007199254740993,"count":3}}',
            StartRequest("u", TopicParams("é".encode(), 9007199254740993, 3)),
        ),
        (
            b'{"uuid":"u","params":{"topic":"t","offset":"latest"}}',
            StartRequest("u", TopicParams(b"t", "latest", None)),
        ),
    ],
)
def test_accepted(line: bytes, request_: Request) -> None:
    assert parse_request(line) == request_


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello",
        b"{",
        b"'a'",
        b'{"a":1}}',
        b'{"a":1} {}',
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        b'{"state":NaN}',
        b'{"state":Infinity}',
        b'{"x":-Infinity}',
        b'{"state":01}',
        b'{"state":1_0}',
        b'{"state":"a\nb"}',
        b'{"a":\x0b1}',
        b'{"state":"\xc0\xaf"}',
        b'{"\xed\xa0\x80":1}',
        b"[" * 40 + b"]" * 40,
        b'{"x":' * (DEPTH_MAX + 1) + b"1" + b"}" * (DEPTH_MAX + 1),
        b"[" * (LINE_BYTES_MAX - 2),
    ],
)
def test_not_json(line: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(line)
    assert caught.value.kind == "not_json"
    assert caught.value.text.startswith("Invalid JSON")


@pytest.mark.parametrize(
    "line",
    [
        *(b"null", b"5", b"[]", b"true", b'"a"'),
        *(
            b'{"state":%s}' % state
            for state in (
                *(b"null", b'""', b'"abc"', b'"1.5"', b"1.5", b'{"a":1}', b'"12x"', b'"1_000"', b'"--3"', b"1e999"),
                *(b'"0x10"', b'" 12 "', b"true", b"[7]", '"٣"'.encode(), b'"12\\n"', b'"+1"', b'"-"'),
            )
        ),
        *(b'{"uuid":%s,"state":1}' % uuid for uuid in (b'""', b"0", b"5", b"null", b"true", b"[]", b'"\\ud800"')),
        b'{"uuid":"%s","state":1}' % (b"x" * 256),
        b'{"uuid":"u"}',
        *(b'{"uuid":"u","state":%s}' % n for n in (b"-1", b"4294967296", b'"3"', b"1.5", b"null", b"true", b"1e99")),
        *(b'{"uuid":"u","ack":%s}' % n for n in (b"-1", b"4294967296", b'"3"', b"1.5", b"null", b"{}")),
        *(b'{"uuid":"u","params":%s}' % params for params in (b"null", b"true", b"[5]", b'"x"', b"{}")),
        *(
            b'{"uuid":"u","params":{"count":%s}}' % n
            for n in (b"0", b"-1", b"65536", b"1000000000", b'"3"', b"2.5", b"true", b"null", b"1e999", b"9" * 60000)
        ),
        *(
            b'{"uuid":"u","params":{"topic":%s}}' % rest
            for rest in (
                *(b'""', b"5", b'"t"', b'"t","offset":-1', b'"t","offset":"first"', b'"t","offset":true'),
                *(b'"t","offset":9223372036854775808', b'"t","offset":0,"count":0', b'"t","offset":0,"count":null'),
                b'"\\udc00","offset":0',
            )
        ),
    ],
)
def test_refused(line: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(line)
    assert caught.value.kind == "malformed"
    json.loads(codec.error_line(caught.value.text))


def test_depth_is_counted_outside_of_strings() -> None:
    assert parse_request(b'{"x":"' + b"[" * 5000 + b'"}') == StatelessRequest(None)
    assert parse_request(b'{"x":"' + b'\\"[' * 5000 + b'"}') == StatelessRequest(None)
    assert parse_request(b'{"x":[' + b"[]," * 5000 + b"1]}") == StatelessRequest(None)
    deepest = b'{"x":' + b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1) + b"}"
    assert parse_request(deepest) == StatelessRequest(None)


@pytest.mark.parametrize(
    "line",
    [
        b'{"x":"' + b'\\"[' * 21000,  # a string that never ends
        b'"[' * 32000,
        b'{"x":' * 13000,
        b'{"x":[' + b"1," * 32000 + b"1]}",
        b'{"x":' + b"9" * 65000 + b"}",
        b'{"state":"' + b"9" * (STATE_DIGITS_MAX + 1) + b'"}',
        b'{"state":"' + b"9" * STATE_DIGITS_MAX + b'","x":1}',
        b" " * LONG_LINE_BYTES_MAX,
        b'{"state":' + b" " * (LONG_LINE_BYTES_MAX - 20) + b"x}",
        b"x" * (LONG_LINE_BYTES_MAX + 1),
    ],
    ids=range(10),
)
def test_hostile_lines_cost_little(line: bytes) -> None:
    """A hundred times an honest line and a moment; what is quadratic takes seconds."""
    honest = b'{"x":"' + b"y" * 60_000 + b'"}'

    def parse(one: bytes) -> None:
        with contextlib.suppress(RequestError):
            parse_request(one)

    assert cpu_seconds(lambda: parse(line)) < 100 * cpu_seconds(lambda: parse(honest)) + 0.2


@pytest.mark.parametrize("form", [b'{"state":"%s"}', b' { "state" : %s } \r'])
def test_long_states(form: bytes) -> None:
    digits = b"7" * STATE_DIGITS_MAX
    assert parse_request(form % digits) == StatelessRequest(digits.decode())
    short = b"7" * 200
    if b'"%s"' in form:
        assert parse_request(form % short) == StatelessRequest(short.decode())


@pytest.mark.parametrize(
    ("start", "is_long"),
    [
        (b'{"state":"7', True),
        (b' \t{ "state" : -1', True),
        (b'{"state":"x', False),
        (b'{"uuid":"a","state":7', False),
        (b"", False),
    ],
)
def test_only_a_state_may_be_long(start: bytes, is_long: bool) -> None:
    assert codec.may_be_long(start) is is_long
    with pytest.raises(RequestError):
        parse_request(start + b"x" * LINE_BYTES_MAX)


def test_text_as_json() -> None:
    assert codec.json_text('a"\n\x01é') == '"a\\"\\n\\u0001é"'


def test_error_lines() -> None:
    assert codec.error_line("Unknown client 'é'") == '{"error":"Unknown client \'é\'"}\n'.encode()
    assert codec.error_line("Unknown client 'a\"b\n'") == b'{"error":"Unknown client \'a\\"b\\n\'"}\n'
    assert codec.error_line("half \ud800") == b'{"error":"half ?"}\n'


def test_requests_of_the_client_are_understood() -> None:
    assert codec.stateless_request(None) == b"{}\n"
    assert codec.stateless_request("616") == b'{"state":"616"}\n'
    assert codec.start_request("bf57", {"count": 28172}) == b'{"uuid":"bf57","params":{"count":28172}}\n'
    assert codec.resume_request("bf57", 3) == b'{"uuid":"bf57","state":3}\n'
    assert codec.ack_request("bf57", 16) == b'{"uuid":"bf57","ack":16}\n'
    assert parse_request(codec.ack_request('é"\n', 1)[:-1]) == AckRequest('é"\n', 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"data":"128"}', Message(None, "128")),
        (b'{"id":1,"data":{"value":652847386}}', Message(1, {"value": 652847386})),
        (b' { "data" : {"value":1,"crc":0} , "id" : 5, "more": 1 } \r', Message(5, {"value": 1, "crc": 0})),
        (b'{"error":"Out-of-order ACK"}', ErrorMessage("Out-of-order ACK")),
        (b'{"error":5}', ErrorMessage("5")),
    ],
)
def test_answers(line: bytes, message: Message | ErrorMessage) -> None:
    assert parse_answer(line) == message


@pytest.mark.parametrize(
    "line",
    [
        *(
            b"",
            b"{",
            b"5",
            b"null",
            b'{"id":1}',
            b'{"id":true,"data":1}',
            b'{"id":"1","data":1}',
            b'{"id":1.5,"data":1}',
        ),
        *(b'{"data":NaN}', b'{"data":"\xff"}', b'{"data":' + b"9" * 5000 + b"}", b"[" * 100000, b"\xef\xbb\xbf{}"),
    ],
)
def test_answers_that_are_none(line: bytes) -> None:
    with pytest.raises(AnswerError):
        parse_answer(line)


# --- stateless streams


def first_values(state: str | None, count: int, start: int = 128) -> list[str]:
    lines = StatelessStream(state, lambda: start).lines(10**9, count)
    return [json.loads(line)["data"] for line in lines.splitlines()]


@pytest.mark.parametrize(
    ("state", "values"),
    [
        (None, ["128", "256", "512"]),
        ("23", ["46", "92", "184"]),
        ("-3", ["-6", "-12", "-24"]),
        ("0", ["0", "0", "0"]),
        ("-0", ["0", "0", "0"]),
        ("007", ["14", "28", "56"]),
        ("9" * 5000, ["1" + "9" * 4999 + "8"]),
    ],
)
def test_doubling(state: str | None, values: list[str]) -> None:
    assert first_values(state, len(values)) == values


def test_doubling_of_long_numbers_is_exact() -> None:
    values = first_values("3" * 4000, 40)
    expected = int("3" * 4000)
    for value in values:
        expected *= 2
        assert int(value) == expected


def test_doubling_takes_linear_time() -> None:
    def cost(digits: int) -> float:
        return cpu_seconds(lambda: StatelessStream("7" * digits).lines(10**8, 10))

    assert cost(1_600_000) < 64 * cost(100_000), "16 times the digits; it would be 256 times if it were quadratic"


def test_lines_stop_at_either_bound() -> None:
    stream = StatelessStream(None, lambda: 1)
    assert stream.lines(10**6, 3).count(b"\n") == 3
    assert stream.lines(1, 3) == b'{"data":"8"}\n'
    assert stream.lines(30, 100) == b'{"data":"16"}\n{"data":"32"}\n{"data":"64"}\n'


def test_start_is_never_zero() -> None:
    assert {random_start() for _ in range(5000)} == set(range(1, 256))
