"""How records are chosen and written, and the forms of output."""

from __future__ import annotations

import json

import click
import pytest

from engine.formats.extension import decode_headers
from engine.formats.record import BatchError, Record
from netserver.http.query import Filter
from tools.logtool.lib.output import Column, Output, name_text, number, size_text, time_text
from tools.logtool.lib.records import Printer, decoder, formatter, record_item, topic_and_partition, where_option

pytestmark = pytest.mark.whole

RECORD = Record(7, 1_795_822_592_123, b"k1", b'{"a":{"b":[1,"x"]},"c/d":true}')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", (b"orders", 0)),
        ("orders:3", (b"orders", 3)),
        ("a:b", (b"a:b", 0)),
        ("a:1:0", (b"a:1", 0)),
        ("orders:", (b"orders:", 0)),
        ("gr\u00fcn:1", ("gr\u00fcn".encode(), 1)),
        ("\udcff:2", (b"\xff", 2)),
    ],
)
def test_topic_and_partition(text: str, expected: tuple[bytes, int]) -> None:
    assert topic_and_partition(text) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("%v\\n", RECORD.value + b"\n"),
        ("%p:%o %k %s\\t%T\\0", b"3:7 k1 30\t1795822592123\0"),
        ("%t|%%|", b"2026-11-27T23:36:32.123Z|%|"),
        ("\\\\n\\r", b"\\n\r"),
        ("\u00fc%o", "\u00fc7".encode()),
    ],
)
def test_format(template: str, expected: bytes) -> None:
    assert formatter(template, bytes)(3, RECORD) == expected


@pytest.mark.parametrize("template", ["%x", "%", "a%"])
def test_format_refused(template: str) -> None:
    with pytest.raises(click.BadParameter):
        formatter(template, bytes)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("auto", b"\x1b[31m\xff", b"\x1b[31m\xff"),
        ("text", b"a\xff", "a\ufffd".encode()),
        ("hex", b"a\xff", b"61ff"),
        ("base64", b"a\xff", b"Yf8="),
        ("json", b'{ "b" : 1 }', b'{"b":1}'),
        ("msgpack", b"\x81\xa1a\xc4\x01\xff", b'{"a":"/w=="}'),
    ],
)
def test_decode(name: str, value: bytes, expected: bytes) -> None:
    assert decoder(name, on_terminal=False)(value) == expected


def test_decode_on_a_terminal_lets_no_escape_sequence_through() -> None:
    assert decoder("auto", on_terminal=True)(b"\x1b[31mred\r\t\xff\xc3\xbc") == b"\\x1b[31mred\\r\t\\xff\xc3\xbc"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Filter(), True),
        (Filter(key=b"k1"), True),
        (Filter(key=b"k2"), False),
        (Filter(key=b""), False),
        (Filter(contains=b'"x"'), True),
        (Filter(contains=b"y"), False),
        (Filter(where=(where_option("/a/b/0=1"),)), True),
        (Filter(where=(where_option("/a/b/1=x"), where_option("/c~1d=true"))), True),
        (Filter(where=(where_option("/a/b/2=x"),)), False),
        (Filter(where=(where_option('/a/b=[1, "x"]'),)), True),
    ],
)
def test_filter(wanted: Filter, expected: bool) -> None:
    assert wanted.wants(RECORD) is expected


def test_filter_on_a_value_that_is_no_json() -> None:
    assert not Filter(where=(where_option("/a=1"),)).wants(Record(1, 0, b"", b"\xff"))


@pytest.mark.parametrize("text", ["a", "a=1", "/a"])
def test_where_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        where_option(text)


def test_record_item() -> None:
    record = Record(1, 0, b"\xff", b"v", (b"name", b"value", b"n2", b"\xfe"))
    assert record_item(record) == {
        "offset": 1,
        "timestamp": "1970-01-01T00:00:00.000Z",
        "timestamp_ms": 0,
        "key_base64": "/w==",
        "value": "v",
        "headers": [{"name": "name", "value": "value"}, {"name": "n2", "value_base64": "/g=="}],
    }


RECORDS = [Record(1, 0, b"", b"a,b"), Record(2, 0, b"k", b'say "x"\n')]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (Output("table"), b'a,b\nsay "x"\n\n'),
        (
            Output("csv"),
            b'offset,timestamp,key,value\n1,1970-01-01T00:00:00.000Z,,"a,b"\n'
            b'2,1970-01-01T00:00:00.000Z,k,"say ""x""\n"\n',
        ),
    ],
)
def test_printer(output: Output, expected: bytes, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = Printer(output, None, "auto")
    for record in RECORDS:
        printer.write(record)
    printer.end()
    assert capfdbinary.readouterr().out == expected


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_printer_json(form: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = Printer(Output(form), None, "auto")  # type: ignore[arg-type]
    for record in RECORDS:
        printer.write(record)
    printer.end()
    out = capfdbinary.readouterr().out
    items = [json.loads(line) for line in out.splitlines()] if form == "jsonl" else json.loads(out)["items"]
    assert items == [record_item(record) for record in RECORDS]
    assert form == "jsonl" or json.loads(out)["schema"] == 1


def test_printer_of_nothing_is_a_document(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    Printer(Output("json"), None, "auto").end()
    assert json.loads(capfdbinary.readouterr().out) == {"schema": 1, "items": []}


COLUMNS = (Column("name"), number("bytes", "SIZE", size_text))
ITEMS = [{"name": "a", "bytes": 5}, {"name": "longer", "bytes": 131_072}, {"name": "none"}]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("table", "NAME         SIZE\na             5 B\nlonger  128.0 KiB\nnone            -\n"),
        ("csv", "name,bytes\na,5\nlonger,131072\nnone,\n"),
        ("jsonl", '{"name":"a","bytes":5}\n{"name":"longer","bytes":131072}\n{"name":"none"}\n'),
        (
            "json",
            '{"schema":1,"more":[1],"items":'
            '[{"name":"a","bytes":5},{"name":"longer","bytes":131072},{"name":"none"}]}\n',
        ),
    ],
)
def test_items(form: str, expected: str, capfd: pytest.CaptureFixture[str]) -> None:
    Output(form).items(COLUMNS, ITEMS, more=[1])  # type: ignore[arg-type]
    assert capfd.readouterr().out == expected


def test_fields(capfd: pytest.CaptureFixture[str]) -> None:
    Output().fields({"data_dir": "x", "on": True, "config": {"a": 1}})
    assert capfd.readouterr().out == "data dir  x\non        yes\nconfig    a=1\n"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 1024**3, "5.0 GiB"), (2**62, "4096.0 PiB")]
)
def test_size_text(size: int, text: str) -> None:
    assert size_text(size) == text


def test_time_beyond_the_calendar() -> None:
    assert time_text(2**63) == str(2**63)


def test_name_text() -> None:
    assert name_text(b"a\x1b\xffb") == "a\\x1b\\xffb"


@pytest.mark.parametrize("value", [b"\x81\x91\x01\x02", b"\xc1", b"\x81"])
def test_msgpack_that_cannot_be_shown_is_no_defect(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"^"):
        decoder("msgpack", on_terminal=False)(value)
    with pytest.raises(BatchError, match="not msgpack"):
        decode_headers(value, 1)
