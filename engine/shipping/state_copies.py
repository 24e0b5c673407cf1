"""Copies of the whole state, made while it is in use: a few hundred keys at a time, through a file without a name."""

from __future__ import annotations

import mmap
import secrets
import tempfile
from functools import partial
from pathlib import Path

import xxhash

from engine.errors import TooLarge
from engine.remote.catalog import ObjectRef
from engine.remote.head import Head
from engine.remote.names import STATE, Versioned
from engine.remote.state_copy import pack_state
from engine.remote.writes import create
from engine.shipping.asking import Asking
from engine.shipping.limits import ATTEMPTS, STATE_COPY_BYTES_MAX
from engine.state.store import LmdbState


def store_state(asking: Asking, state: LmdbState, head: Head, directory: Path) -> ObjectRef:
    """Stores a copy, however often it takes; how a head names it.

    It has the version of the present head: only changes in pieces of later ones count after it. So they have to be
    gathered from before this is called.

    Raises:
        OSError: there is no room for it. TooLarge. Taken: the store is not only ours. Stopped.
    """
    name = Versioned(STATE, head.epoch, head.version, secrets.randbits(64))
    with tempfile.TemporaryFile(dir=directory) as file:
        digest = xxhash.xxh3_64()
        for part in pack_state(head.lineage, name, state.stored()):
            file.write(part)
            digest.update(part)
        file.flush()
        size = file.tell()
        if size > STATE_COPY_BYTES_MAX:
            raise TooLarge(f"a copy of the state has {size} bytes", STATE_COPY_BYTES_MAX)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as content:
            asking.certainly(partial(create, str(name), content, ATTEMPTS))
        return ObjectRef(name, size, digest.hexdigest())
