#!/usr/bin/env python3
"""Draws five module docs and five guides for a fresh reader (docs/contributing/questions.md).

    tests/readers.py SEED
"""
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DRAWN = 5
# A module doc of fewer lines has nothing to retell.
LINES_LEAST = 5


def drawn(seed):
    listed = subprocess.run(["git", "ls-files", "crates", "docs/guides"], cwd=ROOT, capture_output=True, check=True, text=True)
    names = sorted(listed.stdout.split())
    sources = [n for n in names if "/src/" in n and n.endswith(".rs") and not n.endswith("tests.rs")]
    modules = [n for n in sources if sum(line.startswith("//!") for line in (ROOT / n).read_text().splitlines()) >= LINES_LEAST]
    guides = [n for n in names if n.startswith("docs/guides/")]
    draw = random.Random(seed)
    return draw.sample(modules, DRAWN) + draw.sample(guides, DRAWN)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].isdecimal():
        sys.exit(__doc__)
    print("\n".join(drawn(int(sys.argv[1]))))
