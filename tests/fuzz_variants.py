"""Damaged variants of good input, for fuzz tests."""

from __future__ import annotations

import random
from collections.abc import Sequence

MEAN_DISTANCES = (10, 50, 250)


def damaged(
    rng: random.Random,
    data: bytes,
    interesting: Sequence[int],
    *,
    first: int = 0,
    distances: Sequence[float] = MEAN_DISTANCES,
) -> bytes:
    """One to three times a byte changed, or some cut off, taken out or repeated; mostly near the beginning.

    Args:
        interesting: values that bytes get most often.
        first: the lowest position.
        distances: how far behind it on average, one of these each time.
    """
    found = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        if not found:
            break
        position = min(first + int(rng.expovariate(1 / rng.choice(distances))), len(found) - 1)
        action = rng.random()
        if action < 0.6:
            found[position] = rng.choice(interesting)
        elif action < 0.75:
            found[position] ^= 1 << rng.randrange(8)
        elif action < 0.85:
            del found[position + 1 :]
        elif action < 0.92:
            del found[position : position + rng.randint(1, 3)]
        else:
            found[position:position] = found[position : position + rng.randint(1, 9)]
    return bytes(found)
