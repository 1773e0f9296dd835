#!/usr/bin/env python3
"""How well live volumes on modelled devices keep their models' times.

usage: bench/model.py PLIMSOLL [--seconds S] [--rounds N] [MODEL...]

Each model in turn is served over a sparse file, and fio reads 4 KiB at random from it over NBD, one at a time. Prints how
late completions were against the model's due times, as the node's own histogram has it, beside the pauses that the node's
watchdog saw in the same time. Lateness is wall-clock time: run it on an idle machine, and look at the pauses.
"""
import argparse, json, os, subprocess, tempfile

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
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("plimsoll")
    p.add_argument("models", nargs="*", default=["hdd-160g-7200", "cheetah-15k5", "seagate-archive-8tb", "nvme-modern"])
    p.add_argument("--seconds", type=int, default=20)
    p.add_argument("--rounds", type=int, default=1)
    a = p.parse_intermixed_args()
    plimsoll = os.path.abspath(a.plimsoll)
    print("| model | completions | late p50 us | p95 us | p99 us | max us | bytes late | host pauses >= 250 us | of the time |")
    print("| --- " * 9 + "|")
    for model in a.models * a.rounds:
        status, m = measure(plimsoll, model, a.seconds)
        h = status["node"]["host_pauses"]
        share = 100 * h["total_us"] / status["node"]["uptime_us"]
        print(f"| {model} | {m['completions']} | {m['late_p50_us']} | {m['late_p95_us']} | {m['late_p99_us']} | {m['late_max_us']} "
              f"| {m['data_late']} | {h['count']} | {share:.2f} % |", flush=True)


if __name__ == "__main__":
    main()
