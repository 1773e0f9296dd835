#!/usr/bin/python3
"""Live NI-E6: fio's NBD client on a plain array of ten disks (`tps`), without and with the flash cache before it.

usage: bench/cache.py PLIMSOLL [--seconds S] [--rounds N] [--json OUT]

Requests of 8 KiB, one in five a read (FIU's ratio), Zipf 0.9 within 1 GiB, half of each request's bytes compressible and 30 % of them
duplicates; 16 at once. The array and the cache's drive are modelled in real time (docs/reference/models.md); a pool on md's RAID is configured
alike, by its block device. Settings alternate, and each is warmed by a run of its own. Needs fio with its nbd engine.
"""
import tempfile

from lib import alternate, arguments, head, keep, middle, row
from node import Node, fio, fio_job, one

CACHE = """[pool.cache]
file = "fast.img"
device_size = "192MiB"
model = "vf-sata-60g"
weu = "512KiB"
mode = "{mode}"
codec = "{codec}"
dedup = "{dedup}"
"""
KINDS = {
    "no cache": "",
    "through, WEU (ND, NC)": CACHE.format(mode="through", codec="none", dedup="off"),
    "through, WEU (D, C)": CACHE.format(mode="through", codec="lz4", dedup="tenant"),
    "back, WEU (D, C)": CACHE.format(mode="back", codec="lz4", dedup="tenant"),
}


def measure(node, seconds):
    job = fio_job(fio(node.folder, "vol", seconds, 2, "--rw=randrw", "--rwmixread=20", "--bs=8k", "--size=1g", "--iodepth=16",
                      "--random_distribution=zipf:0.9", "--buffer_compress_percentage=50", "--dedupe_percentage=30", "--randrepeat=0",
                      "--norandommap"))
    return job["read"]["iops"] + job["write"]["iops"], job["read"]["lat_ns"]["mean"] / 1e6


def main():
    args = arguments(__doc__, seconds=30).parse_args()
    device = '{ file = "p.img", size = "5GiB", model = "raid0:10:64K:constellation-es3-1tb" }'

    def warmed(kind, round_):
        with tempfile.TemporaryDirectory() as folder, Node(args.plimsoll, folder, one(device, "1GiB", KINDS[kind])) as node:
            measure(node, args.seconds)
            return measure(node, args.seconds)

    found = alternate(KINDS, args.rounds, warmed)
    keep(args.json, args, found)
    print(f"{args.rounds} rounds of {args.seconds} s, warm; medians (range)\n")
    head("setting", "IOPS", "gained %", "read response time ms")
    for kind, rounds in found.items():
        gained = [100 * (r[0] / base[0] - 1) for r, base in zip(rounds, found["no cache"])]
        row(kind, middle((r[0] for r in rounds), 0), middle(gained, 0), middle((r[1] for r in rounds), 2))


main()
