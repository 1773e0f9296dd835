/* Every function of plimsoll.h once, against servers that the test has started: the arguments are three addresses, of which the
 * first is busy and the others hold bytes of 2 and 3. Prints "ok" at the end. */
#include "plimsoll.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(what)                                                                                                             \
    do {                                                                                                                       \
        if (!(what)) {                                                                                                         \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, plimsoll_error());                                   \
            exit(1);                                                                                                           \
        }                                                                                                                      \
    } while (0)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static int left, wrong;

static void done(void *user, int result) {
    pthread_mutex_lock(&lock);
    wrong += result != *(int *)user;
    left--;
    pthread_cond_signal(&ended);
    pthread_mutex_unlock(&lock);
}

int main(int argc, char **argv) {
    plimsoll_volume *volume = NULL;
    plimsoll_options options;
    plimsoll_counts counts;
    unsigned char buffer[4096], many[16][512];
    int good = 0, bad = -EINVAL, i;
    MUST(argc == 4);
    memset(&options, 0, sizeof options);
    options.policy = "mitt";
    options.deadline_us = 15000;
    options.limit_us = 5000000;

    const char *nowhere[] = {"nbd+unix:///vol?socket=/nonexistent"};
    MUST(plimsoll_open(nowhere, 1, NULL, &volume) == -ENOTCONN && strstr(plimsoll_error(), "no replica can be read"));
    const char *strange[] = {"http://example.org"};
    MUST(plimsoll_open(strange, 1, NULL, &volume) == -EINVAL && strstr(plimsoll_error(), "nbd://HOST"));
    MUST(plimsoll_open(NULL, 0, NULL, &volume) == -EINVAL);
    options.policy = "sloth";
    MUST(plimsoll_open((const char *const *)argv + 1, 3, &options, &volume) == -EINVAL && volume == NULL);
    options.policy = "mitt";
    options.reserved = 1;
    MUST(plimsoll_open((const char *const *)argv + 1, 3, &options, &volume) == -EINVAL);
    options.reserved = 0;
    /* Drawn orders begin anywhere; enough reads begin at the first, too. */
    MUST(plimsoll_open((const char *const *)argv + 1, 3, &options, &volume) == 0);
    MUST(plimsoll_size(volume) == 1 << 20);
    for (i = 0; i < 50; i++) {
        memset(buffer, 0, sizeof buffer);
        MUST(plimsoll_read(volume, buffer, sizeof buffer, 4096 * i, 7000, 0) == 0);
        MUST((buffer[0] == 2 || buffer[0] == 3) && memcmp(buffer, buffer + 1, 4095) == 0);
    }
    MUST(plimsoll_read(volume, buffer, 4096, 1 << 20, 0, 0) == -EINVAL && strstr(plimsoll_error(), "the volume has 1048576 bytes"));
    MUST(plimsoll_read(volume, buffer, 0, 0, 0, 0) == -EINVAL);
    MUST(plimsoll_read(volume, NULL, 512, 0, 0, 0) == -EINVAL);
    MUST(plimsoll_read(NULL, buffer, 512, 0, 0, 0) == -EINVAL);

    left = 17;
    for (i = 0; i < 16; i++)
        MUST(plimsoll_read_async(volume, many[i], 512, 512 * i, 0, 1000000, done, &good) == 0);
    MUST(plimsoll_read_async(volume, many[0], 512, ~0ull - 100, 0, 0, done, &bad) == 0);
    pthread_mutex_lock(&lock);
    while (left)
        pthread_cond_wait(&ended, &lock);
    pthread_mutex_unlock(&lock);
    MUST(wrong == 0);
    for (i = 0; i < 16; i++)
        MUST(many[i][511] == 2 || many[i][511] == 3);

    plimsoll_count(volume, &counts);
    MUST(counts.gets == 66 && counts.failed == 0 && counts.busy > 0 && counts.tries == counts.gets + counts.busy);
    plimsoll_close(volume);
    plimsoll_close(NULL);

    /* Two groups of one replica each: objects of 64 KiB take turns. */
    MUST(plimsoll_open_set((const char *const *)argv + 2, 2, 1, 65536, NULL, &volume) == 0);
    MUST(plimsoll_size(volume) == 2 << 20);
    for (i = 0; i < 6; i++)
        MUST(plimsoll_read(volume, buffer, 512, 65536 * i + 512, 0, 0) == 0 && buffer[0] == 2 + i % 2);
    MUST(plimsoll_read(volume, buffer, 1024, 65536 - 512, 0, 0) == -EINVAL && strstr(plimsoll_error(), "two objects"));
    plimsoll_close(volume);
    MUST(plimsoll_open_set((const char *const *)argv + 2, 2, 1, 0, NULL, &volume) == -EINVAL);
    MUST(plimsoll_open_set((const char *const *)argv + 2, 0, 1, 65536, NULL, &volume) == -EINVAL);

    /* The busy one alone: a read that may be refused is, another waits. */
    plimsoll_busy busy = {0, 0, 0};
    MUST(plimsoll_open((const char *const *)argv + 1, 1, NULL, &volume) == 0);
    MUST(plimsoll_read_or_busy(volume, buffer, 512, 0, 7000, 0, &busy) == -EBUSY && strstr(plimsoll_error(), "busy"));
    MUST(busy.wait_us == 50000 && busy.confidence == 900);
    MUST(plimsoll_read_or_busy(volume, buffer, 512, 0, 7000, 0, NULL) == -EBUSY);
    MUST(plimsoll_read_or_busy(volume, NULL, 512, 0, 7000, 0, NULL) == -EINVAL);
    MUST(plimsoll_read(volume, buffer, 512, 0, 7000, 0) == 0 && buffer[0] == 1);
    plimsoll_close(volume);
    MUST(plimsoll_open((const char *const *)argv + 2, 1, NULL, &volume) == 0);
    MUST(plimsoll_read_or_busy(volume, buffer, 512, 0, 7000, 0, &busy) == 0 && buffer[0] == 2);
    plimsoll_close(volume);
    options.policy = "hedged";
    MUST(plimsoll_open((const char *const *)argv + 2, 1, &options, &volume) == 0);
    MUST(plimsoll_read_or_busy(volume, buffer, 512, 0, 7000, 0, &busy) == -EINVAL && strstr(plimsoll_error(), "policy"));
    plimsoll_close(volume);
    puts("ok");
    return 0;
}
