"""Chooses the hot loops: the compiled ones, or their twin where they are not compiled or QUINTLOG_PURE is 1."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from netserver.blipmq import frames

if TYPE_CHECKING or (frames.COMPILED and os.environ.get("QUINTLOG_PURE") != "1"):
    from netserver.blipmq.frames import ack_ranges, deliver, pack_publishes, scan
else:
    from netserver.blipmq.frames_pure import ack_ranges, deliver, pack_publishes, scan

END = frames.END
FULL = frames.FULL
PENDING = frames.PENDING
SKIP = frames.SKIP

__all__ = ["END", "FULL", "PENDING", "SKIP", "ack_ranges", "deliver", "pack_publishes", "scan"]
