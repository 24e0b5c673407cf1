cimport cython

cdef class Turns:
    cdef object _turn_of
    cdef object _turn
    cdef readonly object slow
    cdef readonly double longest_s
    cdef double _look_s
    cdef double _started
    cdef double _at
    cdef double _cpu
    cdef double _clock_s
    cdef double _exact_until
    cdef object _running
    cdef object _most
    cdef double _most_s
    cdef double _logged_at

    @cython.locals(now=double)
    cpdef mark(self, what)
    @cython.locals(cpu=double, spent_s=double, last_s=double)
    cdef _begin(self, double now)
    cdef _tell(self, double now, double spent_s)
