"""`logtool`: looks into, checks, reads and feeds a log, with a running server or without one."""

from __future__ import annotations

from tools import early_signals as signals

__all__ = ["main"]


def main() -> None:
    """Entry point of the command; ends the process with one of the exit codes of `tools.logtool.lib.errors`."""
    signals.leave_at_once()
    from tools.logtool.run import interrupted, run

    try:
        signals.interrupt()
        code = run()
    except KeyboardInterrupt as signal:  # a second one, while the first is being told
        code = interrupted(signal)
    finally:
        signals.leave_at_once()
    raise SystemExit(code)
