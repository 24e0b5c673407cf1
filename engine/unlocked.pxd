cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <string.h>
    #include <sys/uio.h>
    #include <time.h>
    #include <unistd.h>

    enum { QL_PIECES = 64, QL_MARK_BYTES = 64 };
    enum { QL_DONE, QL_WRITE, QL_SYNC };

    typedef struct {
        int fd, sync, mark_fd, count;
        int failed_at, error, mark_error, stopping;
        double sync_seconds;
        long long position, mark_position;
        struct iovec pieces[QL_PIECES];
        char mark[QL_MARK_BYTES];
    } ql_round;

    static int ql_write_pieces(ql_round *r) {
        struct iovec *piece = r->pieces;
        int left = r->count;
        long long position = r->position;
        while (left) {
            ssize_t n = pwritev2(r->fd, piece, left, (off_t)position, 0);
            if (n < 0) {
                if (errno == EINTR) continue;
                return errno;
            }
            if (n == 0) return EIO;
            position += n;
            while (left && (size_t)n >= piece->iov_len) {
                n -= (ssize_t)piece->iov_len;
                piece++;
                left--;
            }
            if (left) {
                piece->iov_base = (char *)piece->iov_base + n;
                piece->iov_len -= (size_t)n;
            }
        }
        return 0;
    }

    static double ql_now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
    }

    static void ql_perform(ql_round *r) {
        struct iovec slot;
        double started;
        ssize_t n;
        r->failed_at = QL_WRITE;
        r->sync_seconds = 0;
        r->mark_error = 0;
        if ((r->error = ql_write_pieces(r)) != 0) return;
        r->failed_at = QL_SYNC;
        if (r->sync) {
            started = ql_now();
            if (fdatasync(r->fd)) {
                r->error = errno;
                return;
            }
            r->sync_seconds = ql_now() - started;
        }
        r->failed_at = QL_DONE;
        slot.iov_base = r->mark;
        slot.iov_len = QL_MARK_BYTES;
        do n = pwritev2(r->mark_fd, &slot, 1, (off_t)r->mark_position, 0);
        while (n < 0 && errno == EINTR);
        r->mark_error = n == QL_MARK_BYTES ? 0 : n < 0 ? errno : EIO;
    }

    static void ql_serve(ql_round *r, int wake_fd, int done_fd) {
        uint64_t count = 1;
        ssize_t n;
        Py_BEGIN_ALLOW_THREADS
        for (;;) {
            n = read(wake_fd, &count, sizeof count);
            if (n < 0 && errno == EINTR) continue;
            if (n != sizeof count || r->stopping) break;
            ql_perform(r);
            count = 1;
            while (write(done_fd, &count, sizeof count) < 0 && errno == EINTR) {}
        }
        Py_END_ALLOW_THREADS
    }

    static void ql_wake(int wake_fd) {
        uint64_t one = 1;
        while (write(wake_fd, &one, sizeof one) < 0 && errno == EINTR) {}
    }

    static void ql_piece(ql_round *r, const char *data, Py_ssize_t size) {
        r->pieces[r->count].iov_base = (void *)data;
        r->pieces[r->count++].iov_len = (size_t)size;
    }

    static void ql_set_mark(ql_round *r, const char *mark) { memcpy(r->mark, mark, QL_MARK_BYTES); }
    """
    ctypedef struct ql_round:
        int fd, sync, mark_fd, count
        int failed_at, error, mark_error, stopping
        double sync_seconds
        long long position, mark_position

    void ql_serve(ql_round *job, int wake_fd, int done_fd)
    void ql_wake(int wake_fd)
    void ql_piece(ql_round *job, const char *data, Py_ssize_t size)
    void ql_set_mark(ql_round *job, const char *mark)

from libc.stdlib cimport calloc, free

cdef inline ql_round *ql_new() except NULL:
    cdef ql_round *made = <ql_round *>calloc(1, sizeof(ql_round))
    if made == NULL:
        raise MemoryError()
    return made

cdef inline void ql_free(ql_round *job) noexcept:
    free(job)

cdef int PIECES

cdef class RoundWriter:
    cdef ql_round *job
    cdef int wake_fd
    cdef int done_fd
    cdef list pinned
    cdef bint busy

    cpdef add(self, bytearray buffer, Py_ssize_t size)
    cpdef clear(self)
    cpdef submit(
        self, int fd, long long position, bint sync, int mark_fd, bytes mark, long long mark_position
    )
    cpdef tuple take(self)
    cpdef serve(self)
    cpdef stop(self)
