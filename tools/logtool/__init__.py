"""`logtool`: looks into, checks, reads and feeds a log, beside a running server or without one."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of the command; ends the process with one of the exit codes of `tools.logtool.errors`."""
    from tools.logtool.run import run

    raise SystemExit(run())
