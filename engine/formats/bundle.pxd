cimport cython

ctypedef unsigned long long u64
ctypedef unsigned int u32

cdef u32 _SPARSE
cdef u32 _HAS_KEY
cdef u32 _SAME_TIMESTAMP
cdef u32 _SEQ_FOLLOWS

cdef class BundleInfo:
    cdef readonly u32 count
    cdef readonly u64 first_seq
    cdef readonly u64 last_seq
    cdef readonly u64 max_timestamp_ms
    cdef readonly bint sparse
    cdef readonly int codec

cdef class MessageCursor:
    cdef readonly const unsigned char[::1] data
    cdef readonly Py_ssize_t value_start
    cdef readonly Py_ssize_t value_end
    cdef readonly Py_ssize_t key_start
    cdef readonly Py_ssize_t key_end
    cdef readonly u64 seq
    cdef readonly u64 timestamp
    cdef public u64 from_seq
    cdef bint unpacked
    cdef u64 unpacked_bytes_max
    cdef object window
    cdef readonly Py_ssize_t position
    cdef readonly Py_ssize_t data_end
    cdef readonly u64 left
    cdef readonly u64 count
    cdef readonly u64 last_seq
    cdef readonly bint sparse
    cdef readonly int codec

    cpdef open(self, const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t end, u64 first_seq=*)
    @cython.locals(flags="unsigned int", position=Py_ssize_t, count=u64, last_seq=u64)
    cdef int open_head(self, Py_ssize_t start, Py_ssize_t end, u64 first_seq) except -1
    @cython.locals(size=Py_ssize_t)
    cdef int open_set(self) except -1
    @cython.locals(position=Py_ssize_t, packed_bytes=u64, size=u64)
    cdef int unpack(self) except -1
    @cython.locals(value=u64, byte=u64, shift=int)
    cdef u64 varint(self, Py_ssize_t position) except? 0xFFFFFFFFFFFFFFFF
    @cython.locals(value=u64, byte=u64, index=Py_ssize_t)
    cdef u64 number64(self, Py_ssize_t position) except? 0xFFFFFFFFFFFFFFFF
    cdef bint advance(self) except -1
    @cython.locals(position=Py_ssize_t, flags="unsigned int", size=Py_ssize_t)
    cpdef bint next(self) except -1
    @cython.locals(follows=u64)
    cdef Py_ssize_t sparse_seq(self, unsigned int flags, Py_ssize_t position) except -1
    cdef bytes part(self, Py_ssize_t start, Py_ssize_t end)

@cython.locals(cursor=MessageCursor, info=BundleInfo, first_seq=u64, max_timestamp=u64)
cpdef BundleInfo check_bundle(
    const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t end, u64 unpacked_bytes_max=*, u64 count_max=*
)

@cython.locals(cursor=MessageCursor)
cpdef list decode_bundle(const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t end, u64 first_seq)
