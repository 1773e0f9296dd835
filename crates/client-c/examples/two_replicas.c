/* The p99 of reads over two replicas, one of them slow. usage: two_replicas ADDRESS ADDRESS */
#include <plimsoll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static int shorter(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

int main(int argc, char **argv) {
    static const char *const policies[] = {"base", "mitt+wait"};
    static char data[4096];
    for (int p = 0; p < 2; p++) {
        plimsoll_options options = {.policy = policies[p]};
        plimsoll_volume *volume;
        double ms[200];
        if (plimsoll_open((const char *const *)argv + 1, argc - 1, &options, &volume) != 0)
            return fprintf(stderr, "%s\n", plimsoll_error()), 1;
        for (int i = 0; i < 200; i++) {
            ms[i] = now_ms();
            if (plimsoll_read(volume, data, sizeof data, i * 7919 % 1024 * 4096ull, 20000, 0) != 0)
                return fprintf(stderr, "%s\n", plimsoll_error()), 1;
            ms[i] = now_ms() - ms[i];
        }
        plimsoll_close(volume);
        qsort(ms, 200, sizeof ms[0], shorter);
        printf("%s: p99 %.3fms\n", policies[p], ms[198]);
    }
    return 0;
}
