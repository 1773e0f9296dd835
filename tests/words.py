#!/usr/bin/env python3
"""Plain English, checked: docs/contributing/prose.md has the rules that this program can see.

It reads Markdown, comments and string literals of Rust, docstrings of Python, comments of TOML, the API's description and the
dashboard, and counts findings by file and rule. Tests, fuzz targets and benchmarks are checked for the beginning of comments only.
tests/words.json holds the count that each older file may have: it only falls. A file that isn't listed may have none. Each run
first checks that every rule finds its example in EXAMPLES.

    tests/words.py                    check; prints each file that is above its count, with its findings
    tests/words.py FILE...            all findings of these files, whatever their count
    tests/words.py --update           lowers counts to what is found; never raises one
    tests/words.py --move OLD NEW     takes a renamed file's count along
    tests/words.py --adopt REASON     lists what is above its count, with a reason: for branches begun before a rule
"""
import ast
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT / "tests/words.json"
SENTENCE_WORDS = 25

# Words to avoid, each with its replacement.
BANNED = [
    (r"(go|goes|going|gone|went|come|comes|came|is|are|be|been) home", "write back, checkpoint"),
    (r"homecomings?", "write-back"),
    (r"mend(s|ed|ing)?", "fix"),
    (r"believ(e|es|ed|ing)", "trust, valid"),
    (r"for good", "durably, permanently"),
    (r"rot(s|ted|ting)?", "corrupt"),
    (r"spoil(s|ed|ing)?", "corrupt, invalidate"),
    (r"if (it'?s )?not said|unless said|isn't said|not said", "default"),
    (r"so many|as many", "a number, a constant's name or N"),
    (r"so much|as much", "a number, a constant's name or N"),
    (r"(requests?|reads?|writes?|queries|I/Os?|bytes|jobs) inside(?! (a|an|the|of|its|this|that|one|each|every)\b)", "in flight"),
    (r"told", "notified, reported, receives"),
    (r"said", "set, configured, stated"),
    (r"lives", "restarts; is in"),
    (r"counts? for a (start|recovery)", "is valid at recovery"),
    (r"on trial", "unconfirmed"),
    (r"let go", "disconnect, release"),
    (r"in vain", "without effect, needlessly"),
    (r"likewise", "say it again"),
    (r"obey(s|ed|ing)?", "handle"),
    (r"hopeless(ly)?", "unreachable"),
    (r"noted", "recorded"),
]
BANNED_RE = [(re.compile(rf"\b({p})(?![\w-])", re.I), instead) for p, instead in BANNED]
HEADLESS = re.compile(r"(What(ever)?|Who(ever)?|Whose|Whom|Which|Where|How|Why|Whether|When)\b")
# No sentence of a doc comment begins with a noun clause. No doc comment begins with a predicate, nor asks.
NOUN_CLAUSE = re.compile(r"(What(ever)?|Who(ever)?|Whose|Whom|Which|How)\b")
PREDICATE = re.compile(
    r"(Is|Are|Was|Were|Does|Did|Has|Have|Had|May|Might|Can|Could|Must|Shall|Should|Will|Would)(n't)?\b|Do\b|Won't\b"
)
QUESTION = re.compile(r"[\w)\]’'\"]\?(?=\s|$)")
HASH = re.compile(r"(?<![\w/.#-])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{7,12}(?![\w-])")
MEASURED = re.compile(r"\bn = \d|\bseeds? \d+( to|–|-)|±|\bmeasured (here|on this machine)\b|\bthis machine\b", re.I)

# Figures and seeds are at home in results; papers and device models cite published figures.
FIGURES_ALLOWED = ("docs/results/", "docs/papers/", "docs/design/", "CHANGELOG.md")
GENERATED = ("docs/reference/cli.md", "docs/reference/configuration.md", "docs/reference/api.md")
SKIPPED = ("docs/results/", "target/", "packaging/rules_test.yml")
TESTS = re.compile(r"^(fuzz|tests|bench)/|/(tests|benches)/|tests\.rs$")


def files():
    """Paths of the tree's texts, as git has them: also those that aren't committed yet."""
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in sorted(set(out.stdout.decode().split("\0"))):
        if name and not name.startswith(SKIPPED) and reader(name) and (ROOT / name).is_file():
            yield name


def sentences(text):
    """Sentences of running text, without code, links' targets and URLs."""
    text = re.sub(r"`[^`]*`", "x", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<?https?://\S+", "x", text)
    text = re.sub(r"\be\.g\.|\bi\.e\.|\bvs\.|\bcf\.", "for", text)
    return [s for s in re.split(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_`]*[A-Z0-9x])", text) if s.strip()]


def words_of(sentence):
    return len(re.findall(r"[A-Za-z0-9][\w'’.,%/-]*", sentence))


def banned(text, at, findings):
    text = re.sub(r"`[^`]*`", "x", text)
    for pattern, instead in BANNED_RE:
        for m in pattern.finditer(text):
            findings.append((at, "word", f"“{m.group(0)}”: write {instead}"))


def markdown(name, lines):
    """Paragraphs and list items are running text; tables and code aren't."""
    findings, paragraph, begin, fenced = [], [], 0, False

    def end():
        text = " ".join(paragraph)
        paragraph.clear()
        banned(text, begin, findings)
        for s in sentences(text):
            if (n := words_of(s)) > SENTENCE_WORDS:
                findings.append((begin, "long", f"{n} words: {s.strip()[:70]}…"))

    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            end()
            fenced = not fenced
            continue
        if fenced:
            continue
        if not name.startswith(FIGURES_ALLOWED):
            bare = re.sub(r"`[^`]*`", "", line)
            for m in HASH.finditer(bare):
                findings.append((number, "figure", f"commit {m.group(0)}: belongs into docs/results"))
            if m := MEASURED.search(bare):
                findings.append((number, "figure", f"“{m.group(0)}”: measured figures belong into docs/results"))
        row = line.lstrip().startswith("|")
        if row or not line.strip() or re.match(r"\s*(#|[*+-] |\d+\. |>|<)", line):
            end()
            begin = number
        if row:
            banned(line, number, findings)
        elif line.strip():
            paragraph.append(re.sub(r"^\s*(#+|[*+-]|\d+\.|>)\s+", "", line.rstrip()))
            if line.startswith("#"):
                end()
                begin = number + 1
    end()
    return findings


def beginning(text, at, findings):
    """The beginning of a doc comment or docstring."""
    if m := HEADLESS.match(text):
        findings.append((at, "doc", f"begins with “{m.group(0)}”: name the subject by a noun, or begin with a verb"))
    elif m := PREDICATE.match(text):
        findings.append((at, "doc", f"begins with “{m.group(0)}”: write “True if …”, “Checks that …” or a sentence with its subject"))


def asking(text, at, findings):
    """Questions: a comment states its fact, and the reason."""
    if QUESTION.search(re.sub(r"`[^`]*`", "x", text)):
        findings.append((at, "question", f"asks: “{text.strip()[:70]}”: state the fact, and the reason"))


def rust(name, lines):
    """Doc comments and strings, up to the file's own tests. Of tests, the beginnings of doc comments. Everywhere, questions."""
    findings, block, tests = [], [], bool(TESTS.search(name))

    def end():
        if not block:
            return
        beginning(block[0][1], block[0][0], findings)
        fenced, paragraph = False, []

        def end_paragraph():
            for s in sentences(" ".join(t for _, t in paragraph))[0 if paragraph and paragraph[0] != block[0] else 1 :]:
                if not tests and (m := NOUN_CLAUSE.match(s)):
                    findings.append((paragraph[0][0], "doc", f"a sentence begins with “{m.group(0)}”: “{s.strip()[:60]}”"))
            paragraph.clear()

        for at, text in block:
            fence = text.startswith("```")
            fenced ^= fence
            if fence or fenced:
                end_paragraph()
                continue
            asking(text, at, findings)
            if not tests:
                banned(text, at, findings)
            if not text.strip() or re.match(r"[#|]|[*+-] |\d+\. ", text):
                end_paragraph()
            if text.strip() and not re.match(r"[#|]", text):
                paragraph.append((at, re.sub(r"^([*+-]|\d+\.) ", "", text)))
        end_paragraph()
        block.clear()

    for number, line in enumerate(lines, 1):
        if re.match(r"\s*#\[cfg\(test\)\]\s*$", line) and re.match(r"\s*mod \w+ \{", "".join(lines[number : number + 1])):
            end()
            tests = True
        if m := re.match(r"\s*//[/!] ?(.*)", line):
            if m.group(1).strip():
                block.append((number, m.group(1)))
            else:
                block and block.append((number, ""))
            continue
        end()
        if m := re.match(r"\s*// ?(.*)", line):
            asking(m.group(1), number, findings)
            continue
        if tests:
            continue
        for m in re.finditer(r'"((?:[^"\\]|\\.)*)"', line):
            if " " in m.group(1):
                banned(re.sub(r"\{[^}]*\}", "x", m.group(1)), number, findings)
    end()
    return findings


def python(_name, lines):
    """Docstrings."""
    findings = []
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            at = node.body[0].lineno if text else 0
            beginning(text, at, findings)
            for line, part in enumerate(text.splitlines(), at):
                asking(part, line, findings)
    return findings


def toml(_name, lines):
    findings = []
    for number, line in enumerate(lines, 1):
        if m := re.match(r"\s*#\s(.*)", line):
            banned(m.group(1), number, findings)
    return findings


def description(_name, lines):
    """Texts of the API's description and of the dashboard's page."""
    findings = []
    for number, line in enumerate(lines, 1):
        for m in re.finditer(r'"((?:[^"\\]|\\.)*)"|>([^<>]*)<', line):
            if " " in (text := m.group(1) or m.group(2) or ""):
                banned(text, number, findings)
    return findings


def reader(name):
    if name in GENERATED:
        return None
    if name.endswith(".rs"):
        return rust
    if name.endswith((".py", ".pyi")):
        return python
    if TESTS.search(name):
        return None
    if name.endswith(".md"):
        return markdown
    if name.endswith(".toml") and not name.endswith("Cargo.toml"):
        return toml
    if name.endswith(("openapi.json", "dashboard.html", "rules.yml", "grafana.json")):
        return description
    return None


def findings_of(name):
    read = reader(name)
    return read(name, (ROOT / name).read_text(encoding="utf-8", errors="replace").splitlines()) if read else []


# One finding of each rule: a rule that misses its example ends the run.
EXAMPLES = [
    ("x.md", "The page goes home.", "word"),
    ("x.md", "word " * (SENTENCE_WORDS + 1), "long"),
    ("x.md", "It took 3 s (n = 40).", "figure"),
    ("src/x.rs", "/// What it holds.", "doc"),
    ("src/x.rs", "/// A map. What it holds is sorted.", "doc"),
    ("src/x.rs", "/// Is it empty?", "doc"),
    ("src/x.rs", "/// Hasn't the request ended yet.", "doc"),
    ("src/x.rs", "/// Returns the map. Was it empty?", "question"),
    ("src/x.rs", "// Why not here?", "question"),
    ("src/x.rs", "#[cfg(test)]\nmod tests;\n/// May be empty.", "doc"),
    ("src/x.rs", "#[cfg(test)]\nmod tests {\n    /// May be empty.", "doc"),
    ("src/x.rs", "/// The map was mended.", "word"),
    ("src/x.rs", 'let x = "was not mended";', "word"),
    ("x/tests/x.rs", "/// Can it end.", "doc"),
    ("x.py", 'def f():\n    """Does it end."""', "doc"),
    ("x.toml", "# The size goes home.", "word"),
    ("openapi.json", '"description": "The size was mended."', "word"),
]
# No findings.
GOOD = [
    ("src/x.rs", "/// True if the map is empty: `a?` has no entry. Isolated entries stay.\n// Not asked: a?b"),
    ("src/x.rs", "/// Doubles, Cancels, Wills: verbs.\n///\n/// ```text\n/// full? ─► wait\n/// ```"),
    ("x.py", 'def f():\n    """Returns it."""'),
]


def check_itself():
    """Ends the run if a rule misses its example, or finds something in a good text."""
    for name, text, rule in EXAMPLES:
        if rule not in {r for _, r, _ in reader(name)(name, text.splitlines())}:
            sys.exit(f"tests/words.py: rule “{rule}” doesn't find its example: {text}")
    for name, text in GOOD:
        if found := reader(name)(name, text.splitlines()):
            sys.exit(f"tests/words.py: findings in a good text: {text}: {found}")


def excepted(ledger, name, findings):
    """Findings without those that tests/words.json excepts with a reason."""
    lines = (ROOT / name).read_text(encoding="utf-8", errors="replace").splitlines() if findings else []
    rules = [e for e in ledger["exceptions"] if e["path"] == name]
    return [f for f in findings if not any(e["text"] in f[2] or e["text"] in lines[f[0] - 1] for e in rules)]


def save(ledger):
    LEDGER.write_text(json.dumps(ledger, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def main(args):
    check_itself()
    ledger = json.loads(LEDGER.read_text(encoding="utf-8"))
    counts = ledger["counts"]
    if any(not e.get("reason") for e in ledger["exceptions"]):
        sys.exit("tests/words.json: each exception needs a reason")
    if args[:1] == ["--move"]:
        counts[args[2]] = counts.pop(args[1])
        return save(ledger)
    if args and not args[0].startswith("--"):
        for name in args:
            for at, rule, text in excepted(ledger, name, findings_of(name)):
                print(f"{name}:{at}: {rule}: {text}")
        return None
    found = {name: excepted(ledger, name, findings_of(name)) for name in files()}
    tallies = {name: dict(Counter(rule for _, rule, _ in f)) for name, f in found.items() if f}
    above = {}
    for name, tally in tallies.items():
        rules = [rule for rule, n in tally.items() if n > counts.get(name, {}).get(rule, 0)]
        if rules:
            above[name] = rules
    if args[:1] == ["--update"]:
        for name in list(counts):
            left = {r: min(n, tallies.get(name, {}).get(r, 0)) for r, n in counts[name].items()}
            counts[name] = {r: n for r, n in left.items() if n}
            if not counts[name]:
                del counts[name]
        return save(ledger)
    if args[:1] == ["--adopt"]:
        reason = " ".join(args[1:])
        if not reason:
            sys.exit("--adopt needs a reason")
        for name in above:
            counts[name] = {r: max(tallies[name].get(r, 0), counts.get(name, {}).get(r, 0)) for r in {*tallies[name], *counts.get(name, {})}}
        ledger["adopted"].append({"reason": reason, "files": sorted(above)})
        print(f"adopted: {', '.join(sorted(above)) or 'nothing'}")
        return save(ledger)
    for name, rules in sorted(above.items()):
        for rule in rules:
            print(f"{name}: {tallies[name][rule]} × {rule}, {counts.get(name, {}).get(rule, 0)} allowed:")
            for at, r, text in found[name]:
                if r == rule:
                    print(f"  {name}:{at}: {text}")
    total = sum(sum(t.values()) for t in tallies.values())
    allowed = sum(sum(t.values()) for t in counts.values())
    print(f"words: {total} findings in {len(tallies)} files, {allowed} allowed ({len(found)} files read)")
    if above:
        sys.exit("words: see docs/contributing/prose.md; `tests/words.py FILE` lists a file's findings")
    if total < allowed:
        print("words: fewer than allowed: `tests/words.py --update` records it")
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
