"""Chooses the hot loops: the compiled ones, or their twin where they are not compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netserver.figg import frames

if TYPE_CHECKING or frames.COMPILED:
    from netserver.figg.frames import frame_data, pack_publishes, pack_values, take_data
else:
    from netserver.figg.frames_pure import frame_data, pack_publishes, pack_values, take_data

__all__ = ["frame_data", "pack_publishes", "pack_values", "take_data"]
