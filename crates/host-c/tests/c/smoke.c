/* usage: smoke SOCKET FILE: the file's first page has been evicted, its disk is watched, and every read of it is late with a deadline
 * of nothing. */
#include <errno.h>
#include <fcntl.h>
#include <plimsoll-host.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(what)                                               \
    do {                                                          \
        if (!(what)) {                                            \
            fprintf(stderr, "line %d: not %s\n", __LINE__, #what); \
            return 1;                                             \
        }                                                         \
    } while (0)

int main(int count, char **argument)
{
    char buffer[4096];
    plimsoll_host_busy busy = {0, 0};
    plimsoll_host_counts counts;
    plimsoll_host *host, *nowhere;
    void *map;
    int fd, i;

    CHECK(count == 3);
    host = plimsoll_host_open(argument[1], PLIMSOLL_HOST_REFUSE_FIRST);
    CHECK(host);
    fd = open(argument[2], O_RDONLY);
    CHECK(fd >= 0);
    /* The agent is looked for in the background. */
    for (i = 0; i < 20000 && plimsoll_host_forecast(host, fd, sizeof buffer) <= 0; i++)
        poll(NULL, 0, 1);
    CHECK(plimsoll_host_forecast(host, fd, sizeof buffer) > 0);
    CHECK(plimsoll_host_read(host, fd, buffer, sizeof buffer, 0, 0, &busy) == -EBUSY);
    CHECK(busy.wait_us > 0 && busy.confidence > 0.5);
    CHECK(plimsoll_host_read(host, fd, buffer, sizeof buffer, 0, 60000000, NULL) == 4096);
    CHECK(buffer[0] == 7);
    CHECK(plimsoll_host_read(host, fd, buffer, sizeof buffer, 0, 0, &busy) == 4096); /* it's resident */
    CHECK(plimsoll_host_read(host, fd, buffer, 0, 0, 0, &busy) == 0);
    CHECK(plimsoll_host_read(host, fd, NULL, 1, 0, 0, &busy) == -EINVAL);
    CHECK(plimsoll_host_read(NULL, fd, buffer, 1, 0, 0, &busy) == -EINVAL);
    CHECK(plimsoll_host_read(host, -1, buffer, 1, 0, 0, &busy) == -EBADF);
    CHECK(plimsoll_host_read(host, fd, buffer, 1, UINT64_MAX, 0, &busy) == -EINVAL);
    map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    CHECK(plimsoll_host_addrcheck(host, map, 4096, 0, &busy) == 0);
    CHECK(munmap(map, 4096) == 0);
    CHECK(plimsoll_host_addrcheck(host, (void *)4096, 4096, 0, &busy) == -ENOMEM);
    plimsoll_host_count(host, &counts);
    CHECK(counts.busy == 1 && counts.asked > 4);
    nowhere = plimsoll_host_open("/nowhere", PLIMSOLL_HOST_QUIET);
    CHECK(plimsoll_host_forecast(nowhere, fd, 1) == -ENODATA);
    for (i = 0; i < 100; i++)
        CHECK(plimsoll_host_read(nowhere, fd, buffer, sizeof buffer, 0, 0, &busy) == 4096);
    plimsoll_host_close(nowhere);
    plimsoll_host_close(host);
    plimsoll_host_close(NULL);
    puts("ok");
    return 0;
}
