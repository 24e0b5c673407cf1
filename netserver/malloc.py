"""How the C library keeps freed memory: by its own rules every buffer of a read costs a page fault for each 4 KiB."""

from __future__ import annotations

import ctypes

from netserver.limits import MALLOC_MAPPED_BYTES, MALLOC_TOP_BYTES

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def keep_freed_buffers() -> bool:
    """Has buffers of the usual sizes come from memory that was freed before; False: the C library has no such rule.

    Call it before there are other threads.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # not glibc
        return False
    set_both = mallopt(M_MMAP_THRESHOLD, MALLOC_MAPPED_BYTES) and mallopt(M_TRIM_THRESHOLD, MALLOC_TOP_BYTES)
    return bool(set_both)
