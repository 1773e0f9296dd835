#!/usr/bin/env python3
"""Compares our LRU hit counts with libCacheSim's on the same traces: they must be equal.

libCacheSim reads the trace itself (its CSV reader for objects; for blocks this script splits the rows), so a mistake
in our reader or in our cache shows.

    pip install libcachesim            # in a virtual environment
    cargo build --release -p plimsoll-replay --example lru_hits
    tests/peers/libcachesim_lru.py --ours target/release/examples/lru_hits [--data ../shared/data] [TRACE.csv.gz ...]

Traces are ours (`t_us,dev,op,offset,size,...`) and of one device, as libCacheSim's objects have no device.
Exit status: 0 equal, 1 different, 2 misused or a part is missing.
"""

import argparse
import csv
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

DEFAULT_TRACES = ["cloudphysics_vm", "mobile_genshin", "mobile_pubg", "msr_cut_1006", "ycsb_ext4"]
BLOCK = 4096
MIB = 1 << 20
CAPACITIES = [1 * MIB, 16 * MIB, 256 * MIB]


def rows(path):
    """Address and length of every read and write, by Python's own CSV reader."""
    with gzip.open(path, "rt", newline="") as f:
        for row in csv.DictReader(f):
            if row["op"] in "RW":
                yield int(row["offset"]), int(row["size"])


def count(cache, requests):
    accesses = hits = 0
    for request in requests:
        accesses += 1
        hits += bool(cache.get(request))
    return accesses, hits


def peer_objects(lcs, plain, capacity):
    params = lcs.ReaderInitParam(
        has_header=True, has_header_set=True, delimiter=",", obj_id_is_num=True, obj_id_is_num_set=True
    )
    # Columns from 1: t_us, dev, op, offset, size.
    params.time_field, params.obj_id_field, params.obj_size_field = 1, 4, 5
    reader = lcs.TraceReader(str(plain), lcs.TraceType.CSV_TRACE, params)
    return count(lcs.LRU(cache_size=capacity), reader)


def peer_blocks(lcs, path, capacity):
    def requests():
        request = lcs.Request()
        request.obj_size = BLOCK
        for offset, size in rows(path):
            for block in range(offset // BLOCK, (offset + size - 1) // BLOCK + 1):
                request.obj_id = block
                yield request

    return count(lcs.LRU(cache_size=capacity), requests())


def ours(binary, granularity, path):
    command = [binary, granularity, str(path), *map(str, CAPACITIES)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [(r["accesses"], r["hits"]) for r in map(json.loads, out.splitlines())]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True, help="the built example lru_hits")
    parser.add_argument("--data", default="../shared/data", help="where block/ is, if no trace is named")
    parser.add_argument("traces", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    try:
        import libcachesim as lcs
    except ImportError:
        print("libcachesim isn't installed: pip install libcachesim", file=sys.stderr)
        return 2
    traces = args.traces or [pathlib.Path(args.data) / "block" / f"{name}.csv.gz" for name in DEFAULT_TRACES]
    missing = [t for t in traces if not t.exists()]
    if missing:
        print(f"no such trace: {missing[0]}; name traces or their folder with --data", file=sys.stderr)
        return 2
    different = 0
    print(f"{'trace':<24} {'unit':<7} {'MiB':>5} {'accesses':>9} {'ours':>9} {'libCacheSim':>11} {'hit ratio':>9}")
    for path in traces:
        with tempfile.NamedTemporaryFile(suffix=".csv") as plain:
            with gzip.open(path) as f:
                plain.write(f.read())
            plain.flush()
            for unit, peer in (("object", lambda c: peer_objects(lcs, plain.name, c)),
                               ("block", lambda c: peer_blocks(lcs, path, c))):
                for capacity, mine in zip(CAPACITIES, ours(args.ours, unit, path)):
                    theirs = peer(capacity)
                    mark = "" if mine == theirs else "   DIFFERENT"
                    different += mine != theirs
                    print(f"{path.name.split('.')[0]:<24} {unit:<7} {capacity // MIB:>5} {mine[0]:>9} {mine[1]:>9} "
                          f"{theirs[1]:>11} {mine[1] / max(mine[0], 1):>9.4f}{mark}")
    print("equal" if not different else f"{different} rows differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
