cimport cython

cdef long long _QUEUED
cdef long long _GIVEN_UP
cdef long long _NEVER
cdef long long _DOUBLINGS
cdef long long _OVERTAKEN

cdef class Plan:
    cdef readonly long long first
    cdef readonly long long last
    cdef readonly bint retry

cdef class Deliveries:
    cdef readonly object policy
    cdef public long long next_seq
    cdef readonly long long unacknowledged
    cdef readonly long long queued
    cdef public list given_up
    cdef readonly long long dropped
    cdef readonly long long redelivered
    cdef list _firsts
    cdef list _lasts
    cdef list _attempts
    cdef list _dues
    cdef long long _next_due_ms
    cdef list _queue
    cdef long long _backoff_ms
    cdef long long _backoff_max_ms
    cdef long long _unacknowledged_max
    cdef long long _capacity

    cpdef set_policy(self, policy)
    @cython.locals(wait_ms="long long", step_ms="long long")
    cpdef long long due_ms(self, long long now_ms, long long attempts) except? -1
    @cython.locals(index=Py_ssize_t)
    cpdef bint covers(self, long long first, long long last) except -1
    @cython.locals(barrier="long long", last="long long")
    cpdef Plan plan(self, long long committed_seq, long long now_ms, gaps=*)
    @cython.locals(queue=list, first="long long", last="long long", index=Py_ssize_t)
    cdef Plan _next_retry(self)
    @cython.locals(room="long long", first="long long")
    cdef int _drop_oldest(self, long long committed_seq, gaps) except -1
    @cython.locals(head_last="long long", index=Py_ssize_t, attempts="long long")
    cpdef delivered(self, Plan plan, long long first, long long last, long long now_ms)
    cpdef finished(self, Plan plan, long long last)
    @cython.locals(
        firsts=list, lasts=list, index=Py_ssize_t, count="long long", run_first="long long", run_last="long long",
        low="long long", high="long long"
    )
    cpdef long long acknowledge(self, long long first, long long last) except? -1
    @cython.locals(count="long long", back=list, index=Py_ssize_t, low="long long", high="long long")
    cpdef long long release(self, long long first, long long last, long long now_ms, long long delay_ms=*) except? -1
    @cython.locals(
        barrier="long long", earliest_ms="long long", index=Py_ssize_t, due_ms="long long", first="long long",
        last="long long"
    )
    cpdef fall_due(self, long long committed_seq, long long now_ms)
    @cython.locals(attempts="long long", attempts_max="long long")
    cdef bint _give_up(self, Py_ssize_t index) except -1
    @cython.locals(lost="long long")
    cpdef long long jump(self, long long log_start) except? -1
    @cython.locals(beyond="long long")
    cpdef long long cut(self, long long end_seq) except? -1
    cpdef reset(self, long long next_seq)
    cpdef list dump(self)
    cdef Py_ssize_t _find(self, long long seq) except -1
    @cython.locals(end=Py_ssize_t)
    cdef int append_run(self, long long first, long long last, long long attempts, long long due_ms) except -1
    @cython.locals(index=Py_ssize_t)
    cdef int queue_all(self) except -1
    cdef int _set_due(self, Py_ssize_t index, long long due_ms) except -1
    cdef int _split(self, Py_ssize_t index, long long at) except -1
    @cython.locals(index=Py_ssize_t)
    cdef Py_ssize_t _isolate(self, long long first, long long last) except -1
    @cython.locals(before=Py_ssize_t)
    cdef int _join(self, Py_ssize_t index) except -1

@cython.locals(deliveries=Deliveries, end="long long", at=Py_ssize_t, distance="long long", length="long long", first="long long")
cpdef Deliveries load(flat, policy)
