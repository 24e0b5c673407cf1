cimport cython

from engine.batch cimport RecordCursor
from engine.cursor cimport Cursor
from engine.cursor_reader cimport Reader
from engine.deliveries cimport Deliveries, Plan

cdef Py_ssize_t _ID_FRAME
cdef int _POLL
cdef int _ACK
cdef int _END
cdef int _FULL
cdef int _SKIP

cdef class Polling:
    cdef public Py_ssize_t unstored
    cdef public bint acked
    cdef object _node
    cdef object _connection
    cdef object _answer
    cdef object _flush
    cdef object _identity
    cdef Cursor _cursor
    cdef Cursor _waiting

    cpdef allow(self, identity)
    cpdef close(self)
    @cython.locals(kind=int, behind=Py_ssize_t, count=Py_ssize_t, cursor=Cursor)
    cpdef Py_ssize_t run(self, data, Py_ssize_t position, Py_ssize_t length, Py_ssize_t length_max) except -1
    @cython.locals(cursor=Cursor)
    cdef Cursor _find(self, subscription_id)
    cdef int _refuse(self, data, Py_ssize_t position, Py_ssize_t behind, int kind, subscription_id) except -1
    @cython.locals(
        deliveries=Deliveries, ranges=list, index=Py_ssize_t, first="long long", last="long long", seq="long long"
    )
    cdef int _ack(self, Cursor cursor, data, Py_ssize_t position, Py_ssize_t count) except -1
    @cython.locals(plan=Plan, now_ms="long long", used=Py_ssize_t, answered=Py_ssize_t, taken=Py_ssize_t, at=Py_ssize_t)
    cdef Py_ssize_t _poll(self, Cursor cursor, data, Py_ssize_t position, Py_ssize_t count) except -1
    @cython.locals(
        reader=Reader, records=RecordCursor, first="long long", last="long long", end=Py_ssize_t, taken=Py_ssize_t,
        state=int, qos0=bint
    )
    cdef tuple _deliver(
        self, Cursor cursor, Plan plan, Py_ssize_t used, polls, Py_ssize_t position, Py_ssize_t limit, long long now_ms
    )
    cdef int _reply(self, Py_ssize_t used) except -1

cpdef object cid_at(data, Py_ssize_t position)
