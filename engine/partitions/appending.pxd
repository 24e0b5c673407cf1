cimport cython

from engine.formats.batch cimport BatchWriter

cdef Py_ssize_t _OVERHEAD_BYTES
cdef int _NO_FILES

cdef class Appending:
    cdef public object _context
    cdef public object _parts
    cdef public object topic
    cdef public object error
    cdef public object log_start
    cdef public object last_seq
    cdef public object _append_ms
    cdef public int _phase
    cdef public object _active
    cdef public object _open_write_batch

    @cython.locals(need=Py_ssize_t, writer=BatchWriter)
    cpdef BatchWriter writer(self, Py_ssize_t room_bytes=*, attributes=*)
    @cython.locals(writer=BatchWriter, waiters=list)
    cpdef object appended(self, waiter, Py_ssize_t size_bytes)
