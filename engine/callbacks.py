"""Calls all callbacks of an event: one that raises is logged, and the others are called all the same."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

logger = logging.getLogger("quintlog.engine")


def call_each(event: str, callbacks: Iterable[Callable[[], object]]) -> None:
    """Calls all of them, in order; what one raises goes to the log, with its traceback.

    Args:
        event: what they are told of, for the log.
    """
    for callback in callbacks:
        try:
            callback()
        except Exception:  # whatever it is, the next one has nothing to do with it
            logger.critical("internal error in what follows %s", event, exc_info=True)
