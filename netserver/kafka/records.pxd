cimport cython
from libc.string cimport memcpy

from engine.formats.batch cimport BatchWriter, RecordCursor
from engine.formats.bundle cimport u32, u64

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    static uint32_t ql_crc_tables[8][256];

    static void ql_crc_prepare(void) {
        for (int i = 0; i < 256; i++) {
            uint32_t crc = (uint32_t)i;
            for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
            ql_crc_tables[0][i] = crc;
        }
        for (int i = 0; i < 256; i++)
            for (int t = 1; t < 8; t++) {
                uint32_t before = ql_crc_tables[t - 1][i];
                ql_crc_tables[t][i] = before >> 8 ^ ql_crc_tables[0][before & 255];
            }
    }

    static uint32_t ql_crc_by_tables(uint32_t crc, const unsigned char *p, size_t n) {
        for (; n >= 8; n -= 8, p += 8) {
            crc ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
            crc = ql_crc_tables[7][crc & 255] ^ ql_crc_tables[6][crc >> 8 & 255] ^ ql_crc_tables[5][crc >> 16 & 255]
                ^ ql_crc_tables[4][crc >> 24] ^ ql_crc_tables[3][p[4]] ^ ql_crc_tables[2][p[5]]
                ^ ql_crc_tables[1][p[6]] ^ ql_crc_tables[0][p[7]];
        }
        while (n--) crc = crc >> 8 ^ ql_crc_tables[0][(crc ^ *p++) & 255];
        return crc;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #define QL_STRIPE 256  /* three stripes at once: an instruction takes three cycles, but one begins in each */

    static uint32_t ql_crc_behind[4][256];  /* what a byte of a checksum becomes by a stripe of zeros */

    static void ql_crc_prepare_stripes(void) {
        static const unsigned char zeros[QL_STRIPE];
        for (int t = 0; t < 4; t++)
            for (uint32_t i = 0; i < 256; i++) ql_crc_behind[t][i] = ql_crc_by_tables(i << 8 * t, zeros, QL_STRIPE);
    }

    static inline uint32_t ql_crc_moved(uint32_t crc) {
        return ql_crc_behind[0][crc & 255] ^ ql_crc_behind[1][crc >> 8 & 255]
            ^ ql_crc_behind[2][crc >> 16 & 255] ^ ql_crc_behind[3][crc >> 24];
    }

    __attribute__((target("sse4.2")))
    static uint32_t ql_crc_by_processor(uint32_t start, const unsigned char *p, size_t n) {
        uint64_t crc = start, word;
        for (; n >= 3 * QL_STRIPE; n -= 3 * QL_STRIPE, p += 3 * QL_STRIPE) {
            uint64_t second = 0, third = 0;
            for (size_t i = 0; i < QL_STRIPE; i += 8) {
                memcpy(&word, p + i, 8);
                crc = __builtin_ia32_crc32di(crc, word);
                memcpy(&word, p + QL_STRIPE + i, 8);
                second = __builtin_ia32_crc32di(second, word);
                memcpy(&word, p + 2 * QL_STRIPE + i, 8);
                third = __builtin_ia32_crc32di(third, word);
            }
            crc = ql_crc_moved(ql_crc_moved((uint32_t)crc) ^ (uint32_t)second) ^ (uint32_t)third;
        }
        for (; n >= 8; n -= 8, p += 8) {
            memcpy(&word, p, 8);
            crc = __builtin_ia32_crc32di(crc, word);
        }
        while (n--) crc = __builtin_ia32_crc32qi((uint32_t)crc, *p++);
        return (uint32_t)crc;
    }
    #define QL_HAS_CRC() __builtin_cpu_supports("sse4.2")
    #else
    #define ql_crc_prepare_stripes() ((void)0)
    #define ql_crc_by_processor ql_crc_by_tables
    #define QL_HAS_CRC() 0
    #endif

    static uint32_t ql_crc(const unsigned char *p, Py_ssize_t n, int tables_only) {
        static int kind;  /* 1: the processor's instruction, 2: tables; set with the interpreter's lock held */
        if (!kind) {
            ql_crc_prepare();
            ql_crc_prepare_stripes();
            kind = QL_HAS_CRC() ? 1 : 2;
        }
        if (kind == 1 && !tables_only) return ~ql_crc_by_processor(0xFFFFFFFFu, p, (size_t)n);
        return ~ql_crc_by_tables(0xFFFFFFFFu, p, (size_t)n);
    }
    """
    u32 ql_crc(const unsigned char *data, Py_ssize_t size, int tables_only) nogil

cdef inline u32 ql_crc32c(const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t size) noexcept:
    return ql_crc(&src[start] if size else NULL, size, 0)

cdef inline u32 ql_crc32c_by_tables(const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t size) noexcept:
    return ql_crc(&src[start] if size else NULL, size, 1)

cdef inline Py_ssize_t ql_copy(
    unsigned char *out, Py_ssize_t position, const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t size
) noexcept:
    if size:
        memcpy(out + position, &src[start], size)
    return position + size

cdef Py_ssize_t _BATCH_HEADER
cdef u64 _NO_TIME
cdef u64 _U64_MAX
cdef long long _HEADERS_MAX
cdef Py_ssize_t _BATCH_BYTES
cdef Py_ssize_t _OBJECTS_MAX
cdef long long _PACKED_OBJECTS
cdef Py_ssize_t _RECORD_ROOM
cdef u64 _OFFSETS_MAX

cpdef u32 crc32c(const unsigned char[::1] src, Py_ssize_t start, Py_ssize_t end, bint tables=*) except? 0

@cython.final
cdef class RecordWalk:
    cdef const unsigned char[::1] data
    cdef object window
    cdef Py_ssize_t position
    cdef Py_ssize_t end
    cdef long long count
    cdef u64 base_timestamp
    cdef readonly long long index
    cdef public bint held
    cdef readonly long long objects
    cdef readonly Py_ssize_t key_start
    cdef readonly long long key_size
    cdef readonly Py_ssize_t value_start
    cdef readonly long long value_size
    cdef readonly u64 timestamp
    cdef readonly Py_ssize_t headers_start
    cdef readonly long long headers
    cdef Py_ssize_t at
    cdef Py_ssize_t stop

    @cython.locals(size="long long", offset="long long", delta=u64)
    cpdef bint next(self) except -1
    cdef object invalid(self, str problem)
    @cython.locals(index="long long")
    cdef int pass_headers(self) except -1
    @cython.locals(size="long long")
    cdef inline Py_ssize_t field(self) noexcept
    @cython.locals(byte="long long", value=u64)
    cdef inline Py_ssize_t small(self) noexcept
    @cython.locals(value=u64, byte=u64, shift=int, at=Py_ssize_t)
    cdef u64 varint(self, int bits) noexcept
    cdef bint is_plain(self) noexcept
    @cython.locals(size=Py_ssize_t)
    cdef Py_ssize_t stored_size(self) noexcept
    cpdef Py_ssize_t room(self) except -1
    @cython.locals(size="long long", index="long long", flat=list, nulls=list)
    cdef tuple header_list(self)

@cython.locals(stop="long long")
cpdef bint check_walk(RecordWalk walk, Py_ssize_t record_bytes_max, long long records_max) except -1
@cython.locals(
    count=Py_ssize_t, total=Py_ssize_t, timestamp=u64, key_size=Py_ssize_t, objects="long long",
)
cpdef tuple pack_records(RecordWalk walk, BatchWriter writer, long long stop, u64 now_ms)
cdef bint put_marked(RecordWalk walk, BatchWriter writer, u64 timestamp_ms) except -1

@cython.final
cdef class RecordBuilder:
    cdef bytearray buffer
    cdef Py_ssize_t size
    cdef Py_ssize_t used
    cdef Py_ssize_t records
    cdef Py_ssize_t start
    cdef u64 base_seq
    cdef u64 last_seq
    cdef u64 count
    cdef long long base_timestamp
    cdef long long max_timestamp

    cdef inline int make_room(self, Py_ssize_t size_bytes) except -1
    cdef inline int begin(self, u64 seq, long long timestamp_ms, Py_ssize_t size_bytes) except -1
    @cython.locals(
        timestamp="long long", delta="long long", offset="long long", header_bytes=Py_ssize_t, size=Py_ssize_t,
        out="unsigned char*", at=Py_ssize_t,
    )
    cdef int put(
        self, RecordCursor cursor, long long key_size, bytes key, long long value_size, bytes headers
    ) except -1
    @cython.locals(out="unsigned char*", at=Py_ssize_t)
    cdef object end_batch(self)

@cython.locals(
    cursor=RecordCursor, size=Py_ssize_t, builder=RecordBuilder, next_seq=u64, objects=Py_ssize_t, none=bytes,
    value_size=Py_ssize_t, key_size=Py_ssize_t,
)
cpdef tuple build_records(const unsigned char[::1] batches, u64 from_seq, Py_ssize_t bytes_max)
@cython.locals(headers=bytes, key_size="long long", value_size="long long", size=Py_ssize_t)
cdef bint put_odd(RecordBuilder builder, RecordCursor cursor, Py_ssize_t bytes_max) except -1
@cython.locals(count=Py_ssize_t, out=bytearray, at=Py_ssize_t, index=Py_ssize_t, part=bytes)
cdef bytes packed_headers(tuple flat, tuple nulls)
cdef long long clamped(u64 timestamp_ms) noexcept
@cython.locals(left=u64, size=Py_ssize_t)
cdef Py_ssize_t zigzag_size(long long value) noexcept
@cython.locals(left=u64)
cdef Py_ssize_t put_zigzag(unsigned char *out, Py_ssize_t position, long long value) noexcept
@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t put_number(unsigned char *out, Py_ssize_t position, u64 value, Py_ssize_t size) noexcept
@cython.locals(cursor=RecordCursor)
cpdef object first_at_time(const unsigned char[::1] batches, u64 from_seq, u64 timestamp_ms)
@cython.locals(cursor=RecordCursor, found=bint, seq=u64, timestamp=u64)
cpdef object latest_in(const unsigned char[::1] batches, u64 from_seq)
