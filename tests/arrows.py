#!/usr/bin/python3
"""Checks which part of the program may name which, and that each rule finds a planted violation.

usage: tests/arrows.py

1. `crates/stack`, the contract, names only `base`.
2. A layer's crate names only `base` and `stack`, thus no other layer and no message of one. Layers' crates are those that
   `crates/pool` depends on. The files in `crates/cache/tests` may name `nvram`: in a part of their runs the cache stands on it.
3. `crates/node/src/engine` names only `base`, `stack`, `nbd`, `nvme` and `rbd`, and few modules of its own crate. Its tests may build stacks.
4. Of `crates/node`, only `http/` itself and `serve.rs`, which starts it, name `http`.
5. Modules of `crates/cache` name each other in no circle. A module is a file of `src` with the files in its folder; tests don't count.
"""
import re
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

ENGINE = "crates/node/src/engine"
# Modules of the node that know no layer either.
ENGINE_MODULES = {"engine", "panics", "planted", "replica", "seats", "view"}
HTTP_MODULES = {"http", "serve", "lib"}
# Crates whose modules name each other in no circle.
WITHOUT_CIRCLES = ["cache"]
# Layers on which the tests of a layer may put it.
TESTED_ON = {"cache": {"nvram"}}


def dependencies(root, crate, kinds=("dependencies", "dev-dependencies", "build-dependencies")):
    """The project's crates that a crate depends on, by its manifest."""
    manifest = tomllib.loads((root / f"crates/{crate}/Cargo.toml").read_text())
    tables = [manifest] + list(manifest.get("target", {}).values())
    names = {name for table in tables for kind in kinds for name in table.get(kind, {})}
    return {name.removeprefix("plimsoll-") for name in names if name.startswith("plimsoll-")}


def lines(file):
    """Number and code of each line, without comments."""
    for number, line in enumerate(file.read_text().split("\n"), 1):
        code = line.split("//")[0]
        if code.strip():
            yield number, code


def crates_named(code, known):
    return {name for name in re.findall(r"\bplimsoll_([a-z_]+)", code) if name.replace("_", "-") in known}


def modules_named(file, source):
    """Line and name of each module of the crate at `source` that a file names, also in a group over several lines, and by way of `super`."""
    code = "\n".join(line.split("//")[0] for line in file.read_text().split("\n"))
    # A file's own module is so deep in its crate. In a module within the file, `super` leads less far up: too much is found then, not too little.
    path = file.relative_to(source).with_suffix("")
    depth = len(path.parts) - (path.name in ("mod", "lib"))
    if depth:
        code = re.sub(rf"(?<!:)\b(?:super::){{{depth}}}(?!super)", "crate::", code)
    for found in re.finditer(r"\bcrate::(?:(\w+)|\{)", code):
        number = code.count("\n", 0, found.start()) + 1
        if found[1]:
            yield number, found[1]
            continue
        depth, name = 1, ""
        for c in code[found.end() :]:
            if c in ",}" and depth == 1:
                yield number, name.strip().split("::")[0].split(" ")[0]
                name = ""
            elif depth == 1:
                name += c
            depth += {"{": 1, "}": -1}.get(c, 0)
            if depth == 0:
                break


def lines_of_tests(file):
    """The lines of a file's modules that only tests have. They begin at a line's first column, as all code of ours is formatted."""
    of_tests, ends, code = set(), None, file.read_text().split("\n")
    for number, line in enumerate(code, 1):
        if ends is None and line == "#[cfg(test)]" and re.match(r"(pub )?mod \w+ \{", code[number]):
            ends = "}"
        if ends is not None:
            of_tests.add(number)
            ends = None if line == ends else ends
    return of_tests


def circles(source):
    """Line and name of each naming of a module of the crate at `source` that leads back to the naming module."""
    exported = {}
    for module, group, one in re.findall(r"pub use (\w+)::(?:\{([^}]*)\}|(\w+));", (source / "lib.rs").read_text()):
        exported |= {name.strip(): module for name in (group or one).split(",")}
    named = []
    for file in sorted(source.rglob("*.rs")):
        if file.name in ("lib.rs", "tests.rs"):
            continue
        module = file.relative_to(source).parts[0].removesuffix(".rs")
        of_tests = lines_of_tests(file)
        for number, name in modules_named(file, source):
            name = exported.get(name, name)
            if name != module and number not in of_tests:
                named.append((file, number, module, name))
    reached = {}
    for _, _, module, name in named:
        reached.setdefault(module, set()).add(name)
    while True:
        more = {m: names.union(*(reached.get(n, set()) for n in names)) for m, names in reached.items()}
        if more == reached:
            break
        reached = more
    return [(file, number, name) for file, number, module, name in named if module in reached.get(name, set())]


def problems(root):
    """All violations under `root`, as `file:line: what`."""
    known = {p.parent.name for p in root.glob("crates/*/Cargo.toml")}
    layers = dependencies(root, "pool") - {"base", "stack"}
    found = []

    def only(crate, allowed, why):
        # A crate's own tests may turn on its features: it then depends on itself.
        of_tests = TESTED_ON.get(crate, set())
        built = dependencies(root, crate, ("dependencies", "build-dependencies"))
        for name in sorted((dependencies(root, crate) - of_tests | built) - allowed - {crate}):
            found.append(f"crates/{crate}/Cargo.toml: depends on `{name}`: {why}")
        for file in sorted((root / f"crates/{crate}").rglob("*.rs")):
            of_file = of_tests if root / f"crates/{crate}/tests" in file.parents else set()
            for number, code in lines(file):
                for name in crates_named(code, known) - allowed - of_file - {crate}:
                    found.append(f"{file.relative_to(root)}:{number}: names `{name}`: {why}")

    only("stack", {"base"}, "the contract knows no layer")
    for layer in sorted(layers):
        only(layer, {"base", "stack"}, "a layer knows no other layer")
    for crate in WITHOUT_CIRCLES:
        for file, number, name in circles(root / f"crates/{crate}/src"):
            found.append(f"{file.relative_to(root)}:{number}: names `crate::{name}`, from which names lead back here")
    source = root / "crates/node/src"
    for file in sorted((root / ENGINE).rglob("*.rs")):
        if file.name == "tests.rs":
            continue
        for number, code in lines(file):
            for name in crates_named(code, known) - {"base", "stack", "nbd", "nvme", "rbd"}:
                found.append(f"{file.relative_to(root)}:{number}: names `{name}`: the engine knows no layer")
        for number, name in modules_named(file, source):
            if name not in ENGINE_MODULES:
                found.append(f"{file.relative_to(root)}:{number}: names `crate::{name}`: the engine knows no layer")
    for file in sorted(source.rglob("*.rs")):
        if file.relative_to(source).parts[0].removesuffix(".rs") in HTTP_MODULES:
            continue
        named = [number for number, name in modules_named(file, source) if name == "http"]
        for number in named:
            found.append(f"{file.relative_to(root)}:{number}: names `http`: the node's domain doesn't know its HTTP")
    return found


# Each breaks one rule: a file and the line that is added to it.
PLANTED = [
    ("crates/stack/src/stack.rs", "use plimsoll_cache::Cache;"),
    ("crates/stack/Cargo.toml", "[build-dependencies]\nplimsoll-sched.workspace = true"),
    ("crates/logs/src/lib.rs", "fn planted(_: plimsoll_cache::CacheControl) {}"),
    ("crates/fence/Cargo.toml", "[target.'cfg(unix)'.dependencies]\nplimsoll-cores.workspace = true"),
    ("crates/cache/tests/lives.rs", "use plimsoll_logs::Logs;"),
    ("crates/cache/src/request.rs", "use plimsoll_nvram::Nvram;"),
    ("crates/cache/examples/cache_cost.rs", "use plimsoll_nvram::Nvram;"),
    ("crates/cache/Cargo.toml", "[build-dependencies]\nplimsoll-nvram.workspace = true"),
    ("crates/nvram/tests/power.rs", "use plimsoll_cache::Cache;"),
    ("crates/throttle/src/lib.rs", "fn planted(_: plimsoll_pool::PoolPlan) {}"),
    ("crates/cores/Cargo.toml", "[target.'cfg(unix)'.dev-dependencies]\nplimsoll-node.workspace = true"),
    (f"{ENGINE}/pool.rs", "use plimsoll_fence::Fence;"),
    (f"{ENGINE}/trace.rs", "use plimsoll_pool::PoolPlan;"),
    (f"{ENGINE}/ring.rs", "use crate::parts::Layers;"),
    (f"{ENGINE}/permits/tenant.rs", "use crate::directory::Directory;"),
    (f"{ENGINE}/exports.rs", "fn planted(stack: &Stack) { stack.layer::<plimsoll_cache::Cache>(); }"),
    (f"{ENGINE}/tape.rs", "use super::super::config::PoolConfig;"),
    (f"{ENGINE}/conn.rs", "use crate::{\n    replica::Replica,\n    open::{open_pool, rehearse},\n};"),
    ("crates/cache/src/gate.rs", "use crate::serve::Cache;"),
    ("crates/cache/src/place.rs", "fn planted(_: crate::index::Index) {}"),
    ("crates/cache/src/policy/lru.rs", "use crate::{\n    config::Mode,\n    residency::Residency,\n};"),
    ("crates/cache/src/volumes.rs", "fn planted(_: crate::Cache) {}"),
    ("crates/node/src/node/slots.rs", "use crate::http::Control;"),
    ("crates/node/src/parts/fence.rs", "use crate::{config, http as api};"),
    ("crates/node/src/view.rs", "use super::http::api::Status;"),
    ("crates/node/src/directory.rs", "fn planted() -> crate::http::Token { todo!() }"),
]


def missed(root):
    """Violations that aren't found when they are planted in a copy of the sources under `root`."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for file in [*root.glob("crates/*/Cargo.toml"), *root.glob("crates/*/**/*.rs")]:
            to = copy / file.relative_to(root)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, to)
        for name, line in PLANTED:
            file = copy / name
            before = file.read_text()
            file.write_text(f"{before}\n{line}\n")
            if not any(p.startswith(name) for p in problems(copy)):
                yield f"{name}: a planted `{line}` isn't found"
            file.write_text(before)


root = Path(__file__).resolve().parent.parent
wrong = problems(root)
wrong = wrong or list(missed(root))
for line in wrong:
    print(line, file=sys.stderr)
print(f"arrows between crates and modules: {len(PLANTED)} planted violations; {len(wrong)} problems")
sys.exit(bool(wrong))
