cimport cython

from engine.formats.bundle cimport u64

cdef Py_ssize_t HEADER
cdef u64 MAGIC
cdef u64 FORMAT
cdef Py_ssize_t PADDING
cdef u64 BUNDLES_BOUND
cdef u64 EXTENSION_BOUND
cdef u64 MASK

@cython.locals(index=Py_ssize_t)
cdef int put_u64(unsigned char[::1] out, Py_ssize_t position, u64 value) except -1
@cython.locals(value=u64, byte=u64, index=Py_ssize_t)
cpdef u64 number(const unsigned char[::1] src, Py_ssize_t position, Py_ssize_t size) except? 0xFFFFFFFFFFFFFFFF
@cython.locals(padding=Py_ssize_t, bundles_bytes=u64, extension_bytes=u64, count=u64, span=u64, size=Py_ssize_t)
cpdef Py_ssize_t batch_end(const unsigned char[::1] src, Py_ssize_t position, Py_ssize_t end) except -1

@cython.locals(position=Py_ssize_t, behind=Py_ssize_t, seed=u64, body_hash=u64, header_hash=u64)
cpdef seal(
    unsigned char[::1] buffer,
    Py_ssize_t start,
    Py_ssize_t end,
    u64 segment_id,
    u64 file_position,
    u64 durable_mark,
    u64 transaction_id=*,
)
@cython.locals(
    position=Py_ssize_t, behind=Py_ssize_t, seed=u64, body_hash=u64, header_hash=u64, first_seq=u64, last_seq=u64
)
cpdef tuple verify(
    const unsigned char[::1] buffer, Py_ssize_t start, Py_ssize_t end, u64 segment_id, u64 file_position
)
@cython.locals(position=Py_ssize_t, behind=Py_ssize_t)
cpdef Py_ssize_t locate(const unsigned char[::1] buffer, Py_ssize_t start, Py_ssize_t end, u64 seq) except -1
