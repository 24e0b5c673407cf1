cimport cython

from engine.formats.batch_seal cimport batch_end, number
from engine.formats.bundle cimport MessageCursor, u32, u64

cdef Py_ssize_t HEAD_BYTES
cdef Py_ssize_t PACKED_START
cdef Py_ssize_t MESSAGE_HEAD_BYTES
cdef int CLOSED
cdef int PACKED
cdef int RAW
cdef Py_ssize_t HEADER
cdef u64 MAGIC
cdef u64 FORMAT
cdef u64 EXTENSION_BOUND
cdef Py_ssize_t PRODUCER_BYTES
cdef Py_ssize_t MARKS_BYTES
cdef long long NO_PRODUCER
cdef u64 SEQUENCES

cdef class BatchWriter:
    cdef readonly bytearray buffer
    cdef unsigned char[::1] view
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t position
    cdef readonly u64 next_seq
    cdef readonly u64 first_seq
    cdef readonly u64 records
    cdef readonly u64 batches
    cdef readonly u64 max_timestamp_ms
    cdef readonly u64 append_time_ms
    cdef int kind
    cdef Py_ssize_t start
    cdef u64 batch_first_seq
    cdef u64 batch_max_timestamp
    cdef u64 count
    cdef u64 timestamp
    cdef u64 attributes
    cdef Py_ssize_t extension_room
    cdef Py_ssize_t target_bytes
    cdef u64 records_max
    cdef Py_ssize_t bundle_bytes_max
    cdef list headers
    cdef dict marks
    cdef long long producer_id
    cdef long long producer_epoch
    cdef u64 sequence_offset
    cdef long long batch_producer_id

    cpdef begin(self, u64 now_ms, u32 attributes=*)
    @cython.locals(offset=u64)
    cpdef produce(self, long long producer_id, long long epoch, u64 sequence)
    cpdef replace_buffer(self, bytearray buffer)
    @cython.locals(size=Py_ssize_t, position=Py_ssize_t)
    cpdef bint put(self, const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(size=Py_ssize_t, position=Py_ssize_t, key_size=Py_ssize_t, need=Py_ssize_t)
    cpdef bint put_record(
        self, const unsigned char[::1] value, const unsigned char[::1] key, u64 timestamp_ms, tuple headers=*,
        object marks=*
    ) except -1
    @cython.locals(size=Py_ssize_t, key_size=Py_ssize_t, position=Py_ssize_t)
    cpdef bint put_span(
        self,
        const unsigned char[::1] src,
        Py_ssize_t value_start,
        Py_ssize_t value_end,
        Py_ssize_t key_start,
        Py_ssize_t key_end,
        u64 timestamp_ms,
    ) except -1
    @cython.locals(size=Py_ssize_t, position=Py_ssize_t, need=Py_ssize_t)
    cpdef bint put_bundle(
        self,
        const unsigned char[::1] src,
        Py_ssize_t start,
        Py_ssize_t end,
        u64 count,
        u64 first_seq,
        u64 last_seq,
        u64 max_timestamp_ms,
        bint sparse,
    ) except -1
    @cython.locals(size=Py_ssize_t, padding=Py_ssize_t)
    cpdef close_batch(self, bytes extension=*)
    @cython.locals(first_sequence=u64)
    cdef bytes own_extension(self)
    cdef int open(self, int kind, Py_ssize_t reserved_bytes, u64 first_seq) except -1
    @cython.locals(room=Py_ssize_t)
    cdef bint open_packed(self, Py_ssize_t need) except -1
    @cython.locals(reserve=Py_ssize_t)
    cdef bint open_extended(self, Py_ssize_t need, tuple headers, object marks) except -1
    @cython.locals(position=Py_ssize_t)
    cdef Py_ssize_t put_head(self, unsigned int flags, u64 timestamp_ms) except -1
    @cython.locals(position=Py_ssize_t)
    cdef Py_ssize_t put_key(
        self, const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t size, u64 timestamp_ms
    ) except -1
    cdef int put_value(self, Py_ssize_t position, const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t size) except -1
    @cython.locals(
        count_bytes=Py_ssize_t, messages=Py_ssize_t, size=Py_ssize_t, length_bytes=Py_ssize_t, padding=Py_ssize_t,
        position=Py_ssize_t
    )
    cdef Py_ssize_t put_bundle_head(self) except -1
    @cython.locals(timestamp=u64, index=Py_ssize_t)
    cdef int put_header(self, Py_ssize_t padding, Py_ssize_t extension_bytes) except -1

@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t put_number(unsigned char[::1] out, Py_ssize_t position, u64 value, Py_ssize_t size) except -1
cdef Py_ssize_t put_varint(unsigned char[::1] out, Py_ssize_t position, u64 value) except -1
@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t copy(
    unsigned char[::1] out, Py_ssize_t position, const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t size
) except -1

cdef class RecordCursor(MessageCursor):
    cdef const unsigned char[::1] batches
    cdef Py_ssize_t batches_end
    cdef Py_ssize_t batch
    cdef Py_ssize_t batch_end
    cdef Py_ssize_t bundle
    cdef Py_ssize_t bundles_end
    cdef u64 batch_left
    cdef u64 batch_count
    cdef u64 batch_last_seq
    cdef u64 expected_seq
    cdef readonly bint qos0
    cdef list batch_headers
    cdef dict batch_marks

    cdef bint advance(self) except -1
    @cython.locals(behind=Py_ssize_t)
    cdef bint open_batch(self) except -1
    @cython.locals(size=Py_ssize_t)
    cdef bint open_bundle(self) except -1
    cpdef tuple headers(self)
    cpdef object marks(self)
    cpdef bint is_plain(self) except -1
    cpdef object record(self)
