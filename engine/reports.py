"""What the operator is told by the engine (any thread)."""

from __future__ import annotations

import logging

logger = logging.getLogger("quintlog.engine")


def report(message: str) -> None:
    """Tells of something that should not have happened."""
    logger.error("%s", message)


def report_exception(where: str, problem: BaseException) -> None:
    """Tells of a defect of ours, with its traceback."""
    logger.critical("internal error in %s", where, exc_info=problem)
