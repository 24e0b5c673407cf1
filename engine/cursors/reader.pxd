cimport cython

from engine.formats.batch cimport RecordCursor

cdef class SharedReadBatch:
    cdef readonly object partition
    cdef readonly object buffer
    cdef readonly long long first_seq
    cdef readonly long long last_seq
    cdef readonly tuple lost
    cdef readonly set readers
    cdef readonly long long size_bytes

cdef class Reader:
    cdef object _cache
    cdef SharedReadBatch _shared
    cdef readonly RecordCursor records
    cdef readonly long long position
    cdef readonly bint current
    cdef readonly tuple lost

    @cython.locals(shared=SharedReadBatch)
    cpdef bint open(self, partition, long long seq, on_ready) except -1
    cpdef advance(self)
    cpdef moved(self, long long position, bint current)
    cpdef close(self)
