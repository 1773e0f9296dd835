#!/usr/bin/env python3
"""The same fio NBD jobs against this node and its peers, alternating; medians, and server CPU per request.

usage: bench/nbd_peers.py PLIMSOLL [--rounds N] [--seconds S] [--kinds null,ram,file] [--connections 1,4] [--json OUT]

The server is pinned to processor 0, fio to processor 1. Every server speaks over a unix socket. Files lie in the temporary
folder (TMPDIR), which should be on a disk. Prints a Markdown table.
"""
import json, os, shutil, socket, statistics, subprocess, tempfile, time

from lib import alternate, arguments, head, keep, row
from node import configured, one

SIZE = 256 << 20


def servers(kind, plimsoll, folder):
    """Name, command, socket and export of each server for a kind of device."""
    sock = lambda name: os.path.join(folder, f"{kind}-{name}.sock")
    home = os.path.join(folder, f"{kind}-plimsoll")
    image = os.path.join(folder, f"{kind}.raw")
    device = '{ null = true, size = "512MiB" }' if kind == "null" else f'{{ file = "{folder}/{kind}-p.img", size = "512MiB" }}'
    out = [("plimsoll", [plimsoll, "serve", "--config", configured(home, one(device, "256MiB"))], os.path.join(home, "nbd.sock"), "vol")]
    qsd = lambda node: ["qemu-storage-daemon", "--blockdev", node,
                        "--nbd-server", f"addr.type=unix,addr.path={sock('qsd')},max-connections=16",
                        "--export", "nbd,id=e0,node-name=d0,name=d0,writable=on"]
    if kind == "null":
        out.append(("qemu-storage-daemon", qsd(f"driver=null-co,node-name=d0,size={SIZE},read-zeroes=on"), sock("qsd"), "d0"))
        out.append(("nbdkit", ["nbdkit", "--foreground", "--unix", sock("nbdkit"), "null", str(SIZE)], sock("nbdkit"), ""))
        return out
    with open(image, "wb") as f:
        f.truncate(SIZE)
    out.append(("qemu-storage-daemon", qsd(f"driver=file,node-name=d0,filename={image},aio=io_uring,cache.direct=on"), sock("qsd"), "d0"))
    out.append(("qemu-nbd", ["qemu-nbd", "-t", "--shared=16", "-f", "raw", "--aio=io_uring", "--cache=none", "-k", sock("qnbd"), image], sock("qnbd"), ""))
    out.append(("nbdkit", ["nbdkit", "--foreground", "--unix", sock("nbdkit"), "file", image], sock("nbdkit"), ""))
    return out


def cpu_s(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fio(sock, export, rw, depth, jobs, seconds, folder):
    result = os.path.join(folder, "fio.json")
    subprocess.run(
        ["taskset", "-c", "1", "fio", "--name=x", "--ioengine=nbd", f"--uri=nbd+unix:///{export}?socket={sock}", "--bs=4k",
         f"--rw={rw}", f"--iodepth={depth}", f"--numjobs={jobs}", "--group_reporting", "--time_based", f"--runtime={seconds}",
         f"--size={SIZE}", "--randrepeat=0", "--norandommap", "--lat_percentiles=1", "--percentile_list=50:99:99.9",
         "--output-format=json", f"--output={result}"], check=True, stdout=subprocess.DEVNULL, cwd=folder)
    text = open(result).read()
    job = json.loads(text[text.index("{"):])["jobs"][0]
    side = job["read"] if rw == "randread" else job["write"]
    percentiles = [side["lat_ns"]["percentile"][p] / 1000 for p in ("50.000000", "99.000000", "99.900000")]
    return side["iops"], side["total_ios"], percentiles


def listens(sock):
    with socket.socket(socket.AF_UNIX) as s:
        return s.connect_ex(sock) == 0


def fill(sock, export, folder):
    subprocess.run(
        ["fio", "--name=fill", "--ioengine=nbd", f"--uri=nbd+unix:///{export}?socket={sock}", "--rw=write", "--bs=1M",
         "--iodepth=4", f"--size={SIZE}"], check=True, stdout=subprocess.DEVNULL, cwd=folder)


def measure(name, command, sock, export, job, seconds, folder, filled):
    server = subprocess.Popen(["taskset", "-c", "0"] + command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 10
        while not listens(sock):
            assert server.poll() is None and time.monotonic() < until, f"{name} did not start"
            time.sleep(0.02)
        if name not in filled:
            # Data, not holes: a server that knows of a hole answers without reading anything.
            fill(sock, export, folder)
            filled.add(name)
        fio(sock, export, *job, 1, folder)  # warm
        before = cpu_s(server.pid)
        iops, count, percentiles = fio(sock, export, *job, seconds, folder)
        return iops, (cpu_s(server.pid) - before) * 1e6 / count, *percentiles
    finally:
        server.terminate()
        server.wait()
        if os.path.exists(sock):
            os.remove(sock)


def main():
    parser = arguments(__doc__, seconds=5, rounds=5)
    parser.add_argument("--kinds", default="null,ram,file")
    parser.add_argument("--connections", default="1,4")
    args = parser.parse_args()
    print(f"rounds {args.rounds}, {args.seconds} s each, 4 KiB, medians (IOPS: and range)\n")
    head("device", "load", "depth x connections", "server", "IOPS", "range", "CPU us/request", "p50 us", "p99 us", "p99.9 us")
    everything = {}
    for kind in args.kinds.split(","):
        base = "/dev/shm" if kind == "ram" else tempfile.gettempdir()
        folder = tempfile.mkdtemp(dir=base, prefix="bench-")
        try:
            peers = {name: rest for name, *rest in servers(kind, args.plimsoll, folder)}
            filled = set(peers) if kind == "null" else set()
            loads = [(rw, depth, int(n)) for rw in ("randread", "randwrite") for depth in (1, 32) for n in args.connections.split(",")]
            for job in loads:
                run = lambda name, _round: measure(name, *peers[name], job, args.seconds, folder, filled)
                load = f"{job[0]}, {job[1]} x {job[2]}"
                results = everything[f"{kind}, {load}"] = alternate(peers, args.rounds, run, f"{kind}, {load}, ")
                for name, runs in results.items():
                    median = [statistics.median(column) for column in zip(*runs)]
                    iops = [run[0] for run in runs]
                    row(kind, job[0], f"{job[1]} x {job[2]}", name, f"{median[0]:,.0f}", f"{min(iops):,.0f}..{max(iops):,.0f}", f"{median[1]:.2f}",
                        *(f"{us:.0f}" for us in median[2:]))
        finally:
            shutil.rmtree(folder)
    keep(args.json, args, everything)


main()
