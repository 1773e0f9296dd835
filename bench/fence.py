#!/usr/bin/python3
"""Live VF-E3: fio's NBD clients, each in a cgroup of its own, on a disk modelled in real time behind a real file as the cache's flash.

usage: bench/fence.py PLIMSOLL [--seconds S] [--rounds N] [--slots 4] [--slot 20ms]

Four volumes; the first asks for 6 requests a second, the others for 14 each, 4 KiB, 70 % reads, at random within 64 MiB. Deviation is of the
first volume's means, beside the others against alone; runs alone and shared, fenced and not, alternate. Each volume may have 32 MiB of the
cache. Containers are cgroups (v1 cpu, where it's mounted); no guests. Needs fio with its nbd engine.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile

CGROUPS = "/sys/fs/cgroup/cpu"
RATES = [6, 14, 14, 14]


def config(fence):
    volumes = "".join(f'[[volume]]\nname = "v{i}"\npool = "p"\nsize = "1GiB"\ntenant = "t"\ncache_size = "32MiB"\n'
                      + ("slots = 1\n" if fence else "") for i in range(4))
    section = f"[pool.fence]\n{fence}\n" if fence else ""
    return f"""
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
device = {{ file = "p.img", size = "5GiB", model = "hdd-160g-7200" }}
sched = "{'noop' if fence else 'cfq'}"
[pool.cache]
file = "fast.img"
device_size = "512MiB"
sharing = "pervolume"
extent = "4KiB"
weu = "128KiB"
dedup = "off"
codec = "none"
mode = "back"
watermark_percent = 1
{section}[[tenant]]
name = "t"
class = "best-effort"
{volumes}[[grant]]
peer = "local"
volumes = ["*"]
"""


class Node:
    def __init__(self, plimsoll, folder, fence):
        os.makedirs(folder)
        self.folder = folder
        with open(f"{folder}/node.toml", "w") as f:
            f.write(config(fence))
        self.process = subprocess.Popen([plimsoll, "serve", "--config", f"{folder}/node.toml"], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        assert "serves" in self.process.stdout.readline(), "the node did not start"

    def stop(self):
        self.process.terminate()
        self.process.wait()


def cgroup(name):
    """A cgroup of this name to enter, if there can be one."""
    path = f"{CGROUPS}/plimsoll-fence-{os.getpid()}-{name}"
    try:
        os.makedirs(path, exist_ok=True)
        return path
    except OSError:
        return None


def fio(node, volume, seconds):
    path = cgroup(volume)

    def enter():
        if path:
            with open(f"{path}/tasks", "w") as f:
                f.write(str(os.getpid()))

    uri = f"nbd+unix:///v{volume}?socket={node.folder}/nbd.sock"
    command = ["fio", f"--name=v{volume}", "--ioengine=nbd", f"--uri={uri}", "--rw=randrw", "--rwmixread=70", "--bs=4k", "--size=64m",
               "--iodepth=4", f"--rate_iops={RATES[volume] * 7 // 10},{RATES[volume] * 3 // 10}", "--rate_process=poisson", "--time_based",
               f"--runtime={seconds}", "--ramp_time=5", "--randrepeat=1", "--norandommap", "--output-format=json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=enter)


def result(process):
    out, err = process.communicate()
    assert process.returncode == 0, err
    job = json.loads(out[out.index("{"):])["jobs"][0]
    n = job["read"]["total_ios"]
    return job["read"]["lat_ns"]["mean"] / 1e6, job["read"]["iops"], n


def measure(node, volumes, seconds):
    running = [fio(node, v, seconds) for v in volumes]
    return [result(p) for p in running][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plimsoll")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--slot", default="20ms")
    args = parser.parse_args()
    kinds = {"CFQ": "", "fence": f'slots = {args.slots}\nslot = "{args.slot}"'}
    found = {k: [] for k in kinds}
    with tempfile.TemporaryDirectory() as folder:
        nodes = {k: Node(os.path.abspath(args.plimsoll), f"{folder}/{k}", fence) for k, fence in kinds.items()}
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
