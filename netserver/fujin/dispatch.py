"""Chooses the hot loops: the compiled ones, or their twin where they are not compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netserver.fujin import frames

if TYPE_CHECKING or frames.COMPILED:
    from netserver.fujin.frames import (
        frame_records,
        id_ranges,
        ok_results,
        pack_values,
        pack_writes,
        take_messages,
        take_written,
    )
else:
    from netserver.fujin.frames_pure import (
        frame_records,
        id_ranges,
        ok_results,
        pack_values,
        pack_writes,
        take_messages,
        take_written,
    )

END = frames.END
FULL = frames.FULL
PENDING = frames.PENDING
SKIP = frames.SKIP

__all__ = [
    "END",
    "FULL",
    "PENDING",
    "SKIP",
    "frame_records",
    "id_ranges",
    "ok_results",
    "pack_values",
    "pack_writes",
    "take_messages",
    "take_written",
]
