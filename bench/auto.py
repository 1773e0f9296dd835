#!/usr/bin/env python3
"""Judges predictors live: what a node refuses and what it accepts too late, on a file of this machine's disk, beside fio's noise.

usage: bench/auto.py PLIMSOLL [--predictors noop,auto] [--noise quiet,own,seq,sync,deep] [--folder DIR] [--miss-percent P] [--rate N] [--seconds S] [--rounds N] [--json OUT]

A round measures every predictor beside every noise, one node at a time. Noise is fio's, in a file of its own that the node doesn't know;
`own` goes through the node, in another volume. A run reads 4 KiB at random in three parts of --seconds: two that only observe, with a deadline
that none can miss, and one with the first part's p95 as deadline. So the second part says how many reads are late if all are accepted, the third how
many are refused and how many of all are accepted and late. Refusals beyond the late reads that they spared are needless. With --miss-percent 0, the default
here, the forecast alone decides; a served pool leaves room beside it. Times are the client's. Medians over the rounds, in percent of all reads.
"""
import json, os, statistics, subprocess, tempfile

from device_times import KINDS
from lib import alternate, arguments, head, keep, middle, row
from node import Node, uri

SIZE_MIB = 512
# Fewer late reads than this say nothing.
LATE_LEAST = 20

SECTIONS = """
[[pool]]
name = "p"
device = {{ file = "p.img", size = "{pool}MiB" }}
sched = "{predictor}"
miss_percent = {miss_percent}
[[tenant]]
name = "t"
class = "best-effort"
""" + "".join(f"""
[[volume]]
name = "{name}"
pool = "p"
size = "{{size}}MiB"
tenant = "t"
""" for name in ("vol", "noise"))


def fio(options, *where):
    command = ["fio", "--name=noise", f"--size={SIZE_MIB}m", "--time_based", "--runtime=3600", *where, *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def noise(kind, folder, home):
    """The process that makes it; none where there is none."""
    if kind == "own":
        return fio(["--rw=write", "--bs=64k", "--iodepth=16", "--fsync=64", "--thinktime=300ms", "--thinktime_blocks=256"],
                   "--ioengine=nbd", f"--uri={uri(home, 'noise')}")
    options = KINDS[kind]
    return fio(options, "--ioengine=libaio", f"--filename={folder}/noise.img") if options else None


def percent(some, of):
    return 100 * some / max(1, of)


def judge(observed, judged, deadline_us):
    """Shares of reads that are late if all are accepted, of those refused, of those accepted and late, and of needless refusals."""
    late = sum(a["took_us"] > deadline_us for a in observed)
    refused = sum("predicted_wait_us" in a for a in judged)
    missed = sum("predicted_wait_us" not in a and a["took_us"] > deadline_us for a in judged)
    late_percent, refused_percent, missed_percent = percent(late, len(observed)), percent(refused, len(judged)), percent(missed, len(judged))
    needless = max(0.0, refused_percent - max(0.0, late_percent - missed_percent))
    return {"deadline_us": deadline_us, "late_reads": late, "late": late_percent, "refused": refused_percent, "missed": missed_percent, "needless": needless}


def reads(node, home, a, deadline):
    command = [node.plimsoll, "read", uri(home), "--deadline", deadline, "--count", str(a.seconds * a.rate), "--rate", str(a.rate), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    # It fails where reads were busy or late.
    assert done.stdout.startswith("["), done.stderr
    return json.loads(done.stdout)


def measure(a, folder, predictor, kind):
    with tempfile.TemporaryDirectory(dir=folder) as home:
        with Node(a.plimsoll, home, SECTIONS.format(pool=2 * SIZE_MIB + 256, size=SIZE_MIB, predictor=predictor, miss_percent=a.miss_percent)) as node:
            fill = ["fio", "--name=fill", "--ioengine=nbd", f"--uri={uri(home)}", "--rw=write", "--bs=1M", "--iodepth=4", f"--size={SIZE_MIB}m"]
            subprocess.run(fill, check=True, stdout=subprocess.DEVNULL, cwd=home)
            made = noise(kind, folder, home)
            try:
                first, second = reads(node, home, a, "1m"), reads(node, home, a, "1m")
                deadline_us = int(statistics.quantiles([r["took_us"] for r in first], n=20)[-1])
                third = reads(node, home, a, f"{deadline_us}us")
                assert made is None or made.poll() is None, f"{kind}: fio ended early"
            finally:
                if made:
                    made.terminate()
                    made.wait()
    return judge(second, third, deadline_us)


def check():
    """The judge knows a clairvoyant from one that says nothing and one that refuses all."""
    served = lambda took: {"took_us": took}
    busy = {"took_us": 1, "predicted_wait_us": 9}
    observed = [served(9000 if n % 10 == 0 else 1000) for n in range(100)]
    all_of = lambda judged: tuple(judge(observed, judged, 5000)[k] for k in ("late", "refused", "missed", "needless"))
    assert all_of([busy if n % 10 == 0 else served(1000) for n in range(100)]) == (10, 10, 0, 0)
    assert all_of(observed) == (10, 0, 10, 0)
    assert all_of([busy] * 100) == (10, 100, 0, 90)


def main():
    p = arguments(__doc__, seconds=10)
    p.add_argument("--predictors", default="noop,auto")
    p.add_argument("--noise", default=",".join(KINDS))
    p.add_argument("--folder", default=None, help="on the disk that is judged [default: TMPDIR]")
    p.add_argument("--miss-percent", default="0")
    p.add_argument("--rate", type=int, default=200)
    a = p.parse_args()
    check()
    with tempfile.TemporaryDirectory(dir=a.folder, prefix="plimsoll-auto-") as folder:
        with open(f"{folder}/noise.img", "wb") as f:
            for _ in range(SIZE_MIB):
                f.write(os.urandom(1 << 20))
        names = [(predictor, kind) for kind in a.noise.split(",") for predictor in a.predictors.split(",")]
        found = alternate(names, a.rounds, lambda name, _: measure(a, folder, *name))
    head("noise", "predictor", "deadline, ms", "late if all are accepted", "refused", "accepted and late", "needless")
    for (predictor, kind), rounds in found.items():
        few = f" (fewer than {LATE_LEAST} late reads in a round)" if any(r["late_reads"] < LATE_LEAST for r in rounds) else ""
        row(kind + few, predictor, middle(r["deadline_us"] / 1000 for r in rounds), *(middle(r[k] for r in rounds) for k in ("late", "refused", "missed", "needless")))
    keep(a.json, a, {f"{kind}, {predictor}": rounds for (predictor, kind), rounds in found.items()})


if __name__ == "__main__":
    main()
