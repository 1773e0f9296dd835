/* What the BPF programs and the agent share. The same in Rust: src/layout.rs, whose sizes are asserted. */
#ifndef LAYOUT_H
#define LAYOUT_H

#define SLOTS 128  /* devices at once; a power of two */
#define CHAIN 8    /* slots that a device may be in, from its own on */
/* A device's own slot. Minors rise by 1, by 16, or by a disk's partitions: the product spreads each of these. */
#define SLOT(dev) (((dev) ^ (dev) >> 20) * 0x9e3779b1u >> 25)
#define PROBES 4   /* reads of a device that are timed at once; a power of two */
#define SAMPLES 64  /* timed reads that wait for the agent; a power of two */
#define DROP_ALL 0xffffffff
#define COUNT_SHIFT 40 /* a word of requests: their number above, their bytes below */

/* A device as readers see it: the sum of everyone's requests, and nothing of a single one. */
struct state {
	__u32 dev;   /* major << 20 | minor, 0: none */
	__u32 epoch; /* of `costs`, as far as it was obeyed */
	__u64 reads; /* in flight */
	__u64 writes; /* in flight; also discards and the like, without bytes */
	__u64 queued; /* in the I/O scheduler: reads below, writes in the upper 32 bits */
	__u64 next_free_ns; /* when what is in flight will be done (CLOCK_MONOTONIC) */
	__u64 done_ns; /* last completion */
	__u64 completed; /* requests, since the epoch */
	__u64 pad[9]; /* 128 bytes */
};

/* A device as the agent wants it counted. */
struct costs {
	__u32 dev;
	__u32 epoch; /* another one than the state's: drop what the next two say */
	__u32 drop_reads, drop_writes; /* requests counted that the kernel doesn't have, DROP_ALL: begin anew */
	__u32 read_ns, read_ns_per_kib; /* what a request in flight holds up those behind it */
	__u32 write_ns, write_ns_per_kib;
};

/* A read that is being timed. */
struct probe {
	__u64 request; /* 0: none */
	__u64 arrived_ns;
	__u64 free_ns, reads, writes, queued; /* of the state, just before it */
};

/* A read that was timed. */
struct sample {
	__u64 arrived_ns, done_ns;
	__u64 free_ns, reads, writes, queued;
	__u64 bytes;
	__u64 dev;
};

struct samples {
	__u64 head; /* timed so far */
	__u64 tail; /* the agent has taken these; no read is timed while there is no room */
	struct probe probes[PROBES];
	struct sample ring[SAMPLES];
};

#endif
