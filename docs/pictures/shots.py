#!/usr/bin/env python3
"""Takes the pictures of the dashboard and of `plimsoll top` from a running node: docs/pictures/dashboard.png and top.svg.

The node is one of the demonstration's, with promises, under its load. `make shots` builds the program and calls this one.

    docs/pictures/shots.py PLIMSOLL
"""
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
# More than the slowest browser takes to begin: the demonstration is ended once the pictures are taken.
SECONDS = 300
# The histories have a minute by seconds, of which this part is filled when the pictures are taken.
FILLED = 40
ROWS, COLUMNS = 24, 100
COLOURS = {1: "#b5443c", 2: "#3f7d4e", 3: "#9a7417", 4: "#33566f", 5: "#7a4a8c", 6: "#2c7a86", 8: "#8a949c"}
CELL = (8.0, 17.0)


def screen(output):
    """The terminal's cells after `output`: characters with their colour and weight. It knows what ratatui sends: positions and styles."""
    cells = [[(" ", None, False)] * COLUMNS for _ in range(ROWS)]
    row, column, colour, bold = 0, 0, None, False
    for m in re.finditer(r"\x1b\[([?0-9;]*)([A-Za-z])|([^\x1b])", output):
        codes, order, text = m.groups()
        if text:
            if row < ROWS and column < COLUMNS:
                cells[row][column] = (text, colour, bold)
            column += 1
        elif order == "H":
            row, column = ([int(n) - 1 for n in codes.split(";")] if codes else [0, 0])
        elif order == "J":
            cells = [[(" ", None, False)] * COLUMNS for _ in range(ROWS)]
        elif order == "m":
            codes = [int(n or 0) for n in codes.split(";")]
            while codes:
                code = codes.pop(0)
                if code in (38, 48) and codes[:1] == [5]:
                    value = codes[1]
                    del codes[:2]
                    colour = COLOURS.get(value) if code == 38 else colour
                elif code in (0, 39):
                    colour, bold = None, bold and code == 39
                elif code in (1, 22):
                    bold = code == 1
    return cells


def svg(cells):
    """The cells as text of an SVG, one element for each run of one style."""
    width, height = COLUMNS * CELL[0] + 20, ROWS * CELL[1] + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img"><title>plimsoll top</title>',
        '<style>text{font:13px "DejaVu Sans Mono",monospace;white-space:pre;fill:#1a1a1a}</style>',
        f'<rect width="{width:g}" height="{height:g}" rx="6" fill="#f5f7fa" stroke="#33566f"/>',
    ]
    for number, row in enumerate(cells):
        begin = 0
        while begin < COLUMNS:
            end = begin
            while end < COLUMNS and row[end][1:] == row[begin][1:]:
                end += 1
            text = "".join(cell[0] for cell in row[begin:end]).rstrip()
            left = begin + len(text) - len(text.lstrip())
            if text := text.strip():
                style = (f' fill="{row[begin][1]}"' if row[begin][1] else "") + (' font-weight="bold"' if row[begin][2] else "")
                style = style.replace(' fill="', ' style="fill:') if row[begin][1] else style
                x, y, length = 10 + left * CELL[0], 22 + number * CELL[1], len(text) * CELL[0]
                parts.append(f'<text x="{x:g}" y="{y:g}" textLength="{length:g}"{style}>{escape(text)}</text>')
            begin = end
    return "\n".join([*parts, "</svg>\n"])


def top(program, address):
    """Returns the screen of `plimsoll top` in a terminal after a few seconds."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        time.sleep(0.2)  # until the terminal has its size
        os.execv(program, [program, "top", "--control", address])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    output, until = b"", time.monotonic() + 5
    while (left := until - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            try:
                output += os.read(terminal, 1 << 16)
            except OSError:
                sys.exit(f"shots: `plimsoll top` ended early, with: {output.decode(errors='replace').strip()}")
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    return output.decode("utf-8", errors="replace")


def dashboard(address, picture):
    """The dashboard as Chromium draws it, once it has fetched the histories."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
             "--window-size=1400,1100", "--virtual-time-budget=3000", f"--screenshot={picture}", f"http://{address}/"],
            check=True, timeout=SECONDS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )


def main(program):
    demo = subprocess.Popen([program, "demo", "--seconds", str(SECONDS)], stdout=subprocess.PIPE, text=True)
    try:
        address = None
        for line in demo.stdout:
            if m := re.search(r"with: http://([0-9.:]+)/", line):
                address = m.group(1)
            if re.match(rf"\s+{FILLED} ", line):
                break
        if address is None or demo.poll() is not None:
            sys.exit("shots: the demonstration ended early, or printed no address of a dashboard")
        with tempfile.TemporaryDirectory() as taken:
            picture = Path(taken) / "dashboard.png"
            dashboard(address, picture)
            text = svg(screen(top(program, address)))
            if demo.poll() is not None:
                sys.exit("shots: the demonstration ended before the pictures were taken; the old ones stay")
            shutil.copyfile(picture, HERE / "dashboard.png")
            (HERE / "top.svg").write_text(text, encoding="utf-8")
    finally:
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=60)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(os.path.abspath(sys.argv[1]))
