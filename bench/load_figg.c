/* Load client for the Figg protocol: one thread, epoll, no allocation in the loop; fast enough not to be the limit.
 *
 *   load_figg publish HOST PORT TOPIC SIZE CONNECTIONS WINDOW SECONDS
 *   load_figg consume HOST PORT TOPIC CONNECTIONS COUNT            every connection reads COUNT records from offset 0
 *   load_figg follow  HOST PORT TOPIC CONNECTIONS SECONDS          live subscribers, for SECONDS or until SIGTERM
 *   load_figg ping    HOST PORT SECONDS                            PING, and the next one at its PONG
 *
 * Prints one JSON object: messages, seconds, bytes, p50_us, p99_us (send to acknowledgement or PONG, or 0). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "load_common.h"

enum { LARGE = 1 << 20, SMALL = 1 << 16, MANY = 1000, RING = 1 << 17, HEAD = 8 };

struct connection {
    int fd;
    uint64_t next, acked;           /* numbers sent, numbers acknowledged (all below) */
    unsigned char *out, *in;        /* `buffer` bytes each */
    size_t out_start, out_end, in_end;
    uint64_t *sent_ns;              /* RING send times by number */
    uint64_t received;
};

static struct connection *connections;
static int count, poller;
static size_t buffer = LARGE;
static uint64_t total, total_bytes;
static volatile sig_atomic_t stopped;

static void stop(int signal_number) {
    (void)signal_number;
    stopped = 1;
}

static void report(uint64_t start) {
    double seconds = (double)(now_ns() - start) / 1e9;
    printf("{\"messages\": %llu, \"seconds\": %.6f, \"bytes\": %llu, \"p50_us\": %llu, \"p99_us\": %llu}\n",
           (unsigned long long)total, seconds, (unsigned long long)total_bytes, (unsigned long long)percentile(0.5),
           (unsigned long long)percentile(0.99));
}

static void dial(struct connection *c, const char *host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, host, &address.sin_addr);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    const char *own = getenv("LOAD_FROM"); /* the address to connect from */
    struct sockaddr_in from = {.sin_family = AF_INET};
    if (own && (inet_pton(AF_INET, own, &from.sin_addr) != 1 || bind(c->fd, (struct sockaddr *)&from, sizeof from)))
        fail("bind");
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->out = malloc(buffer);
    c->in = malloc(buffer);
    c->sent_ns = malloc(RING * sizeof *c->sent_ns);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
}

static void dial_all(const char *host, int port, int wanted) {
    count = wanted;
    if (wanted > MANY) buffer = SMALL;
    connections = calloc((size_t)wanted, sizeof *connections);
    poller = epoll_create1(0);
    for (int i = 0; i < wanted; i++) dial(&connections[i], host, port);
}

static int flush_out(struct connection *c) { /* 1: all is written */
    while (c->out_start < c->out_end) {
        ssize_t n = write(c->fd, c->out + c->out_start, c->out_end - c->out_start);
        if (n < 0) {
            if (errno == EAGAIN) return 0;
            fail("write");
        }
        c->out_start += (size_t)n;
    }
    c->out_start = c->out_end = 0;
    return 1;
}

static const unsigned char *body_template;
static size_t frame_bytes, seq_at;

static void send_more(struct connection *c, uint64_t window) {
    while (flush_out(c)) {
        uint64_t free_places = window - (c->next - c->acked);
        if (!free_places) return;
        uint64_t fits = buffer / frame_bytes / 2 + 1;
        uint64_t n = free_places < fits ? free_places : fits;
        uint64_t at = now_ns();
        for (uint64_t i = 0; i < n; i++) {
            memcpy(c->out + c->out_end, body_template, frame_bytes);
            put64(c->out + c->out_end + seq_at, c->next);
            c->sent_ns[c->next % RING] = at;
            c->next++;
            c->out_end += frame_bytes;
        }
    }
}

static int take(struct connection *c) { /* reads once; 0: nothing more now */
    ssize_t n = read(c->fd, c->in + c->in_end, buffer - c->in_end);
    if (n < 0 && errno == EAGAIN) return 0;
    if (n <= 0) {
        fprintf(stderr, "connection ended\n");
        exit(1);
    }
    c->in_end += (size_t)n;
    return 1;
}

static void drop(struct connection *c, size_t used) {
    memmove(c->in, c->in + used, c->in_end - used);
    c->in_end -= used;
}

static void take_acks(struct connection *c) {
    while (take(c)) {
        size_t pos = 0;
        while (c->in_end - pos >= HEAD + 8) {
            uint64_t number = get64(c->in + pos + HEAD);
            if (c->in[pos + 1] == 6 && number + 1 > c->acked) {
                note_latency(now_ns() - c->sent_ns[number % RING]);
                total += number + 1 - c->acked;
                c->acked = number + 1;
            }
            pos += HEAD + get32(c->in + pos + 4);
        }
        drop(c, pos);
    }
}

static void publish(char **argv) {
    size_t topic = strlen(argv[4]), size = (size_t)atol(argv[5]);
    uint64_t window = strtoull(argv[7], NULL, 10);
    if (window >= RING) window = RING - 1;
    frame_bytes = HEAD + 4 + topic + 8 + 4 + size;
    seq_at = HEAD + 4 + topic;
    unsigned char *frame = malloc(frame_bytes), *p = frame;
    *p++ = 0, *p++ = 5, *p++ = 0, *p++ = 1;
    p = put32(p, (uint32_t)(frame_bytes - HEAD));
    p = put32(p, (uint32_t)topic);
    memcpy(p, argv[4], topic);
    p = put64(p + topic, 0);
    p = put32(p, (uint32_t)size);
    for (size_t i = 0; i < size; i++) p[i] = (unsigned char)('a' + i % 26);
    body_template = frame;
    dial_all(argv[2], atoi(argv[3]), atoi(argv[6]));
    uint64_t start = now_ns(), end = start + (uint64_t)(atof(argv[8]) * 1e9);
    for (int i = 0; i < count; i++) send_more(&connections[i], window);
    struct epoll_event events[256];
    while (now_ns() < end && !stopped) {
        int n = epoll_wait(poller, events, 256, 100);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLIN) take_acks(c);
            send_more(c, window);
        }
    }
    total_bytes = total * size;
    report(start);
}

static int take_data(struct connection *c) {
    while (take(c)) {
        size_t pos = 0;
        while (c->in_end - pos >= HEAD) {
            size_t size = HEAD + get32(c->in + pos + 4);
            if (c->in_end - pos < size) break;
            if (c->in[pos + 1] == 7) {
                c->received++;
                total++;
                total_bytes += size;
            }
            pos += size;
        }
        drop(c, pos);
    }
    return 1;
}

static void subscribe(struct connection *c, const char *name, int from_start) {
    size_t topic = strlen(name);
    unsigned char *p = c->out;
    *p++ = 0, *p++ = 1, *p++ = 0, *p++ = 1;
    p = put32(p, (uint32_t)(14 + topic));
    *p++ = from_start ? 0x80 : 0, *p++ = 0;
    p = put32(p, (uint32_t)topic);
    memcpy(p, name, topic);
    c->out_end = (size_t)(put64(p + topic, 0) - c->out);
    flush_out(c);
}

static void consume(char **argv) {
    uint64_t wanted = strtoull(argv[6], NULL, 10);
    dial_all(argv[2], atoi(argv[3]), atoi(argv[5]));
    uint64_t start = now_ns();
    for (int i = 0; i < count; i++) subscribe(&connections[i], argv[4], 1);
    struct epoll_event events[256];
    while (total < wanted * (uint64_t)count && !stopped) {
        int n = epoll_wait(poller, events, 256, 100);
        for (int i = 0; i < n; i++) take_data(events[i].data.ptr);
    }
    report(start);
}

static void follow(char **argv) {
    dial_all(argv[2], atoi(argv[3]), atoi(argv[5]));
    for (int i = 0; i < count; i++) subscribe(&connections[i], argv[4], 0);
    uint64_t start = now_ns(), end = start + (uint64_t)(atof(argv[6]) * 1e9);
    fprintf(stderr, "attached\n");
    struct epoll_event events[256];
    while (now_ns() < end && !stopped) {
        int n = epoll_wait(poller, events, 256, 100);
        for (int i = 0; i < n; i++) take_data(events[i].data.ptr);
    }
    report(start);
}

static void ping(char **argv) {
    static const unsigned char frame[HEAD + 8] = {0, 8, 0, 1, 0, 0, 0, 8};
    dial_all(argv[2], atoi(argv[3]), 1);
    struct connection *c = connections;
    uint64_t start = now_ns(), end = start + (uint64_t)(atof(argv[4]) * 1e9);
    struct epoll_event events[1];
    while (now_ns() < end && !stopped) {
        uint64_t at = now_ns();
        memcpy(c->out, frame, sizeof frame);
        put64(c->out + HEAD, total);
        c->out_end = sizeof frame;
        flush_out(c);
        for (c->in_end = 0; c->in_end < sizeof frame;)
            if (!take(c)) epoll_wait(poller, events, 1, 100);
        note_latency(now_ns() - at);
        total++;
    }
    report(start);
}

int main(int argc, char **argv) {
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    if (argc == 9 && !strcmp(argv[1], "publish")) publish(argv);
    else if (argc == 7 && !strcmp(argv[1], "consume")) consume(argv);
    else if (argc == 7 && !strcmp(argv[1], "follow")) follow(argv);
    else if (argc == 5 && !strcmp(argv[1], "ping")) ping(argv);
    else {
        fprintf(stderr, "usage: load_figg publish HOST PORT TOPIC SIZE CONNECTIONS WINDOW SECONDS\n"
                        "       load_figg consume HOST PORT TOPIC CONNECTIONS COUNT\n"
                        "       load_figg follow HOST PORT TOPIC CONNECTIONS SECONDS\n"
                        "       load_figg ping HOST PORT SECONDS\n");
        return 2;
    }
    return 0;
}
