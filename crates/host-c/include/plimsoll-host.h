/* Host mode: reads of ordinary files with a deadline. What would be late is refused at once, if `plimsoll host` runs on this machine;
 * otherwise all reads are plain ones.
 *
 * Link with -lplimsoll_host_c. All functions may be called from any thread. */
#ifndef PLIMSOLL_HOST_H
#define PLIMSOLL_HOST_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Connected to the agent; one a process is enough. */
typedef struct plimsoll_host plimsoll_host;

/* Refuse reads of pages that were never in memory too. */
#define PLIMSOLL_HOST_REFUSE_FIRST 1u
/* Print nothing on standard error; otherwise each reason for plain reads is printed once. */
#define PLIMSOLL_HOST_QUIET 2u

/* A refusal. */
typedef struct plimsoll_busy {
    uint64_t wait_us;   /* when the data would be here */
    double confidence;  /* how probable it is that the deadline would be missed, 0 to 1 */
} plimsoll_busy;

/* What was counted since it was opened. */
typedef struct plimsoll_host_counts {
    uint64_t asked;     /* reads and checks with a deadline */
    uint64_t busy;      /* of these, refused */
    uint64_t plain;     /* of these, without a forecast */
    uint64_t unfetched; /* refused reads whose pages weren't ordered: too many orders waited */
} plimsoll_host_counts;

/* Connects to the agent at `socket`, NULL: $PLIMSOLL_HOST_SOCKET or /run/plimsoll-host/host.sock. An agent that isn't there is looked
 * for later. NULL: `socket` isn't UTF-8. */
plimsoll_host *plimsoll_host_open(const char *socket, uint32_t flags);

/* Ends it. No other call may use it any more. */
void plimsoll_host_close(plimsoll_host *host);

/* As pread(2), unless that would take longer than `deadline_us`: then -EBUSY, at once, `*busy` says more (it may be NULL), and the
 * pages come in in the background. Other failures are pread's errno, negative. `buffer` may have been written to in any case. */
ssize_t plimsoll_host_read(const plimsoll_host *host, int fd, void *buffer, size_t length, uint64_t offset,
                           uint64_t deadline_us, plimsoll_busy *busy);

/* Before mapped memory is touched: 0, or -EBUSY as above; -ENOMEM: nothing is mapped there. */
int plimsoll_host_addrcheck(const plimsoll_host *host, const void *address, size_t length, uint64_t deadline_us,
                            plimsoll_busy *busy);

/* When a read of `length` bytes of the file's disk would be done, were it not in memory, in microseconds; -ENODATA: nothing is known. */
int64_t plimsoll_host_forecast(const plimsoll_host *host, int fd, size_t length);

/* What was counted. */
void plimsoll_host_count(const plimsoll_host *host, plimsoll_host_counts *counts);

#ifdef __cplusplus
}
#endif
#endif
