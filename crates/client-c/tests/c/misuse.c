/* Calls that can't be served: by arguments, in a child of fork(), after nodes that say nothing. The arguments are the address of a server
 * that answers, that of one that answers no read, and a folder whose certificates can't be read for ever. Prints "ok" at the end. */
#include "plimsoll.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(what)                                                                                                             \
    do {                                                                                                                       \
        if (!(what)) {                                                                                                         \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, plimsoll_error());                                   \
            exit(1);                                                                                                           \
        }                                                                                                                      \
    } while (0)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static pthread_t caller;
static int calls, own_thread, result;
static char words[512];

static void done(void *user, int how) {
    (void)user;
    pthread_mutex_lock(&lock);
    calls++;
    own_thread = !pthread_equal(pthread_self(), caller);
    result = how;
    snprintf(words, sizeof words, "%s", plimsoll_error());
    pthread_cond_signal(&ended);
    pthread_mutex_unlock(&lock);
}

static void in_child(plimsoll_volume *volume, const char **serves) {
    unsigned char buffer[512];
    plimsoll_counts counts;
    plimsoll_busy busy;
    plimsoll_volume *own = NULL;
    alarm(60); /* a call that waits ends the child */
    MUST(plimsoll_read(volume, buffer, 512, 0, 0, 100000) == -EINVAL && strstr(plimsoll_error(), "forked"));
    MUST(plimsoll_read_or_busy(volume, buffer, 512, 0, 0, 100000, &busy) == -EINVAL && strstr(plimsoll_error(), "forked"));
    MUST(plimsoll_read_async(volume, buffer, 512, 0, 0, 100000, done, NULL) == -EINVAL && strstr(plimsoll_error(), "forked"));
    MUST(plimsoll_open(serves, 1, NULL, &own) == 0); /* as the words say */
    MUST(plimsoll_read(own, buffer, 512, 0, 0, 20000000) == 0 && buffer[0] == 1);
    plimsoll_close(own);
    plimsoll_count(volume, &counts);
    MUST(counts.gets == 0 && plimsoll_size(volume) == 1 << 20);
    plimsoll_close(volume);
    _exit(0);
}

int main(int argc, char **argv) {
    const char *serves[] = {argv[1]}, *silent[] = {argv[2]};
    char folder[512];
    plimsoll_volume *volume = NULL;
    plimsoll_options options;
    unsigned char buffer[512];
    int status, i;
    pid_t child;
    MUST(argc == 4);
    caller = pthread_self();

    MUST(plimsoll_open(serves, 1, NULL, &volume) == 0);
    MUST(plimsoll_read_async(NULL, buffer, 512, 0, 0, 0, done, NULL) == -EINVAL && strstr(plimsoll_error(), "volume is NULL"));
    MUST(plimsoll_read_async(volume, NULL, 512, 0, 0, 0, done, NULL) == -EINVAL && strstr(plimsoll_error(), "buffer is NULL"));
    MUST(plimsoll_read_async(volume, buffer, 512, 0, 0, 0, NULL, NULL) == -EINVAL && strstr(plimsoll_error(), "is NULL"));
    MUST(calls == 0);
    MUST(plimsoll_read_async(volume, buffer, 512, 1 << 20, 0, 0, done, NULL) == 0);
    pthread_mutex_lock(&lock);
    while (calls == 0)
        pthread_cond_wait(&ended, &lock);
    pthread_mutex_unlock(&lock);
    MUST(result == -EINVAL && own_thread && strstr(words, "1048576 bytes"));

    /* A child can't use its parent's volume, and its end is nothing to the parent. */
    for (i = 0; i < 2; i++) {
        fflush(NULL);
        child = fork();
        if (child == 0)
            in_child(volume, serves);
        MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        MUST(plimsoll_read(volume, buffer, 512, 0, 0, 20000000) == 0 && buffer[0] == 1);
    }
    plimsoll_close(volume);

    /* A read that is under way when its volume is closed. */
    MUST(plimsoll_open(silent, 1, NULL, &volume) == 0);
    calls = 0;
    MUST(plimsoll_read_async(volume, buffer, 512, 0, 0, 0, done, NULL) == 0);
    plimsoll_close(volume);
    MUST(calls == 1 && result == -EIO && strstr(words, "closed"));

    /* A folder of certificates on a server that is gone. */
    memset(&options, 0, sizeof options);
    options.connect_us = 300000;
    snprintf(folder, sizeof folder, "nbds://127.0.0.1:1/v?tls-certificates=%s", argv[3]);
    const char *stuck[] = {folder};
    alarm(60);
    MUST(plimsoll_open(stuck, 1, &options, &volume) == -ENOTCONN && strstr(plimsoll_error(), "300ms"));
    puts("ok");
    return 0;
}
