#!/usr/bin/env python3
"""Every message that an operator can meet is in docs/guides/troubleshoot.md, and each of that page is one of the program's.

Messages are the texts of problems, of errors and warnings of `plimsoll check`, and of refused starts, in the files below. The page
quotes a message between “`” with “…” for what the program fills in.

    tests/messages.py           check
    tests/messages.py --list    print the messages as the page must quote them
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/guides/troubleshoot.md"
SOURCES = [
    "crates/fs/src/tell.rs",
    "crates/node/src/config.rs",
    "crates/node/src/config/limits.rs",
    "crates/node/src/config/nvme_host.rs",
    "crates/node/src/config/pool.rs",
    "crates/node/src/config/read.rs",
    "crates/node/src/config/subsystem.rs",
    "crates/node/src/config/tenant.rs",
    "crates/node/src/config/text.rs",
    "crates/node/src/http/problems.rs",
    "crates/node/src/engine/ring.rs",
    "crates/node/src/look.rs",
    "crates/node/src/objectives.rs",
    "crates/node/src/open.rs",
    "crates/node/src/open/cache.rs",
    "crates/node/src/open/error.rs",
    "crates/node/src/open/give_up.rs",
    "crates/node/src/open/growth.rs",
    "crates/node/src/open/own.rs",
    "crates/node/src/open/rehearsal.rs",
    "crates/node/src/parts/cache/device.rs",
    "crates/node/src/node/changing.rs",
    "crates/node/src/node/ending.rs",
    "crates/node/src/node/error.rs",
    "crates/node/src/node/late.rs",
    "crates/node/src/node/namesakes.rs",
    "crates/store/src/device.rs",
    "crates/store/src/lock.rs",
    "crates/store/src/meta.rs",
    "crates/store/src/superblock.rs",
]
# Texts that are no messages: parts of others, log lines, keys of problems.
WORDS_LEAST = 3
PARTS = ["a device that it doesn't name", "none at all", "invalid type: map", "invalid socket address syntax"]
# Fields of an impossible superblock, which its message ends with, and an assertion.
PARTS += [
    "a superblock that can't be decoded must not be written",
    "sequence has no successor",
    "neither formatted nor not",
    "block size is not a power of two from 512 to 65536",
    "regions are empty, overlap, or are out of order",
    "a region is not aligned to 1 MiB",
    "not exactly one region each of superblock, metadata and home",
    "the first region is not the superblock's at offset 0",
    "role, time of creation or block size",
    "regions, though not in their sequence",
    "more regions than fit",
    "unknown region kind",
    "role is not UTF-8",
    "it names no main device, as its version does",
    "a role is 1 to 31 of a-z, 0-9 and '-'",
]


def messages(name):
    """String literals of a file's own code, as the page quotes them: without tests, comments, attributes and assertions."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.split(r"\n#\[cfg\(test\)\]\nmod ", text)[0]
    text = re.sub(r"^\s*//.*$", "", text, flags=re.M)
    text = re.sub(r"#\[[^\]]*\]", "", text)
    text = re.sub(r'\b(expect|unwrap_or_else|assert\w*!|unreachable!|panic!|tracing::\w+!)\((?:[^()"]|"(?:[^"\\]|\\.)*"|\([^()]*\))*\)', "", text)
    for m in re.finditer(r'"((?:[^"\\]|\\.)*)"', text, flags=re.S):
        literal = re.sub(r"\\\n\s*", "", m.group(1)).replace('\\"', '"')
        literal = re.sub(r"\{[^{}]*\}", "…", literal)
        words = re.findall(r"[A-Za-z']{2,}", literal)
        if len(words) >= WORDS_LEAST and " " in literal and literal not in PARTS:
            yield quoted(literal)


def quoted(literal):
    """A message as it stands in a code span: it can hold no back-ticks."""
    return re.sub(r"\s+", " ", re.sub(r"^[…: ]+|[…: ]+$", "", literal.replace("`", "")))


def main():
    wanted = {text: name for name in SOURCES for text in messages(name)}
    if sys.argv[1:] == ["--list"]:
        for text, name in wanted.items():
            print(f"{name}: {text}")
        return
    page = PAGE.read_text(encoding="utf-8")
    section, quotes = "", {}
    for line in page.splitlines():
        if m := re.match(r"## (.*)", line):
            section = m.group(1)
        if m := re.match(r"\* `([^`]+)`$", line):
            quotes[m.group(1)] = section
    wrong = [f"{name}: {PAGE.name} lacks `{text}`" for text, name in wanted.items() if text not in quotes]
    wrong += [f"{PAGE.name}: no program has the message `{text}`" for text in quotes if text not in wanted]
    for text in wrong:
        print(text)
    print(f"messages: {len(wanted)} in {len(SOURCES)} files, {len(wrong)} wrong")
    sys.exit(bool(wrong))


main()
