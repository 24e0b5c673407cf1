cimport cython

from engine.formats.batch cimport RecordCursor
from engine.cursors.reader cimport Reader
from engine.cursors.deliveries cimport Deliveries, Plan

cdef class Cursor:
    cdef object _store
    cdef readonly object totals
    cdef readonly object id
    cdef readonly str owner
    cdef readonly bytes name
    cdef readonly object partition
    cdef readonly bytes topic_name
    cdef readonly int qos
    cdef readonly long long base
    cdef readonly Deliveries deliveries
    cdef readonly object created_ms
    cdef public long long used_ms
    cdef public long long version
    cdef readonly bint alive
    cdef readonly long long era
    cdef readonly dict on_reset
    cdef public bint is_volatile
    cdef public int pins
    cdef public bint is_dirty
    cdef readonly bint is_paused
    cdef public bint check_end
    cdef readonly long long log_start
    cdef readonly object lost
    cdef readonly bint waiting
    cdef Reader _reader
    cdef Reader _retry_reader
    cdef readonly Reader reader
    cdef list _waiters
    cdef long long _wanted
    cdef object _failure
    cdef long long _used_at_ms

    @cython.locals(deliveries=Deliveries, reader=Reader, records=RecordCursor, last="long long", seq="long long", plan=Plan)
    cpdef Plan next(self, long long now_ms)
    @cython.locals(reader=Reader)
    cdef bint _open(self, Plan plan) except -1
    @cython.locals(deliveries=Deliveries)
    cpdef delivered(self, Plan plan, long long first, long long last, long long now_ms)
    cpdef finished(self, Plan plan, long long last)
    @cython.locals(count="long long")
    cpdef long long acknowledge(self, long long first, long long last) except? -1
    cpdef touch(self)
