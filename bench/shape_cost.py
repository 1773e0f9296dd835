#!/usr/bin/python3
"""Cost of interception (AP-E13). Measured are a request that is let in at once, in nanoseconds and instructions by part, and a real server's
requests with and without the shim.

usage: bench/shape_cost.py PLIMSOLL GATE_COST [--rounds N]

Instructions are counted by callgrind: the difference of two runs over the difference of their requests. For the real server two MariaDBs of the
same data, one under the shim with a P that never binds, take turns under one client that asks for one row at a time; what is compared are
the medians of each turn's pair. Needs valgrind and mariadb-server.
"""
import argparse, os, re, shutil, signal, statistics, subprocess, sys, tempfile

import shape

PARTS = ["walking", "gate", "all"]
THREADS = [2, 8]
FEW, MANY = 2_000, 22_000


def instructions(program, part, requests):
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", program, "1", str(requests), part]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return int(re.search(r"Collected : (\d+)", said)[1])


def costs(program, rounds):
    print("| part of a request | ns, least | ns, median | instructions |\n|---|---|---|---|")
    for part in PARTS:
        said = subprocess.run([program, str(rounds), "20000", part], check=True, capture_output=True, text=True).stdout
        least, median = re.search(r": (\d+) ns at least, median (\d+) ns", said).groups()
        each = (instructions(program, part, MANY) - instructions(program, part, FEW)) / (MANY - FEW)
        print(f"| {part} | {least} | {median} | {each:.0f} |")
    for threads in THREADS:
        said = subprocess.run([program, str(rounds), "20000", "all", str(threads)], check=True, capture_output=True, text=True).stdout
        least, median = re.search(r": (\d+) ns at least, median (\d+) ns", said).groups()
        print(f"| all, {threads} threads without a pause, mean of a request | {least} | {median} | |")


def served(plimsoll, rounds):
    options = argparse.Namespace(plimsoll=plimsoll, load="ycsb-like", clients=1, scale=10)
    folder = tempfile.mkdtemp(prefix="shape-cost-")
    os.chmod(folder, 0o755)
    try:
        with_shim, without = (shape.MariaDb(options, f"{folder}/{name}") for name in ("with", "without"))
        with with_shim.shaped(with_shim.command()), shape.Program([*without.command(), "--user=mysql"], f"{folder}/without/log"):
            for d in (with_shim, without):
                d.ready()
                d.prepare()
            with_shim.set_p(1000)
            pairs = []
            for n in range(rounds):
                order = [with_shim, without] if n % 2 == 0 else [without, with_shim]
                got = {d: d.drive(3) for d in order}
                pairs.append((got[with_shim], got[without]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    each_us = [1e6 / a["rate"] - 1e6 / b["rate"] for a, b in pairs]
    rate = lambda i: statistics.median(p[i]["rate"] for p in pairs)
    print(f"\nMariaDB, one client, {rounds} pairs of 3 s: {rate(0):.0f} transactions/s under the shim, {rate(1):.0f} without it; of a "
          f"transaction's time {statistics.median(each_us):+.2f} us (median of pairs; {min(each_us):+.2f} to {max(each_us):+.2f})")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("plimsoll")
    p.add_argument("gate_cost")
    p.add_argument("--rounds", type=int, default=12)
    a = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    costs(os.path.abspath(a.gate_cost), 5 * a.rounds)
    served(os.path.abspath(a.plimsoll), a.rounds)


main()
