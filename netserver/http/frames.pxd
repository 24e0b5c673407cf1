cimport cython

from engine.formats.batch cimport BatchWriter, RecordCursor
from engine.formats.bundle cimport u64

cdef Py_ssize_t _LINE_ROOM
cdef bytes _HEX
cdef bytes _SHORT
cdef bytes _BEGIN
cdef bytes _PARTITION
cdef bytes _OFFSET
cdef bytes _TIME
cdef bytes _KEY
cdef bytes _VALUE

@cython.locals(count=Py_ssize_t, total=Py_ssize_t, full=bint, size=Py_ssize_t)
cpdef tuple pack_lengths(
    const unsigned char[::1] src,
    Py_ssize_t position,
    Py_ssize_t end,
    BatchWriter writer,
    Py_ssize_t value_bytes_max,
    Py_ssize_t records_max,
)
@cython.locals(
    count=Py_ssize_t, total=Py_ssize_t, full=bint, at=Py_ssize_t, start=Py_ssize_t, index=Py_ssize_t,
    begin="const unsigned char*",
)
cpdef tuple pack_lines(
    const unsigned char[::1] src,
    Py_ssize_t position,
    Py_ssize_t end,
    BatchWriter writer,
    Py_ssize_t value_bytes_max,
    Py_ssize_t records_max,
)
@cython.locals(
    room=Py_ssize_t, buffer=bytearray, out="unsigned char*", cursor=RecordCursor, used=Py_ssize_t, count=Py_ssize_t,
    next_seq=u64, start=Py_ssize_t, size=Py_ssize_t,
)
cpdef tuple frame_lengths(
    const unsigned char[::1] batches, u64 from_seq, u64 last_seq, Py_ssize_t bytes_max, Py_ssize_t records_max
)
@cython.locals(
    room=Py_ssize_t, buffer=bytearray, out="unsigned char*", cursor=RecordCursor, used=Py_ssize_t, count=Py_ssize_t,
    next_seq=u64, size=Py_ssize_t, key_size=Py_ssize_t,
)
cpdef tuple frame_lines(
    const unsigned char[::1] batches,
    u64 from_seq,
    u64 last_seq,
    u64 partition,
    Py_ssize_t bytes_max,
    Py_ssize_t records_max,
)
@cython.locals(
    size=Py_ssize_t, at=Py_ssize_t, byte="unsigned int", more=Py_ssize_t, low="unsigned int", high="unsigned int",
    index=Py_ssize_t,
)
cdef Py_ssize_t text_size(const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t end) except -2
@cython.locals(index=Py_ssize_t, byte="unsigned int")
cdef Py_ssize_t put_text(
    unsigned char* out,
    Py_ssize_t position,
    const unsigned char[::1] src,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t size,
) except -1
@cython.locals(letters="const unsigned char*")
cdef unsigned char short_escape(unsigned int byte) noexcept
@cython.locals(digits="const unsigned char*")
cdef unsigned char hex_digit(unsigned int value) noexcept
@cython.locals(size=Py_ssize_t, rest=u64, at=Py_ssize_t)
cdef Py_ssize_t put_decimal(unsigned char* out, Py_ssize_t position, u64 value) except -1
@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t put_bytes(
    unsigned char* out, Py_ssize_t position, const unsigned char* text, Py_ssize_t size
) except -1
@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t copy(
    unsigned char* out, Py_ssize_t position, const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t size
) except -1
