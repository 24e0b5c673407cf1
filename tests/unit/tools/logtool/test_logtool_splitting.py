"""Input split into records: the same records however the bytes arrive."""

from __future__ import annotations

import base64
import json

import pytest

from tools.logtool.lib.errors import Failure
from tools.logtool.lib.splitting import Framing, Input, Splitter

pytestmark = pytest.mark.whole


def split(framing: Framing, pieces: list[bytes], **options: bytes) -> list[Input]:
    splitter = Splitter(framing, **options)
    return [record for piece in pieces for record in splitter.feed(piece)] + splitter.end()


CASES: list[tuple[Framing, bytes, list[bytes]]] = [
    ("lines", b"", []),
    ("lines", b"one\ntwo\n", [b"one", b"two"]),
    ("lines", b"one\n\ntwo", [b"one", b"", b"two"]),
    ("lines", b"\n", [b""]),
    ("lines", b"cr\r\n\xff\0\n", [b"cr\r", b"\xff\0"]),
    ("nul", b"a\nb\0c\0", [b"a\nb", b"c"]),
    ("nul", b"\0\0d", [b"", b"", b"d"]),
    ("length", b"\0\0\0\1a\0\0\0\0\0\0\0\2bc", [b"a", b"", b"bc"]),
    ("length", b"", []),
    ("whole", b"a\nb\0c", [b"a\nb\0c"]),
    ("whole", b"", [b""]),
]


@pytest.mark.parametrize(("framing", "data", "values"), CASES)
def test_however_the_bytes_arrive(framing: Framing, data: bytes, values: list[bytes]) -> None:
    expected = [Input(value) for value in values]
    assert split(framing, [data]) == expected
    assert split(framing, [data[at : at + 1] for at in range(len(data))]) == expected
    for at in range(len(data) + 1):
        assert split(framing, [data[:at], data[at:]]) == expected


def test_keys() -> None:
    assert split("lines", [b"a=1=2\nb\n"], key_delimiter=b"=", key=b"k") == [Input(b"1=2", b"a"), Input(b"b", b"k")]
    assert split("lines", [b"x\n"], key=b"k") == [Input(b"x", b"k")]


def test_json_lines_come_back_as_cat_writes_them() -> None:
    lines = [
        {"offset": 1, "timestamp_ms": 5, "value": "grün"},
        {"value_base64": base64.b64encode(b"\xff\0").decode(), "key": "k"},
        {"value": "v", "key_base64": "/w=="},
        {"value": {"a": [1]}},
    ]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    assert split("jsonl", [data]) == [
        Input("grün".encode()),
        Input(b"\xff\0", b"k"),
        Input(b"v", b"\xff"),
        Input(b'{"a": [1]}'),
    ]


@pytest.mark.parametrize(
    ("framing", "data"),
    [
        ("jsonl", b"no json\n"),
        ("jsonl", b"[1]\n"),
        ("jsonl", b'{"key": "k"}\n'),
        ("jsonl", b'{"value_base64": "*"}\n'),
        ("length", b"\0\0\0\5abc"),
        ("length", b"\0\0"),
        ("length", b"\x7f\xff\xff\xff"),
    ],
)
def test_refused(framing: Framing, data: bytes) -> None:
    with pytest.raises(Failure):
        split(framing, [data])


def test_a_record_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.logtool.lib.splitting.VALUE_BYTES_MAX", 100)
    assert split("lines", [b"x" * 60, b"y" * 40]) == [Input(b"x" * 60 + b"y" * 40)]
    for framing in ("lines", "nul", "whole"):
        with pytest.raises(Failure, match="more than 100 bytes"):
            split(framing, [b"x" * 60, b"y" * 41])  # type: ignore[arg-type]
