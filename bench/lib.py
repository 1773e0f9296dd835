"""Parts that all benchmarks share: arguments, alternating rounds, medians, tables, and a record of the machine and the measurement.

`python3 bench/lib.py` checks itself.
"""
import argparse, datetime, json, os, platform, statistics, subprocess, sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def arguments(doc, seconds=None, rounds=3, program=True):
    """A parser with what all have: the program, --seconds, --rounds, --json."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if program:
        parser.add_argument("plimsoll", type=os.path.abspath)
    if seconds is not None:
        parser.add_argument("--seconds", type=type(seconds), default=seconds)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", help="also write every round's values, the commit and the machine to this file")
    return parser


def alternate(names, rounds, measure, about="", log=sys.stderr):
    """`measure(name, round)` of each name in each round, every second round in the opposite order, so that what drifts favours none.

    Rounds are counted from 0. Returns each name's list of what was measured, in the order of the rounds."""
    names = list(names)
    found = {name: [] for name in names}
    for n in range(rounds):
        for name in names if n % 2 == 0 else reversed(names):
            print(f"{about}round {n + 1} of {rounds}: {name}", file=log, flush=True)
            found[name].append(measure(name, n))
    return found


def middle(values, digits=1):
    """Median (least..most)."""
    values = list(values)
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}..{max(values):,.{digits}f})"


def row(*cells):
    """A line of a Markdown table, shown at once."""
    print(f"| {' | '.join(str(c) for c in cells)} |", flush=True)


def head(*titles):
    row(*titles)
    row(*["---"] * len(titles))


def commit():
    """The commit of the tree that the script lies in, with `+changes` if it isn't as committed; `unknown` outside of a repository."""
    git = lambda *words: subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)
    found = git("rev-parse", "HEAD")
    if found.returncode:
        return "unknown"
    return found.stdout.strip() + ("+changes" if git("status", "--porcelain", "--untracked-files=no").stdout.strip() else "")


def machine():
    """Returns the properties of the machine on which a figure in wall-clock time depends."""
    with open("/proc/cpuinfo") as f:
        models = {line.split(":", 1)[1].strip() for line in f if line.startswith("model name")}
    return {"processor": ", ".join(sorted(models)) or platform.machine(), "processors": len(os.sched_getaffinity(0)),
            "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20, "kernel": platform.release(),
            "load_1_min": round(os.getloadavg()[0], 2)}


def keep(path, args, found, **more):
    """Writes the record of a run to `path`, if one was asked for. Keys that aren't texts become texts."""
    if path:
        record = {"script": os.path.basename(sys.argv[0]), "commit": commit(), "at": datetime.datetime.now(datetime.timezone.utc).isoformat(),
                  "machine": machine(), "arguments": vars(args), **more, "rounds": found}
        with open(path, "w") as f:
            json.dump(record, f, indent=1)


def check():
    import io, tempfile
    order = []
    found = alternate("abc", 2, lambda name, n: order.append(name) or (name, n), log=io.StringIO())
    assert order == list("abccba") and found["b"] == [("b", 0), ("b", 1)], (order, found)
    assert middle([3, 1, 2000], 0) == "3 (1..2,000)"
    args = arguments("x", seconds=2.5).parse_args(["program", "--rounds", "4"])
    assert (args.seconds, args.rounds, args.json, os.path.isabs(args.plimsoll)) == (2.5, 4, None, True)
    with tempfile.NamedTemporaryFile() as f:
        keep(f.name, args, found)
        record = json.load(f)
    assert record["rounds"]["c"] == [["c", 0], ["c", 1]] and record["arguments"]["rounds"] == 4 and record["machine"]["processors"] > 0
    print("bench/lib.py: as it should be")


if __name__ == "__main__":
    check()
