#!/usr/bin/python3
"""Checks what the program depends on, from Cargo.lock as cargo sees it for Linux: licenses, sources, and names with two versions.

usage: tests/dependencies.py

An advisory database isn't asked: none comes with the registry's ordinary client. Run `cargo audit` where its database can be had.
"""
import collections
import json
import subprocess
import sys

REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
# Each may be linked into what is under the project's license.
ALLOWED = {
    "MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Zlib", "BSL-1.0", "CC0-1.0", "0BSD", "MIT-0", "Unlicense",
    "Unicode-3.0", "Apache-2.0 WITH LLVM-exception",
}
# Names that come in two versions, for want of a dependency that has moved on: one more is a decision, not an accident.
TWICE = {"cpufeatures", "embedded-io", "getrandom", "itertools", "num-bigint", "syn"}


def allowed(license):
    """True if at least one alternative of the expression consists of allowed licences. `A/B` is an old form of `A OR B`."""
    text = (license or "").replace("/", " OR ").replace("(", " ( ").replace(")", " ) ")
    words, at = text.split(), 0

    def either():
        nonlocal at
        ok = both()
        while at < len(words) and words[at] == "OR":
            at += 1
            ok = both() or ok
        return ok

    def both():
        nonlocal at
        ok = one()
        while at < len(words) and words[at] == "AND":
            at += 1
            ok = one() and ok
        return ok

    def one():
        nonlocal at
        if words[at] == "(":
            at += 1
            ok = either()
            at += 1
            return ok
        name = words[at]
        at += 1
        if at < len(words) and words[at] == "WITH":
            name = f"{name} WITH {words[at + 1]}"
            at += 2
        return name in ALLOWED

    return bool(words) and either()


command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"]
metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
used = {node["id"] for node in metadata["resolve"]["nodes"]}
versions, wrong = collections.defaultdict(set), []
for package in metadata["packages"]:
    if package["source"] is None or package["id"] not in used:
        continue
    name = f"{package['name']} {package['version']}"
    versions[package["name"]].add(package["version"])
    if package["source"] != REGISTRY:
        wrong.append(f"{name} comes from {package['source']}, not from crates.io")
    if not allowed(package["license"]):
        wrong.append(f"{name} has the license {package['license']}, which isn't among those that are allowed")
for name, found in sorted(versions.items()):
    if len(found) > 1 and name not in TWICE:
        wrong.append(f"{name} comes in versions {', '.join(sorted(found))}: use one, or list it in TWICE")
for line in wrong:
    print(line, file=sys.stderr)
print(f"{len(versions)} dependencies, {sum(len(v) > 1 for v in versions.values())} of them in two versions or more; {len(wrong)} problems")
sys.exit(bool(wrong))
