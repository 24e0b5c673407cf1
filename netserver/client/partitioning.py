# cython: annotation_typing=False
"""Which partition a record goes to when nobody names one: all of one key to the same, so that they keep their order.

It is the one that Kafka's clients choose, too: whoever publishes with them and with ours gets one order for each key.
"""

from __future__ import annotations

COMPILED = not __file__.endswith(".py")

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition of a key: its murmur2 without the sign bit, modulo the number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def murmur2(key: bytes) -> int:
    """MurmurHash2 (32 bits, by Austin Appleby) with the seed that Kafka's clients use, without a sign.

    Plain Python and compiled are the same text: ``& _MASK`` is what unsigned arithmetic does by itself.
    """
    size = len(key)
    whole = size & ~3
    found = _SEED ^ size
    for at in range(0, whole, 4):
        part = key[at] | key[at + 1] << 8 | key[at + 2] << 16 | key[at + 3] << 24
        part = part * _FACTOR & _MASK
        part = (part ^ part >> 24) * _FACTOR & _MASK
        found = found * _FACTOR & _MASK ^ part
    if whole < size:
        part = 0
        for at in range(size - 1, whole - 1, -1):
            part = part << 8 | key[at]
        found = (found ^ part) * _FACTOR & _MASK
    found = (found ^ found >> 13) * _FACTOR & _MASK
    return found ^ found >> 15
