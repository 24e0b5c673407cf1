"""Positions as people write them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from engine.positions import EARLIEST, LATEST, Position, parse

pytestmark = pytest.mark.whole

NOW_MS = 1_795_822_592_000


@dataclass
class Extent:
    """Records 101..200, the record n written at n seconds."""

    log_start: int = 101
    committed_seq: int = 200

    def seq_before_end(self, count: int) -> int:
        return self.committed_seq + 1 - count

    def seq_after_first(self, count: int) -> int:
        return min(self.log_start + count, self.committed_seq + 1)

    def seq_at_time(self, timestamp_ms: int) -> int:
        return min(max(self.log_start, timestamp_ms // 1000), self.committed_seq + 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("0", Position("seq", 0)),
        ("123", Position("seq", 123)),
        ("18446744073709551615", Position("seq", 2**64 - 1)),
        ("+10", Position("after_first", 10)),
        ("-10", Position("before_end", 10)),
        ("@1795822592", Position("time", 1_795_822_592_000)),
        ("@1795822592123", Position("time", 1_795_822_592_123)),
        ("@2026-11-27T10:00Z", Position("time", 1_795_773_600_000)),
        ("@2026-11-27T11:00+01:00", Position("time", 1_795_773_600_000)),
        ("@2026-11-27T10:00", Position("time", 1_795_773_600_000)),
        ("@2026-11-27", Position("time", 1_795_737_600_000)),
        ("@-1h", Position("time", NOW_MS - 3_600_000)),
        ("@-90s", Position("time", NOW_MS - 90_000)),
        ("@-2d", Position("time", NOW_MS - 172_800_000)),
        ("@-500ms", Position("time", NOW_MS - 500)),
    ],
)
def test_parse(text: str, expected: Position) -> None:
    assert parse(text, NOW_MS) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "first",
        "+",
        "-",
        "--1",
        "1.5",
        "18446744073709551616",
        "1" * 40,
        "١٢",
        "@",
        "@yesterday",
        "@-1x",
        "@-",
        "@" + "1" * 14,
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse(text, NOW_MS)


@pytest.mark.parametrize(
    ("text", "seq"),
    [
        ("earliest", 101),
        ("latest", 201),
        ("150", 150),
        ("5", 101),  # what is no longer there begins with what is
        ("999", 999),
        ("+0", 101),
        ("+10", 111),
        ("+1000", 201),
        ("-0", 201),
        ("-10", 191),
        ("-1000", 101),
        ("@150", 150),
        ("@999", 201),
    ],
)
def test_resolve(text: str, seq: int) -> None:
    assert parse(text, NOW_MS).resolve(Extent()) == seq


@pytest.mark.parametrize("text", ["earliest", "latest", "+3", "-3"])
def test_resolve_in_an_empty_partition(text: str) -> None:
    assert parse(text, NOW_MS).resolve(Extent(log_start=1, committed_seq=0)) == 1
