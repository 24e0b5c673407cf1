/* What the load clients share: time, numbers in network order, latencies in a histogram of microseconds. */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HISTOGRAM = 1 << 20 };

static uint64_t histogram[HISTOGRAM], samples;

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void fail(const char *what) {
    perror(what);
    exit(1);
}

static inline unsigned char *put32(unsigned char *p, uint32_t v) {
    v = htonl(v);
    memcpy(p, &v, 4);
    return p + 4;
}

static inline unsigned char *put64(unsigned char *p, uint64_t v) {
    return put32(put32(p, (uint32_t)(v >> 32)), (uint32_t)v);
}

static inline uint32_t get32(const unsigned char *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return ntohl(v);
}

static inline uint64_t get64(const unsigned char *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }

static inline void note_latency(uint64_t ns) {
    uint64_t us = ns / 1000;
    histogram[us < HISTOGRAM ? us : HISTOGRAM - 1]++;
    samples++;
}

static inline uint64_t percentile(double part) {
    uint64_t want = (uint64_t)(part * (double)samples), seen = 0;
    for (int i = 0; i < HISTOGRAM; i++)
        if ((seen += histogram[i]) > want) return (uint64_t)i;
    return 0;
}
