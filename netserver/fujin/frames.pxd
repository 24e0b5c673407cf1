cimport cython

from engine.formats.batch cimport BatchWriter, RecordCursor
from engine.formats.bundle cimport u64

cdef int _WRITE
cdef int _MSG
cdef Py_ssize_t _FIXED
cdef Py_ssize_t _ANSWER
cdef Py_ssize_t _ID
cdef Py_ssize_t _ID_STRING
cdef u64 _SEQ_BOUND

@cython.locals(
    name="const unsigned char[::1]", count=Py_ssize_t, count_max=Py_ssize_t, topic_bytes=Py_ssize_t, head=Py_ssize_t,
    size=Py_ssize_t, at=Py_ssize_t,
)
cpdef tuple pack_writes(
    const unsigned char[::1] src,
    Py_ssize_t position,
    Py_ssize_t end,
    bytes topic,
    BatchWriter writer,
    Py_ssize_t message_bytes_max,
    unsigned char[::1] answers,
)
@cython.locals(
    count=Py_ssize_t, expected=u64, out_bytes=Py_ssize_t, head=Py_ssize_t, seq=u64, size=Py_ssize_t,
)
cpdef tuple frame_records(
    unsigned char[::1] out,
    Py_ssize_t position,
    RecordCursor records,
    u64 last_seq,
    Py_ssize_t limit,
    u64 partition,
    bint is_push,
    bint has_id,
    Py_ssize_t message_bytes_max,
)
@cython.locals(ranges=list, first=u64, last=u64, taken=Py_ssize_t, seq=u64)
cpdef tuple id_ranges(const unsigned char[::1] src, Py_ssize_t position, Py_ssize_t count, Py_ssize_t partition)
@cython.locals(buffer=bytearray, out="unsigned char[::1]", index=Py_ssize_t)
cpdef bytearray ok_results(const unsigned char[::1] src, Py_ssize_t position, Py_ssize_t count)
@cython.locals(
    name="const unsigned char[::1]", topic_bytes=Py_ssize_t, head=Py_ssize_t, total=Py_ssize_t, index=Py_ssize_t,
    value=bytes, buffer=bytearray, out="unsigned char[::1]", position=Py_ssize_t, size=Py_ssize_t,
)
cpdef bytearray pack_values(bytes topic, u64 cid, list values, Py_ssize_t start, Py_ssize_t end, bint has_headers)
@cython.locals(first=Py_ssize_t, count=Py_ssize_t, cid=Py_ssize_t)
cpdef tuple take_written(const unsigned char[::1] src, Py_ssize_t position, Py_ssize_t end)
@cython.locals(
    count=Py_ssize_t, view="const unsigned char[::1]", text="const char*", at=Py_ssize_t, id_at=Py_ssize_t,
    id_bytes=Py_ssize_t, size=Py_ssize_t,
)
cpdef tuple take_messages(
    bytes src, Py_ssize_t position, Py_ssize_t end, Py_ssize_t limit, bint is_push, bint has_id, list ids, list values
)

@cython.locals(high=Py_ssize_t, low=Py_ssize_t)
cdef Py_ssize_t u32(const unsigned char[::1] src, Py_ssize_t position) except -1
@cython.locals(high=u64, low=u64)
cdef u64 u64_at(const unsigned char[::1] src, Py_ssize_t position) except? 0xFFFFFFFFFFFFFFFF
@cython.locals(index=Py_ssize_t)
cdef int put_big(unsigned char[::1] out, Py_ssize_t position, u64 value, Py_ssize_t size) except -1
@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t copy(
    unsigned char[::1] out, Py_ssize_t position, const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t size
) except -1
@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t put_bytes(
    unsigned char[::1] out, Py_ssize_t position, const unsigned char* text, Py_ssize_t size
) except -1
@cython.locals(size=Py_ssize_t, index=Py_ssize_t)
cdef bint same(const unsigned char[::1] src, Py_ssize_t position, const unsigned char[::1] name) except -1
