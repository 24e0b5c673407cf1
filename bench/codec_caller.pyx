# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""A compiled caller of engine.batch, as the frame loops of the protocols are: what a record costs without Python."""

from engine.batch cimport BatchWriter, RecordCursor
from engine.bundle cimport check_bundle


def put(BatchWriter writer, const unsigned char[::1] source, Py_ssize_t size, Py_ssize_t count):
    """Puts ``count`` records of ``size`` bytes, one behind the other in ``source``, as frames are in a read buffer."""
    cdef Py_ssize_t position = 0
    for _ in range(count):
        if position + size > source.shape[0]:
            position = 0
        if not writer.put(source, position, position + size):
            raise ValueError("no room")
        position += size


def walk(RecordCursor cursor):
    """Looks at every record; the sum of their sizes."""
    cdef Py_ssize_t size = 0
    while cursor.next():
        size += cursor.value_end - cursor.value_start
    return size


cdef Py_ssize_t copy(
    unsigned char[::1] out, Py_ssize_t position, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size
) except -1:
    cdef Py_ssize_t index
    for index in range(size):
        out[position + index] = data[start + index]
    return position + size


def frame(RecordCursor cursor, unsigned char[::1] out):
    """Copies every value behind a head of 12 bytes; the end of the last."""
    cdef Py_ssize_t position = 0
    cdef Py_ssize_t size, index
    while cursor.next():
        size = cursor.value_end - cursor.value_start
        if position + 12 + size > out.shape[0]:
            position = 0
        for index in range(8):
            out[position + index] = cursor.seq >> 8 * index & 0xFF
        position = copy(out, position + 12, cursor.data, cursor.value_start, size)
    return position


def check(const unsigned char[::1] source, Py_ssize_t times):
    """Checks the same bundle several times."""
    for _ in range(times):
        check_bundle(source, 0, source.shape[0])
