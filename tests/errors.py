#!/usr/bin/env python3
"""Checks that the node's errors have types: no function of `crates/node/src` returns a `Result` whose error is, or contains, a bare `String`.
Its caller could only print such an error, or compare texts. Each rule finds a planted violation.

usage: tests/errors.py

Tests in the code are left out: nobody calls them.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "crates/node/src"


def own_code(text):
    """A file's code with blanks in the place of its comments and texts, without its tests."""
    text = re.split(r"\n#\[cfg\(test\)\]\n(?:pub(?:\(\w+\))? )?mod \w+ \{", text)[0]
    blank = lambda m: re.sub(r"[^\n]", " ", m[0])
    return re.sub(r"//[^\n]*|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)'", blank, text, flags=re.S)


def arguments(code, start):
    """The arguments of a generic type whose `<` is before `start`: place and text of each."""
    depth, begin, at = 1, start, start
    while at < len(code):
        c = code[at]
        if code[at : at + 2] == "->":
            at += 2
            continue
        depth += {"<": 1, "(": 1, "[": 1, ">": -1, ")": -1, "]": -1}.get(c, 0)
        if depth == 0 or (depth == 1 and c == ","):
            yield begin, code[begin:at]
            begin = at + 1
        if depth == 0:
            return
        at += 1


def problems(text):
    """Line and type of each error that is a text."""
    code = own_code(text)
    found = [(m.end(), m[1]) for m in re.finditer(r"\btype\s+Err(?:or)?\s*=\s*([^;]+);", code)]
    for m in re.finditer(r"\bResult\s*<", code):
        found += list(arguments(code, m.end()))[1:2]
    for at, error in found:
        if re.search(r"(?<!<)\bString\b|<\s*(?:'\w+\s*,\s*)?(?:String|str)\b", error):
            yield code.count("\n", 0, at) + 1, " ".join(error.split())


# Each is code with one violation.
PLANTED = [
    "fn f() -> Result<(), String> {}",
    "fn f() -> std::result::Result<Option<Vec<(u64, u64)>>, String> {}",
    "fn f() -> Result<\n    BTreeMap<String, Baseline>,\n    String,\n> {}",
    "fn f() -> Result<(), (Place, String)> {}",
    "fn f() -> Result<u8, Box<String>> {}",
    "fn f() -> Result<u8, Cow<'static, str>> {}",
    "fn f(g: impl Fn(u8) -> Result<u8, String>) {}",
    "type Asked = Option<oneshot::Sender<Result<Box<Config>, String>>>;",
    "type Result<T> = std::result::Result<T, String>;",
    "impl FromStr for Size {\n    type Err = String;\n}",
    "/// It fails with `Result<(), BadConfig>`.\nfn f() -> Result<(), String> {}",
]
# These have none.
SOUND = [
    "fn f() -> Result<String, BadConfig> {}",
    "fn f() -> io::Result<String> {}",
    "fn f(texts: Vec<Result<String, OpenError>>, more: String) -> Result<(String, u8), NodeError> {}",
    "/// Formerly `Result<(), String>`.\nfn f() -> Result<fn(u8) -> String, NodeError> {}",
    'fn f() { g("Result<(), String>") }',
    "fn f() {}\n#[cfg(test)]\nmod tests {\n    fn g() -> Result<(), String> {}\n}",
]


def main():
    wrong = [f"a planted violation isn't found: {code!r}" for code in PLANTED if len(list(problems(code))) != 1]
    wrong += [f"a violation is found where none is: {code!r}" for code in SOUND if list(problems(code))]
    files = [f for f in sorted(SOURCE.rglob("*.rs")) if f.name != "tests.rs" and "tests" not in f.relative_to(SOURCE).parts]
    for file in files:
        for line, error in problems(file.read_text(encoding="utf-8")):
            what = f"an error is a text (`{error}`): give it a type, as `BadConfig`, `OpenError` or `NodeError`"
            wrong.append(f"{file.relative_to(ROOT)}:{line}: {what}")
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"types of the node's errors: {len(files)} files, {len(PLANTED)} planted violations; {len(wrong)} problems")
    sys.exit(bool(wrong))


main()
