cimport cython

from engine.formats.batch cimport BatchWriter, RecordCursor
from engine.formats.bundle cimport u64

cdef Py_ssize_t _HEADER
cdef Py_ssize_t _FIXED
cdef u64 MANY

@cython.locals(
    name="const unsigned char[::1]", count=Py_ssize_t, lowest=u64, highest=u64, number=u64, total=Py_ssize_t, full=bint, topic_size=Py_ssize_t, head=Py_ssize_t,
    size=Py_ssize_t, at=Py_ssize_t, value_size=Py_ssize_t,
)
cpdef tuple pack_publishes(
    const unsigned char[::1] src,
    Py_ssize_t position,
    Py_ssize_t end,
    bytes topic,
    BatchWriter writer,
    Py_ssize_t frame_bytes_max,
    Py_ssize_t value_bytes_max,
)
@cython.locals(
    name="const unsigned char*", topic_size=Py_ssize_t, span=Py_ssize_t, cursor=RecordCursor, buffer=bytearray, out="unsigned char*", head=Py_ssize_t, room=Py_ssize_t,
    used=Py_ssize_t, count=Py_ssize_t, skipped=Py_ssize_t, next_seq=u64, start=Py_ssize_t,
    size=Py_ssize_t, need=Py_ssize_t, larger=Py_ssize_t,
)
cpdef tuple frame_data(
    const unsigned char[::1] batches,
    u64 from_seq,
    u64 last_seq,
    bytes topic,
    Py_ssize_t value_bytes_max,
    Py_ssize_t bytes_max,
)
@cython.locals(
    name="const unsigned char*", topic_size=Py_ssize_t, head=Py_ssize_t, total=Py_ssize_t, index=Py_ssize_t, value=bytes, buffer=bytearray, out="unsigned char*",
    position=Py_ssize_t, size=Py_ssize_t,
)
cpdef bytearray pack_values(bytes topic, u64 seq_num, list values, Py_ssize_t start, Py_ssize_t end)
@cython.locals(
    name="const unsigned char[::1]", offsets=list, values=list, topic_size=Py_ssize_t, head=Py_ssize_t, view="const unsigned char[::1]",
    text="const char*", size=Py_ssize_t, at=Py_ssize_t, value_size=Py_ssize_t,
)
cpdef tuple take_data(bytes src, Py_ssize_t position, Py_ssize_t end, bytes topic)

@cython.locals(high=Py_ssize_t, low=Py_ssize_t)
cdef Py_ssize_t u32(const unsigned char[::1] src, Py_ssize_t position) except -1
@cython.locals(high=u64, low=u64)
cdef u64 u64_at(const unsigned char[::1] src, Py_ssize_t position) except? 0xFFFFFFFFFFFFFFFF
@cython.locals(size=Py_ssize_t, index=Py_ssize_t)
cdef bint same(const unsigned char[::1] src, Py_ssize_t position, const unsigned char[::1] name) except -1
@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t put_head(
    unsigned char* out,
    Py_ssize_t position,
    int kind,
    const unsigned char* name,
    Py_ssize_t topic_size,
    u64 number,
    Py_ssize_t size,
) except -1
cdef int put_u32(unsigned char* out, Py_ssize_t position, u64 value) except -1
@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t put_bytes(
    unsigned char* out, Py_ssize_t position, const unsigned char* text, Py_ssize_t size
) except -1
@cython.locals(larger=bytearray)
cdef bytearray enlarged(bytearray buffer, Py_ssize_t used, Py_ssize_t size_bytes)
@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t copy(
    unsigned char* out, Py_ssize_t position, const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t size
) except -1
