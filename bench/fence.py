#!/usr/bin/python3
"""Live VF-E3: fio's NBD clients, each in a cgroup of its own, on a disk and the cache's flash, both modelled in real time.

usage: bench/fence.py PLIMSOLL [--seconds S] [--rounds N] [--warm W] [--slots 4] [--slot 20ms] [--workloads file,mail,web] [--systems cfq,fence,published]
                      [--json OUT]

Four volumes, each a quarter of the disk. As in the paper the first asks for 8 % of what saturates the system, each of the others for 24 %; what
saturates it is measured first, by all four as fast as they can. Workloads are blocks in the proportions of filebench's personalities, at random
within 64 MiB of which half fit in the volume's part of the cache: `file` reads and writes of 4 to 256 KiB, 1 to 2; `mail` 4 to 28 KiB, half
of them writes, each followed by a flush; `web` reads of 4 to 28 KiB. Deviation is of a volume's own means beside the three others against alone;
of the others one stands for all. Runs alone and shared, of all systems, alternate. A run of N rounds takes about
(W + 2 S + 3 N S) s for each system and workload: 50 minutes as it is. What saturates is a few hundred requests a second: of 8 % of that few
are seen in less than 20 s.
Containers are cgroups; guests are in tests/guest_fence.sh. Needs fio with its nbd engine.
"""
import os, tempfile

from lib import alternate, arguments, head, keep, middle, row as table_row
from node import Node, fio, fio_job

# Version 2, or the processors' hierarchy of version 1.
CGROUPS = "/sys/fs/cgroup" if os.path.exists("/sys/fs/cgroup/cgroup.procs") else "/sys/fs/cgroup/cpu"
# Percent of saturation.
SHARES = [8, 24, 24, 24]
# fio's arguments, and the share of reads in percent.
WORKLOADS = {
    "file": (["--rw=randrw", "--rwmixread=33", "--bsrange=4k-256k"], 33),
    "mail": (["--rw=randrw", "--rwmixread=50", "--bsrange=4k-28k", "--fsync=1"], 50),
    "web": (["--rw=randread", "--bsrange=4k-28k"], 100),
}
# None: fio 3.33 drops the response times of what is rarer than some requests a second if it has one. Caches are warm from the run before.
RAMP = 0


def sections(fence):
    volumes = "".join(f'[[volume]]\nname = "v{i}"\npool = "p"\nsize = "36GiB"\ntenant = "t"\ncache_size = "32MiB"\n'
                      + ("slots = 1\n" if fence else "") for i in range(4))
    section = f"[pool.fence]\n{fence}\n" if fence else ""
    return f"""
[[pool]]
name = "p"
device = {{ file = "p.img", size = "146GiB", model = "hdd-160g-7200" }}
sched = "{'noop' if fence else 'cfq'}"
[pool.cache]
file = "fast.img"
device_size = "512MiB"
model = "vf-sata-60g"
sharing = "pervolume"
extent = "4KiB"
weu = "128KiB"
dedup = "off"
codec = "none"
mode = "back"
{section}[[tenant]]
name = "t"
class = "best-effort"
{volumes}"""


def cgroup(name):
    """A cgroup of this name to enter, if there can be one."""
    path = f"{CGROUPS}/plimsoll-fence-{os.getpid()}-{name}"
    try:
        os.makedirs(path, exist_ok=True)
        return path
    except OSError:
        return None


def client(node, volume, workload, seconds, rate):
    """Starts fio; `rate` is requests a second, 0 for as many as it can."""
    path = cgroup(volume)

    def enter():
        if path:
            with open(f"{path}/cgroup.procs", "w") as f:
                f.write(str(os.getpid()))

    what, reads = WORKLOADS[workload]
    limits = ["--iodepth=16"]
    if rate:
        # A thread for every 8 % of saturation.
        each = [max(1, round(rate * share / 100)) for share in (reads, 100 - reads)]
        limits = [f"--iodepth={SHARES[volume] // 8}", f"--rate_iops={each[0]},{each[1]}", "--rate_process=poisson"]
    return fio(node.folder, f"v{volume}", seconds, RAMP, *what, "--blockalign=4k", "--size=64m", "--randrepeat=1", "--norandommap",
               f"--randseed={volume + 1}", *limits, enter=enter)


def result(process):
    """Mean response time in ms, and requests a second; flushes are requests."""
    job = fio_job(process)
    kinds = [job[k] for k in ("read", "write", "sync")]
    counts = [k["total_ios"] for k in kinds]
    mean = sum(k["lat_ns"].get("mean", 0) * n for k, n in zip(kinds, counts)) / max(1, sum(counts)) / 1e6
    assert mean > 0, "fio timed nothing: more seconds"
    seconds = max(job[k]["runtime"] for k in ("read", "write")) / 1000
    return mean, sum(counts) / seconds, sum(counts)


def measure(node, workload, volumes, seconds, rates):
    running = {v: client(node, v, workload, seconds, rates[v]) for v in volumes}
    return {v: result(p) for v, p in running.items()}


def rates(node, workload, seconds, warm):
    """Requests a second of each volume; caches are warm by then."""
    measure(node, workload, range(4), warm, [0] * 4)
    full = measure(node, workload, range(4), 2 * seconds, [0] * 4)
    saturation = sum(r[1] for r in full.values())
    # Flushes aren't counted by fio's limits: of a write and its flush one is.
    saturation *= 2 / 3 if workload == "mail" else 1
    return saturation, [saturation * share / 100 for share in SHARES]


def row(system, workload, saturation, rounds):
    deviation = lambda of, i: [100 * abs(r[of][0][i] - r[of][1][i]) / r[of][0][i] for r in rounds]
    ms = lambda of, which: middle([r[of][which][0] for r in rounds])
    table_row(system, workload, f"{saturation:.0f}", ms("low", 0), ms("low", 1), middle(deviation("low", 0)), middle(deviation("low", 1)),
              middle(deviation("other", 0)), middle(deviation("other", 1)), rounds[0]["low"][0][2])


def main():
    parser = arguments(__doc__, seconds=20)
    parser.add_argument("--warm", type=int, default=120, help="seconds in which caches become warm")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--slot", default="20ms")
    parser.add_argument("--workloads", default="file,mail,web")
    parser.add_argument("--systems", default="cfq,fence,published")
    args = parser.parse_args()
    fence = f'slots = {args.slots}\nslot = "{args.slot}"\n'
    known = {"cfq": "", "fence": fence, "published": fence + "steady = false\n"}
    systems = {k: known[k] for k in args.systems.split(",")}
    print(f"{args.rounds} rounds of {args.seconds} s; medians (range); paper: low-intensity volume at most 15 %, the others 19\n")
    head("system", "workload", "saturation 1/s", "alone ms", "shared ms", "response deviation %", "throughput deviation %",
         "an other's response %", "throughput %", "requests a run")
    everything = {}
    with tempfile.TemporaryDirectory() as folder:
        for workload in args.workloads.split(","):
            nodes = {k: Node(args.plimsoll, f"{folder}/{workload}-{k}", sections(f)) for k, f in systems.items()}
            try:
                asked = {k: rates(node, workload, args.seconds, args.warm) for k, node in nodes.items()}

                def both(kind, _round):
                    run = lambda volumes: measure(nodes[kind], workload, volumes, args.seconds, asked[kind][1])
                    low, other, shared = run([0])[0], run([1])[1], run(range(4))
                    return {"low": (low, shared[0]), "other": (other, shared[1])}

                everything[workload] = alternate(systems, args.rounds, both, f"{workload}, ")
                for kind, rounds in everything[workload].items():
                    row(kind, workload, asked[kind][0], rounds)
            finally:
                for node in nodes.values():
                    node.stop()
    keep(args.json, args, everything)
    for i in range(4):
        path = cgroup(i)
        if path:
            os.rmdir(path)


main()
