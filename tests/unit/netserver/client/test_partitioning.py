"""Where keys go: as with Kafka's clients, whose own test values these are."""

from __future__ import annotations

import pytest

from netserver.client.partitioning import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF
    assert partition_of(key, 7) == (expected & 0x7FFFFFFF) % 7


def test_every_partition_gets_keys() -> None:
    found = [partition_of(b"key-%d" % n, 8) for n in range(800)]
    assert min(found.count(index) for index in range(8)) > 50
