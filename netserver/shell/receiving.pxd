cimport cython

from netserver.shell.input_pressure cimport PublishPressure
from netserver.shell.turns cimport Turns

cdef class Receiving:
    cdef readonly object counters
    cdef public object session
    cdef public object transport
    cdef public object visitor
    cdef public object peer
    cdef public bint writable
    cdef public bint closed
    cdef public Py_ssize_t charged
    cdef public Py_ssize_t retained
    cdef public Py_ssize_t reserved
    cdef public long long bytes_in
    cdef public long long bytes_out
    cdef public double received_at
    cdef Turns _turns
    cdef PublishPressure _pressure
    cdef object _budget
    cdef object _view
    cdef readonly dict _holds
    cdef readonly bint _parsing
    cdef public bint _held_in_parse
    cdef public int _reads_in_a_row
    cdef public bint _input_ended
    cdef public bint _output_ended
    cdef public bytes _rest
    cdef public object _own
    cdef public Py_ssize_t _own_length
    cdef readonly Py_ssize_t _expected
    cdef Py_ssize_t _discarded_bytes

    cpdef write(self, data)
    cpdef charge(self, Py_ssize_t size_bytes, Py_ssize_t records=*)
    cpdef discharge(self, Py_ssize_t size_bytes)
    @cython.locals(start=Py_ssize_t)
    cpdef get_buffer(self, sizehint)
    cpdef buffer_updated(self, Py_ssize_t nbytes)
    @cython.locals(consumed=Py_ssize_t)
    cpdef _parse(self, view, Py_ssize_t length)
