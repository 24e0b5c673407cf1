"""Settings of the whole test run."""

from __future__ import annotations

import signal

# A run that a shell put in the background ignores SIGINT, and so would every program that a test starts and interrupts:
# a handler of ours is not inherited, what is ignored is.
signal.signal(signal.SIGINT, signal.default_int_handler)
