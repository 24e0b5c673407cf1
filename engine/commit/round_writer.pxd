cdef extern from *:
    """
    #include <errno.h>
    #include <semaphore.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #include <sys/uio.h>
    #include <time.h>
    #include <unistd.h>

    enum { QL_PARTS = 16, QL_PIECES = 64, QL_MARK_BYTES = 64 };
    enum { QL_DONE, QL_WRITE, QL_SYNC };

    typedef struct {
        int fd, sync, mark_fd, count;
        int failed_at, error, mark_error;
        long long position, mark_position;
        struct iovec *pieces;
        char mark[QL_MARK_BYTES];
    } ql_part;

    typedef struct {
        int parts, count, stopping, done;
        int next;         /* the part that is synced next: whoever raises it syncs that one */
        sem_t wanted;     /* a helper is asked for, once for each part but the first */
        sem_t helped;     /* one that came has no more to do */
        double sync_seconds;
        struct iovec pieces[QL_PIECES];
        ql_part part[QL_PARTS];
    } ql_round;

    static int ql_write_pieces(ql_part *p) {
        struct iovec *piece = p->pieces;
        int left = p->count;
        long long position = p->position;
        while (left) {
            ssize_t n = pwritev2(p->fd, piece, left, (off_t)position, 0);
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

    static int ql_sync(int fd) {
        struct stat found;
        if (fdatasync(fd)) return errno;
        return !fstat(fd, &found) && !found.st_nlink ? ENOENT : 0;  /* removed: nobody would find it after a restart */
    }

    static void ql_write_mark(ql_part *p) {
        struct iovec slot = {p->mark, QL_MARK_BYTES};
        ssize_t n;
        do n = pwritev2(p->mark_fd, &slot, 1, (off_t)p->mark_position, 0);
        while (n < 0 && errno == EINTR);
        p->mark_error = n == QL_MARK_BYTES ? 0 : n < 0 ? errno : EIO;
    }

    static void ql_wait(sem_t *sem) {
        while (sem_wait(sem) && errno == EINTR) {}
    }

    /* Syncs parts that nobody else syncs, until there are none left. */
    static void ql_sync_some(ql_round *r) {
        ql_part *p;
        int i;
        while ((i = __atomic_fetch_add(&r->next, 1, __ATOMIC_ACQ_REL)) < r->parts) {
            p = &r->part[i];
            if (p->failed_at != QL_DONE || !p->sync || !(p->error = ql_sync(p->fd))) continue;
            p->failed_at = QL_SYNC;
        }
    }

    /* All at the same time: a file system syncs several files about as fast as one, but not one after the other. */
    static void ql_sync_all(ql_round *r) {
        int asked = 0, i;
        for (i = 0; i < r->parts; i++) asked += r->part[i].failed_at == QL_DONE && r->part[i].sync;
        r->sync_seconds = 0;
        if (!asked) return;
        r->sync_seconds = -ql_now();
        r->next = 0;
        for (i = 1; i < asked; i++) sem_post(&r->wanted);
        ql_sync_some(r);
        while (--asked) {
            if (sem_trywait(&r->wanted)) ql_wait(&r->helped);  /* else nobody had come yet, and need not any more */
        }
        r->sync_seconds += ql_now();
    }

    static void ql_perform(ql_round *r) {
        ql_part *p, *end = r->part + r->parts;
        for (p = r->part; p < end; p++) {
            p->mark_error = 0;
            p->failed_at = (p->error = ql_write_pieces(p)) ? QL_WRITE : QL_DONE;
        }
        ql_sync_all(r);
        for (p = r->part; p < end; p++) {
            if (p->failed_at == QL_DONE) ql_write_mark(p);
        }
    }

    /* From Linux 6.12 on: a thread that says to need the processor for moments only gets it at once, and not when who
       has it has used up a slice of milliseconds, as long as a sync. Older ones take no notice. */
    static void ql_ask_for_short_slices(void) {
        struct {
            uint32_t size, policy;
            uint64_t flags;
            int32_t nice;
            uint32_t priority;
            uint64_t runtime_ns, deadline_ns, period_ns;
        } attributes;
        if (!syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) && attributes.policy == 0) {
            attributes.runtime_ns = 100000;
            syscall(SYS_sched_setattr, 0, &attributes, 0);
        }
    }

    static void ql_serve(ql_round *r, int wake_fd, int done_fd) {
        uint64_t count = 1;
        ssize_t n;
        Py_BEGIN_ALLOW_THREADS
        ql_ask_for_short_slices();
        for (;;) {
            n = read(wake_fd, &count, sizeof count);
            if (n < 0 && errno == EINTR) continue;
            if (n != sizeof count || r->stopping) break;
            ql_perform(r);
            __atomic_store_n(&r->done, 1, __ATOMIC_RELEASE);
            count = 1;
            while (write(done_fd, &count, sizeof count) < 0 && errno == EINTR) {}
        }
        sem_post(&r->wanted);  /* helpers end behind the last round */
        Py_END_ALLOW_THREADS
    }

    static void ql_help(ql_round *r) {
        Py_BEGIN_ALLOW_THREADS
        ql_ask_for_short_slices();
        for (;;) {
            ql_wait(&r->wanted);
            if (r->stopping) break;
            ql_sync_some(r);
            sem_post(&r->helped);
        }
        sem_post(&r->wanted);  /* the next one ends, too */
        Py_END_ALLOW_THREADS
    }

    static void ql_perform_here(ql_round *r) {
        Py_BEGIN_ALLOW_THREADS
        ql_perform(r);
        Py_END_ALLOW_THREADS
    }

    static void ql_wake(int wake_fd) {
        uint64_t one = 1;
        while (write(wake_fd, &one, sizeof one) < 0 && errno == EINTR) {}
    }

    static int ql_is_done(ql_round *r) { return __atomic_load_n(&r->done, __ATOMIC_ACQUIRE); }

    static void ql_begin(ql_round *r) { __atomic_store_n(&r->done, 0, __ATOMIC_RELEASE); }

    static void ql_begin_part(ql_round *r, int fd, long long position, int sync) {
        ql_part *p = &r->part[r->parts++];
        p->fd = fd;
        p->position = position;
        p->sync = sync;
        p->pieces = &r->pieces[r->count];
        p->count = 0;
    }

    static void ql_piece(ql_round *r, const char *data, Py_ssize_t size) {
        struct iovec *piece = &r->pieces[r->count++];
        piece->iov_base = (void *)data;
        piece->iov_len = (size_t)size;
        r->part[r->parts - 1].count++;
    }

    static void ql_set_mark(ql_round *r, int fd, long long position, const char *mark) {
        ql_part *p = &r->part[r->parts - 1];
        p->mark_fd = fd;
        p->mark_position = position;
        memcpy(p->mark, mark, QL_MARK_BYTES);
    }

    static ql_round *ql_new(void) {
        ql_round *r = (ql_round *)calloc(1, sizeof *r);
        if (r && (sem_init(&r->wanted, 0, 0) || sem_init(&r->helped, 0, 0))) {
            free(r);
            return NULL;
        }
        return r;
    }
    """
    enum: QL_PARTS
    enum: QL_PIECES
    enum: QL_MARK_BYTES

    ctypedef struct ql_part:
        int failed_at, error, mark_error

    ctypedef struct ql_round:
        int parts, count, stopping
        double sync_seconds
        ql_part *part

    ql_round *ql_new()
    void ql_serve(ql_round *job, int wake_fd, int done_fd)
    void ql_help(ql_round *job)
    void ql_perform_here(ql_round *job)
    void ql_wake(int wake_fd)
    int ql_is_done(ql_round *job)
    void ql_begin(ql_round *job)
    void ql_begin_part(ql_round *job, int fd, long long position, int sync)
    void ql_piece(ql_round *job, const char *data, Py_ssize_t size)
    void ql_set_mark(ql_round *job, int fd, long long position, const char *mark)

from libc.stdlib cimport free

cdef inline ql_round *ql_made() except NULL:
    cdef ql_round *made = ql_new()
    if made == NULL:
        raise MemoryError()
    return made

cdef inline void ql_free(ql_round *job) noexcept:
    free(job)

cdef class RoundWriter:
    cdef ql_round *job
    cdef int wake_fd
    cdef int done_fd
    cdef list pinned
    cdef bint busy

    cpdef part(self, int fd, long long position, bint sync, int mark_fd, bytes mark, long long mark_position)
    cpdef add(self, bytearray buffer, Py_ssize_t size)
    cpdef clear(self)
    cpdef submit(self)
    cpdef perform(self)
    cpdef bint is_done(self)
    cpdef tuple take(self)
    cpdef serve(self)
    cpdef help(self)
    cpdef stop(self)
