"""usage: smoke.py BINDINGS PACKAGED SOCKET FILE: as c/smoke.c; PACKAGED stands for the folder in which the package has libraries."""

import importlib.util
import mmap
import sys
import time

bindings, packaged, socket, path = sys.argv[1:]
spec = importlib.util.spec_from_file_location("host", f"{bindings}/plimsoll/host.py")
host = importlib.util.module_from_spec(spec)
spec.loader.exec_module(host)
host._PACKAGED = packaged

h = host.Host(socket, refuse_first=True)
with open(path, "r+b") as f:
    # The agent is looked for in the background.
    until = time.monotonic() + 20
    while not h.forecast(f, 4096):
        assert time.monotonic() < until, "no agent was found"
        time.sleep(0.001)
    try:
        h.read(f, 4096, 0, 0)
        raise SystemExit("it wasn't refused")
    except host.Busy as busy:
        assert busy.wait > 0 and busy.confidence > 0.5, busy
    assert h.read(f, 4096, 0, 60) == b"\7" * 4096
    assert h.read(f, 4096, 0, 0) == b"\7" * 4096
    with mmap.mmap(f.fileno(), 4096) as m:
        h.addrcheck(m, 0, 4096, 0)
    try:
        h.read(9999, 1, 0, 0)
        raise SystemExit("it isn't open")
    except OSError as e:
        assert e.errno == 9, e
    assert h.counts()["busy"] == 1, h.counts()
print("ok")
