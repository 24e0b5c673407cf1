cimport cython

from engine.formats.batch cimport BatchWriter, RecordCursor
from engine.formats.bundle cimport u64

cdef int _PUBLISH
cdef int _ACK
cdef int _POLL
cdef int _DELIVER
cdef Py_ssize_t _HEAD
cdef Py_ssize_t _PUBLISH_HEAD
cdef Py_ssize_t _ID_FRAME
cdef Py_ssize_t _LENGTH_MAX
cdef u64 _TAG_BOUND

@cython.locals(
    available=Py_ssize_t, length=Py_ssize_t, kind=int, behind=Py_ssize_t, topic_bytes=Py_ssize_t, ident=u64, count=Py_ssize_t
)
cpdef tuple scan(const unsigned char[::1] src, Py_ssize_t position, Py_ssize_t end, Py_ssize_t length_max)

@cython.locals(
    count=Py_ssize_t, count_max=Py_ssize_t, topic_bytes=Py_ssize_t, length=Py_ssize_t, behind=Py_ssize_t
)
cpdef tuple pack_publishes(
    const unsigned char[::1] src,
    Py_ssize_t position,
    Py_ssize_t end,
    BatchWriter writer,
    const unsigned char[::1] topic,
    int qos,
    Py_ssize_t record_bytes_max,
    unsigned char[::1] cids,
)

@cython.locals(first=u64, last=u64, index=Py_ssize_t, tag=u64, seq=u64)
cpdef list ack_ranges(const unsigned char[::1] src, Py_ssize_t position, Py_ssize_t count, u64 base)

@cython.locals(
    count=Py_ssize_t, expected=u64, qos0=bint, topic_bytes=Py_ssize_t,
    out_bytes=Py_ssize_t, tag_bytes=Py_ssize_t, tag=u64, seq=u64, value_bytes=Py_ssize_t, length=Py_ssize_t
)
cpdef tuple deliver(
    unsigned char[::1] out,
    Py_ssize_t position,
    RecordCursor records,
    u64 last_seq,
    Py_ssize_t limit,
    u64 base,
    int qos,
    const unsigned char[::1] topic,
    const unsigned char[::1] polls,
    Py_ssize_t polls_position,
    u64 expired_before_ms,
    object age_ms,
    bint push=*,
)

@cython.locals(value=u64, byte=u64, index=Py_ssize_t)
cdef u64 u32(const unsigned char[::1] src, Py_ssize_t position) except? 0xFFFFFFFFFFFFFFFF
@cython.locals(value=u64, byte=u64, index=Py_ssize_t)
cdef u64 u64_at(const unsigned char[::1] src, Py_ssize_t position) except? 0xFFFFFFFFFFFFFFFF
@cython.locals(index=Py_ssize_t)
cdef int put_big(unsigned char[::1] out, Py_ssize_t position, u64 value, Py_ssize_t size) except -1
@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t copy(
    unsigned char[::1] out, Py_ssize_t position, const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t size
) except -1
@cython.locals(index=Py_ssize_t)
cdef bint same(const unsigned char[::1] src, Py_ssize_t position, const unsigned char[::1] text) except -1
cdef bint has_expired(tuple headers, u64 timestamp_ms, object age_ms) except -1
