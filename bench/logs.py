#!/usr/bin/python3
"""Live: a sequential NBD reader beside batches of small durable writes on a disk modelled in real time, with and without logs.

usage: bench/logs.py PLIMSOLL [--seconds S] [--rounds N] [--model cheetah-15k5] [--json OUT]

A batch is 20 scattered 4 KiB writes sent together, then one FLUSH; 40 writes/s are 2 batches a second (Manylogs' way of
counting). The reader has 2 reads of 128 KiB outstanding over a file of 2 GiB. Rounds alternate between the two nodes; medians
are printed as a Markdown table. Needs python3-libnbd, and a sparse file of the modelled disk's size in a temporary folder.
"""
import json, random, select, statistics, tempfile, time

from lib import alternate, arguments, head, keep, middle, row
from node import Node, one, uri

import nbd

BATCH, WRITE, READ, FILE = 20, 4096, 128 << 10, 2 << 30


def start(plimsoll, folder, model, logs):
    section = '[pool.logs]\nlogged_write = "32KiB"\nadaptive = false\n' if logs else ""
    device = f'{{ file = "p.img", size = "135GiB", model = "{model}" }}'
    return Node(plimsoll, folder, one(device, "100GiB", f"depth = 4\n{section}"))


def connect(node):
    h = nbd.NBD()
    h.connect_uri(uri(node.folder))
    return h


def measure(node, rate, seconds, round_):
    """Bandwidth in MB/s, and the times of batches and of their flushes in ms."""
    rng = random.Random(1000 * round_ + rate)
    reader, writer = connect(node), connect(node)
    size = reader.get_size()
    # The same file for every rate of a round: a disk is faster outside than inside.
    start = random.Random(round_).randrange((size // 2 - FILE) // READ) * READ
    reads, read_at, done_bytes = [], 0, 0
    writes, flush, began, flushed_from = [], None, None, None
    syncs, flushes = [], []
    now = time.monotonic()
    warm, end = now + 1, now + 1 + seconds
    period = BATCH / rate if rate else None
    due = now + 0.5
    while now < end:
        while len(reads) < 2:
            reads.append(reader.aio_pread(nbd.Buffer(READ), start + read_at))
            read_at = (read_at + READ) % FILE
        if period and began is None and now >= due:
            began, due = now, max(now, due) + period
            part = size // BATCH
            for i in range(BATCH):
                offset = i * part + rng.randrange(part // WRITE) * WRITE
                writes.append(writer.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(rng.randbytes(WRITE))), offset))
        poll = select.poll()
        for h in (reader, writer):
            ways = h.aio_get_direction()
            poll.register(h.aio_get_fd(), (select.POLLIN if ways & nbd.AIO_DIRECTION_READ else 0)
                          | (select.POLLOUT if ways & nbd.AIO_DIRECTION_WRITE else 0))
        left = end - now if began is not None or not period else min(end, due) - now
        events = dict(poll.poll(max(0, left * 1000)))
        for h in (reader, writer):
            got = events.get(h.aio_get_fd(), 0)
            if got & select.POLLIN and h.aio_get_direction() & nbd.AIO_DIRECTION_READ:
                h.aio_notify_read()
            elif got & select.POLLOUT and h.aio_get_direction() & nbd.AIO_DIRECTION_WRITE:
                h.aio_notify_write()
        now = time.monotonic()
        still = [c for c in reads if not reader.aio_command_completed(c)]
        if now >= warm:
            done_bytes += READ * (len(reads) - len(still))
        reads = still
        writes = [c for c in writes if not writer.aio_command_completed(c)]
        if began is not None and not writes and flush is None:
            flush, flushed_from = writer.aio_flush(), now
        if flush is not None and writer.aio_command_completed(flush):
            if began >= warm:
                syncs.append(1000 * (now - began))
                flushes.append(1000 * (now - flushed_from))
            flush = began = None
    for h in (reader, writer):
        h.shutdown()
    return done_bytes / 1e6 / seconds, syncs, flushes


def main():
    args = arguments(__doc__, seconds=8.0)
    args.add_argument("--model", default="cheetah-15k5")
    a = args.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        nodes = {name: start(a.plimsoll, f"{folder}/{name}", a.model, logs)
                 for name, logs in (("without", False), ("with", True))}
        runs_of = lambda setting, r: measure(nodes[setting[1]], setting[0], a.seconds, r)
        results = alternate([(rate, name) for rate in (0, 40, 160, 320) for name in nodes], a.rounds, runs_of)
        late = json.loads(nodes["with"].cli("status", "--json"))
        model = json.loads(nodes["with"].cli("pool", "show", "p", "--json"))["model"]
        for node in nodes.values():
            node.stop()
    alone = {name: statistics.median(m for m, _, _ in results[0, name]) for name in nodes}
    print(f"\n{a.model}, {a.rounds} rounds of {a.seconds:g} s; alone {alone['without']:.1f} MB/s without logs, {alone['with']:.1f} with\n")
    pauses = late["node"]["host_pauses"]
    print(f"the host: answers later than the model's p50 {model['late_p50_us']} us, p99 {model['late_p99_us']}, most {model['late_max_us']}; "
          f"{pauses['count']} pauses of 250 us or more, {pauses['total_us'] / late['node']['uptime_us']:.1%} of the time\n")
    keep(a.json, a, {f"{rate} writes/s, {name} logs": runs for (rate, name), runs in results.items()})
    head("writes/s", "logs", "% of bandwidth kept (least..most)", "batch + flush mean / p99 ms", "flush alone mean / p99 ms")
    p99 = lambda v: sorted(v)[min(len(v) - 1, int(len(v) * 0.99))]
    for (rate, name), runs in sorted(results.items()):
        if rate:
            kept = [100 * m / alone[name] for m, _, _ in runs]
            syncs = [t for _, s, _ in runs for t in s] or [float("nan")]
            flushes = [t for _, _, f in runs for t in f] or [float("nan")]
            row(rate, name, middle(kept, 0), f"{statistics.mean(syncs):.1f} / {p99(syncs):.1f}", f"{statistics.mean(flushes):.1f} / {p99(flushes):.1f}")


if __name__ == "__main__":
    main()
