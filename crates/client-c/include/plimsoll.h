/* Plimsoll's client: reads with a deadline of a volume that several nodes have.
 *
 * Link with -lplimsoll_client_c. All functions may be called from any thread; a volume may be read by many at once. Functions
 * that can fail return 0 or a negative errno; plimsoll_error() then says in words what is wrong, on the calling thread.
 *
 * A volume belongs to the process that opened it. In a child of fork() its reads fail with -EINVAL, its counts are 0, and
 * plimsoll_close frees nothing and sends nothing: open another volume there. The child holds copies of the sockets until it ends
 * or calls exec. */
#ifndef PLIMSOLL_H
#define PLIMSOLL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A volume that is open over its replicas. */
typedef struct plimsoll_volume plimsoll_volume;

/* The servers aren't Plimsoll's: no deadlines, no probes, no generations. */
#define PLIMSOLL_FOREIGN 1u
/* A read may give older data than one that ended before it began. */
#define PLIMSOLL_NOT_MONOTONIC 2u

/* How a volume is read. Zero everywhere is what NULL means: the defaults. */
typedef struct plimsoll_options {
    /* "base", "timeout", "clone", "hedged", "hedged+cancel", "tied", "snitch", "c3", "prequal", "mitt", "mitt+wait" or
     * "mitt+budget"; NULL: "mitt+wait". */
    const char *policy;
    /* Deadline, time-out or delay of the policy, in microseconds; 0: 20,000. */
    uint64_t deadline_us;
    /* A read without a limit of its own fails after this long, in microseconds; 0: 30 s. */
    uint64_t limit_us;
    /* A node that says nothing for this long, while it should, is given up, in microseconds, at least 2 s; 0: 5 s. */
    uint64_t stall_us;
    /* Within this long a node must take a connection, in microseconds; 0: 5 s. */
    uint64_t connect_us;
    /* PLIMSOLL_FOREIGN, PLIMSOLL_NOT_MONOTONIC. */
    uint32_t flags;
    /* Must be 0. */
    uint32_t reserved;
} plimsoll_options;

/* What was counted since a volume was opened. */
typedef struct plimsoll_counts {
    uint64_t gets;    /* reads begun */
    uint64_t failed;  /* reads that ended with an error */
    uint64_t tries;   /* requests sent for them */
    uint64_t busy;    /* of these, refused for taking too long */
    uint64_t errors;  /* of these, ended with another error; withdrawn ones aren't counted */
    uint64_t cancels; /* requests withdrawn */
    uint64_t probes;  /* probes sent for reads */
} plimsoll_counts;

/* Opens a volume over `count` replicas: NBD addresses (nbd+unix:///EXPORT?socket=PATH, nbd://HOST[:PORT]/EXPORT, and over TLS
 * nbds://HOST[:PORT]/EXPORT?tls-certificates=FOLDER), in the order of the data's placement. One that can be read is enough.
 * -EINVAL: addresses or options that make no sense, or replicas of different sizes; -ENOTCONN: no replica can be read. */
int plimsoll_open(const char *const *replicas, size_t count, const plimsoll_options *options, plimsoll_volume **volume);

/* Opens a set of objects of `object_bytes` each that lie on more nodes than one volume's replicas: `groups` volumes of `copies`
 * replicas each, whose addresses are in `replicas` group after group. Object `i` is in group `i % groups`, and read at
 * `i * object_bytes` of what is opened, no more than the rest of it at once. Fails as plimsoll_open does, and with -EINVAL if an
 * object is empty or larger than a group. */
int plimsoll_open_set(const char *const *replicas, size_t groups, size_t copies, uint64_t object_bytes,
                      const plimsoll_options *options, plimsoll_volume **volume);

/* The volume's size in bytes. */
uint64_t plimsoll_size(const plimsoll_volume *volume);

/* Reads `length` bytes at `offset` into `buffer`, which is left as it was on failure. With the policies mitt, mitt+wait and
 * mitt+budget, nodes are asked to refuse at once what would take longer than `deadline_us`, and then it goes to the next. hedged and timeout
 * ask another replica after it; the others ignore it. 0: the policy's own. `limit_us` bounds the whole call; 0: the
 * volume's.
 * -EINVAL: a range or time that makes no sense, or the volume is another process's; -ETIMEDOUT: the limit came; -EIO: no replica
 * answered. */
int plimsoll_read(plimsoll_volume *volume, void *buffer, size_t length, uint64_t offset, uint64_t deadline_us,
                  uint64_t limit_us);

/* The forecast of a read that was refused. */
typedef struct plimsoll_busy {
    uint64_t wait_us;   /* predicted wait at the replica that would be ready soonest; the device's own time comes on top */
    int32_t confidence; /* how well the node knows the device, in thousandths: 1000 is exact; -1 if it doesn't say. No probability */
    uint32_t reserved;
} plimsoll_busy;

/* The same for a program that can do better than wait. Where every replica would be late, plimsoll_read waits at the one that is ready
 * soonest, and this fails at once.
 * -EBUSY: every replica that didn't fail has refused it, and `busy` is filled in unless it is NULL; -EINVAL also for a policy without deadlines. */
int plimsoll_read_or_busy(plimsoll_volume *volume, void *buffer, size_t length, uint64_t offset, uint64_t deadline_us,
                          uint64_t limit_us, plimsoll_busy *busy);

/* plimsoll_read without waiting. 0: `done` is called once, from a thread of the library's own, with `user` and 0 or a negative errno,
 * which plimsoll_error() has in words there. `buffer` must stay until then; `done` must not wait for another read, nor close the
 * volume. If the volume is closed first, `done` is called with -EIO before plimsoll_close returns.
 * -EINVAL: a pointer other than `user` is NULL, or the volume is another process's. Then `done` isn't called. */
int plimsoll_read_async(plimsoll_volume *volume, void *buffer, size_t length, uint64_t offset, uint64_t deadline_us,
                        uint64_t limit_us, void (*done)(void *user, int result), void *user);

/* What was counted. */
void plimsoll_count(const plimsoll_volume *volume, plimsoll_counts *counts);

/* Closes a volume; no call on another thread may use it meanwhile. Doesn't wait for nodes. NULL is nothing. */
void plimsoll_close(plimsoll_volume *volume);

/* What the last failure on this thread was, in words; empty if there was none. Valid until the next call on this thread. */
const char *plimsoll_error(void);

#ifdef __cplusplus
}
#endif
#endif
