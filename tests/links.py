#!/usr/bin/env python3
"""Links of the documents: each relative link's file and anchor exist, each page of docs is in docs/SUMMARY.md, and each mention of
`docs/….md` elsewhere in the tree names a page. Pages that moved are in docs/book.toml, as the site's redirects.

    tests/links.py           check
    tests/links.py --fix     rewrites links to pages that moved
"""
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!`)(!?\[[^\]]*\]\()([^)\s]+)(\))")
MENTION = re.compile(r"(?<![\w/-])docs/[a-z0-9/-]+\.md")


def moved():
    book = tomllib.loads((ROOT / "docs/book.toml").read_text(encoding="utf-8"))
    pages = book["output"]["html"]["redirect"].items()
    return {"docs" + old.replace(".html", ".md"): "docs/" + new.replace(".html", ".md") for old, new in pages}


def tracked():
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [n for n in sorted(set(out.stdout.decode().split("\0"))) if n and (ROOT / n).is_file()]


def anchors(path):
    """Anchors of a page's headings, as GitHub and mdBook make them, and explicit ones."""
    found, fenced = set(), False
    for line in path.read_text(encoding="utf-8").splitlines():
        fenced ^= line.lstrip().startswith("```")
        if not fenced and (m := re.match(r"#+ (.*)", line)):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", m.group(1)).lower()
            slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            while slug in found:
                slug = re.sub(r"(-\d+)?$", lambda s: f"-{int(s.group(0)[1:] or 0) + 1}", slug, count=1)
            found.add(slug)
        found.update(re.findall(r'<a id="([^"]+)"', line))
    return found


def lines_outside_code(text):
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced:
            yield number, line


def fix(names, old_to_new):
    for name in names:
        path = ROOT / name
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        here = os.path.dirname(name)

        def link(m):
            file, _, anchor = m.group(2).partition("#")
            new = old_to_new.get(os.path.normpath(os.path.join(here, file)))
            if not new or (here and os.path.exists(ROOT / here / file)):
                return m.group(0)
            return m.group(1) + os.path.relpath(new, here or ".") + (f"#{anchor}" if anchor else "") + m.group(3)

        fixed = LINK.sub(link, text) if name.endswith(".md") else text
        fixed = MENTION.sub(lambda m: old_to_new.get(m.group(0), m.group(0)), fixed)
        if fixed != text:
            path.write_text(fixed, encoding="utf-8")
            print(f"fixed {name}")


def main():
    old_to_new = moved()
    names = [n for n in tracked() if not n.startswith(("fuzz/seeds/", "target/", "tests/links.py", "tests/words.py"))]
    if sys.argv[1:] == ["--fix"]:
        fix(names, old_to_new)
    wrong, known, links = [], {}, 0
    for name in names:
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for m in MENTION.finditer(text):
            if not (ROOT / m.group(0)).exists() and not name.endswith("book.toml"):
                hint = f"; it is {old_to_new[m.group(0)]} now" if m.group(0) in old_to_new else ""
                wrong.append(f"{name}: names {m.group(0)}, which isn't there{hint}")
        if not name.endswith(".md"):
            continue
        for number, line in lines_outside_code(text):
            for m in LINK.finditer(re.sub(r"`[^`]*`", lambda c: "`" * len(c.group(0)), line)):
                target = m.group(2)
                if re.match(r"[a-z+]+:", target):
                    continue
                links += 1
                file, _, anchor = target.partition("#")
                page = (ROOT / name).parent / file if file else ROOT / name
                if not page.exists():
                    was = os.path.normpath(os.path.join(os.path.dirname(name), file))
                    hint = f"; it is {old_to_new[was]} now" if was in old_to_new else ""
                    wrong.append(f"{name}:{number}: no file {target}{hint}")
                elif anchor and page.suffix == ".md":
                    page = page.resolve()
                    known.setdefault(page, anchors(page))
                    if anchor not in known[page]:
                        wrong.append(f"{name}:{number}: no anchor #{anchor} in {file or name}")
    summary = (ROOT / "docs/SUMMARY.md").read_text(encoding="utf-8")
    listed = {os.path.normpath("docs/" + m.group(2)) for m in LINK.finditer(summary)}
    for name in names:
        if name.startswith("docs/") and name.endswith(".md") and name not in listed and name != "docs/SUMMARY.md":
            # docs/results is generated, and lists its pages itself; a page beside SUMMARY.md hasn't found its folder yet.
            if name.count("/") == 1:
                print(f"{name}: give it a folder and a line in docs/SUMMARY.md")
            elif not name.startswith("docs/results/"):
                wrong.append(f"{name}: isn't in docs/SUMMARY.md")
    for text in wrong:
        print(text)
    print(f"links: {links} relative links, {len(listed)} pages in the summary, {len(wrong)} wrong")
    sys.exit(bool(wrong))


main()
