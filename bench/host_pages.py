#!/usr/bin/env python3
"""Pages that are gone from the page cache of one replica, or of all: reads with deadlines go on to the next (MT-E8 and MT-E11, live).

usage: bench/host_pages.py PLIMSOLL LIBRARIES [--rounds N] [--reads N] [--json FILE]

As root. LIBRARIES: the folder with libplimsoll_host_c.so. Each replica is a file on a modelled disk that takes 4 ms for a read (host_disks.py).
First a fifth of the first replica's pages is dropped, and each page is read once, by itself (MittOS Fig. 4d). Then a share is dropped of each
replica, 5, 10 and 20 % by turns, and a request is 1, 2, 5 or 10 reads at once, each with a random replica first (Fig. 7; there on 20 nodes).
The last replica is asked without a deadline. Hedging asks the next replica after 2 ms. Contents are compared.
"""
import concurrent.futures as futures
import os, pathlib, random, statistics, subprocess, sys, tempfile, time

from host_disks import Disk, run, wait_for
from lib import alternate, arguments, head, keep, row

PAGE, PAGES = 4096, 8192
DEADLINE_S, HEDGE_S = 0.0005, 0.002
SHARES = [0.05, 0.10, 0.20]
AT_ONCE = [1, 2, 5, 10]
PERCENTS = [50, 80, 90, 95, 99]


def content(page):
    return page.to_bytes(8, "little") * (PAGE // 8)


class Replica:
    """A file whose pages are all in memory, until some are dropped."""

    def __init__(self, disk):
        self.fd = os.open(disk.folder / "fs/file", os.O_RDWR | os.O_CREAT)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
        self.gone = list(range(PAGES))
        self.fill()

    def fill(self):
        # Page by page: a large folio of the kernel's couldn't be dropped in part.
        for page in self.gone:
            os.pwrite(self.fd, content(page), page * PAGE)
        os.fsync(self.fd)
        self.gone = []

    def drop(self, pages):
        self.fill()
        for page in pages:
            os.posix_fadvise(self.fd, page * PAGE, PAGE, os.POSIX_FADV_DONTNEED)
        self.gone = list(pages)

    def plain(self, page):
        return os.pread(self.fd, PAGE, page * PAGE)


class Client:
    def __init__(self, replicas, host):
        self.replicas, self.host, self.busy = replicas, host, 0
        self.pool, self.second = futures.ThreadPoolExecutor(10), futures.ThreadPoolExecutor(30)

    def base(self, page, order):
        return self.replicas[order[0]].plain(page)

    def hedged(self, page, order):
        asked = [self.second.submit(self.replicas[order[0]].plain, page)]
        if not futures.wait(asked, HEDGE_S).done:
            asked.append(self.second.submit(self.replicas[order[1]].plain, page))
        return futures.wait(asked, return_when=futures.FIRST_COMPLETED).done.pop().result()

    def deadlines(self, page, order):
        from host import Busy
        for r in order[:-1]:
            try:
                return self.host.read(self.replicas[r].fd, PAGE, page * PAGE, DEADLINE_S)
            except Busy:
                self.busy += 1
        return self.replicas[order[-1]].plain(page)

    def took_us(self, strategy, pages, orders, at_once):
        """Times of requests of `at_once` reads each."""
        get, took = getattr(self, strategy), []
        for i in range(0, len(pages) - at_once + 1, at_once):
            asked, begun = range(i, i + at_once), time.monotonic()
            if at_once == 1:
                found = [get(pages[i], orders[i])]
            else:
                found = [f.result() for f in [self.pool.submit(get, pages[j], orders[j]) for j in asked]]
            took.append((time.monotonic() - begun) * 1e6)
            assert found == [content(pages[j]) for j in asked], "other data"
        return took


def percentiles(took):
    cuts = statistics.quantiles(took, n=100, method="inclusive")
    return {f"p{p}_us": round(cuts[p - 1], 1) for p in PERCENTS}


def one_replica(client, reads):
    """MT-E8: a fifth of the first replica's pages is gone."""
    def measure(strategy, n):
        rng = random.Random(n)
        client.replicas[0].drop(rng.sample(range(PAGES), PAGES // 5))
        client.busy = 0
        took = client.took_us(strategy, rng.sample(range(PAGES), reads), [[0, 1, 2]] * reads, 1)
        return {**percentiles(took), "busy": client.busy}
    return measure


def all_replicas(client, reads, at_once):
    """MT-E11: some pages of each replica are gone."""
    def measure(strategy, n):
        rng = random.Random(n)
        for i, replica in enumerate(client.replicas):
            replica.drop(rng.sample(range(PAGES), int(PAGES * SHARES[(i + n) % 3])))
        orders = [rng.sample(range(3), 3) for _ in range(reads)]
        client.busy = 0
        took = client.took_us(strategy, rng.sample(range(PAGES), reads), orders, at_once)
        return {**percentiles(took), "busy": client.busy}
    return measure


def show(title, found):
    for strategy, rounds in found.items():
        row(title, strategy, *(f"{statistics.median(r[f'p{p}_us'] for r in rounds) / 1e3:.2f}" for p in PERCENTS),
            round(statistics.median(r["busy"] for r in rounds)))


def main():
    parser = arguments(__doc__, rounds=10)
    parser.add_argument("libraries", type=os.path.abspath)
    parser.add_argument("--reads", type=int, default=1000)
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench/host_pages.py mounts modelled disks: run it as root")
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bindings/python/python/plimsoll"))
    from host import Host
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        disks, agent = [], None
        try:
            for name in "abc":
                disks.append(Disk(folder, name))
            socket = folder / "host.sock"
            agent = subprocess.Popen([args.plimsoll, "host", "--socket", socket, *(f"--disk={d.loop[5:]}" for d in disks)], stdout=subprocess.DEVNULL)
            wait_for("the agent listens", socket.exists)
            host = Host(socket, refuse_first=True, quiet=True, library=os.path.join(args.libraries, "libplimsoll_host_c.so"))
            client = Client([Replica(d) for d in disks], host)
            # Reads teach the agent each disk's costs.
            for replica in client.replicas:
                replica.drop(range(200))
                for page in range(200):
                    replica.plain(page)
                wait_for("the agent knows the disk", lambda: host.forecast(replica.fd, PAGE) is not None)
            found["one"] = alternate(["base", "deadlines"], args.rounds, one_replica(client, args.reads), "a fifth of one replica: ")
            for n in AT_ONCE:
                found[n] = alternate(["base", "hedged", "deadlines"], args.rounds, all_replicas(client, args.reads, n), f"all replicas, {n} at once: ")
            client.pool.shutdown()
            client.second.shutdown()
        finally:
            if agent:
                agent.terminate()
                agent.wait()
            for d in disks:
                d.close()
    head("pages gone", "strategy", *(f"p{p}, ms" for p in PERCENTS), "refusals a round")
    show("a fifth of the first replica's", found["one"])
    for n in AT_ONCE:
        show(f"of all; {n} at once", found[n])
    keep(args.json, args, found)


main()
