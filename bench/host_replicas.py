#!/usr/bin/env python3
"""RocksDB or LevelDB on three local replicas, one of them noisy at a time: percentiles of gets by strategy, alternating (MT-E17's idea, live).

usage: bench/host_replicas.py rocksdb|leveldb PLIMSOLL LIBRARIES [--rounds N] [--seconds N] [--limit-us N] [--json FILE]

As root. PLIMSOLL: the program; LIBRARIES: the folder with libplimsoll_host_c.so. Each replica's disk is modelled: nbdkit's memory behind a
delay, one request at a time, mounted through nbdfuse, a loop device and ext4. Pages are evicted all the time, so gets reach the disks.
Noise: eight direct readers of one disk, a second each disk in turn. The same seed of keys for all strategies of a round. In the end the
processor time of gets from memory, with the store's own files and with deadlines.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEYS = 10_000
READ_MS = 4


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr}")
    return done.stdout.strip()


def wait_for(what, f):
    end = time.monotonic() + 30
    while not f():
        if time.monotonic() > end:
            sys.exit(f"waited without effect: {what}")
        time.sleep(0.01)


class Disk:
    def __init__(self, folder, name):
        self.folder = folder / name
        (self.folder / "fuse").mkdir(parents=True)
        (self.folder / "fs").mkdir()
        socket, image = self.folder / "nbd.sock", self.folder / "fuse/nbd"
        filters = ["--filter=noparallel", "--filter=delay"]
        self.nbdkit = subprocess.Popen(["nbdkit", "--foreground", "--exit-with-parent", *filters, "--unix", socket, "memory", "128M", f"rdelay={READ_MS}ms", "serialize=all-requests"])
        wait_for("nbdkit listens", socket.exists)
        self.fuse = subprocess.Popen(["nbdfuse", image, "--unix", socket])
        wait_for("nbdfuse mounts", lambda: image.exists() and image.stat().st_size)
        self.loop = run("losetup", "--find", "--show", "--direct-io=on", image)
        run("mkfs.ext4", "-q", "-E", "nodiscard", "-O", "^has_journal", self.loop)
        run("mount", "-o", "noatime", self.loop, self.folder / "fs")
        (pathlib.Path("/sys/block") / self.loop[5:] / "queue/read_ahead_kb").write_text("0")

    def close(self):
        subprocess.run(["umount", "--lazy", self.folder / "fs"])
        subprocess.run(["losetup", "--detach", self.loop])
        subprocess.run(["fusermount3", "-u", "-z", self.folder / "fuse"], stderr=subprocess.DEVNULL)
        subprocess.run(["umount", "--lazy", self.folder / "fuse/nbd"], stderr=subprocess.DEVNULL)
        for child in self.fuse, self.nbdkit:
            child.kill()
            child.wait()


class Noise:
    """Eight readers at a disk, a second each disk in turn."""

    def __init__(self, disks):
        self.stop, self.at, self.begun = False, 0, time.monotonic()
        self.threads = [threading.Thread(target=self.read, args=(d, i, t)) for i, d in enumerate(disks) for t in range(8)]
        self.disks = len(disks)
        for t in self.threads:
            t.start()

    def read(self, disk, turn, seed):
        import mmap

        fd = os.open(disk.loop, os.O_RDONLY | os.O_DIRECT)
        buffer, n = mmap.mmap(-1, 4096), seed * 7919
        while not self.stop:
            if int(time.monotonic() - self.begun) % self.disks != turn:
                time.sleep(0.005)
                continue
            os.preadv(fd, [buffer], n % 30_000 * 4096)
            n += 104_729
        os.close(fd)

    def close(self):
        self.stop = True
        for t in self.threads:
            t.join()


def build(store, folder, lib):
    """The program, and the environment that it needs: RocksDB's plug-in is preloaded, LevelDB's Env is a part of the program."""
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-pthread", f"-I{ROOT}/crates/host-c/include", f"-I{ROOT}/integrations/common"]
    host = [f"-L{lib}", f"-Wl,-rpath,{lib}", "-lplimsoll_host_c"]
    program, plugin = folder / "bench", folder / "libplimsoll_rocksdb.so"
    if store == "leveldb":
        env = ROOT / "integrations/leveldb"
        run("g++", *flags, f"-I{env}", ROOT / "bench/host_leveldb.cc", env / "plimsoll_env.cc", "-o", program, *host, "-lleveldb")
        return program, {}
    run("g++", *flags, ROOT / "bench/host_rocksdb.cc", "-o", program, "-lrocksdb")
    run("g++", *flags, "-fPIC", "-shared", ROOT / "integrations/rocksdb/plimsoll_fs.cc", "-o", plugin, *host, "-lrocksdb")
    return program, {"LD_PRELOAD": str(plugin)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("store", choices=["rocksdb", "leveldb"])
    parser.add_argument("plimsoll")
    parser.add_argument("libraries", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=9)
    parser.add_argument("--limit-us", type=int, default=12_000)
    parser.add_argument("--json")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        program, preload = build(a.store, folder, a.libraries.resolve())
        disks, agent = [], None
        try:
            for name in "abc":
                disks.append(Disk(folder, name))
            dirs = [d.folder / "fs/db" for d in disks]
            for d in dirs:
                run(program, "fill", d, str(KEYS))
            run("sync")
            socket = folder / "host.sock"
            names = [f"--disk={d.loop[5:]}" for d in disks]
            agent = subprocess.Popen([a.plimsoll, "host", "--socket", socket, *names], stdout=subprocess.DEVNULL)
            wait_for("the agent listens", socket.exists)
            environment = {**os.environ, **preload, "PLIMSOLL_HOST_SOCKET": str(socket)}
            rows = []
            for seed in range(1, a.rounds + 1):
                order = ["base", "timeout", "hedged", "mitt"]
                order = order[seed % 4 :] + order[: seed % 4]
                for strategy in order:
                    command = [program, strategy, str(a.seconds), str(a.limit_us), str(seed), str(KEYS), *dirs]
                    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
                    child.stdout.readline()  # ready
                    noise = Noise(disks)
                    row = json.loads(child.stdout.read())
                    noise.close()
                    child.wait()
                    rows.append({"seed": seed, **row})
                    print(rows[-1], flush=True)
            print(run(program, "cost", dirs[0], str(KEYS), env=environment))
        finally:
            if agent:
                agent.terminate()
                agent.wait()
            for d in disks:
                d.close()
    print(f"{'strategy':10} {'gets':>6} {'p50':>8} {'p90':>8} {'p95':>8} {'p99':>8}  medians over {a.rounds} rounds, us")
    for strategy in ("base", "timeout", "hedged", "mitt"):
        of = [r for r in rows if r["strategy"] == strategy]
        middle = [round(statistics.median(r[k] for r in of)) for k in ("gets", "p50_us", "p90_us", "p95_us", "p99_us")]
        print(f"{strategy:10} {middle[0]:>6} " + " ".join(f"{m:>8}" for m in middle[1:]))
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps({"store": a.store, "limit_us": a.limit_us, "read_ms": READ_MS, "rows": rows}, indent=1))


main()
