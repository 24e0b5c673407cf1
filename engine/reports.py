"""What the operator is told by the engine (any thread)."""

from __future__ import annotations

import logging

logger = logging.getLogger("quintlog.engine")

TELL_AGAIN_MS = 10_000
"""The same failure is told again after so long; with a full disk it would be ten lines a second and client."""


def report(message: str) -> None:
    """Tells of something that should not have happened."""
    logger.error("%s", message)


def report_exception(where: str, problem: BaseException) -> None:
    """Tells of a defect of ours, with its traceback."""
    logger.critical("internal error in %s", where, exc_info=problem)


def report_seldom(message: str, told: tuple[str, int], now_ms: int) -> tuple[str, int]:
    """Tells of what comes many times a second: again only when it has changed, or after a while.

    Args:
        told: what the call before returned; at first ``("", 0)``.
    """
    if message == told[0] and abs(now_ms - told[1]) < TELL_AGAIN_MS:
        return told
    report(message)
    return message, now_ms
