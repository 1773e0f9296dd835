#!/usr/bin/env python3
"""Instructions of a pool's thread per request, of the loads of bench/nbd_peers.py on a null device.

usage: bench/request_cost.py [PROGRAM…]

Each PROGRAM is a build of crates/node/examples/request_cost.rs; without one it is built with the profile release. Counts are callgrind's: the
difference of a longer and a shorter run, divided by the requests between them. Prints a Markdown table, a column for each program.
"""
import os, re, subprocess, sys, tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
LOADS = [("read", 1), ("read", 32), ("write", 1), ("write", 32)]
MORE, LESS = 64_000, 32_000


def counted(program, requests, depth, op):
    with tempfile.NamedTemporaryFile(prefix="plimsoll-callgrind-") as out:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}", program, str(requests), str(depth), op]
        # Its client ends it by SIGTERM, after the last answer.
        said = subprocess.run(command, capture_output=True, text=True).stderr
    found = re.search(r"Collected : (\d+)", said)
    assert found, said
    return int(found.group(1))


def main():
    programs = sys.argv[1:]
    if not programs:
        subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "plimsoll-node", "--example", "request_cost"], check=True, cwd=ROOT)
        programs = [os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release/examples/request_cost")]
    print(f"| 4 KiB, depth | {' | '.join(programs)} |\n|{' --- |' * (len(programs) + 1)}")
    for op, depth in LOADS:
        each = lambda program: (counted(program, MORE, depth, op) - counted(program, LESS, depth, op)) / (MORE - LESS)
        print(f"| {op}, {depth} | {' | '.join(f'{each(p):,.0f}' for p in programs)} |", flush=True)


if __name__ == "__main__":
    main()
