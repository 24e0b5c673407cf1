"""Whose a lineage is: the directory that has begun it, or gone on with it last, and no copy of that.

The directory remembers the lineage and by which name it was its primary (`owner`, new at each start). A copy of the
directory remembers the same; whichever of the two starts first changes the name in the head, and the other one is
refused. Before that change both names are written down, so that a crash between loses nothing.
"""

from __future__ import annotations

import json
import secrets
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from engine.directory_layout import LINEAGE_FILE
from engine.errors import Corrupt
from engine.files.system import Files, read_whole_file, replace_file
from engine.limits import SMALL_FILE_BYTES_MAX
from engine.remote.head import Head
from engine.remote.limits import ADDRESS_BYTES_MAX, OWNER_BYTES_MAX
from engine.remote.store import Steps, StoreError
from engine.remote.writes import Fenced, HeadLost, HeadWriter, read_head, take_over
from engine.shipping.limits import AHEAD, ATTEMPTS, JOIN_ATTEMPTS_MAX

_NONCE_CHARS = 16


class Foreign(StoreError):
    """What is stored belongs to another log, or to a directory that went on without this one."""


class Superseded(Foreign):
    """Another copy of this directory has gone on: two logs that differ would both go on, if this one took records."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a directory remembers."""

    lineage: str
    owners: tuple[str, ...]


def read_known(files: Files, data_dir: Path) -> Known | None:
    """None: it was never stored. Raises Corrupt, OSError."""
    path = data_dir / LINEAGE_FILE
    content = read_whole_file(files, path, SMALL_FILE_BYTES_MAX)
    if content is None:
        return None
    try:
        document = json.loads(content)
        return Known(str(document["lineage"]), tuple(map(str, document["owners"])))
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(str(path), None, "not a file that says which lineage this directory has") from error


def write_known(files: Files, data_dir: Path, known: Known) -> None:
    """Remembers it, durably. Raises OSError."""
    document = {"lineage": known.lineage, "owners": list(known.owners)}
    replace_file(files, data_dir / LINEAGE_FILE, json.dumps(document).encode() + b"\n")


def new_owner() -> str:
    """A name for this start: that of the machine, and something that no other start has."""
    host = socket.gethostname().encode("ascii", "replace")[: OWNER_BYTES_MAX - _NONCE_CHARS - 1].decode()
    return f"{host}-{secrets.token_hex(_NONCE_CHARS // 2)}"


class Joining:
    """Makes this process the writer of a lineage: a new one where there is none, else in its next epoch."""

    def __init__(self, files: Files, data_dir: Path, directory_id: int, address: str) -> None:
        self._files = files
        self._data_dir = data_dir
        self._directory_id = directory_id
        self._owner = new_owner()
        self._lineage = secrets.token_hex(16)  # also of a second attempt: the head of the first may yet arrive
        self._address = address.encode()[:ADDRESS_BYTES_MAX].decode(errors="ignore")

    def steps(self) -> Steps[HeadWriter]:
        """The writer of the head, which is stored.

        Raises:
            Foreign: what is stored is not ours; Superseded: it is that of a copy of this directory. Corrupt,
            UnsupportedFormat: a head, or the directory's file. Unclear, Denied: it could not be found out; call this
            again. OSError.
        """
        for _ in range(JOIN_ATTEMPTS_MAX):
            known = read_known(self._files, self._data_dir)
            found = yield from read_head(ATTEMPTS)
            try:
                if found is None:
                    return (yield from self._begin())
                return (yield from self._go_on(known, *found))
            except (Fenced, HeadLost):  # a late head of the process before has come in between, or another directory's
                continue
        raise Foreign("others write the head again and again")

    def _begin(self) -> Steps[HeadWriter]:
        write_known(self._files, self._data_dir, Known(self._lineage, (self._owner,)))
        writer = HeadWriter()
        first = Head(
            lineage=self._lineage,
            directory_id=self._directory_id,
            epoch=1,
            version=1,
            write=secrets.token_hex(16),
            owner=self._owner,
            address=self._address,
            beat=0,
            ttl_ms=TTL_MS,
            released=False,
            ahead=AHEAD,
        )
        yield from writer.commit(first, ATTEMPTS)
        return writer

    def _go_on(self, known: Known | None, head: Head, tag: str) -> Steps[HeadWriter]:
        if head.directory_id != self._directory_id or known is None or known.lineage != head.lineage:
            raise Foreign(
                f"another log is stored there (lineage {head.lineage}, by {head.owner}): give this directory a prefix "
                "of its own, which is empty"
            )
        if head.owner not in known.owners:
            raise Superseded(f"another copy of this directory has gone on since ({head.owner}, epoch {head.epoch})")
        writer = HeadWriter(head, tag)
        if head.owner != self._owner:
            write_known(self._files, self._data_dir, replace(known, owners=(head.owner, self._owner)))
            yield from take_over(writer, self._owner, self._address, secrets.token_hex(16), ATTEMPTS)
        write_known(self._files, self._data_dir, replace(known, owners=(self._owner,)))
        return writer


TTL_MS = 10_000
"""Of the lease in the head; nobody takes over by it yet."""
