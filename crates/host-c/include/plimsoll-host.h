/* Host mode: reads of ordinary files with a deadline. A read that would be late is refused at once, if `plimsoll host` runs on this
 * machine. Otherwise all reads are plain.
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

/* A reader of files. One a process is enough. */
typedef struct plimsoll_host plimsoll_host;

/* Refuses reads of pages that were never in memory, too. */
#define PLIMSOLL_HOST_REFUSE_FIRST 1u
/* Prints nothing on standard error. By default each reason for plain reads is printed once. */
#define PLIMSOLL_HOST_QUIET 2u

/* A refusal. */
typedef struct plimsoll_host_busy {
    uint64_t wait_us;   /* time until the data would be in memory */
    double confidence;  /* probability of missing the deadline, 0 to 1 */
} plimsoll_host_busy;

/* Counts since the reader was opened. */
typedef struct plimsoll_host_counts {
    uint64_t asked;     /* reads and checks with a deadline */
    uint64_t busy;      /* of these, refused */
    uint64_t plain;     /* of these, without a forecast */
    uint64_t unfetched; /* refused reads whose pages weren't ordered, as too many orders waited */
} plimsoll_host_counts;

/* Returns a reader that looks for the agent at `socket`, in the background and again later. If `socket` is NULL it is
 * $PLIMSOLL_HOST_SOCKET or /run/plimsoll-host/host.sock. Returns NULL if `socket` isn't UTF-8. */
plimsoll_host *plimsoll_host_open(const char *socket, uint32_t flags);

/* Ends the reader. No other call may use it any more. NULL is ignored. */
void plimsoll_host_close(plimsoll_host *host);

/* Reads as pread(2) does, and returns the number of bytes. If the read would take longer than `deadline_us` it returns -EBUSY at once and
 * fills `*busy`, which may be NULL. The pages then come in in the background, by `fd`: keep it open for a moment.
 * Other failures are pread's errno, negative. `buffer` may have been written to in any case. */
ssize_t plimsoll_host_read(const plimsoll_host *host, int fd, void *buffer, size_t length, uint64_t offset,
                           uint64_t deadline_us, plimsoll_host_busy *busy);

/* Checks mapped memory before it is touched. Returns 0, -EBUSY as above, or -ENOMEM if nothing is mapped there. */
int plimsoll_host_addrcheck(const plimsoll_host *host, const void *address, size_t length, uint64_t deadline_us,
                            plimsoll_host_busy *busy);

/* Forecasts a read of `length` bytes from the file's disk, in microseconds until its end. Returns -ENODATA without a forecast. */
int64_t plimsoll_host_forecast(const plimsoll_host *host, int fd, size_t length);

/* Fills `counts`. */
void plimsoll_host_count(const plimsoll_host *host, plimsoll_host_counts *counts);

#ifdef __cplusplus
}
#endif
#endif
