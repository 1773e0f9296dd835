/* Tells of each request that ends who ordered it, and when: for `plimsoll host top`, and loaded only while that runs.
 *
 * Who orders is the task that inserts or issues the request first. The kernel writes dirty pages back for whoever dirtied them: then
 * it's a kernel thread. */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct gendisk {
	int major, first_minor;
} __attribute__((preserve_access_index));
struct request_queue {
	struct gendisk *disk;
} __attribute__((preserve_access_index));
struct request {
	struct request_queue *q;
	unsigned int cmd_flags;
	unsigned int __data_len;
} __attribute__((preserve_access_index));

struct ordered {
	__u64 arrived_ns, issued_ns;
	__u32 process, bytes;
	char command[16];
};

/* The same in Rust: src/agent/requests.rs. */
struct ended {
	__u64 arrived_ns, issued_ns, done_ns;
	__u32 process, dev, bytes, op;
	char command[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct ordered);
} orders SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} ends SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

static __always_inline void order(struct request *rq, int is_issue)
{
	__u64 key = (__u64)rq, now = bpf_ktime_get_ns();
	struct ordered *known = bpf_map_lookup_elem(&orders, &key);
	/* Inserted before, and not issued yet. An entry of a request that ended unseen is replaced. */
	if (known && is_issue && !known->issued_ns) {
		known->issued_ns = now;
		known->bytes = rq->__data_len;
		return;
	}
	struct ordered o = { .arrived_ns = now, .issued_ns = is_issue ? now : 0, .bytes = rq->__data_len };
	o.process = bpf_get_current_pid_tgid() >> 32;
	bpf_get_current_comm(o.command, sizeof(o.command));
	bpf_map_update_elem(&orders, &key, &o, BPF_ANY);
}

SEC("tp_btf/block_rq_insert") int BPF_PROG(insert, struct request *rq)
{
	order(rq, 0);
	return 0;
}

SEC("tp_btf/block_rq_issue") int BPF_PROG(issue, struct request *rq)
{
	order(rq, 1);
	return 0;
}

SEC("tp_btf/block_rq_complete") int BPF_PROG(complete, struct request *rq, int error, unsigned int bytes)
{
	__u64 key = (__u64)rq;
	struct gendisk *disk = rq->q->disk;
	if (bytes < rq->__data_len)
		return 0;
	struct ordered *o = bpf_map_lookup_elem(&orders, &key);
	if (!o || !disk)
		return 0;
	if (o->issued_ns) {
		struct ended *e = bpf_ringbuf_reserve(&ends, sizeof(*e), 0);
		if (e) {
			e->arrived_ns = o->arrived_ns, e->issued_ns = o->issued_ns, e->done_ns = bpf_ktime_get_ns();
			e->process = o->process, e->bytes = o->bytes, e->op = rq->cmd_flags & 0xff;
			e->dev = (__u32)disk->major << 20 | disk->first_minor;
			__builtin_memcpy(e->command, o->command, sizeof(e->command));
			bpf_ringbuf_submit(e, 0);
		} else {
			__u32 zero = 0;
			__u64 *n = bpf_map_lookup_elem(&lost, &zero);
			if (n)
				__sync_fetch_and_add(n, 1);
		}
	}
	bpf_map_delete_elem(&orders, &key);
	return 0;
}
