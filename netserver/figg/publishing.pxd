cimport cython

from netserver.shell.outstanding cimport Outstanding

cdef class PublishingSession:
    cdef readonly Py_ssize_t frame_bytes_max
    cdef readonly object connection
    cdef readonly Outstanding _outstanding
    cdef public object _last
    cdef Py_ssize_t _runs_charged
    cdef object _highest
    cdef bint _disordered
    cdef object _acknowledge
    cdef public bint _refused
    cdef public object _refused_from
    cdef public bint _ending

    @cython.locals(position=Py_ssize_t)
    cpdef Py_ssize_t received(self, data, Py_ssize_t length) except -1
    cpdef Py_ssize_t other(self, data, Py_ssize_t position, Py_ssize_t length) except -1
    @cython.locals(outstanding=Outstanding, count=Py_ssize_t, size_bytes=Py_ssize_t, full=bint, position=Py_ssize_t)
    cpdef Py_ssize_t _store_run(self, partition, data, Py_ssize_t start, Py_ssize_t length) except -1
    cpdef _released(self, list released)
    cpdef _discharge_runs(self, Py_ssize_t charged)
    cpdef _write_ack(self)
