cimport cython

from engine.formats.batch cimport BatchWriter
from engine.formats.bundle cimport BundleInfo, MessageCursor, check_bundle, u32 as uint32, u64

cdef Py_ssize_t _ANSWER
cdef Py_ssize_t _PART_LEAST
cdef Py_ssize_t _PARTS_MAX
cdef Py_ssize_t _RUN_BYTES
cdef u64 _RUN_RECORDS
cdef Py_ssize_t _PARTS_BYTES_MAX
cdef Py_ssize_t _PART_ROOM
cdef Py_ssize_t _CHECK_HEAD
cdef Py_ssize_t _BATCH_HEADER

cdef class ProduceCursor:
    cdef readonly Py_ssize_t name_start
    cdef readonly Py_ssize_t name_end
    cdef readonly Py_ssize_t parts
    cdef readonly uint32 partition_id
    cdef readonly uint32 request_id
    cdef readonly Py_ssize_t bundle_start
    cdef readonly Py_ssize_t bundle_end
    cdef readonly Py_ssize_t frame_end

    @cython.locals(size=Py_ssize_t, stop=Py_ssize_t, at=Py_ssize_t)
    cpdef bint open(self, const unsigned char[::1] src, Py_ssize_t position, Py_ssize_t end) except -1
    @cython.locals(stop=Py_ssize_t, at=Py_ssize_t, value=Py_ssize_t, byte=Py_ssize_t, shift=int)
    cpdef bint advance(self, const unsigned char[::1] src) except -1

@cython.locals(
    cursor=ProduceCursor, info=BundleInfo, capacity=Py_ssize_t, at=Py_ssize_t, size=Py_ssize_t,
    bundles=Py_ssize_t, records=u64, size_bytes=Py_ssize_t, start=Py_ssize_t, stop=Py_ssize_t, count=u64,
    first_seq=u64, full=bint, out="unsigned char[::1]", answered=Py_ssize_t, infos=list, parts=Py_ssize_t,
    index=Py_ssize_t,
)
cpdef tuple produce_run(
    const unsigned char[::1] src, Py_ssize_t position, Py_ssize_t end, bytes name, uint32 partition_id, BatchWriter writer
)

@cython.locals(
    infos=list, info=BundleInfo, left=u64, partition_id=uint32, parts=Py_ssize_t, start=Py_ssize_t, stop=Py_ssize_t
)
cdef list check_parts(const unsigned char[::1] src, ProduceCursor cursor)
cpdef Py_ssize_t parts_room(ProduceCursor cursor) except -1

cdef class ChunkCut:
    cdef readonly Py_ssize_t size_bytes
    cdef readonly u64 records
    cdef readonly Py_ssize_t batches
    cdef readonly u64 first_seq
    cdef readonly u64 last_seq
    cdef readonly bint sparse
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t end
    cdef readonly bint stopped
    cdef Py_ssize_t batch
    cdef Py_ssize_t position
    cdef u64 bundle_first_seq
    cdef u64 bundle_last_seq
    cdef u64 bundle_records
    cdef bint bundle_sparse

    @cython.locals(
        position=Py_ssize_t, bundles_start=Py_ssize_t, bundles_bytes=Py_ssize_t, behind=Py_ssize_t, first_seq=u64,
        last_seq=u64, before=Py_ssize_t, fits=bint,
    )
    cpdef bint cut(
        self, const unsigned char[::1] src, u64 from_seq, u64 expected_seq, Py_ssize_t size_bytes_max
    ) except -1
    @cython.locals(start=Py_ssize_t, end=Py_ssize_t, next_seq=u64, behind=Py_ssize_t)
    cdef int cut_batch(
        self, const unsigned char[::1] src, Py_ssize_t batch, u64 from_seq, u64 expected_seq, Py_ssize_t size_bytes_max
    ) except -1
    cdef bint follows(self, u64 expected_seq) except -1
    cdef int take(self, Py_ssize_t batch, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(left=Py_ssize_t, bundles_bytes=Py_ssize_t, extension_bytes=Py_ssize_t)
    cdef int check_batch(self, const unsigned char[::1] src, Py_ssize_t position) except -1
    @cython.locals(size=Py_ssize_t, flags="unsigned int", count=u64, last_seq=u64)
    cdef int open_bundle(
        self, const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t end, u64 next_seq
    ) except -1
    @cython.locals(value=u64, byte=u64, shift=int)
    cdef u64 varint(self, const unsigned char[::1] src, Py_ssize_t position, Py_ssize_t end) except? 0xFFFFFFFFFFFFFFFF
    @cython.locals(
        view="unsigned char[::1]", batch=Py_ssize_t, start=Py_ssize_t, bundles_start=Py_ssize_t,
        bundles_end=Py_ssize_t, stop=Py_ssize_t,
    )
    cpdef Py_ssize_t copy_to(self, const unsigned char[::1] src, bytearray out, Py_ssize_t position) except -1
    @cython.locals(
        batch=Py_ssize_t, start=Py_ssize_t, bundles_start=Py_ssize_t, bundles_end=Py_ssize_t, stop=Py_ssize_t,
    )
    cpdef list ranges(self, const unsigned char[::1] src)

@cython.locals(low=u64, high=u64)
cdef u64 u32(const unsigned char[::1] src, Py_ssize_t position) except? 0xFFFFFFFFFFFFFFFF
@cython.locals(low=u64, high=u64)
cdef u64 u64_at(const unsigned char[::1] src, Py_ssize_t position) except? 0xFFFFFFFFFFFFFFFF
@cython.locals(text="const unsigned char[::1]", index=Py_ssize_t)
cdef bint same(const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t end, bytes name) except -1
@cython.locals(view="unsigned char[::1]", index=int)
cdef int put_answer(unsigned char[::1] out, Py_ssize_t position, uint32 request_id, Py_ssize_t parts) except -1
@cython.locals(index=Py_ssize_t)
cdef int copy(
    unsigned char[::1] out, Py_ssize_t position, const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t size
) except -1

@cython.locals(
    src="const unsigned char[::1]", cursor=MessageCursor, values=list, keys=list, timestamps=list, seqs=list,
    position=Py_ssize_t, end=Py_ssize_t, start=Py_ssize_t, size=Py_ssize_t, byte=Py_ssize_t, shift=int, data=bytes,
)
cpdef tuple unpack_chunk(bytes chunk, u64 next_seq, u64 from_seq)
