/* Readers of bench/host_iocost.sh, in its guest.
 *
 *   host_iocost noise SECONDS DISK...                 eight direct readers of one disk, each disk for a second in turn; prints their reads
 *   host_iocost base|deadlines SECONDS SEED FILE...   one read of 4 KiB at a time, from a random file first; prints percentiles in microseconds
 *
 * A reader says `ready` and begins when it is sent a line. `plain`: reads with a deadline for which there was no forecast.
 * `deadlines` asks a file for an answer within DEADLINE_US, and goes on to the next when the read is refused. The last has no deadline. */
#define _GNU_SOURCE
#include "plimsoll-host.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, READERS = 8, DISKS_MAX = 8, READS_MAX = 1 << 20, DEADLINE_US = 12000 };

static double begun_s, seconds;
static int disks, disk[DISKS_MAX];

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void die_of(const char *what, long error) {
    errno = error < 0 ? -error : 0;
    die(what);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* xorshift64*: the same places for the same seed. */
static uint64_t draw(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull >> 33;
}

static off_t size_of(int fd) {
    off_t end = lseek(fd, 0, SEEK_END);
    if (end < PAGE) die("a file without a page");
    return end;
}

static void *reader(void *of) {
    uint64_t state = 7 + (uintptr_t)of;
    uintptr_t count = 0;
    void *page = aligned_alloc(PAGE, PAGE);
    off_t pages = size_of(disk[0]) / PAGE;
    double s;
    while ((s = now_s() - begun_s) < seconds) {
        off_t at = draw(&state) % pages * PAGE;
        if (pread(disk[(int)s % disks], page, PAGE, at) != PAGE) die("noise reads");
        count++;
    }
    free(page);
    return (void *)count;
}

static int noise(int n, char **names) {
    pthread_t threads[READERS];
    for (disks = 0; disks < n && disks < DISKS_MAX; disks++)
        if ((disk[disks] = open(names[disks], O_RDONLY | O_DIRECT)) < 0) die(names[disks]);
    begun_s = now_s();
    for (uintptr_t i = 0; i < READERS; i++)
        if ((errno = pthread_create(&threads[i], NULL, reader, (void *)i))) die("a thread of noise");
    uintptr_t sum = 0;
    for (int i = 0; i < READERS; i++) {
        void *count;
        pthread_join(threads[i], &count);
        sum += (uintptr_t)count;
    }
    printf("%lu\n", (unsigned long)sum);
    return 0;
}

static int by_time(const void *a, const void *b) {
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

static int reads(int has_deadlines, uint64_t seed, int n, char **names) {
    plimsoll_host *host = has_deadlines ? plimsoll_host_open(NULL, PLIMSOLL_HOST_REFUSE_FIRST) : NULL;
    double *took_us = malloc(READS_MAX * sizeof *took_us);
    unsigned char page[PAGE];
    uint64_t state = seed * 2654435761u + 1;
    long count = 0, refused = 0;
    for (disks = 0; disks < n && disks < DISKS_MAX; disks++) {
        if ((disk[disks] = open(names[disks], O_RDONLY)) < 0) die(names[disks]);
        posix_fadvise(disk[disks], 0, 0, POSIX_FADV_RANDOM);
    }
    off_t pages = size_of(disk[0]) / PAGE;
    /* The reader finds the agent in the background. */
    for (double until = now_s() + 30; host && plimsoll_host_forecast(host, disk[0], PAGE) < 0; usleep(10000))
        if (now_s() > until) die("the agent has no forecast");
    plimsoll_host_counts before = {0}, after = {0};
    if (host) plimsoll_host_count(host, &before);
    puts("ready");
    fflush(stdout);
    getchar(); /* the noise has begun */
    begun_s = now_s();
    while (now_s() - begun_s < seconds && count < READS_MAX) {
        off_t at = draw(&state) % pages * PAGE;
        int first = draw(&state) % disks;
        double asked_s = now_s();
        ssize_t got = -EBUSY;
        for (int i = 0; i < disks && got == -EBUSY; i++) {
            int fd = disk[(first + i) % disks];
            if (host && i + 1 < disks) {
                got = plimsoll_host_read(host, fd, page, PAGE, at, DEADLINE_US, NULL);
                refused += got == -EBUSY;
            } else {
                got = pread(fd, page, PAGE, at);
            }
        }
        if (got != PAGE) die_of("a read", got);
        took_us[count++] = (now_s() - asked_s) * 1e6;
    }
    if (host) plimsoll_host_count(host, &after);
    qsort(took_us, count, sizeof *took_us, by_time);
#define AT(p) took_us[(long)(count * p / 100)]
    printf("ops %ld P50 %.0f P90 %.0f P95 %.0f P99 %.0f refused %ld plain %ld\n", count, AT(50), AT(90), AT(95), AT(99), refused,
           (long)(after.plain - before.plain));
    return 0;
}

int main(int argc, char **argv) {
    if (argc >= 4 && strcmp(argv[1], "noise") == 0) {
        seconds = atof(argv[2]);
        return noise(argc - 3, argv + 3);
    }
    if (argc < 5) {
        fprintf(stderr, "usage: see the head of bench/host_iocost.c\n");
        return 2;
    }
    seconds = atof(argv[2]);
    return reads(strcmp(argv[1], "deadlines") == 0, strtoull(argv[3], NULL, 10), argc - 4, argv + 4);
}
