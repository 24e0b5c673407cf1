from engine.formats.batch cimport BatchWriter

cdef class WriteBatch:
    cdef readonly object partition
    cdef public bytearray buffer
    cdef public BatchWriter writer
    cdef public object first_seq
    cdef public object last_seq
    cdef public object end
    cdef public object records
    cdef public object batches
    cdef public object max_timestamp_ms
    cdef public object append_time_ms
    cdef public object segment_id
    cdef public object file_position
    cdef public object transaction
    cdef public object transaction_id
    cdef public Py_ssize_t pending_bytes
    cdef public bint is_counted
    cdef public bint is_continued
    cdef public int state
    cdef public object error
    cdef public list waiters
    cdef public list produced
