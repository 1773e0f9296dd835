#!/usr/bin/python3
"""Builds the tests and runs their programs side by side, longest first; says what each took, and what ran without something.

usage: tests/run.py [--tier pure] [--only WORD] [--jobs N] [--table check|write] [--json FILE] [-- CARGO ARGUMENTS]

`cargo test` runs one test program after the other, so that one which waits (for a server, a deadline, a drain) holds up those that
compute. Here as many run as there are cores, and one more. tests/suites.toml knows which take long, which measure and so run alone,
and what they need; a program that it doesn't name is taken for short, with no needs.

--tier pure   only crates whose tests need neither root nor another program (what `make check` runs)
--only WORD   only suites whose name (`crate tests/file.rs`) has the word; with a whole name nothing else is built
--table       nothing but CONTRIBUTING.md's table of what each crate's tests need and take: compared with suites.toml, or written anew

A test that can't have the rights it needs prints "ran without …" and ends. Each such line is shown at the end; as root, none may be
but those that suites.toml allows. A test whose program isn't installed fails.
Interrupts that the caller ignores, as `nohup make test &` does, are taken by the tests' children again.
"""
import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TAKEN_AGAIN = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE)
PASSED = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.M)
WITHOUT = re.compile(r"^(?:test .* \.\.\. )?(ran without .*)$", re.M)


class Suite:
    """One test program, or the documentation's examples."""

    def __init__(self, crate, source, command, folder, known):
        self.crate, self.command, self.folder = crate, command, folder
        self.name = f"{crate} {source}"
        about = known["suites"].get(self.name, {})
        self.expected = about.get("seconds", 1)
        self.alone = about.get("alone", False)
        self.limit = known["limit_seconds"]
        self.seconds = self.cpu = 0.0
        self.output, self.status, self.child = "", None, None

    def run(self):
        """Runs it to its end, or ends it with all it started at the limit."""
        log = ROOT / "target/tests" / (re.sub(r"\W+", "-", self.name) + ".log")
        environment = {**os.environ, "CARGO_MANIFEST_DIR": str(self.folder)}
        begun = time.monotonic()
        with open(log, "wb") as out:
            child = self.child = subprocess.Popen(self.command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=out,
                                                  stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=take_signals)
        late = threading.Timer(self.limit, self.end)
        late.daemon = True
        late.start()
        _, status, used = os.wait4(child.pid, 0)
        late.cancel()
        child.returncode = self.status = os.waitstatus_to_exitcode(status)
        self.seconds, self.cpu = time.monotonic() - begun, used.ru_utime + used.ru_stime
        self.output = log.read_text(errors="replace")
        if self.seconds >= self.limit:
            self.output += f"\nended after {self.limit} s: a test program may take no longer\n"

    def end(self):
        """Ends it, if it runs, with what it started."""
        if self.child and self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)

    def counts(self):
        """Tests passed, failed and ignored."""
        return [sum(map(int, column)) for column in zip(*PASSED.findall(self.output))] or [0, 0, 0]

    def failed(self):
        return self.status != 0

    def without(self):
        return sorted(set(WITHOUT.findall(self.output)))


def take_signals():
    """Restores signals that a shell makes a background job ignore. A test's children would ignore them too, and never end when interrupted."""
    for taken in TAKEN_AGAIN:
        signal.signal(taken, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TAKEN_AGAIN)


def build(cargo, arguments, crates, one, known):
    """Suites of what cargo builds: of all test programs, or of those with one name."""
    chosen = [word for crate in crates for word in ("-p", crate)] or ["--workspace"]
    # Tests load this one by its path.
    targets = ["--test", one, *(["--example", "fake_ceph"] if not crates else [])] if one else []
    command = [cargo, "test", *chosen, *targets, "--no-run", "--message-format", "json-render-diagnostics", *arguments]
    suites = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout:
            message = json.loads(line) if line.startswith("{") else {}
            if message.get("reason") != "compiler-artifact" or not message.get("executable") or not message["profile"]["test"]:
                continue
            folder = Path(message["manifest_path"]).parent
            source = os.path.relpath(message["target"]["src_path"], folder)
            suites.append(Suite(folder.name, source, [message["executable"], "--show-output"], folder, known))
    if running.returncode != 0:
        sys.exit(running.returncode)
    if not crates and not one:
        # For the whole workspace cargo would build most libraries once more, with other features.
        doc = [cargo, "test", *documented(cargo), "--doc", "--quiet", *arguments]
        suites.append(Suite("all", "examples in the documentation", doc, ROOT, known))
    return suites


def documented(cargo):
    """Cargo's options for the crates whose documentation has examples that are run."""
    asked = [cargo, "metadata", "--no-deps", "--format-version", "1"]
    packages = json.loads(subprocess.run(asked, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)["packages"]
    of = [p["name"] for p in packages if any(t["doctest"] for t in p["targets"])]
    return [word for name in of for word in ("-p", name)]


def run_all(suites, jobs):
    """Runs the suites, those that measure after all others and one by one; prints a line for each as it ends."""
    turn, waiting = threading.Lock(), sorted((s for s in suites if not s.alone), key=lambda s: -s.expected)

    def lane():
        while True:
            with turn:
                if not waiting:
                    return
                suite = waiting.pop(0)
            suite.run()
            with turn:
                tell(suite)

    lanes = [threading.Thread(target=lane, daemon=True) for _ in range(jobs)]
    for t in lanes:
        t.start()
    for t in lanes:
        t.join()
    for suite in (s for s in suites if s.alone):
        suite.run()
        tell(suite)


def tell(suite):
    passed, failed, ignored = suite.counts()
    beside = (f", {failed} FAILED" if failed else "") + (f", {ignored} ignored" if ignored else "")
    word = "FAILED" if suite.failed() else "ok"
    print(f"{word:6} {suite.seconds:6.1f} s  cpu {suite.cpu:6.1f} s  {suite.name}: {passed} passed{beside}", flush=True)
    if suite.failed():
        print(suite.output, flush=True)


def closing(suites, built, begun, strict, known):
    """Sums by crate, what ran without something, what failed. Returns whether all is well."""
    crates = {}
    for s in suites:
        c = crates.setdefault(s.crate, [0.0, 0.0, 0])
        c[0], c[1], c[2] = c[0] + s.seconds, c[1] + s.cpu, c[2] + s.counts()[0]
    print("\nby crate, seconds from begin to end and of a processor (suites run side by side):")
    for crate, (seconds, cpu, passed) in sorted(crates.items(), key=lambda c: -c[1][0]):
        print(f"  {crate:14} {seconds:7.1f} {cpu:7.1f}  {passed} tests")
    without = sorted({(line, s.name) for s in suites for line in s.without()})
    for line, name in without:
        print(f"{line} ({name})")
    lacking = [line for line, _ in without if not any(line.startswith(f"ran without {x}") for x in known["may_lack"])]
    failed = [s.name for s in suites if s.failed()]
    ran, ignored = (sum(s.counts()[i] for s in suites) for i in (0, 2))
    print(f"{ran} tests of {len(suites)} programs passed, {ignored} ignored; built in {built:.0f} s, run in {time.monotonic() - begun:.0f} s")
    for name in failed:
        print(f"FAILED {name}")
    if strict and lacking:
        print("FAILED: as root nothing may be left out")
    return not failed and not (strict and lacking)


def table(known):
    """Markdown: each crate, what its tests need, about what they take."""
    seconds = {}
    for name, about in known["suites"].items():
        crate = name.split()[0]
        seconds[crate] = seconds.get(crate, 0) + about.get("seconds", 1)
    yield "| crate | its tests need | seconds |"
    yield "|---|---|---|"
    for folder in sorted(manifest.parent for manifest in ROOT.glob("crates/*/Cargo.toml")):
        need = known["needs"].get(folder.name, "nothing")
        yield f"| {folder.name} | {need} | {round(seconds.get(folder.name, 0)) or 'under 5'} |"


def keep_table(known, write):
    page, marks = ROOT / "CONTRIBUTING.md", ("<!-- table -->\n", "<!-- end of table -->")
    text = page.read_text()
    before, _, rest = text.partition(marks[0])
    wanted = before + marks[0] + "".join(f"{line}\n" for line in table(known)) + marks[1] + rest.partition(marks[1])[2]
    if write:
        page.write_text(wanted)
    elif text != wanted:
        sys.exit("CONTRIBUTING.md: its table isn't what tests/suites.toml says: `tests/run.py --table write`")


def main():
    cli = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    cli.add_argument("--tier", choices=["pure"])
    cli.add_argument("--only", default="")
    cli.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)) + 1)
    cli.add_argument("--table", choices=["check", "write"])
    cli.add_argument("--json", type=Path)
    cli.add_argument("cargo", nargs="*")
    asked = cli.parse_args()
    known = tomllib.loads((ROOT / "tests/suites.toml").read_text())
    if asked.table:
        keep_table(known, asked.table == "write")
        return
    crates = [f"plimsoll-{c.parent.name}" for c in sorted(ROOT.glob("crates/*/Cargo.toml")) if c.parent.name not in known["needs"]] if asked.tier else []
    whole = re.fullmatch(r"[\w-]+ tests/(\w+)(?:/main)?\.rs", asked.only)
    one = whole and whole[1]
    (ROOT / "target/tests").mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    suites = [s for s in build(os.environ.get("CARGO", "cargo"), asked.cargo, crates, one, known) if asked.only in s.name]
    built, begun = time.monotonic() - begun, time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run_all(suites, asked.jobs)
    except KeyboardInterrupt:
        for suite in suites:
            suite.end()
        sys.exit("interrupted")
    if asked.json:
        rows = [{"suite": s.name, "seconds": round(s.seconds, 2), "cpu_seconds": round(s.cpu, 2), "passed": s.counts()[0]} for s in suites]
        asked.json.write_text(json.dumps(rows, indent=1))
    if not closing(suites, built, begun, os.geteuid() == 0, known):
        sys.exit(1)


if __name__ == "__main__":
    main()
