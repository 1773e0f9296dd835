#!/usr/bin/env python3
"""Forecasts of host mode against actual times, through each I/O scheduler, under fio's noise: `plimsoll host check` on two disks.

usage: bench/host_accuracy.py PLIMSOLL [--rounds N] [--seconds N] [--json FILE]

As root. The disks are a loop device over a file in target/, for which the machine's own disk answers, and a modelled one that serves one
request at a time. Noise: four readers of 4 KiB, and bursts of 64 KiB, of which a third are writes. Nothing is refused: both errors are
counted, for the deadlines that 95 and 99 of 100 reads keep in that run. A miss was accepted and late; a needless refusal would have been in time.
"""
import json, os, pathlib, statistics, subprocess, sys, tempfile

from host_disks import Disk, run
from lib import alternate, arguments, head, keep, middle, row

SCHEDULERS = ["none", "mq-deadline", "kyber", "bfq"]
# Bytes of a disk that noise is for.
SPAN = "100M"


class File:
    """A loop device over a file of this machine's disk."""

    def __init__(self, folder):
        self.file = pathlib.Path(folder) / "disk"
        with open(self.file, "wb") as f:
            for _ in range(128):
                f.write(os.urandom(1 << 20))
            os.fsync(f.fileno())
        self.loop = run("losetup", "--find", "--show", "--direct-io=on", self.file)

    def close(self):
        subprocess.run(["losetup", "--detach", self.loop])


def noise(loop, seconds):
    """fio on a disk; one in flight for each reader, and bursts with pauses, so that the load is another one all the time."""
    common = ["--direct=1", f"--filename={loop}", f"--size={SPAN}", "--time_based", f"--runtime={seconds}", "--randrepeat=1", "--output-format=json"]
    readers = ["--name=readers", "--rw=randread", "--bs=4k", "--ioengine=psync", "--numjobs=4", "--thinktime=2ms"]
    bursts = ["--name=bursts", "--rw=randrw", "--rwmixread=67", "--bs=64k", "--ioengine=libaio", "--iodepth=8", "--thinktime=50ms", "--thinktime_blocks=16"]
    return subprocess.Popen(["fio", *common, *readers, *bursts], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def measure(plimsoll, disk, scheduler, seconds):
    name = disk.loop.removeprefix("/dev/")
    pathlib.Path(f"/sys/block/{name}/queue/scheduler").write_text(scheduler)
    # Learning takes its time first.
    beside = noise(disk.loop, seconds + 60)
    try:
        report = json.loads(run(plimsoll, "host", "check", name, "--for", f"{seconds}s", "--json"))
    finally:
        ended = beside.poll()
        beside.terminate()
        _, error = beside.communicate()
        assert ended is None, f"fio ended early: {error}"
    assert report["scheduler"] == scheduler, report
    return report


def main():
    args = arguments(__doc__, seconds=10, rounds=3).parse_args()
    if os.geteuid() != 0:
        sys.exit("bench/host_accuracy.py sets schedulers: run it as root")
    target = pathlib.Path(__file__).resolve().parent.parent / "target"
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as folder:
        disks = {}
        try:
            disks["this machine's"] = File(folder)
            disks["modelled"] = Disk(pathlib.Path(folder), "modelled")
            run("umount", disks["modelled"].folder / "fs")  # fio doesn't write to a disk that is mounted
            cases = {f"{disk}, {scheduler}": (disk, scheduler) for disk in disks for scheduler in SCHEDULERS}
            found = alternate(cases, args.rounds, lambda case, _: measure(args.plimsoll, disks[cases[case][0]], cases[case][1], args.seconds))
        finally:
            for disk in disks.values():
                disk.close()
    head("disk, scheduler", "reads", "took p50, ms", "p99, ms", "forecasts erred p50, ms", "p90, ms", "deadline", "misses of accepted, %", "needless of in time, %")
    for case, reports in found.items():
        errors = [r["errors"] for r in reports]
        ms = lambda key: f"{statistics.median(e[key] for e in errors) / 1e3:.2f}"
        for i, percent in (2, 95), (3, 99):
            # Equal deadlines are one.
            judged = [r["deadlines"][i] for r in reports if len(r["deadlines"]) == 4]
            if not judged:
                continue
            missed = middle((100 * d["missed"] / max(1, d["reads"] - d["refused"]) for d in judged), 2)
            needless = middle((100 * d["needless"] / max(1, d["reads"] - d["late"]) for d in judged), 2)
            row(case, sum(e["reads"] for e in errors), ms("took_p50_us"), ms("took_p99_us"), ms("error_p50_us"), ms("error_p90_us"), f"p{percent}", missed, needless)
    keep(args.json, args, found)


main()
