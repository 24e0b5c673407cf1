cimport cython

@cython.locals(
    count=Py_ssize_t, index=Py_ssize_t, flags=int, inner=bint, same=bint, out=bytearray, messages=bytearray, deltas=list, key=bytes,
    value=bytes
)
cdef bytes encode(list values, list keys, list timestamps, list seqs, int codec)

@cython.locals(index=Py_ssize_t, deltas=list)
cdef list sparse_deltas(list seqs, Py_ssize_t count)

cdef int append_varint(bytearray out, long long value) except -1
