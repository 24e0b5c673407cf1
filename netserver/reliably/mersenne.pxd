cimport cython


@cython.locals(
    mask="unsigned int", factor="unsigned int", high="unsigned int", twist="unsigned int",
    temper_b="unsigned int", temper_c="unsigned int",
    word="unsigned int", second="unsigned int", mixed="unsigned int", out="unsigned int", i="unsigned int",
)
cpdef unsigned int next_value(unsigned int seed) noexcept

@cython.locals(value="unsigned int", position=Py_ssize_t)
cpdef object fill_values(unsigned int seed, unsigned char[::1] out, Py_ssize_t count)

@cython.locals(size=Py_ssize_t, rest="unsigned int", at=Py_ssize_t, end=Py_ssize_t)
cpdef Py_ssize_t put_decimal(unsigned char[::1] out, Py_ssize_t position, unsigned int value) noexcept

@cython.locals(
    count=Py_ssize_t, n=Py_ssize_t, at=Py_ssize_t,
    b0="unsigned int", b1="unsigned int", b2="unsigned int", b3="unsigned int",
    head="const unsigned char[::1]", middle="const unsigned char[::1]", tail="const unsigned char[::1]",
)
cpdef object put_lines(unsigned char[::1] out, const unsigned char[::1] values, unsigned int first_id)

@cython.locals(i=Py_ssize_t)
cdef Py_ssize_t _copy(unsigned char[::1] out, Py_ssize_t position, const unsigned char[::1] text) noexcept
