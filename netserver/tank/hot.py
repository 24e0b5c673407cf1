"""Chooses the hot loops: the compiled ones, or their twin where they are not compiled or QUINTLOG_PURE is 1."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from . import frames

if TYPE_CHECKING or (frames.COMPILED and os.environ.get("QUINTLOG_PURE") != "1"):
    from .frames import ChunkCut, ProduceCursor, produce_run, unpack_chunk
else:
    from .frames_pure import ChunkCut, ProduceCursor, produce_run, unpack_chunk

__all__ = ["ANSWER_BYTES", "ChunkCut", "ProduceCursor", "produce_run", "unpack_chunk"]

ANSWER_BYTES: Final = 10
"""The answer to a Produce of one bundle: frame header, request id, code."""
