cimport cython

from engine.formats.batch cimport RecordCursor

ctypedef long long i64
ctypedef unsigned long long u64

cdef class Decoder:
    cdef readonly bint keys
    cdef readonly bint values
    cdef readonly bint numbers
    cdef readonly bint times
    cdef readonly bint headers
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t key_size
    cdef readonly Py_ssize_t value_size
    cdef Py_ssize_t rows_max
    cdef Py_ssize_t first_rows
    cdef Py_ssize_t first_bytes
    cdef bytearray seqs
    cdef bytearray timestamps
    cdef bytearray key_ends
    cdef bytearray key_bytes
    cdef bytearray value_ends
    cdef bytearray value_bytes
    cdef list header_rows
    cdef i64[::1] seqs_view
    cdef i64[::1] timestamps_view
    cdef int[::1] key_ends_view
    cdef unsigned char[::1] key_view
    cdef int[::1] value_ends_view
    cdef unsigned char[::1] value_view

    @cython.locals(cursor=RecordCursor, rows=Py_ssize_t, key_size=Py_ssize_t, value_size=Py_ssize_t)
    cpdef Py_ssize_t add(
        self, const unsigned char[::1] batches, Py_ssize_t start, Py_ssize_t end, u64 from_seq, u64 end_seq
    ) except -1
    @cython.locals(size=Py_ssize_t)
    cdef int put(self, RecordCursor cursor) except -1
    @cython.locals(rows_max=Py_ssize_t)
    cdef int grow_rows(self) except -1
    cdef int grow_keys(self, Py_ssize_t size) except -1
    cdef int grow_values(self, Py_ssize_t size) except -1

@cython.locals(index=Py_ssize_t)
cdef int copy(
    unsigned char[::1] out, Py_ssize_t position, const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t size
) except -1

cdef u64 TIMESTAMP_BOUND
