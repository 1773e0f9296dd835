/* Counts what each block device has been given, and keeps the time at which it will be done (MittOS §4.1).
 *
 *   insert ─► queued ─► issue ─► in flight ─► complete
 *               ▲ merge            │ requeue
 *
 * A device's next free time rises by a request's cost when it's issued. When one completes it is set to now and the cost of what
 * remains, so that an error of the costs lasts no longer than a request. Updates of it on two processors at once may lose one.
 *
 * The kernel's types are written by hand: only the members that are used, found by the running kernel's BTF. */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "layout.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct gendisk {
	int major, first_minor;
} __attribute__((preserve_access_index));
struct request_queue {
	struct gendisk *disk;
	void *elevator;
} __attribute__((preserve_access_index));
enum mq_rq_state { MQ_RQ_IDLE = 0 };
struct request {
	struct request_queue *q;
	unsigned int cmd_flags;
	int tag, internal_tag;
	unsigned int __data_len;
	enum mq_rq_state state;
} __attribute__((preserve_access_index));

struct all_states { struct state of[SLOTS]; };
struct all_costs { struct costs of[SLOTS]; };
struct all_samples { struct samples of[SLOTS]; };

#define ONE_VALUE(kind) \
	__uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __uint(map_flags, BPF_F_MMAPABLE); __type(key, __u32); __type(value, kind)
struct { ONE_VALUE(struct all_states); } states SEC(".maps"); /* frozen: readers map it */
struct { ONE_VALUE(struct all_costs); } costs SEC(".maps"); /* the agent's */
struct { ONE_VALUE(struct all_samples); } samples SEC(".maps"); /* the agent's */

#define OP(rq) ((rq)->cmd_flags & 0xff)
#define OP_READ 0
#define OP_WRITE 1
#define OP_FLUSH 2
#define OP_ZONE_APPEND 7
#define OP_COMMAND 32
#define ONE_REQUEST (1ull << COUNT_SHIFT)
#define BYTES(word) ((word) & (ONE_REQUEST - 1))
#define NUMBER(word) ((word) >> COUNT_SHIFT)

struct found {
	struct state *state;
	struct costs *costs;
	__u64 slot;
};

/* Takes requests out of a word, each with its share of the bytes. */
static __always_inline void drop_some(__u64 *word, __u32 number)
{
	__u64 before = *word;
	if (number && NUMBER(before) >= number)
		__sync_fetch_and_add(word, -(number * (ONE_REQUEST + BYTES(before) / NUMBER(before))));
}

/* Some counts are wrong: of requests that came or ended while the programs were attached, or at an interrupt at an unlucky time. The agent
 * compares with the kernel's, and says what to drop. */
static __noinline int drop(struct state *s, struct costs *c, __u32 dev)
{
	if (!s || !c)
		return 0;
	s->epoch = c->epoch;
	if (c->drop_reads == DROP_ALL) {
		s->dev = dev;
		s->reads = s->writes = s->queued = 0;
		s->next_free_ns = s->done_ns = s->completed = 0;
		return 0;
	}
	drop_some(&s->reads, c->drop_reads);
	drop_some(&s->writes, c->drop_writes);
	return 0;
}

/* The slot of a request's device, if it's watched. Flushes and commands are
 * not counted: the kernel counts none either. Nor is what has no bytes (the end of a write's flush is told as an empty write). */
static __always_inline int find(struct request *rq, struct found *f)
{
	struct gendisk *disk = rq->q->disk;
	if (!disk || OP(rq) == OP_FLUSH || OP(rq) >= OP_COMMAND || !rq->__data_len)
		return 0;
	__u32 dev = (__u32)disk->major << 20 | disk->first_minor, zero = 0;
	struct all_costs *c = bpf_map_lookup_elem(&costs, &zero);
	struct all_states *s = bpf_map_lookup_elem(&states, &zero);
	if (!c || !s)
		return 0;
	__u32 slot = SLOT(dev), steps = 0;
#pragma clang loop unroll(disable)
	while (c->of[slot & (SLOTS - 1)].dev != dev) {
		if (++steps == CHAIN)
			return 0;
		slot++;
	}
	slot &= SLOTS - 1;
	f->state = &s->of[slot], f->costs = &c->of[slot], f->slot = slot;
	if (f->state->epoch != f->costs->epoch)
		drop(f->state, f->costs, dev);
	return 1;
}

static __always_inline struct samples *samples_of(__u64 slot)
{
	__u32 zero = 0;
	struct all_samples *all = bpf_map_lookup_elem(&samples, &zero);
	return all ? &all->of[slot & (SLOTS - 1)] : 0;
}

/* With an I/O scheduler a request has the scheduler's tag from the beginning, otherwise the device's. */
#define PROBE_OF(s, rq) (&(s)->probes[((rq)->internal_tag < 0 ? (rq)->tag : (rq)->internal_tag) & (PROBES - 1)])

/* Bytes that count: not those of what is neither read nor write (a discard names gigabytes and moves none). */
static __always_inline __u64 moved(struct request *rq, __u64 bytes)
{
	__u32 op = OP(rq);
	return op == OP_READ || op == OP_WRITE || op == OP_ZONE_APPEND ? bytes : 0;
}

/* Does it pass through the I/O scheduler? Flushes and commands don't. */
static __always_inline int is_queued(struct request *rq)
{
	__u32 op = OP(rq);
	return (op == OP_READ || op == OP_WRITE) && rq->q->elevator;
}

static __always_inline void leave_queue(struct state *s, struct request *rq)
{
	if (!is_queued(rq))
		return;
	__u64 one = OP(rq) == OP_READ ? 1 : 1ull << 32, queued = __sync_fetch_and_add(&s->queued, -one);
	if (!(OP(rq) == OP_READ ? (__u32)queued : queued >> 32))
		__sync_fetch_and_add(&s->queued, one); /* it was queued before anyone watched */
}

/* Takes a request, or bytes of one, out of what is in flight. False, and nothing changes, if it was issued before anyone watched. */
static __always_inline int leave(__u64 *word, __u64 what)
{
	__u64 before = __sync_fetch_and_add(word, -what);
	if (NUMBER(before) && BYTES(before) >= BYTES(what))
		return 1;
	__sync_fetch_and_add(word, what);
	return 0;
}

/* `now` is 0 if the clock wasn't read yet: that costs as much as all the rest of an insertion, and few reads are timed. */
static __always_inline void begin_probe(struct found *f, struct request *rq, __u64 now)
{
	struct samples *all = samples_of(f->slot);
	/* Reads that are being timed need room too. */
	if (!all || all->head - all->tail >= SAMPLES - 2 * PROBES)
		return;
	struct probe *p = PROBE_OF(all, rq);
	if (p->request == (__u64)rq)
		return;
	/* One that never ended gives its place up. Its age is by the last completion, which takes no clock: a device that completes none has no
	 * use for the place. */
	if (p->request && (__s64)(f->state->done_ns - p->arrived_ns) < 30000000000ll)
		return;
	p->arrived_ns = now ? now : bpf_ktime_get_ns();
	p->free_ns = f->state->next_free_ns;
	p->reads = f->state->reads, p->writes = f->state->writes, p->queued = f->state->queued;
	p->request = (__u64)rq;
}

static __always_inline void end_probe(struct found *f, struct request *rq, __u64 bytes, __u64 now)
{
	struct samples *all = samples_of(f->slot);
	if (!all)
		return;
	struct probe *p = PROBE_OF(all, rq);
	if (p->request != (__u64)rq)
		return;
	if (now) {
		struct sample *s = &all->ring[all->head & (SAMPLES - 1)];
		s->arrived_ns = p->arrived_ns, s->done_ns = now;
		s->free_ns = p->free_ns, s->reads = p->reads, s->writes = p->writes, s->queued = p->queued;
		s->bytes = bytes, s->dev = f->costs->dev;
		__sync_fetch_and_add(&all->head, 1);
	}
	p->request = 0;
}

SEC("tp_btf/block_rq_insert") int BPF_PROG(insert, struct request *rq)
{
	struct found f;
	if (!is_queued(rq) || !find(rq, &f))
		return 0;
	if (OP(rq) == OP_READ)
		begin_probe(&f, rq, 0);
	__sync_fetch_and_add(&f.state->queued, OP(rq) == OP_READ ? 1 : 1ull << 32);
	return 0;
}

/* This request has become a part of another one that is queued. */
SEC("tp_btf/block_rq_merge") int BPF_PROG(merge, struct request *rq)
{
	struct found f;
	if (!is_queued(rq) || !find(rq, &f))
		return 0;
	if (OP(rq) == OP_READ)
		end_probe(&f, rq, 0, 0);
	leave_queue(f.state, rq);
	return 0;
}

SEC("tp_btf/block_rq_issue") int BPF_PROG(issue, struct request *rq)
{
	struct found f;
	if (!find(rq, &f))
		return 0;
	struct state *s = f.state;
	__u64 now = bpf_ktime_get_ns(), bytes = moved(rq, rq->__data_len), cost;
	leave_queue(s, rq);
	if (OP(rq) == OP_READ) {
		begin_probe(&f, rq, now);
		cost = f.costs->read_ns + (bytes >> 10) * f.costs->read_ns_per_kib;
		__sync_fetch_and_add(&s->reads, ONE_REQUEST + bytes);
	} else {
		cost = f.costs->write_ns + (bytes >> 10) * f.costs->write_ns_per_kib;
		__sync_fetch_and_add(&s->writes, ONE_REQUEST + bytes);
	}
	__u64 free = s->next_free_ns;
	s->next_free_ns = (free > now ? free : now) + cost;
	return 0;
}

/* The device couldn't take it: it will be issued again. */
SEC("tp_btf/block_rq_requeue") int BPF_PROG(requeue, struct request *rq)
{
	struct found f;
	if (rq->state == MQ_RQ_IDLE || !find(rq, &f))
		return 0;
	if (OP(rq) == OP_READ)
		end_probe(&f, rq, 0, 0);
	leave(OP(rq) == OP_READ ? &f.state->reads : &f.state->writes, ONE_REQUEST + moved(rq, rq->__data_len));
	return 0;
}

SEC("tp_btf/block_rq_complete") int BPF_PROG(complete, struct request *rq, int error, unsigned int bytes)
{
	struct found f;
	if (!find(rq, &f))
		return 0;
	struct state *s = f.state;
	if (rq->state == MQ_RQ_IDLE) { /* it fails without having been issued */
		if (OP(rq) == OP_READ)
			end_probe(&f, rq, 0, 0);
		leave_queue(s, rq);
		return 0;
	}
	__u64 *word = OP(rq) == OP_READ ? &s->reads : &s->writes;
	__u64 gone = moved(rq, bytes);
	if (bytes < rq->__data_len) {
		leave(word, gone);
		return 0;
	}
	if (!leave(word, ONE_REQUEST + gone))
		return 0;
	__u64 now = bpf_ktime_get_ns(), r = s->reads, w = s->writes;
	s->next_free_ns = now + NUMBER(r) * f.costs->read_ns + (BYTES(r) >> 10) * f.costs->read_ns_per_kib
		+ NUMBER(w) * f.costs->write_ns + (BYTES(w) >> 10) * f.costs->write_ns_per_kib;
	s->done_ns = now;
	__sync_fetch_and_add(&s->completed, 1);
	if (OP(rq) == OP_READ)
		end_probe(&f, rq, bytes, error ? 0 : now);
	return 0;
}
