cimport cython

from engine.formats.bundle cimport u64

cdef u64 _SEED
cdef u64 _FACTOR
cdef u64 _MASK

cpdef Py_ssize_t partition_of(bytes key, Py_ssize_t partition_count) except -1
@cython.locals(size=Py_ssize_t, whole=Py_ssize_t, at=Py_ssize_t, found=u64, part=u64)
cpdef u64 murmur2(bytes key)
