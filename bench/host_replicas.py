#!/usr/bin/env python3
"""RocksDB, LevelDB or PostgreSQL on three local replicas, one of them noisy at a time: percentiles of gets by strategy (MT-E17's idea, live).

usage: bench/host_replicas.py rocksdb|leveldb|postgresql PLIMSOLL LIBRARIES [--rounds N] [--seconds N] [--limit-us N] [--json FILE]

As root. PLIMSOLL: the program; LIBRARIES: the folder with libplimsoll_host_c.so and libplimsoll_deadline.so. Each replica's disk is modelled: nbdkit's
memory behind a delay, one request at a time, mounted through nbdfuse, a loop device and ext4. Pages are evicted all the time, so gets reach
the disks. Noise: eight direct readers of one disk, a second each disk in turn. The strategies alternate, with the same seed of keys for
all of a round. In the end the processor time of gets from memory, with the store's own files and with deadlines; of PostgreSQL's hot standbys
instead a check of their contents, of a recovery, and of their logs.
"""
import argparse, json, os, pathlib, statistics, subprocess, tempfile

from host_disks import READ_MS, Disk, Noise, run, wait_for
from host_postgres import Standbys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEYS = 10_000


def build(store, folder, lib):
    """The program, and the environment that it needs: RocksDB's plug-in is preloaded, LevelDB's Env is a part of the program."""
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-pthread", f"-I{ROOT}/crates/host-c/include", f"-I{ROOT}/integrations/common"]
    host = [f"-L{lib}", f"-Wl,-rpath,{lib}", "-lplimsoll_host_c"]
    program, plugin = folder / "bench", folder / "libplimsoll_rocksdb.so"
    if store == "postgresql":
        run("g++", *flags, f"-I{run('pg_config', '--includedir')}", ROOT / "bench/host_postgres.cc", "-o", program, "-lpq")
        return program, {}
    if store == "leveldb":
        env = ROOT / "integrations/leveldb"
        run("g++", *flags, f"-I{env}", ROOT / "bench/host_leveldb.cc", env / "plimsoll_env.cc", "-o", program, *host, "-lleveldb")
        return program, {}
    run("g++", *flags, ROOT / "bench/host_rocksdb.cc", "-o", program, "-lrocksdb")
    run("g++", *flags, "-fPIC", "-shared", ROOT / "integrations/rocksdb/plimsoll_fs.cc", "-o", plugin, *host, "-lrocksdb")
    return program, {"LD_PRELOAD": str(plugin)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("store", choices=["rocksdb", "leveldb", "postgresql"])
    parser.add_argument("plimsoll")
    parser.add_argument("libraries", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=9)
    parser.add_argument("--limit-us", type=int, default=12_000)
    parser.add_argument("--json")
    a = parser.parse_args()
    is_postgres = a.store == "postgresql"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o755)  # PostgreSQL has an account of its own
        program, preload = build(a.store, folder, a.libraries.resolve())
        disks, agent, standbys = [], None, None
        socket = folder / "host.sock"
        try:
            for name in "abc":
                # A page of PostgreSQL's is one request.
                disks.append(Disk(folder, name, 256, 8) if is_postgres else Disk(folder, name))
            if is_postgres:
                standbys = Standbys(folder, disks, a.libraries, socket, a.limit_us, lambda d: run(program, "fill", d, str(KEYS)))
                dirs = standbys.dirs
            else:
                dirs = [d.folder / "fs/db" for d in disks]
                for d in dirs:
                    run(program, "fill", d, str(KEYS))
            run("sync")
            names = [f"--disk={d.loop[5:]}" for d in disks]
            agent = subprocess.Popen([a.plimsoll, "host", "--socket", socket, *names, *(["--group", "postgres"] if is_postgres else [])], stdout=subprocess.DEVNULL)
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
                    try:
                        row = child.stdout.read()
                    finally:
                        noise.close()
                    assert child.wait() == 0, f"{strategy} failed"
                    row = json.loads(row)
                    rows.append({"seed": seed, **row})
                    print(rows[-1], flush=True)
            if standbys:
                print(standbys.check(Noise))
                assert sum(r["busy"] for r in rows), "no query was refused: nothing is compared"
            else:
                print(run(program, "cost", dirs[0], str(KEYS), env=environment))
        finally:
            if standbys:
                standbys.close()
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
