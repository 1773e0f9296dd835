#!/usr/bin/python3
"""Runs a node over a real Ceph cluster on this host, breaks things, and compares reads while one OSD stops 30 of every 100 ms.

usage: tests/ceph.py PLIMSOLL [--only NAME]... [--seconds N] [--json FILE]

Starts a cluster of one monitor, a manager and three OSDs (memory stores, a made-up CRUSH host each) on loopback, in a temporary
directory; ends it by process id. Needs Debian's ceph-mon ceph-osd ceph-mgr ceph-common librbd1 qemu-utils qemu-block-extra
qemu-system-common libnbd-bin python3-libnbd fio.
"""
import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import nbd

MIB = 1 << 20
PORT = 40300


def run(*command, check=True, timeout=120):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout)
    if check and done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def wait(what, ready, seconds=60.0):
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Cluster:
    """One host's Ceph: no authentication, no service manager."""

    def __init__(self, folder, osds=3):
        self.folder, self.osds = folder, osds
        self.processes = []
        for sub in ("run", "log", "mon", "mgr"):
            (folder / sub).mkdir()
        fsid = Path("/proc/sys/kernel/random/uuid").read_text().strip()
        self.conf = folder / "ceph.conf"
        settings = {
            "fsid": fsid, "mon host": f"[v2:127.0.0.1:{PORT}/0]", "public addr": "127.0.0.1", "cluster addr": "127.0.0.1",
            "auth cluster required": "none", "auth service required": "none", "auth client required": "none",
            "run dir": folder / "run", "pid file": folder / "run/$type.$id.pid", "crash dir": folder / "log",
            "admin socket": folder / "run/$type.$id.$pid.asok", "log file": folder / "log/$type.$id.log",
            "mon cluster log file": folder / "log/cluster.log", "osd pool default size": 3, "osd pool default min size": 1,
            "osd pool default pg num": 16, "osd pool default pg autoscale mode": "off", "osd crush chooseleaf type": 0,
            "mon allow pool size one": "true", "mon allow pool delete": "true", "mon data avail warn": 1,
            "mon data avail crit": 1, "ms bind ipv6": "false", "mon data": folder / "mon", "mgr data": folder / "mgr",
            "mgr initial modules": "", "osd data": folder / "osd.$id", "osd objectstore": "memstore",
            "memstore device bytes": 1 << 31, "osd op num shards": 2, "osd op num threads per shard": 1,
            # An OSD that is stopped for seconds stays up: what is tested is a slow one.
            "osd heartbeat grace": 30, "mon osd down out interval": 3600,
        }
        self.conf.write_text("[global]\n" + "".join(f"{k} = {v}\n" for k, v in settings.items()))
        os.environ["CEPH_CONF"] = str(self.conf)
        run("monmaptool", "--create", "--clobber", "--fsid", fsid, "--addv", "a", f"[v2:127.0.0.1:{PORT}]", str(folder / "monmap"))
        run("ceph-mon", "--mkfs", "-i", "a", "--monmap", str(folder / "monmap"))
        self.start("ceph-mon", "a")
        self.start("ceph-mgr", "x")
        self.pids = {}
        for i in range(osds):
            uuid = Path("/proc/sys/kernel/random/uuid").read_text().strip()
            (folder / f"osd.{i}").mkdir()
            run("ceph", "osd", "new", uuid, str(i))
            run("ceph-osd", "-i", str(i), "--mkfs", "--osd-uuid", uuid)
            self.pids[i] = self.start("ceph-osd", str(i)).pid
        wait("OSDs", lambda: json.loads(run("ceph", "osd", "stat", "--format", "json").stdout)["num_up_osds"] == osds)
        for i in range(osds):
            run("ceph", "osd", "crush", "add-bucket", f"h{i}", "host")
            run("ceph", "osd", "crush", "move", f"h{i}", "root=default")
            run("ceph", "osd", "crush", "set", f"osd.{i}", "1.0", "root=default", f"host=h{i}")
        run("ceph", "osd", "require-osd-release", "pacific", check=False)
        run("ceph", "osd", "set-require-min-compat-client", "octopus", check=False)
        run("ceph", "osd", "pool", "create", "rbd", "16", "16", "replicated")
        run("ceph", "osd", "pool", "application", "enable", "rbd", "rbd")
        self.settled()

    def start(self, program, name):
        process = subprocess.Popen([program, "-f", "-i", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def settled(self):
        clean = re.compile(r"^(\d+) pgs: \1 active\+clean;")
        wait("groups active and clean", lambda: clean.match(run("ceph", "pg", "stat").stdout), 120)

    def stop(self):
        for p in self.processes:
            p.send_signal(signal.SIGCONT)
            p.kill()
        for p in self.processes:
            p.wait()


class Node:
    """A gateway."""

    def __init__(self, plimsoll, folder, image, extra="", volume="64MiB", name="node"):
        self.plimsoll, self.folder, self.name = plimsoll, folder, name
        self.socket, self.log = folder / f"{name}.sock", folder / f"{name}.log"
        self.config = folder / f"{name}.toml"
        conf = os.environ["CEPH_CONF"]
        self.config.write_text(f"""
[listen]
unix = "{self.socket}"
[control]
http = "127.0.0.1:{free_port()}"
unix = "{folder / (name + '.control')}"
[[pool]]
name = "ceph"
device = {{ rbd = "rbd/{image}", conf = "{conf}", format = true }}
{extra}
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "v"
pool = "ceph"
tenant = "t"
size = "{volume}"
[[grant]]
peer = "uid:{os.getuid()}"
volumes = ["v"]
tenants = ["t"]
write = true
""")
        self.process = None

    @property
    def uri(self):
        return f"nbd+unix:///v?socket={self.socket}"

    def start(self, seconds=90):
        self.socket.unlink(missing_ok=True)
        out = open(self.log, "a")
        self.process = subprocess.Popen([self.plimsoll, "serve", "--config", self.config], stdout=out, stderr=out)
        wait(f"{self.name} serves: {self.log}", lambda: self.socket.exists() and self.is_ready() or self.has_ended(), seconds)
        if self.has_ended():
            raise SystemExit(f"{self.name} has ended: {self.log.read_text()[-2000:]}")
        return self

    def has_ended(self):
        return self.process.poll() is not None

    def is_ready(self):
        return run("nbdinfo", "--size", self.uri, check=False).returncode == 0

    def stop(self):
        if self.process and not self.has_ended():
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def pool(self):
        control = self.folder / f"{self.name}.control"
        return run(self.plimsoll, "pool", "show", "ceph", "--control", control, check=False).stdout


class Slow(threading.Thread):
    """Stops a process 30 of every 100 ms."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.over = pid, threading.Event()

    def run(self):
        while not self.over.is_set():
            os.kill(self.pid, signal.SIGSTOP)
            time.sleep(0.030)
            os.kill(self.pid, signal.SIGCONT)
            time.sleep(0.070)

    def end(self):
        self.over.set()
        self.join()
        os.kill(self.pid, signal.SIGCONT)


def image(name, size="512M", features="layering,exclusive-lock,object-map,fast-diff"):
    run("rbd", "create", "--size", size, "--image-feature", features, f"rbd/{name}")


def connect(uri):
    h = nbd.NBD()
    h.connect_uri(uri)
    return h


def expect(what, found):
    if not found:
        raise SystemExit(f"FAILED: {what}")
    print(f"  ok: {what}", flush=True)


def data(t):
    """Written data are there: nbdcopy, qemu-img, zeroes and trims at odd places, a restart."""
    image("data")
    checked = run(t.plimsoll, "check", Node(t.plimsoll, t.folder, "data").config, check=False)
    expect("`check` warns that all of the image is zeroed", "zeroes ALL" in checked.stdout)
    node = Node(t.plimsoll, t.folder, "data").start()
    (t.folder / "random").write_bytes(random.Random(1).randbytes(64 * MIB))
    run("nbdcopy", t.folder / "random", node.uri)
    expect("qemu-img compare", run("qemu-img", "compare", "-f", "raw", "-F", "raw", t.folder / "random", node.uri, check=False).returncode == 0)
    model = bytearray((t.folder / "random").read_bytes())
    h, draw = connect(node.uri), random.Random(2)
    for _ in range(400):
        offset, length = draw.randrange(0, 63 * MIB), draw.randrange(1, 300_000)
        match draw.randrange(4):
            case 0:
                payload = draw.randbytes(length)
                h.pwrite(payload, offset)
                model[offset : offset + length] = payload
            case 1:
                h.zero(length, offset)
                model[offset : offset + length] = bytes(length)
            case 2:
                # Advice: the blocks that it has only in part stay.
                h.trim(length, offset)
                first, last = -(-offset // 512) * 512, (offset + length) // 512 * 512
                if first < last:
                    model[first:last] = bytes(last - first)
            case 3:
                if h.pread(length, offset) != model[offset : offset + length]:
                    raise SystemExit(f"FAILED: {length} bytes at {offset} differ")
    h.flush()
    h.shutdown()
    node.stop()
    node.start()
    (t.folder / "model").write_bytes(model)
    same = run("qemu-img", "compare", "-f", "raw", "-F", "raw", t.folder / "model", node.uri, check=False)
    expect("400 drawn requests, then a restart: the same bytes", same.returncode == 0)
    node.stop()


def lock(t):
    """One gateway at a time; one whose lock is taken fails by name and writes nothing more."""
    image("lock")
    node = Node(t.plimsoll, t.folder, "lock").start()
    second = Node(t.plimsoll, t.folder, "lock", name="second")
    out = open(second.log, "w")
    second.process = subprocess.Popen([t.plimsoll, "serve", "--config", second.config], stdout=out, stderr=out)
    wait("the second gateway says why", lambda: "another client has it" in second.log.read_text(), 90)
    second.stop()
    expect("a second gateway is refused by name", True)
    h = connect(node.uri)
    h.pwrite(b"a" * 4096, 0)
    removed = run("rbd", "rm", "rbd/lock", check=False)
    expect("an image that is served can't be removed", removed.returncode != 0)
    owner = json.loads(run("rbd", "lock", "list", "--format", "json", "rbd/lock").stdout)[0]
    run("rbd", "lock", "remove", "rbd/lock", owner["id"], owner["locker"])
    wait("the node says that the lock is lost", lambda: "lock is lost" in node.log.read_text())
    refused = 0
    for offset in range(0, 20 * 4096, 4096):
        try:
            h.pwrite(b"b" * 4096, offset, nbd.CMD_FLAG_FUA)
        except nbd.Error:
            refused += 1
    expect("every write after the loss fails", refused == 20)
    try:
        h.pread(4096, 0)
        expect("reads after the loss fail, too", False)
    except nbd.Error:
        expect("reads after the loss fail, too", True)
    node.stop()
    node.start()
    expect("the next owner has what was written before, and nothing after", connect(node.uri).pread(4096, 0) == b"a" * 4096)
    node.stop()


def killed(t):
    """A gateway killed under load: every write that was acknowledged with FUA is there."""
    image("killed")
    node = Node(t.plimsoll, t.folder, "killed").start()
    acknowledged, blocks = 0, {at: [bytes(4096)] for at in range(2048)}
    for life in range(2):
        h = connect(node.uri)
        killer = threading.Timer(1.5, node.process.kill)
        killer.start()
        draw = random.Random(life)
        try:
            while True:
                at, content = draw.randrange(2048), draw.randbytes(4096)
                blocks[at].append(content)
                h.pwrite(content, at * 4096, nbd.CMD_FLAG_FUA)
                blocks[at] = [content]
                acknowledged += 1
        except nbd.Error:
            pass
        node.process.wait()
        began = time.monotonic()
        node.start(120)
        print(f"  serves again after {time.monotonic() - began:.1f} s", flush=True)
        h = connect(node.uri)
        for at, contents in blocks.items():
            blocks[at] = [bytes(h.pread(4096, at * 4096))]
            if blocks[at][0] not in contents:
                raise SystemExit(f"FAILED: block {at} has neither its acknowledged content nor the one under way")
    expect(f"{acknowledged} acknowledged writes are there after two kills", acknowledged > 100)
    node.stop()


def osds(t):
    """An OSD stopped for seconds: right data, late at most."""
    image("osds")
    node = Node(t.plimsoll, t.folder, "osds").start()
    h, model, draw = connect(node.uri), {}, random.Random(3)

    def some(n):
        for _ in range(n):
            at, content = draw.randrange(4096), draw.randbytes(4096)
            h.pwrite(content, at * 4096)
            model[at] = content

    some(500)
    os.kill(t.cluster.pids[1], signal.SIGSTOP)
    threading.Timer(3, os.kill, (t.cluster.pids[1], signal.SIGCONT)).start()
    some(50)
    for at, content in model.items():
        if h.pread(4096, at * 4096) != content:
            raise SystemExit(f"FAILED: block {at} differs")
    expect("an OSD stopped for 3 s: right data", True)
    node.stop()


def resized(t):
    """An image that is made smaller elsewhere fails its pool by name; one made larger doesn't."""
    image("resized")
    node = Node(t.plimsoll, t.folder, "resized").start()
    run("rbd", "resize", "--size", "600M", "rbd/resized")
    wait("the node says that the image is larger", lambda: "made larger" in node.log.read_text())
    connect(node.uri).pwrite(b"c" * 4096, 0)
    run("rbd", "resize", "--size", "20M", "--allow-shrink", "rbd/resized")
    wait("the node says that the image is smaller", lambda: "made smaller" in node.log.read_text())
    expect("an image that was made smaller isn't served", not node.is_ready())
    node.stop()


def full(t):
    """A pool at its quota: writes fail with ENOSPC, reads go on."""
    image("full")
    node = Node(t.plimsoll, t.folder, "full", volume="256MiB").start()
    h = connect(node.uri)
    h.pwrite(b"d" * 4096, 0)
    run("ceph", "osd", "pool", "set-quota", "rbd", "max_bytes", "1000")
    wait("the pool is full", lambda: "full" in run("ceph", "health", "detail").stdout.lower())
    time.sleep(2)  # the node's own map follows the monitors'
    outcome = "written"
    try:
        h.pwrite(b"e" * 4096, 200 * MIB)
    except nbd.Error as e:
        outcome = e.errno
    expect(f"a write to a full pool says ENOSPC ({outcome})", outcome == "ENOSPC")
    expect("reads go on", h.pread(4096, 0) == b"d" * 4096)
    run("ceph", "osd", "pool", "set-quota", "rbd", "max_bytes", "0")
    wait("the pool takes writes", lambda: written(h), 60)
    node.stop()


def written(h):
    try:
        h.pwrite(b"f" * 4096, 200 * MIB)
        return True
    except nbd.Error:
        return False


def load(uri, seconds, depth=8):
    """Random reads of 4 KiB by fio; requests a second, and p50, p99 and p99.9 in milliseconds."""
    out = run(
        "fio", "--name=r", "--ioengine=nbd", f"--uri={uri}", "--rw=randread", "--bs=4k", f"--iodepth={depth}", "--size=64m",
        "--time_based", f"--runtime={seconds}", "--randseed=7", "--output-format=json", timeout=seconds + 60,
    ).stdout
    r = json.loads(out[out.index("{") :])["jobs"][0]["read"]
    p = r["clat_ns"]["percentile"]
    return {
        "iops": r["iops"], "reads": r["total_ios"], "p50": p["50.000000"] / 1e6, "p99": p["99.000000"] / 1e6,
        "p99.9": p["99.900000"] / 1e6, "max": r["clat_ns"]["max"] / 1e6,
    }


class Daemon:
    """qemu-storage-daemon's rbd driver on an image, by NBD."""

    def __init__(self, folder, image, policy="", location=""):
        self.socket = folder / "qsd.sock"
        self.socket.unlink(missing_ok=True)
        conf = folder / "qsd.conf"
        more = (f"rbd read from replica policy = {policy}\n" if policy else "") + (f"crush location = {location}\n" if location else "")
        conf.write_text(Path(os.environ["CEPH_CONF"]).read_text() + more)
        self.uri = f"nbd+unix:///v?socket={self.socket}"
        self.process = subprocess.Popen([
            "qemu-storage-daemon", "--blockdev", f"driver=rbd,node-name=v,pool=rbd,image={image},conf={conf},cache.direct=on,read-only=on",
            "--nbd-server", f"addr.type=unix,addr.path={self.socket}", "--export", "type=nbd,id=e,node-name=v,name=v",
        ])
        wait("qemu-storage-daemon", self.socket.exists)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def steered(t):
    """Reads while osd.1 is stopped 30 of every 100 ms: steered, and what there is besides."""
    rows = []

    def row(name, uri, node=None):
        for state in ("healthy", "slow"):
            slow = Slow(t.cluster.pids[1]) if state == "slow" else None
            if slow:
                slow.start()
            try:
                load(uri, 2)
                r = {"row": name, "osd.1": state, **load(uri, t.seconds)}
            finally:
                if slow:
                    slow.end()
            rows.append(r)
            print(f"  {name:26} {state:8} {r['iops']:7.0f} reads/s  p50 {r['p50']:6.2f}  p99 {r['p99']:6.2f}  p99.9 {r['p99.9']:6.2f}  max {r['max']:7.2f} ms", flush=True)
        if node:
            print(node.pool())

    # A volume's bytes, and the same in an image of its own for qemu-storage-daemon.
    image("steered")
    image("plain")
    (t.folder / "fill").write_bytes(random.Random(5).randbytes(64 * MIB))
    run("rbd", "import", "--dest-pool", "rbd", t.folder / "fill", "filled")
    for name, extra in (("steered", ""), ("default (one black box)", 'sched = "blackbox"')):
        node = Node(t.plimsoll, t.folder, "steered", extra).start()
        run("nbdcopy", t.folder / "fill", node.uri)
        # Later writes of every group tell replicas that the earlier ones are stable.
        run("rbd", "bench", "--io-type", "write", "--io-size", "4K", "--io-total", "4M", "--io-pattern", "rand", "rbd/plain")
        time.sleep(3)  # the node has the cluster's map
        row(name, node.uri, node)
        node.stop()
    policies = [("qsd default", "", ""), ("qsd balance", "balance", "")]
    policies += [(f"qsd localize h{i}", "localize", f"host=h{i}") for i in range(3)]
    for name, policy, location in policies:
        daemon = Daemon(t.folder, "filled", policy, location)
        row(name, daemon.uri)
        daemon.stop()
    if t.json:
        Path(t.json).write_text(json.dumps(rows, indent=1))
    p = {(r["row"], r["osd.1"]): r["p99.9"] for r in rows}
    healthy, slow, qsd = p["steered", "healthy"], p["steered", "slow"], p["qsd default", "slow"]
    print(f"  p99.9 with a slow OSD: {slow / healthy:.1f} times the healthy one's (goal 2), {slow / qsd:.2f} of qemu-storage-daemon's (goal 0.2)")


SCENES = [data, lock, killed, osds, resized, full, steered]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("plimsoll")
    p.add_argument("--only", action="append", default=[])
    p.add_argument("--seconds", type=int, default=15)
    p.add_argument("--json")
    t = p.parse_args()
    t.plimsoll = str(Path(t.plimsoll).resolve())
    with tempfile.TemporaryDirectory(prefix="plimsoll-ceph-") as folder:
        t.folder = Path(folder)
        (t.folder / "ceph").mkdir()
        began = time.monotonic()
        t.cluster = Cluster(t.folder / "ceph")
        print(f"cluster up in {time.monotonic() - began:.0f} s", flush=True)
        try:
            for scene in SCENES:
                if not t.only or scene.__name__ in t.only:
                    print(f"{scene.__name__}: {scene.__doc__}", flush=True)
                    scene(t)
        finally:
            t.cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
