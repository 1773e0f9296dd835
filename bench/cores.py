#!/usr/bin/python3
"""Live: fio's NBD clients, one with an objective and one without, on a flash drive modelled in real time and eight virtual cores.

usage: bench/cores.py PLIMSOLL [--seconds S] [--rounds N] [--policies qwin,share-everything] [--slower 10] [--within 30] [--json OUT]

The latency-critical client reads 4 KiB at random with 4 x 16 outstanding, and promises p99 within --within ms; the best-effort one reads
64 KiB in order with 2 x 16. The drive is nvme-modern with every time multiplied by --slower, as this machine couldn't keep up with
more. Rounds alternate between the policies; medians are printed as a Markdown table, and how many cores the tenant with the
objective had. Needs fio with its nbd engine.
"""
import json, os, statistics, tempfile, time

from lib import ROOT, alternate, arguments, head, keep, middle, row
from node import Node, fio, fio_job, slowed

POLICIES = ["qwin", "qwin-window", "two-priorities", "partial-sharing", "share-everything"]


def sections(model, policy, within, slower):
    # Everything is slower, so is what objectives are kept with.
    slack = f'core_slack = ["{300 * slower:.0f}us", "{1000 * slower:.0f}us"]' if policy.startswith("qwin") else ""
    return f"""
[[pool]]
name = "p"
device = {{ file = "p.img", size = "3GiB", model = "{model}" }}
depth = 256
cores = 8
core_policy = "{policy}"
{slack}
[[tenant]]
name = "lc"
class = "latency-critical"
objectives = [{{ percentile = 99, within = "{within}ms" }}]
jobs_max = 64
[[tenant]]
name = "be"
class = "best-effort"
jobs_max = 64
[[volume]]
name = "lc"
pool = "p"
size = "1GiB"
tenant = "lc"
[[volume]]
name = "be"
pool = "p"
size = "1GiB"
tenant = "be"
"""


def cores(node):
    """The queue of the tenant with the objective."""
    view = json.loads(node.cli("cores", "p", "--json"))
    return next(q for q in view["queues"] if q["tenants"] == ["lc"])


def client(node, volume, jobs, seconds, *more):
    return fio(node.folder, volume, seconds, 3, f"--numjobs={jobs}", "--group_reporting", "--iodepth=16", *more)


def result(process):
    read = fio_job(process)["read"]
    at = lambda p: read["clat_ns"]["percentile"][p] / 1e6
    return read["bw_bytes"] / 1e6, at("99.000000"), at("99.900000"), read["iops"]


def measure(node, seconds):
    lc = client(node, "lc", 4, seconds, "--rw=randread", "--bs=4k")
    be = client(node, "be", 2, seconds, "--rw=read", "--bs=64k", "--offset_increment=512m", "--size=512m")
    seen, ends = [], time.monotonic() + seconds
    time.sleep(4)
    while time.monotonic() < ends:
        seen.append(cores(node)["cores"])
        time.sleep(0.25)
    (_, p99, p999, iops), (bandwidth, *_) = result(lc), result(be)
    queue = cores(node)
    return {"p99": p99, "p99.9": p999, "iops": iops, "be": bandwidth, "cores": statistics.mean(seen), "most": max(seen),
            "windows": queue["windows"], "changes": queue["grown"] + queue["yielded"], "tail": queue["service_tail_us"] / 1e3}


def main():
    parser = arguments(__doc__, seconds=15)
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--slower", type=float, default=10)
    parser.add_argument("--within", type=int, default=30)
    args = parser.parse_args()
    profile = os.path.join(ROOT, "crates/device/profiles/flash/nvme-modern.toml")
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/slow.toml", "w") as f:
            f.write(slowed(open(profile).read(), args.slower))

        def run(policy, round_):
            configuration = sections(f"{folder}/slow.toml", policy, args.within, args.slower)
            with Node(args.plimsoll, f"{folder}/{policy}{round_}", configuration) as node:
                return measure(node, args.seconds)

        found = alternate(args.policies.split(","), args.rounds, run)
    keep(args.json, args, found)
    print(f"objective p99 within {args.within} ms; drive {args.slower}x slower; {args.rounds} rounds of {args.seconds} s, medians (range of p99)\n")
    head("policy", "p99 ms", "p99.9 ms", "IOPS", "best effort MB/s", "cores, mean / most", "core changes/min")
    for policy, rounds in found.items():
        median = lambda key: statistics.median(r[key] for r in rounds)
        changes = median("changes") * 60 / (args.seconds + 3)
        row(policy, middle(r["p99"] for r in rounds), f"{median('p99.9'):.1f}", f"{median('iops'):.0f}", f"{median('be'):.0f}",
            f"{median('cores'):.1f} / {median('most'):.0f}", f"{changes:.0f}")


main()
