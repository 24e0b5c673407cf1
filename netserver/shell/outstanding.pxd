cimport cython

cdef class Promise:
    cdef readonly int state
    cdef readonly object error

cdef class Outstanding:
    cdef object _connection
    cdef object _on_released
    cdef object _queue
    cdef object _slices
    cdef bint _checking
    cdef readonly Py_ssize_t pending_bytes

    cpdef add(self, write_batch, token, Py_ssize_t size_bytes, Py_ssize_t count=*)
    cpdef round_done(self)
    @cython.locals(released=list, freed_bytes=Py_ssize_t)
    cpdef _look(self)
    @cython.locals(now=double, freed_bytes=Py_ssize_t, size_bytes=Py_ssize_t, count=Py_ssize_t, since=double, entry=tuple)
    cdef Py_ssize_t _take_finished(self, list released) except -1
    cdef object _finished(self, write_batch, Py_ssize_t size_bytes, Py_ssize_t count, double seconds)
