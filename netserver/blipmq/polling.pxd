cimport cython

from engine.formats.batch cimport RecordCursor
from engine.cursors.cursor cimport Cursor
from engine.cursors.reader cimport Reader
from engine.cursors.deliveries cimport Deliveries, Plan
from engine.formats.bundle cimport u64
from netserver.blipmq.frames cimport ack_ranges, deliver, scan

cdef Py_ssize_t _ID_FRAME
cdef int _POLL
cdef int _ACK
cdef int _END
cdef int _FULL
cdef int _SKIP
cdef u64 _MASK
cdef Py_ssize_t _PASSED_MAX

cdef class ConsumingSession:
    cdef public bint is_ready
    cdef public bint is_pushing
    cdef public Py_ssize_t length_max
    cdef public Py_ssize_t owed
    cdef public Py_ssize_t unstored
    cdef public bint acked
    cdef public bint acked_last
    cdef readonly list out
    cdef readonly object shared
    cdef readonly object connection
    cdef readonly object counters
    cdef Cursor _cursor
    cdef Cursor _waiting
    cdef bytearray _buffer
    cdef unsigned char[::1] _room
    cdef Py_ssize_t _used
    cdef Py_ssize_t _passed

    @cython.locals(position=Py_ssize_t, before=Py_ssize_t, view="const unsigned char[::1]")
    cpdef Py_ssize_t received(self, data, Py_ssize_t length) except -1
    cpdef Py_ssize_t other(self, data, Py_ssize_t position, Py_ssize_t length) except -1
    cpdef confirm(self)
    cpdef pushed_on(self)
    cpdef bint own_acks(self, int kind, subscription_id, data, Py_ssize_t position, Py_ssize_t count) except -1
    cpdef answer(self, frame)
    cpdef answer_later(self, frame)
    cpdef flush(self)
    cpdef stop_reading(self)
    @cython.locals(runs=Py_ssize_t, kind=int, behind=Py_ssize_t, count=Py_ssize_t, cursor=Cursor)
    cdef Py_ssize_t _run(self, const unsigned char[::1] data, Py_ssize_t position, Py_ssize_t length) except -1
    @cython.locals(cursor=Cursor)
    cdef Cursor _find(self, subscription_id)
    cdef int _refuse(
        self, const unsigned char[::1] data, Py_ssize_t position, Py_ssize_t behind, int kind, subscription_id
    ) except -1
    @cython.locals(
        deliveries=Deliveries, ranges=list, index=Py_ssize_t, first="long long", last="long long", seq="long long"
    )
    cdef int _ack(self, Cursor cursor, const unsigned char[::1] data, Py_ssize_t position, Py_ssize_t count) except -1
    @cython.locals(plan=Plan, now_ms="long long", answered=Py_ssize_t)
    cdef Py_ssize_t _poll(
        self, Cursor cursor, const unsigned char[::1] data, Py_ssize_t position, Py_ssize_t count
    ) except -1
    @cython.locals(
        reader=Reader, records=RecordCursor, topic=bytes, oldest_ms=u64, first="long long", last="long long",
        base=u64, out="unsigned char[::1]", large=bytearray, start=Py_ssize_t, end=Py_ssize_t, taken=Py_ssize_t,
        state=int, qos0=bint
    )
    cdef Py_ssize_t _deliver(
        self, Cursor cursor, Plan plan, const unsigned char[::1] polls, Py_ssize_t position,
        Py_ssize_t limit, long long now_ms
    ) except -1
    @cython.locals(used=Py_ssize_t)
    cdef int _reply(self) except -1

cpdef object cid_at(const unsigned char[::1] data, Py_ssize_t position)
