"""Chooses the hot loops: the compiled ones, or their twin where they are not compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import frames

if TYPE_CHECKING or frames.COMPILED:
    from .frames import ChunkCut, ProduceCursor, parts_room, produce_run, unpack_chunk
else:
    from .frames_pure import ChunkCut, ProduceCursor, parts_room, produce_run, unpack_chunk

__all__ = ["ChunkCut", "ProduceCursor", "parts_room", "produce_run", "unpack_chunk"]
