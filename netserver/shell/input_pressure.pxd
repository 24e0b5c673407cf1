cimport cython

cdef class PublishPressure:
    cdef public Py_ssize_t total_bytes_max
    cdef public Py_ssize_t share_bytes_max
    cdef public Py_ssize_t total
    cdef readonly Py_ssize_t active
    cdef public bint stopped
    cdef public bint tight
    cdef readonly set members
    cdef readonly set over

    @cython.locals(fair=Py_ssize_t)
    cpdef Py_ssize_t share_bytes(self) except -1
    @cython.locals(charged=Py_ssize_t)
    cpdef charge(self, member, Py_ssize_t size_bytes)
    @cython.locals(charged=Py_ssize_t)
    cpdef discharge(self, member, Py_ssize_t size_bytes)
