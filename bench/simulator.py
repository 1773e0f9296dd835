#!/usr/bin/env python3
"""Simulated requests per second on one core, and instructions per request, of each stack.

usage: bench/simulator.py [--rounds N] [--no-callgrind]

Builds the examples that it runs. Seconds are the process's own processor time, the best of N rounds that alternate between
stacks, as other programs' turns are none of ours; instructions are callgrind's, the difference between a longer and a shorter
run divided by the requests between them, and the same on every machine. Prints a Markdown table.
"""
import argparse, os, re, resource, subprocess, sys, tempfile

# Name, example, arguments before the number of requests and after it, requests timed, and (longer, shorter) counted.
STACKS = [
    ("FIFO, forecast, histograms over a disk, depth 1", "replay_speed", [], ["1", "120", "cheetah-15k5"], 2_000_000, (100_000, 50_000)),
    ("the same, depth 4", "replay_speed", [], ["4", "120", "cheetah-15k5"], 2_000_000, (100_000, 50_000)),
    ("the same over flash that collects garbage, half writes, depth 64", "replay_speed", [],
     ["64", "60000", "sized:1G:aged:nvme-modern", "50"], 1_000_000, (100_000, 50_000)),
    ("disk model alone, depth 1", "speed", [], [], None, None),
    ("flash model alone, 4 GiB, half writes, depth 64", "flash_speed", ["--gib", "4", "--requests"], [], 1_000_000, (100_000, 50_000)),
]
FOLDER = os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "release", "examples")


def own_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, out


def instructions(command):
    with tempfile.NamedTemporaryFile(prefix="plimsoll-callgrind-") as out:
        said = subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}"] + command, check=True,
                              capture_output=True, text=True).stderr
    return int(re.search(r"Collected : (\d+)", said).group(1))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--no-callgrind", action="store_true")
    a = p.parse_args()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "plimsoll-replay", "-p", "plimsoll-device", "--examples"], check=True)
    command = lambda s, n: [f"{FOLDER}/{s[1]}"] + s[2] + [str(n)] + s[3]
    best = {}
    for _ in range(a.rounds):
        for s in STACKS:
            if s[4] is None:
                ns = float(re.search(r"([\d.]+) ns a request", own_seconds([f"{FOLDER}/{s[1]}"])[1]).group(1))
            else:
                # The time of building and aging the device is in both runs.
                ns = (own_seconds(command(s, s[4]))[0] - own_seconds(command(s, s[4] // 10))[0]) / (s[4] * 0.9) * 1e9
            best[s[0]] = min(best.get(s[0], ns), ns)
    print("| stack | ns a request | million a second | instructions a request |\n| --- | --- | --- | --- |")
    for s in STACKS:
        count = "-"
        if s[5] and not a.no_callgrind:
            more, less = s[5]
            count = f"{(instructions(command(s, more)) - instructions(command(s, less))) / (more - less):,.0f}"
        print(f"| {s[0]} | {best[s[0]]:.0f} | {1e3 / best[s[0]]:.2f} | {count} |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
