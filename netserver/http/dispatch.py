"""Chooses the hot loops: the compiled ones, or their twin where they are not compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netserver.http import frames

if TYPE_CHECKING or frames.COMPILED:
    from netserver.http.frames import frame_lengths, frame_lines, pack_lengths, pack_lines
else:
    from netserver.http.frames_pure import frame_lengths, frame_lines, pack_lengths, pack_lines

__all__ = ["frame_lengths", "frame_lines", "pack_lengths", "pack_lines"]
