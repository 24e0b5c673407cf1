/* Load client for the BlipMQ protocol, version 1: one thread, no allocation in the loops; fast enough not to be the limit.
 *
 *   load_blipmq publish HOST PORT TOPIC SIZE QOS SECONDS     a PING behind every 4096 publishes, 8 under way (QoS 0: 64)
 *   load_blipmq consume HOST PORT SUBSCRIPTION WINDOW COUNT  WINDOW POLLs and the ACKs of those before, in one write
 *   load_blipmq single  HOST PORT SUBSCRIPTION COUNT         POLL, message, ACK, each frame written by itself
 *   load_blipmq latency HOST PORT TOPIC SUBSCRIPTION SIZE COUNT   publish on one connection, poll busily on another
 *
 * Fails when a frame was refused. Prints one JSON object: messages, seconds, p50_us, p99_us: of publish: PING to PONG; of consume: a
 * window; of single: POLL to message; of latency: publish to message. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "load_common.h"

enum { HELLO = 1, AUTH, PUBLISH, SUBSCRIBE, ACK, NACK, PING, PONG, POLL };
enum { HEAD = 13, ID_FRAME = 21, BLOCK = 4096, UNDER_WAY = 64, BUFFER = 1 << 22 };

struct link {
    int fd;
    unsigned char *in;
    size_t start, end;
};

static uint64_t total, refused;

static unsigned char *put_head(unsigned char *p, int type, uint64_t cid, size_t payload) {
    p = put32(p, (uint32_t)(9 + payload));
    *p++ = (unsigned char)type;
    return put64(p, cid);
}

static unsigned char *put_id(unsigned char *p, int type, uint64_t cid, uint64_t id) {
    return put64(put_head(p, type, cid, 8), id);
}

static void report(uint64_t start) {
    double seconds = (double)(now_ns() - start) / 1e9;
    if (refused) {
        fprintf(stderr, "%llu frames were refused\n", (unsigned long long)refused);
        exit(1);
    }
    printf("{\"messages\": %llu, \"seconds\": %.6f, \"p50_us\": %llu, \"p99_us\": %llu}\n",
           (unsigned long long)total, seconds, (unsigned long long)percentile(0.5),
           (unsigned long long)percentile(0.99));
}

static void write_all(struct link *l, const unsigned char *data, size_t size) {
    while (size) {
        ssize_t n = write(l->fd, data, size);
        if (n < 0) fail("write");
        data += n;
        size -= (size_t)n;
    }
}

static void read_more(struct link *l) { /* blocks */
    if (l->start == l->end) l->start = l->end = 0;
    if (BUFFER - l->end < BUFFER / 2) {
        memmove(l->in, l->in + l->start, l->end - l->start);
        l->end -= l->start;
        l->start = 0;
    }
    ssize_t n = read(l->fd, l->in + l->end, BUFFER - l->end);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        fprintf(stderr, "connection ended\n");
        exit(1);
    }
    l->end += (size_t)n;
}

static const unsigned char *ready_frame(struct link *l) { /* NULL: none is whole */
    size_t there = l->end - l->start;
    if (there < 4) return NULL;
    size_t size = 4 + get32(l->in + l->start);
    if (there < size) return NULL;
    l->start += size;
    return l->in + l->start - size;
}

static const unsigned char *next_frame(struct link *l) {
    const unsigned char *frame;
    while (!(frame = ready_frame(l))) read_more(l);
    return frame;
}

static struct link dial(char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &address.sin_addr);
    struct link l = {.fd = socket(AF_INET, SOCK_STREAM, 0), .in = malloc(BUFFER)};
    if (l.fd < 0 || connect(l.fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    int one = 1;
    setsockopt(l.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    unsigned char login[64], *p = put_head(login, HELLO, 1, 2);
    *p++ = 0, *p++ = 1;
    p = put_head(p, AUTH, 2, 7);
    *p++ = 0, *p++ = 5;
    memcpy(p, "bench", 5);
    write_all(&l, login, (size_t)(p + 5 - login));
    for (int i = 0; i < 2; i++)
        if (next_frame(&l)[4] != ACK) {
            fprintf(stderr, "login refused\n");
            exit(1);
        }
    return l;
}

static unsigned char *put_publish(unsigned char *p, const char *topic, size_t size, int qos, uint64_t cid) {
    size_t topic_size = strlen(topic);
    p = put_head(p, PUBLISH, cid, 3 + topic_size + size);
    *p++ = (unsigned char)qos, *p++ = (unsigned char)(topic_size >> 8), *p++ = (unsigned char)topic_size;
    memcpy(p, topic, topic_size);
    p += topic_size;
    for (size_t i = 0; i < size; i++) *p++ = (unsigned char)('a' + i % 26);
    return p;
}

static void publish(char **argv) {
    struct link l = dial(argv);
    size_t size = (size_t)atol(argv[5]);
    unsigned char *block = malloc(BLOCK * (20 + strlen(argv[4]) + size) + HEAD), *p = block;
    for (int i = 0; i < BLOCK; i++) p = put_publish(p, argv[4], size, atoi(argv[6]), 1000u + (uint64_t)i);
    unsigned char *ping = p;
    size_t block_bytes = (size_t)(put_head(p, PING, 0, 0) - block), sent = block_bytes;
    uint64_t next = 0, done = 0, window = atoi(argv[6]) ? 8 : UNDER_WAY, sent_ns[UNDER_WAY], start = now_ns();
    uint64_t end = start + (uint64_t)(atof(argv[7]) * 1e9);
    fcntl(l.fd, F_SETFL, O_NONBLOCK);
    while (done < next || now_ns() < end) {
        if (sent == block_bytes && next - done < window && now_ns() < end) {
            put_head(ping, PING, next, 0);
            sent = 0;
            sent_ns[next++ % UNDER_WAY] = 0;
        }
        struct pollfd event = {.fd = l.fd, .events = (short)(POLLIN | (sent < block_bytes ? POLLOUT : 0))};
        if (poll(&event, 1, 1000) < 0) fail("poll");
        if (event.revents & POLLOUT) {
            ssize_t n = write(l.fd, block + sent, block_bytes - sent);
            if (n < 0 && errno != EAGAIN) fail("write");
            sent += n > 0 ? (size_t)n : 0;
            if (sent == block_bytes) sent_ns[(next - 1) % UNDER_WAY] = now_ns();
        }
        if (!(event.revents & (POLLIN | POLLHUP | POLLERR))) continue;
        read_more(&l);
        for (const unsigned char *frame; (frame = ready_frame(&l));) {
            if (frame[4] == NACK) refused++;
            if (frame[4] != PONG) continue;
            note_latency(now_ns() - sent_ns[get64(frame + 5) % UNDER_WAY]);
            total += BLOCK;
            done++;
        }
    }
    report(start);
}

static void consume(char **argv) {
    struct link l = dial(argv);
    uint64_t id = strtoull(argv[4], NULL, 10), window = strtoull(argv[5], NULL, 10), wanted = strtoull(argv[6], NULL, 10);
    unsigned char *out = malloc(window * 2 * ID_FRAME), *acks_end = out;
    uint64_t start = now_ns();
    while (total < wanted) {
        unsigned char *p = acks_end;
        for (uint64_t i = 0; i < window; i++) p = put_id(p, POLL, i, id);
        uint64_t at = now_ns();
        write_all(&l, out, (size_t)(p - out));
        acks_end = out;
        for (uint64_t i = 0; i < window; i++) {
            const unsigned char *frame = next_frame(&l);
            if (frame[4] == NACK) refused++;
            if (frame[4] == PUBLISH && frame[13] == 1) acks_end = put_id(acks_end, ACK, get64(frame + 5), id);
        }
        note_latency(now_ns() - at);
        total += window;
    }
    write_all(&l, out, (size_t)(acks_end - out));
    report(start);
}

static void single(char **argv) {
    struct link l = dial(argv);
    uint64_t id = strtoull(argv[4], NULL, 10), wanted = strtoull(argv[5], NULL, 10), start = now_ns();
    unsigned char out[ID_FRAME];
    for (; total < wanted; total++) {
        put_id(out, POLL, total, id);
        uint64_t at = now_ns();
        write_all(&l, out, ID_FRAME);
        const unsigned char *frame = next_frame(&l);
        note_latency(now_ns() - at);
        if (frame[4] == NACK) refused++;
        put_id(out, ACK, get64(frame + 5), id);
        write_all(&l, out, ID_FRAME);
    }
    report(start);
}

static void latency(char **argv) {
    struct link publisher = dial(argv), consumer = dial(argv);
    uint64_t id = strtoull(argv[5], NULL, 10), wanted = strtoull(argv[7], NULL, 10), start = now_ns();
    size_t size = (size_t)atol(argv[6]);
    unsigned char *out = malloc(64 + strlen(argv[4]) + size), ask[ID_FRAME + HEAD];
    size_t out_bytes = (size_t)(put_publish(out, argv[4], size, 1, 7) - out);
    put_head(put_id(ask, POLL, 1, id), PING, 2, 0);
    for (; total < wanted; total++) {
        uint64_t at = now_ns();
        write_all(&publisher, out, out_bytes);
        for (int found = 0; !found;) {
            write_all(&consumer, ask, sizeof ask);
            const unsigned char *frame = next_frame(&consumer);
            if (frame[4] == PONG) continue;
            note_latency(now_ns() - at);
            found = 1;
            unsigned char ack[ID_FRAME];
            put_id(ack, ACK, get64(frame + 5), id);
            next_frame(&consumer); /* the PONG */
            write_all(&consumer, ack, ID_FRAME);
        }
    }
    report(start);
}

int main(int argc, char **argv) {
    if (argc == 8 && !strcmp(argv[1], "publish")) publish(argv);
    else if (argc == 7 && !strcmp(argv[1], "consume")) consume(argv);
    else if (argc == 6 && !strcmp(argv[1], "single")) single(argv);
    else if (argc == 8 && !strcmp(argv[1], "latency")) latency(argv);
    else {
        fprintf(stderr, "usage: load_blipmq publish HOST PORT TOPIC SIZE QOS SECONDS\n"
                        "       load_blipmq consume HOST PORT SUBSCRIPTION WINDOW COUNT\n"
                        "       load_blipmq single HOST PORT SUBSCRIPTION COUNT\n"
                        "       load_blipmq latency HOST PORT TOPIC SUBSCRIPTION SIZE COUNT\n");
        return 2;
    }
    return 0;
}
