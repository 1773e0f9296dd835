#!/usr/bin/env python3
"""Draws the pictures of the documents: docs/pictures/*.svg. With --check it only compares (part of `make lint`)."""
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
STYLE = (
    "text{font:13px sans-serif;fill:#1a1a1a}.s{font-size:11px;fill:#555}.h{font-weight:600}"
    ".b{fill:#f5f7fa;stroke:#33566f;stroke-width:1.2}.o{fill:#fff;stroke:#33566f;stroke-width:1.2;stroke-dasharray:4 3}"
    ".w{fill:#e3b23c}.g{fill:#5a9367}.r{fill:#b5443c}.n{fill:#d9e2ea;stroke:#33566f}"
    ".l{stroke:#33566f;stroke-width:1.3;fill:none;marker-end:url(#a)}.p{stroke:#33566f;stroke-width:1;fill:none}"
    ".e{stroke:#b5443c;stroke-width:1.5;fill:none;marker-end:url(#r)}.d{stroke:#b5443c;stroke-width:1.2;stroke-dasharray:5 3}"
)
ARROW = '<marker id="{0}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{1}"/></marker>'


class Picture:
    def __init__(self, width, height, title):
        self.size, self.title, self.parts = (width, height), title, []

    def box(self, x, y, w, h, text="", small="", css="b"):
        self.parts.append(f'<rect class="{css}" x="{x}" y="{y}" width="{w}" height="{h}" rx="4"/>')
        middle = y + h / 2 + (4 if not small else -3)
        if text:
            self.parts.append(f'<text class="h" x="{x + w / 2}" y="{middle}" text-anchor="middle">{text}</text>')
        if small:
            self.parts.append(f'<text class="s" x="{x + w / 2}" y="{middle + 15}" text-anchor="middle">{small}</text>')

    def text(self, x, y, text, css="", anchor="start"):
        self.parts.append(f'<text class="{css}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>')

    def line(self, points, css="l"):
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        self.parts.append(f'<path class="{css}" d="{path}"/>')

    def svg(self):
        w, h = self.size
        marks = ARROW.format("a", "#33566f") + ARROW.format("r", "#b5443c")
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img">\n'
            f"<title>{self.title}</title><style>{STYLE}</style><defs>{marks}</defs>\n"
            f'<rect width="{w}" height="{h}" fill="#fff"/>\n{body}\n</svg>\n'
        )


def stack():
    """The layers of a pool, in the order of crates/pool/src/build.rs."""
    p = Picture(760, 640, "The layers of a pool, from client to device")
    p.box(200, 12, 240, 40, "client", "NBD or NVMe/TCP")
    rows = [
        ("admission", "refuses what is too likely late", "b"),
        ("throttle", "limits of a volume", "o"),
        ("front", "overlaps, whole blocks, flush rule", "b"),
        ("cores", "objectives and shares", "o"),
        ("cache", "flash before the device", "o"),
        ("map", "volume address to device address", "b"),
        ("memory", "page cache", "o"),
        ("logs", "small durable writes", "o"),
        ("fence", "time slots", "o"),
        ("scheduler", "order, and the device's forecast", "b"),
        ("model", "a modelled device's times", "o"),
    ]
    y = 66
    for name, task, css in rows:
        p.box(200, y, 240, 38, name, task, css)
        if name == "cache":
            cache = y + 19
        if name == "fence":
            fence = y + 19
        y += 46
    p.box(200, y, 240, 40, "device", "file, block device")
    p.line([(320, 52), (320, 65)])
    p.line([(320, y - 10), (320, y - 1)])
    p.box(530, fence - 20, 200, 40, "fast device", "of the cache", "b")
    p.line([(440, cache), (630, cache), (630, fence - 21)])
    p.text(536, cache - 6, "through the fence, if any", "s")
    p.line([(440, fence), (529, fence)], "p")
    p.line([(150, y + 20), (60, y + 20), (60, 32), (198, 32)])
    p.line([(200, y + 20), (150, y + 20)], "p")
    p.text(70, 300, "Done", "h")
    p.text(70, 318, "Failed", "h")
    p.line([(200, 85), (130, 85), (130, 44), (198, 44)], "e")
    p.text(70, 108, "Busy, with the", "s")
    p.text(70, 122, "predicted wait", "s")
    p.text(470, 24, "dashed: only if configured", "s")
    p.text(470, 40, "one thread and one forecast for all of them", "s")
    return p


def refused_read():
    p = Picture(760, 330, "Time line of one refused read")
    names = [("client", 40), ("node 1", 120), ("node 2", 200)]
    for name, y in names:
        p.text(16, y + 20, name, "h")
        p.line([(90, y + 15), (740, y + 15)], "p")
    x0, deadline = 110, 420
    p.line([(x0, 40), (x0, 262)], "p")
    p.text(x0, 280, "0 ms: the read begins", "s", "middle")
    p.line([(deadline, 30), (deadline, 262)], "d")
    p.text(deadline, 280, "20 ms: its deadline", "s", "middle")
    p.line([(x0, 55), (x0 + 18, 134)])
    p.box(x0 + 20, 122, 527, 26, "queued before it: 34 ms", "", "w")
    p.line([(x0 + 22, 134), (x0 + 42, 57)], "e")
    p.text(x0 + 52, 92, "Busy, wait 34 ms: 0.2 ms after arrival; nothing is queued", "s")
    p.line([(x0 + 44, 55), (x0 + 62, 214)])
    p.box(x0 + 64, 202, 90, 26, "6 ms", "", "g")
    p.line([(x0 + 154, 214), (x0 + 174, 57)])
    p.text(x0 + 182, 50, "data after 6.5 ms", "s")
    p.box(x0 + 547, 122, 90, 26, "its turn", "", "n")
    p.text(x0 + 637, 166, "would have ended after 40 ms", "s", "end")
    p.text(16, 316, "Times are an example. A client without another replica doesn't ask for Busy: its read waits.", "s")
    return p


def write_back():
    p = Picture(760, 300, "States of an extent in a write-back cache")
    p.box(20, 110, 130, 50, "absent", "only on the device")
    p.box(250, 40, 150, 50, "clean", "equal on both")
    p.box(250, 190, 150, 50, "dirty", "newer in the cache")
    p.box(540, 190, 180, 50, "dirty, durable", "chunk and journal record")
    p.box(540, 40, 180, 50, "writing back", "still valid in the cache")
    p.line([(150, 125), (249, 66)])
    p.text(150, 84, "read, fill", "s")
    p.line([(150, 148), (249, 214)])
    p.text(150, 198, "write", "s")
    p.line([(315, 90), (315, 189)])
    p.text(240, 144, "write", "s")
    p.line([(400, 215), (539, 215)])
    p.text(420, 208, "flush: acknowledged", "s")
    p.line([(630, 190), (630, 91)])
    p.text(640, 144, "above the watermark", "s")
    p.line([(540, 58), (401, 58)])
    p.text(416, 48, "device flushed", "s")
    p.line([(560, 90), (401, 200)])
    p.text(448, 140, "written again", "s")
    p.line([(280, 40), (280, 20), (85, 20), (85, 109)])
    p.text(90, 16, "evicted", "s")
    p.text(20, 285, "A dirty extent is never evicted. After a loss of power, a flushed extent is dirty and durable again.", "s")
    return p


def slots():
    p = Picture(760, 250, "Slots of a fence")
    p.text(16, 26, "One rotation: four slots of 20 ms. Volume web owns two of them, mail and logs one each.", "s")
    x, width = 90, 150
    for i, (owner, css) in enumerate([("web", "n"), ("mail", "b"), ("web", "n"), ("logs", "b")]):
        p.box(x + i * (width + 6), 40, width, 36, owner, "", css)
    p.text(16, 64, "slots", "h")
    p.text(16, 124, "disk", "h")
    p.text(16, 184, "web waits", "h")
    for at, w, css in [(92, 60, "g"), (154, 70, "g"), (248, 100, "w"), (404, 130, "g"), (560, 90, "w")]:
        p.box(at, 104, w, 30, "", "", css)
    p.text(100, 124, "batch", "s")
    p.text(164, 124, "batch", "s")
    p.line([(224, 119), (244, 119)], "d")
    p.text(196, 152, "credit: its next turn is longer", "s")
    p.line([(534, 119), (554, 119)], "d")
    p.text(560, 152, "unused time stays idle", "s")
    p.line([(246, 180), (402, 180)], "l")
    p.text(252, 200, "a request that arrives here waits for", "s")
    p.text(252, 215, "the next slot of web: known exactly", "s")
    p.text(16, 240, "The largest batch that is predicted to end within the slot is sent; an overrun is taken from the next turn (debit).", "s")
    return p


def main():
    wrong = []
    for name, draw in [("stack", stack), ("refused-read", refused_read), ("write-back", write_back), ("slots", slots)]:
        file, text = HERE / f"{name}.svg", draw().svg()
        if sys.argv[1:] == ["--check"]:
            if not file.exists() or file.read_text(encoding="utf-8") != text:
                wrong.append(file.name)
        else:
            file.write_text(text, encoding="utf-8")
    if wrong:
        sys.exit(f"docs/pictures: {', '.join(wrong)} differ from draw.py: run docs/pictures/draw.py")


main()
