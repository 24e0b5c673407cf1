"""Pieces from the files of a log: read, packed and stored, one at a time."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from engine.errors import ReadOnly
from engine.files.descriptors import Handles
from engine.files.system import Files
from engine.remote.catalog import ObjectRef
from engine.remote.names import PIECES, Versioned
from engine.remote.piece import Change, Piece, Section, pack_piece, piece_ref
from engine.remote.writes import create
from engine.segments.active import ActiveSegment
from engine.shipping.asking import Asking
from engine.shipping.limits import ATTEMPTS


class Pieces:
    """Makes pieces. One thread only.

    Attributes:
        size_bytes: of all that were stored.
    """

    def __init__(self, asking: Asking, files: Files, handles: Handles) -> None:
        self._asking = asking
        self._files = files
        self._handles = handles
        self.size_bytes = 0

    def store(
        self,
        lineage: str,
        epoch: int,
        version: int,
        sections: Sequence[Section],
        paths: Mapping[int, Path],
        changes: Sequence[Change] = (),
    ) -> ObjectRef:
        """Stores one piece, however often it takes; how a head names it.

        Args:
            paths: of segments' files, by segment id.

        Raises:
            OSError: a file is not there, or cannot be read. Taken: the store is not only ours. Stopped.
        """
        data = tuple(self._read(paths[section.segment_id], section) for section in sections)
        name = Versioned(PIECES, epoch, version, secrets.randbits(64))
        piece = Piece(lineage, name, tuple(sections), data, tuple(changes))
        content = pack_piece(piece)
        self._asking.certainly(partial(create, str(name), content, ATTEMPTS))
        self.size_bytes += len(content)
        return piece_ref(piece, content)

    def _read(self, path: Path, section: Section) -> bytes:
        with self._handles.use(path) as fd:
            data = self._files.read(fd, section.end - section.begin, section.begin)
        if len(data) != section.end - section.begin:
            raise OSError(f"{path} is shorter than what was written to it")
        return data

    def make_durable(self, active: ActiveSegment, end: int) -> None:
        """Syncs a file whose topic has a durability below always: what is stored must not be more than what a power
        cut leaves here. Raises OSError; ReadOnly: an earlier sync failed."""
        while active.durable_position < end:
            if active.sync_failed:
                raise ReadOnly(f"a sync of {active.path} failed")
            if not active.sync_if_idle(self._files, self._handles):
                with active.sync_lock:  # another one syncs it: how that ends says the position
                    pass
