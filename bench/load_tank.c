/* Load client for the TANK protocol: one thread, one connection; fast enough not to be the limit.
 *
 *   load_tank produce HOST PORT FRAME RECORDS WINDOW SECONDS   sends the file FRAME (a whole Produce for one partition
 *                                                              with RECORDS messages) with WINDOW requests open
 *   load_tank consume HOST PORT FRAME POSITION COUNT           sends the file FRAME (a whole Consume of one partition),
 *                                                              the number asked for being at POSITION in it, until
 *                                                              COUNT messages came; begins again at the end
 *
 * Prints one JSON object: messages, seconds, bytes, p50_us, p99_us (request to answer). Any code but 0 is an error. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "load_common.h"

enum { FRAME_MAX = 4 << 20, RING = 1 << 16, ANSWER = 10, READ = 1 << 16, CHUNK_MAX = 80 << 20 };

static uint64_t messages, bytes, sent_ns[RING];
static unsigned char frame[FRAME_MAX];
static size_t frame_bytes;
static int fd;

static void report(uint64_t start) {
    printf("{\"messages\": %llu, \"seconds\": %.6f, \"bytes\": %llu, \"p50_us\": %llu, \"p99_us\": %llu}\n",
           (unsigned long long)messages, (double)(now_ns() - start) / 1e9, (unsigned long long)bytes,
           (unsigned long long)percentile(0.5), (unsigned long long)percentile(0.99));
}

static void read_all(unsigned char *to, size_t size) {
    for (size_t got = 0; got < size;) {
        ssize_t n = read(fd, to + got, size - got);
        if (n <= 0) fail("read");
        got += (size_t)n;
    }
}

static void open_all(char **arguments) {
    FILE *file = fopen(arguments[4], "rb");
    if (!file) fail(arguments[4]);
    frame_bytes = fread(frame, 1, sizeof frame, file);
    fclose(file);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(arguments[3]))};
    inet_pton(AF_INET, arguments[2], &address.sin_addr);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    unsigned char ping[5];
    read_all(ping, sizeof ping);
}

static void take_answers(const unsigned char *data, size_t size, uint64_t *answered, uint64_t records) {
    static size_t at; /* within an answer */
    uint64_t now = now_ns();
    for (size_t i = 0; i < size; i++) {
        if (++at < ANSWER) continue;
        at = 0;
        if (data[i]) {
            fprintf(stderr, "code %d\n", data[i]);
            exit(1);
        }
        note_latency(now - sent_ns[*answered % RING]);
        (*answered)++;
        messages += records;
        bytes += frame_bytes;
    }
}

static void produce(uint64_t records, uint64_t window, double seconds) {
    unsigned char *many = malloc(frame_bytes * window), in[READ];
    for (uint64_t i = 0; i < window; i++) memcpy(many + i * frame_bytes, frame, frame_bytes);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9), sent = 0, answered = 0;
    size_t part = 0; /* bytes of the next frame that are written */
    while (now_ns() < end || answered < sent || part) {
        uint64_t room = now_ns() < end ? window - (sent - answered) : part != 0;
        ssize_t written = -1;
        if (room) written = write(fd, many + part, room * frame_bytes - part);
        if (written < 0 && room && errno != EAGAIN) fail("write");
        if (written > 0) {
            size_t whole = (part + (size_t)written) / frame_bytes;
            part = (part + (size_t)written) % frame_bytes;
            for (uint64_t now = now_ns(); whole; whole--) sent_ns[sent++ % RING] = now;
        }
        ssize_t got = read(fd, in, sizeof in);
        if (got == 0 || (got < 0 && errno != EAGAIN)) fail("read");
        if (got > 0) take_answers(in, (size_t)got, &answered, records);
        if (got < 0 && written < 0) {
            struct pollfd poller = {.fd = fd, .events = (short)(POLLIN | (room ? POLLOUT : 0))};
            poll(&poller, 1, 100);
        }
    }
    report(start);
}

static const unsigned char *number(const unsigned char *p, uint32_t *value) { /* a varint */
    int shift = 0;
    for (*value = 0; *p & 0x80; shift += 7) *value |= (uint32_t)(*p++ & 0x7f) << shift;
    *value |= (uint32_t)*p++ << shift;
    return p;
}

static uint64_t count_records(const unsigned char *p, const unsigned char *end) {
    uint64_t found = 0;
    while (p < end) {
        uint32_t size, count;
        p = number(p, &size);
        count = p[0] >> 2 & 15;
        if (!count) number(p + 1, &count);
        found += count;
        p += size;
    }
    return found;
}

static void consume(size_t position, uint64_t wanted) {
    unsigned char *in = malloc(CHUNK_MAX);
    uint64_t start = now_ns(), seq = 1;
    while (messages < wanted) {
        uint64_t asked = now_ns(), base;
        memcpy(frame + position, &seq, 8);
        if (write(fd, frame, frame_bytes) != (ssize_t)frame_bytes) fail("write");
        uint32_t size, header, chunk;
        read_all(in, 5);
        memcpy(&size, in + 1, 4);
        if (size > CHUNK_MAX) fail("size");
        read_all(in, size);
        note_latency(now_ns() - asked);
        memcpy(&header, in, 4);
        const unsigned char *entry = in + 4 + 5 + 1 + in[9] + 1; /* request id, topics, name, partitions */
        if (entry[2]) {
            fprintf(stderr, "code %d\n", entry[2]);
            exit(1);
        }
        memcpy(&base, entry + 3, 8);
        memcpy(&chunk, entry + 19, 4);
        uint64_t records = count_records(in + 4 + header, in + 4 + header + chunk);
        messages += records;
        bytes += chunk;
        seq = chunk ? base + records : 1;
    }
    report(start);
}

int main(int count, char **arguments) {
    if (count < 7) return 2;
    open_all(arguments);
    if (!strcmp(arguments[1], "produce") && count == 8)
        produce((uint64_t)atoll(arguments[5]), (uint64_t)atoll(arguments[6]), atof(arguments[7]));
    else if (!strcmp(arguments[1], "consume"))
        consume((size_t)atoll(arguments[5]), (uint64_t)atoll(arguments[6]));
    else
        return 2;
    return 0;
}
