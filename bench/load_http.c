/* Load client for records over HTTP: one thread, no allocation in the loops; fast enough not to be the limit.
 *
 *   load_http publish HOST PORT TOKEN PATH FORM SIZE RECORDS CONNECTIONS SECONDS   requests of RECORDS records, the next
 *                                                              one when the answer to the last is there; FORM: jsonl,
 *                                                              length or none (the body is the one record)
 *   load_http consume HOST PORT TOKEN PATH FORM COUNT          reads COUNT records of an answer in chunks, FORM: jsonl
 *                                                              or length, in as many requests as it takes
 *
 * Fails when a request was refused, unless LOAD_REFUSALS is set: then the next one comes at once all the same. Prints one JSON object: messages, seconds, p50_us, p99_us (request to answer). */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "load_common.h"

enum { CONNECTIONS_MAX = 64, ANSWER = 1 << 16, BUFFER = 1 << 20 };

struct link {
    int fd;
    size_t sent, got;
    uint64_t since;
    char answer[ANSWER];
};

static struct link links[CONNECTIONS_MAX];
static uint64_t total;

static void report(uint64_t start) {
    printf("{\"messages\": %llu, \"seconds\": %.6f, \"p50_us\": %llu, \"p99_us\": %llu}\n", (unsigned long long)total,
           (double)(now_ns() - start) / 1e9, (unsigned long long)percentile(0.5), (unsigned long long)percentile(0.99));
}

static int dial(char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &address.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void refuse(const char *answer, size_t size) {
    fprintf(stderr, "refused: %.*s\n", (int)(size < 2000 ? size : 2000), answer);
    exit(1);
}

/* --- publishing */

static unsigned char *put_record(unsigned char *p, const char *form, size_t size) {
    if (!strcmp(form, "jsonl")) p = (unsigned char *)stpcpy((char *)p, "{\"value\":\"");
    if (!strcmp(form, "length")) p = put32(p, (uint32_t)size);
    for (size_t i = 0; i < size; i++) *p++ = (unsigned char)('a' + i % 26);
    if (!strcmp(form, "jsonl")) p = (unsigned char *)stpcpy((char *)p, "\"}\n");
    return p;
}

static size_t make_request(char **argv, unsigned char **request) {
    size_t size = (size_t)atol(argv[7]), records = (size_t)atol(argv[8]), room = records * (size + 16);
    unsigned char *body = malloc(room + 1), *p = body;
    for (size_t i = 0; i < records; i++) p = put_record(p, argv[6], size);
    size_t body_size = (size_t)(p - body);
    *request = malloc(2000 + body_size);
    int head = snprintf((char *)*request, 2000,
                        "POST %s?split=%s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n"
                        "Content-Length: %zu\r\n\r\n",
                        argv[5], argv[6], argv[4], body_size);
    memcpy(*request + head, body, body_size);
    return (size_t)head + body_size;
}

static int is_answered(struct link *l) { /* the head and all of the body are there */
    ssize_t n = read(l->fd, l->answer + l->got, ANSWER - 1 - l->got);
    if (n < 0 && errno == EAGAIN) return 0;
    if (n <= 0) fail("read");
    l->answer[l->got += (size_t)n] = 0;
    char *end = strstr(l->answer, "\r\n\r\n"), *length = strcasestr(l->answer, "content-length:");
    if (!end || !length) return 0;
    if (l->got < (size_t)(end + 4 - l->answer) + (size_t)atol(length + 15)) return 0;
    if (strncmp(l->answer, "HTTP/1.1 2", 10) && !getenv("LOAD_REFUSALS")) refuse(l->answer, l->got);
    return 1;
}

static void publish(char **argv) {
    unsigned char *request;
    size_t request_size = make_request(argv, &request), records = (size_t)atol(argv[8]), open = 0;
    int connections = atoi(argv[9]);
    struct pollfd events[CONNECTIONS_MAX];
    if (connections > CONNECTIONS_MAX) fail("connections");
    for (int i = 0; i < connections; i++) links[i].fd = dial(argv);
    uint64_t start = now_ns(), end = start + (uint64_t)(atof(argv[10]) * 1e9);
    for (int i = 0; i < connections; i++, open++)
        events[i] = (struct pollfd){.fd = links[i].fd, .events = POLLOUT}, links[i].since = start;
    while (open) {
        if (poll(events, (nfds_t)connections, 1000) < 0) fail("poll");
        for (int i = 0; i < connections; i++) {
            struct link *l = &links[i];
            if (events[i].revents & POLLOUT) {
                ssize_t n = send(l->fd, request + l->sent, request_size - l->sent, MSG_DONTWAIT);
                if (n < 0 && errno != EAGAIN) fail("send");
                if ((l->sent += n > 0 ? (size_t)n : 0) == request_size) events[i].events = POLLIN;
            } else if (events[i].revents && is_answered(l)) {
                uint64_t now = now_ns();
                note_latency(now - l->since);
                total += records;
                l->sent = l->got = 0;
                l->since = now;
                events[i].events = POLLOUT;
                if (now >= end) events[i].fd = -1, open--;
            }
        }
    }
    report(start);
}

/* --- reading */

struct counter { /* of records in a body that comes in pieces */
    int is_length;
    uint32_t skip, size;
    int digits;
};

static void count(struct counter *c, const unsigned char *p, size_t size) {
    const unsigned char *end = p + size;
    while (p < end && !c->is_length) {
        p = memchr(p, '\n', (size_t)(end - p));
        if (!p) return;
        total++, p++;
    }
    while (p < end) {
        if (c->skip) {
            uint32_t n = (uint32_t)(end - p) < c->skip ? (uint32_t)(end - p) : c->skip;
            p += n, c->skip -= n;
            continue;
        }
        c->size = c->size << 8 | *p++;
        if (++c->digits == 4) c->skip = c->size, c->size = 0, c->digits = 0, total++;
    }
}

static void consume(char **argv) {
    struct counter counter = {.is_length = !strcmp(argv[6], "length")};
    uint64_t wanted = strtoull(argv[7], NULL, 10), start = now_ns();
    unsigned char *buffer = malloc(BUFFER);
    int fd = dial(argv);
    while (total < wanted) {
        char request[2000];
        int size = snprintf(request, sizeof request,
                            "GET %s?format=%s&limit=%llu HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n\r\n",
                            argv[5], counter.is_length ? "raw" : "jsonl", (unsigned long long)(wanted - total), argv[4]);
        uint64_t since = now_ns(), before = total;
        if (write(fd, request, (size_t)size) != size) fail("write");
        size_t got = 0, at = 0, chunk = 0;
        int is_over = 0, is_head = 1, is_size = 1, is_last = 0;
        while (!is_over) { /* of a chunk that is not whole what is there is counted */
            if (at == got) at = got = 0;
            if (got > BUFFER / 2) memmove(buffer, buffer + at, got - at), got -= at, at = 0;
            ssize_t n = read(fd, buffer + got, BUFFER - 1 - got);
            if (n <= 0) fail("read");
            buffer[got += (size_t)n] = 0;
            if (is_head) {
                char *end = strstr((char *)buffer, "\r\n\r\n");
                if (!end) continue;
                if (strncmp((char *)buffer, "HTTP/1.1 200", 12)) refuse((char *)buffer, got);
                is_head = 0;
                at = (size_t)(end + 4 - (char *)buffer);
            }
            while (at < got && !is_over) {
                if (is_size) {
                    unsigned char *end = memmem(buffer + at, got - at, "\r\n", 2);
                    if (!end) break;
                    is_last = !(chunk = strtoul((char *)buffer + at, NULL, 16));
                    at = (size_t)(end + 2 - buffer);
                    is_size = 0;
                }
                size_t part = got - at < chunk ? got - at : chunk;
                count(&counter, buffer + at, part);
                at += part, chunk -= part;
                if (chunk || got - at < 2) break;
                at += 2; /* behind a chunk */
                is_size = 1;
                is_over = is_last;
            }
        }
        note_latency(now_ns() - since);
        if (total == before) refuse("no records", 10);
    }
    report(start);
}

int main(int argc, char **argv) {
    if (argc == 11 && !strcmp(argv[1], "publish")) return publish(argv), 0;
    if (argc == 8 && !strcmp(argv[1], "consume")) return consume(argv), 0;
    fprintf(stderr, "see the first lines of load_http.c\n");
    return 2;
}
