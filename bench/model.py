#!/usr/bin/env python3
"""Accuracy with which live volumes on modelled devices keep their models' times.

usage: bench/model.py PLIMSOLL [--seconds S] [--rounds N] [--json OUT] [MODEL...]

Each model in turn is served over a sparse file, and fio reads 4 KiB at random from it over NBD, one at a time. Prints how
late completions were against the model's due times, as the node's own histogram has it, beside the pauses that the node's
watchdog saw in the same time. Lateness is wall-clock time: run it on an idle machine, and look at the pauses.
"""
import json, subprocess, tempfile

from lib import alternate, arguments, head, keep, row
from node import Node, one, uri


def measure(plimsoll, model, seconds):
    with tempfile.TemporaryDirectory(prefix="plimsoll-model-") as folder:
        device = f'{{ model = "{model}", file = "disk.img", size = "4GiB" }}'
        with Node(plimsoll, folder, one(device, "2GiB")) as node:
            subprocess.run(["fio", "--name=x", "--ioengine=nbd", f"--uri={uri(folder)}", "--bs=4k", "--rw=randread", "--iodepth=1",
                            "--time_based", f"--runtime={seconds}", "--size=2G", "--randrepeat=1", "--norandommap",
                            "--output=/dev/null"], check=True, cwd=folder)
            return json.loads(node.cli("status", "--json")), json.loads(node.cli("pool", "show", "p", "--json"))["model"]


def main():
    p = arguments(__doc__, seconds=20, rounds=1)
    p.add_argument("models", nargs="*", default=["hdd-160g-7200", "cheetah-15k5", "seagate-archive-8tb", "nvme-modern"])
    a = p.parse_intermixed_args()
    found = alternate(a.models, a.rounds, lambda model, _round: measure(a.plimsoll, model, a.seconds))
    keep(a.json, a, found)
    head("model", "completions", "late p50 us", "p95 us", "p99 us", "max us", "bytes late", "host pauses >= 250 us", "of the time")
    for model, (status, m) in ((model, run) for model, runs in found.items() for run in runs):
        h = status["node"]["host_pauses"]
        share = 100 * h["total_us"] / status["node"]["uptime_us"]
        row(model, *(m[key] for key in ("completions", "late_p50_us", "late_p95_us", "late_p99_us", "late_max_us", "data_late")), h["count"],
            f"{share:.2f} %")


if __name__ == "__main__":
    main()
