"""Shares of the room for topics: whoever makes many leaves as much room to others as they have taken.

A *maker* is whoever asks for topics: a key, or the hosts that cannot be told apart. What one took is forgotten by half
in `MAKER_HALF_LIFE_S`: a log may grow as large as its limits allow, but not by one maker in one go. The operator, who
can remove what others have made, has no share.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.errors import LimitReached
from engine.limits import MAKER_HALF_LIFE_S, MAKER_ROOM_MIN, MAKERS_MAX


class Shares:
    """What each maker has taken lately; lost at the end of the process.

    Args:
        clock_s: a clock that nobody sets.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._taken: dict[str, tuple[float, float, float]] = {}  # topics, partitions, when; the longest unchanged first

    def check(self, maker: str, partitions: int, topics_left: int, partitions_left: int) -> None:
        """Raise LimitReached when a new topic of so many partitions would be more than the maker's share.

        Args:
            topics_left, partitions_left: room that there is now.
        """
        taken_topics, taken_partitions = self._of(maker)
        for name, taken, wanted, left in (
            ("topics", taken_topics, 1, topics_left),
            ("partitions", taken_partitions, partitions, partitions_left),
        ):
            if taken + wanted > max(left - wanted, MAKER_ROOM_MIN):
                raise LimitReached(
                    f"{maker} has made {taken:.0f} {name} lately, and {left} are left, of which others need some;"
                    f" try again later, or have the operator raise {name}_max"
                )

    def take(self, maker: str, partitions: int) -> None:
        """The maker has made a topic."""
        taken_topics, taken_partitions = self._of(maker)
        self._taken.pop(maker, None)
        self._taken[maker] = taken_topics + 1, taken_partitions + partitions, self._clock_s()
        if len(self._taken) > MAKERS_MAX:
            del self._taken[next(iter(self._taken))]

    def _of(self, maker: str) -> tuple[float, float]:
        topics, partitions, at = self._taken.get(maker, (0.0, 0.0, 0.0))
        kept = 0.5 ** ((self._clock_s() - at) / MAKER_HALF_LIFE_S)
        return topics * kept, partitions * kept
