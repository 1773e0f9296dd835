#!/usr/bin/python3
"""Live VF-E3: fio's NBD clients, each in a cgroup of its own, on a disk and the cache's flash, both modelled in real time.

usage: bench/fence.py PLIMSOLL [--seconds S] [--rounds N] [--slots 4] [--slot 20ms]

Four volumes; the first asks for 6 requests a second, the others for 14 each, 4 KiB, 70 % reads, at random within 64 MiB. Deviation is of the
first volume's means, beside the others against alone; runs alone and shared, fenced, steady and not, alternate. Each volume may have 32 MiB of the
cache. Containers are cgroups; guests are in tests/guest_fence.sh. Needs fio with its nbd engine.
"""
import argparse, os, statistics, sys, tempfile

from node import Node, fio, fio_job

# Version 2, or the processors' hierarchy of version 1.
CGROUPS = "/sys/fs/cgroup" if os.path.exists("/sys/fs/cgroup/cgroup.procs") else "/sys/fs/cgroup/cpu"
RATES = [6, 14, 14, 14]


def sections(fence):
    volumes = "".join(f'[[volume]]\nname = "v{i}"\npool = "p"\nsize = "1GiB"\ntenant = "t"\ncache_size = "32MiB"\n'
                      + ("slots = 1\n" if fence else "") for i in range(4))
    section = f"[pool.fence]\n{fence}\n" if fence else ""
    return f"""
[[pool]]
name = "p"
device = {{ file = "p.img", size = "5GiB", model = "hdd-160g-7200" }}
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


def client(node, volume, seconds):
    path = cgroup(volume)

    def enter():
        if path:
            with open(f"{path}/cgroup.procs", "w") as f:
                f.write(str(os.getpid()))

    rates = f"--rate_iops={RATES[volume] * 7 // 10},{RATES[volume] * 3 // 10}"
    return fio(node.folder, f"v{volume}", seconds, 5, "--rw=randrw", "--rwmixread=70", "--bs=4k", "--size=64m", "--iodepth=4", rates,
               "--rate_process=poisson", "--randrepeat=1", "--norandommap", enter=enter)


def result(process):
    job = fio_job(process)
    return job["read"]["lat_ns"]["mean"] / 1e6, job["read"]["iops"], job["read"]["total_ios"]


def measure(node, volumes, seconds):
    running = [client(node, v, seconds) for v in volumes]
    return [result(p) for p in running][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plimsoll")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--slot", default="20ms")
    args = parser.parse_args()
    fence = f'slots = {args.slots}\nslot = "{args.slot}"\n'
    kinds = {"CFQ": "", "fence": fence, "fence-not-steady": fence + "steady = false\n"}
    found = {k: [] for k in kinds}
    with tempfile.TemporaryDirectory() as folder:
        nodes = {k: Node(args.plimsoll, f"{folder}/{k}", sections(fence)) for k, fence in kinds.items()}
        try:
            for node in nodes.values():
                measure(node, range(4), args.seconds)  # warms the caches
            for round_ in range(args.rounds):
                for kind, node in nodes.items():
                    print(f"round {round_ + 1} of {args.rounds}: {kind}", file=sys.stderr)
                    found[kind].append((measure(node, [0], args.seconds), measure(node, range(4), args.seconds)))
        finally:
            for node in nodes.values():
                node.stop()
            for i in range(4):
                path = cgroup(i)
                if path:
                    os.rmdir(path)
    print(f"{args.rounds} rounds of {args.seconds} s; reads of the first volume; medians (range)\n")
    print("| system | alone ms | shared ms | response deviation % | throughput deviation % | reads a run |")
    print("| --- | --- | --- | --- | --- | --- |")
    for kind, rounds in found.items():
        deviation = lambda i: [100 * abs(a[i] - s[i]) / a[i] for a, s in rounds]
        middle = lambda values: f"{statistics.median(values):.1f} ({min(values):.1f}..{max(values):.1f})"
        print(f"| {kind} | {middle([a[0] for a, _ in rounds])} | {middle([s[0] for _, s in rounds])} | {middle(deviation(0))} | "
              f"{middle(deviation(1))} | {rounds[0][0][2]} |")


main()
