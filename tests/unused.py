#!/usr/bin/python3
"""Checks that every crate names each dependency that its manifest declares, and that the check finds a planted one.

usage: tests/unused.py

By the text, as cargo-machete does, so that nothing has to be installed or built. A dependency is named by its library's name as a word
in the crate's Rust files, or by a feature of the manifest; a development dependency in tests, examples, benches or unit tests.
"""
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Named by no file: what its macros write names it, or it only sets a feature of another.
UNNAMED = {}


def declared(manifest):
    tables = [manifest, *manifest.get("target", {}).values()]
    return sorted({name for table in tables for kind in ("dependencies", "dev-dependencies", "build-dependencies") for name in table.get(kind, {})})


def unused(manifest, text):
    """Names of the manifest that neither the crate's text nor one of its features has."""
    features = {word for members in manifest.get("features", {}).values() for word in members}
    named = lambda name: re.search(rf"\b{re.escape(name.replace('-', '_'))}\b", text) or any(f.startswith(f"{name}/") for f in features)
    return [name for name in declared(manifest) if not named(name)]


def text_of(folder):
    """The crate's Rust files, and those of other crates that it takes by `#[path = "…"]`, each with what it has beside it."""
    own = list(folder.rglob("*.rs"))
    taken = [f.parent / path for f in own for path in re.findall(r'#\[path = "([^"]+)"\]', f.read_text())]
    beside = [g for f in taken if f.name == "mod.rs" for g in f.parent.rglob("*.rs")]
    return "\n".join(f.read_text() for f in {*own, *taken, *beside})


def main():
    planted = {"dependencies": {"left-behind": "1"}, "dev-dependencies": {"used-here": "1"}}
    if unused(planted, "use used_here::x; // not left_behind_too") != ["left-behind"]:
        sys.exit("tests/unused.py: the planted dependency isn't found")
    wrong = []
    manifests = [*sorted(ROOT.glob("crates/*/Cargo.toml")), ROOT / "examples/add-a-layer/Cargo.toml"]
    for path in manifests:
        text = text_of(path.parent)
        wrong += [f"{path.relative_to(ROOT)}: nothing names `{n}`: remove it" for n in unused(tomllib.loads(path.read_text()), text)
                  if n not in UNNAMED]
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"]
    known = {name for path in manifests for name in declared(tomllib.loads(path.read_text()))}
    wrong += [f"Cargo.toml: no crate has `{n}` of [workspace.dependencies]: remove it" for n in sorted(set(workspace) - known)]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"unused: {len(manifests)} manifests name nothing that isn't used")


if __name__ == "__main__":
    main()
