#!/usr/bin/python3
"""Checks that no script has the name of a module that scripts import, and that the check finds planted ones.

usage: tests/shadows.py

Python looks for a module in the running script's folder first. There `requests.py` hides the library from every script of the folder, and
from each library that needs it.
"""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["bench", "tests"]
# Modules of packages that scripts of these folders import, or that those packages do.
OTHERS = {"ceph", "libcachesim", "nbd", "numpy", "optuna", "plimsoll", "plyvel", "pymongo", "pytest", "rados", "rbd", "requests", "secantus"}


def shadows(scripts):
    """Those that hide a module."""
    return [s for s in scripts if s.stem in sys.stdlib_module_names | OTHERS]


def main():
    planted = [Path(p) for p in ("bench/requests.py", "tests/peers/random.py", "bench/request_cost.py")]
    if shadows(planted) != planted[:2]:
        sys.exit("tests/shadows.py: the planted scripts aren't found")
    scripts = sorted(s.relative_to(ROOT) for folder in FOLDERS for s in (ROOT / folder).rglob("*.py"))
    if wrong := shadows(scripts):
        sys.exit("\n".join(f"{s}: hides the module `{s.stem}` from the folder's scripts: name it otherwise" for s in wrong))
    print(f"shadows: {len(scripts)} scripts hide no module")


if __name__ == "__main__":
    main()
