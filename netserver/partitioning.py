"""Which partition a record goes to when nobody names one: all of one key to the same, so that they keep their order."""

from __future__ import annotations

import xxhash


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition of a key: XXH3 (64 bits) of it, modulo the number of partitions."""
    return xxhash.xxh3_64_intdigest(key) % partition_count
