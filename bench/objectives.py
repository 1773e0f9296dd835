#!/usr/bin/python3
"""Live: a database with an objective beside deep best-effort writes, on one plain device.

usage: bench/objectives.py PLIMSOLL [--devices file,loop,nvme-modern,vf-sata-60g] [--seconds S] [--rounds N] [--json OUT]

The database reads 4 KiB at random, 4 deep, 2,000 times a second, and beside that writes 4 KiB and flushes, again and again. Its
objective is p99 within --times (1.5) of its p99 alone, over all of its requests, flushes too. Best effort writes 64 KiB in order, 16 deep.
Each round measures, on the same device:

  alone    the database alone
  batch    best effort alone
  none     both, without any promise
  bound    both, the pool with cores, the database with its objective
  fixed N  both, without any promise, best effort held to N times its share of `none`: no fixed bound knows better

A process of its own sleeps 1 ms again and again, at real-time priority where it may. A run in which it overslept for more than
0.5 % of the time is void: named, and left out. Medians over the rounds. Needs fio with its nbd engine; `loop` needs root.
"""
import json, os, statistics, subprocess, sys, tempfile, time
from multiprocessing import Event, Process, Queue

from lib import arguments, head, keep, row
from node import Node, fio, fio_job, slowed

MIB = 1 << 20
DATABASE_MIB, BATCH_MIB = 512, 768
FLASH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../crates/device/profiles/flash")
# Times of the modelled drives are multiplied by this: two cores can't keep up with the fast one.
SLOWER = {"nvme-modern": 10, "mittos-openchannel": 1, "nitro-mlc": 1, "vf-sata-60g": 1}
FIXED = [0.75, 0.5, 0.25, 0.1, 0.05, 0.02]
PAUSED_MAX = 0.005
# Seconds before what is measured: the bound learns in them.
RAMP = 4


def sections(device, within_ms, keys):
    cores = f"cores = 16\ncore_depth = 2\n{keys}" if within_ms else ""
    promise = f'class = "latency-critical"\nobjectives = [{{ percentile = 99, within = "{(within_ms or 0) * 1000:.0f}us" }}]'
    return f"""
[[pool]]
name = "p"
device = {device}
{cores}
[[tenant]]
name = "db"
{promise if within_ms else 'class = "best-effort"'}
jobs_max = 16
[[tenant]]
name = "batch"
class = "best-effort"
[[volume]]
name = "db"
pool = "p"
size = "{DATABASE_MIB}MiB"
tenant = "db"
[[volume]]
name = "batch"
pool = "p"
size = "{BATCH_MIB}MiB"
tenant = "batch"
"""


class Ticker:
    """The share of a time in which the host, not we, held everything up."""

    def __enter__(self):
        self.ended, self.answer = Event(), Queue()
        self.process = Process(target=self.tick, daemon=True)
        self.process.start()
        return self

    def tick(self):
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
        except PermissionError:
            pass
        began, over = time.monotonic(), 0.0
        while not self.ended.is_set():
            before = time.monotonic()
            time.sleep(0.001)
            late = time.monotonic() - before - 0.001
            over += late if late > 0.001 else 0
        self.answer.put(over / (time.monotonic() - began))

    def __exit__(self, *_):
        self.ended.set()
        self.paused = self.answer.get()
        self.process.join()


def tail(bins, share):
    """The latency in ms that a share of the requests isn't beyond; `bins` by ns."""
    left = share * sum(bins.values())
    for ns in sorted(bins):
        left -= bins[ns]
        if left <= 0:
            return ns / 1e6


def measure(node, seconds, database, batch):
    """`batch`: None, or bytes a second that it's held to; 0: none."""
    common = ["--output-format=json+", "--randrepeat=1", "--norandommap"]
    started, jobs = [], {}
    with Ticker() as ticker:
        if database:
            reads = ["--rw=randread", "--bs=4k", "--iodepth=4", "--rate_iops=2000", "--rate_process=poisson"]
            started.append(("reads", fio(node.folder, "db", seconds, RAMP, *reads, *common)))
            started.append(("commits", fio(node.folder, "db", seconds, RAMP, "--rw=randwrite", "--bs=4k", "--iodepth=1", "--fsync=1", *common)))
        if batch is not None:
            held = [f"--rate={batch:.0f}"] if batch else []
            started.append(("batch", fio(node.folder, "batch", seconds, RAMP, "--rw=write", "--bs=64k", "--iodepth=16", *common, *held)))
        for name, process in started:
            jobs[name] = fio_job(process)
    found = {"paused": ticker.paused}
    if batch is not None:
        found["batch_mb_s"] = jobs["batch"]["write"]["bw_bytes"] / 1e6
    if database:
        reads = jobs["reads"]["read"]["clat_ns"]["bins"]
        writes = jobs["commits"]["write"]["clat_ns"]["bins"]
        flushes = jobs["commits"]["sync"]["lat_ns"]["bins"]
        all_ = {}
        for bins in (reads, writes, flushes):
            for ns, n in bins.items():
                all_[int(ns)] = all_.get(int(ns), 0) + n
        at = lambda bins: tail({int(ns): n for ns, n in bins.items()}, 0.99)
        found |= {"p99_ms": tail(all_, 0.99), "p50_ms": tail(all_, 0.5), "read_p99_ms": at(reads), "write_p99_ms": at(writes), "flush_p99_ms": at(flushes),
                  "requests": sum(all_.values()), "commits_s": jobs["commits"]["write"]["iops"], "reads_s": jobs["reads"]["read"]["iops"]}
    return found


def fill(node):
    for volume in ("db", "batch"):
        command = ["fio", "--name=fill", "--ioengine=nbd", f"--uri=nbd+unix:///{volume}?socket={node.folder}/nbd.sock", "--rw=write", "--bs=1m",
                   "--iodepth=4", "--output=/dev/null"]
        subprocess.run(command, check=True)


class Bench:
    def __init__(self, plimsoll, folder, name, seconds, times, keys):
        self.plimsoll, self.folder, self.seconds, self.times, self.keys = plimsoll, os.path.join(folder, name), seconds, times, keys
        self.loop = None
        os.makedirs(self.folder)
        size = DATABASE_MIB + BATCH_MIB + 64
        if name == "loop":
            with open(f"{self.folder}/loop.img", "w") as f:
                f.truncate(size * MIB)
            self.loop = subprocess.run(["losetup", "--find", "--show", f"{self.folder}/loop.img"], check=True, capture_output=True, text=True).stdout.strip()
            self.device = f'{{ file = "{self.loop}", format = true }}'
        elif name == "file":
            self.device = f'{{ file = "p.img", size = "{size}MiB" }}'
        else:
            with open(f"{self.folder}/model.toml", "w") as f:
                f.write(slowed(open(f"{FLASH}/{name}.toml").read(), SLOWER[name]))
            self.device = f'{{ file = "p.img", size = "{size}MiB", model = "{self.folder}/model.toml" }}'
        with self.node() as node:
            fill(node)

    def close(self):
        if self.loop:
            subprocess.run(["losetup", "-d", self.loop], check=True)

    def node(self, within_ms=None):
        return Node(self.plimsoll, self.folder, sections(self.device, within_ms, self.keys))

    def run(self, database, batch, within_ms=None):
        with self.node(within_ms) as node:
            found = measure(node, self.seconds, database, batch)
            if within_ms:
                database = next(t for t in json.loads(node.cli("tenant", "list", "--json")) if t["name"] == "db")
                found |= {"within_ms": within_ms, "node_p99_ms": database["objectives"][0]["measured_us"] / 1e3,
                          "cores": json.loads(node.cli("cores", "p", "--json"))}
        found["void"] = found["paused"] > PAUSED_MAX
        if found["void"]:
            print(f"  void: the host paused {found['paused'] * 100:.1f} % of the time", file=sys.stderr)
        return found

    def round(self, modes):
        found = {"alone": self.run(True, None)}
        if "batch" in modes:
            found["batch"] = self.run(False, 0)
        found["none"] = self.run(True, 0)
        within = self.times * found["alone"]["p99_ms"]
        if "bound" in modes:
            found["bound"] = self.run(True, 0, within)
        if "fixed" in modes:
            for share in FIXED:
                found[f"fixed {share}"] = self.run(True, share * 1e6 * found["none"]["batch_mb_s"])
        return found


def table(everything):
    """Medians of what isn't void. The objective of a round follows from that round's p99 alone, so it varies, too. Returns the goals that a
    device misses: p99 within the objective; and best effort's half of its share without a promise, or 90 % of the best fixed bound's."""
    missed = []
    head("device", "p99 alone ms", "objective", "without a promise: p99, MB/s", "bound: p99 (by the node), MB/s", "of that",
         "best fixed bound that keeps it")
    for device, rounds in everything.items():
        def median(mode, key):
            found = [r[mode][key] for r in rounds if mode in r and not r[mode]["void"]]
            return statistics.median(found) if found else float("nan")

        objective = median("bound", "within_ms")
        fixed = {share: median(f"fixed {share}", "batch_mb_s") for share in FIXED if median(f"fixed {share}", "p99_ms") <= objective}
        best = max(fixed.values(), default=None)
        if any("bound" in r for r in rounds):
            p99, kept = median("bound", "p99_ms"), median("bound", "batch_mb_s")
            # Not a number, as all rounds are void, is within nothing.
            if not p99 <= objective:
                missed.append(f"{device}: p99 {p99:.2f} ms, objective {objective:.2f} ms")
            half = 0.5 * median("none", "batch_mb_s")
            # The best fixed bound is the goal only where it has less than half.
            if not (kept >= half or best is not None and best < half and kept >= 0.9 * best):
                missed.append(f"{device}: best effort has {kept:.1f} MB/s")
        row(device, f"{median('alone', 'p99_ms'):.2f}", f"{objective:.2f}", f"{median('none', 'p99_ms'):.2f}, {median('none', 'batch_mb_s'):.0f}",
            f"{median('bound', 'p99_ms'):.2f} ({median('bound', 'node_p99_ms'):.2f}), {median('bound', 'batch_mb_s'):.1f}",
            f"{100 * median('bound', 'batch_mb_s') / median('none', 'batch_mb_s'):.0f} %", "none" if best is None else f"{best:.1f} MB/s")
    return missed


def main():
    parser = arguments(__doc__, seconds=8, rounds=3)
    parser.add_argument("--devices", default="file,loop,vf-sata-60g,nvme-modern")
    parser.add_argument("--modes", default="batch,bound,fixed")
    parser.add_argument("--times", type=float, default=1.5)
    parser.add_argument("--keys", default="", help="more of the pool's section in `bound`")
    parser.add_argument("--folder", help="where the devices' files are made; default: a temporary one")
    args = parser.parse_args()
    everything = {}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for device in args.devices.split(","):
            bench = Bench(args.plimsoll, folder, device, args.seconds, args.times, args.keys)
            try:
                for round_ in range(args.rounds):
                    print(f"{device}: round {round_ + 1} of {args.rounds}", file=sys.stderr)
                    everything.setdefault(device, []).append(bench.round(args.modes.split(",")))
                    for mode, found in everything[device][-1].items():
                        print(f"  {mode}: " + ", ".join(f"{k} {v:.3f}" for k, v in found.items() if isinstance(v, float)), file=sys.stderr)
            finally:
                bench.close()
    missed = table(everything)
    keep(args.json, args, everything)
    if missed:
        sys.exit("missed: " + "; ".join(missed))


main()
