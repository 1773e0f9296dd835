#!/usr/bin/python3
"""Runs a node over a real Ceph cluster on this host, breaks things, and compares reads while one OSD stops 30 of every 100 ms.

usage: tests/real_ceph.py PLIMSOLL [--only NAME]... [--seconds N] [--rounds N] [--json FILE]

Starts a cluster of one monitor, a manager and three OSDs (memory stores, a made-up CRUSH host each) on loopback, in a temporary
directory; ends it by process id. Needs Debian's ceph-mon ceph-osd ceph-mgr ceph-common librbd1 qemu-utils qemu-block-extra
qemu-system-common libnbd-bin python3-libnbd fio.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path
from statistics import median

import nbd

MIB = 1 << 20


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
        port = free_port()
        for sub in ("run", "log", "mon", "mgr"):
            (folder / sub).mkdir()
        fsid = Path("/proc/sys/kernel/random/uuid").read_text().strip()
        self.conf = folder / "ceph.conf"
        settings = {
            "fsid": fsid, "mon host": f"[v2:127.0.0.1:{port}/0]", "public addr": "127.0.0.1", "cluster addr": "127.0.0.1",
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
        run("monmaptool", "--create", "--clobber", "--fsid", fsid, "--addv", "a", f"[v2:127.0.0.1:{port}]", str(folder / "monmap"))
        run("ceph-mon", "--mkfs", "-i", "a", "--monmap", str(folder / "monmap"))
        self.monitor = self.start("ceph-mon", "a")
        self.start("ceph-mgr", "x")
        self.daemons = {}
        for i in range(osds):
            self.add(i)
        self.all_up()
        for i in range(osds):
            self.place(i)
        run("ceph", "osd", "require-osd-release", "pacific", check=False)
        run("ceph", "osd", "set-require-min-compat-client", "octopus", check=False)
        run("ceph", "osd", "pool", "create", "rbd", "16", "16", "replicated")
        run("ceph", "osd", "pool", "application", "enable", "rbd", "rbd")
        self.settled()

    def start(self, program, name):
        process = subprocess.Popen([program, "-f", "-i", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    @property
    def pids(self):
        return {i: daemon.pid for i, daemon in self.daemons.items()}

    def add(self, i):
        """Makes an OSD, which knows nothing, and starts it."""
        uuid = Path("/proc/sys/kernel/random/uuid").read_text().strip()
        shutil.rmtree(self.folder / f"osd.{i}", ignore_errors=True)
        (self.folder / f"osd.{i}").mkdir()
        run("ceph", "osd", "new", uuid, str(i))
        run("ceph-osd", "-i", str(i), "--mkfs", "--osd-uuid", uuid)
        self.daemons[i] = self.start("ceph-osd", str(i))

    def all_up(self):
        wait("OSDs", lambda: json.loads(run("ceph", "osd", "stat", "--format", "json").stdout)["num_up_osds"] == self.osds)

    def place(self, i):
        """Gives an OSD its made-up CRUSH host."""
        run("ceph", "osd", "crush", "add-bucket", f"h{i}", "host", check=False)
        run("ceph", "osd", "crush", "move", f"h{i}", "root=default")
        run("ceph", "osd", "crush", "set", f"osd.{i}", "1.0", "root=default", f"host=h{i}")

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

    def __init__(self, plimsoll, folder, image, extra="", volume="64MiB", name="node", own=""):
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
{own}
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

    def start(self, seconds=90, is_owner=True):
        self.socket.unlink(missing_ok=True)
        self.control.unlink(missing_ok=True)
        out = open(self.log, "a")
        self.process = subprocess.Popen([self.plimsoll, "serve", "--config", self.config], stdout=out, stderr=out)
        SERVERS.append(self.process)
        is_up = self.is_ready if is_owner else self.control.exists
        wait(f"{self.name} serves: {self.log}", lambda: self.socket.exists() and is_up() or self.has_ended(), seconds)
        if self.has_ended():
            raise SystemExit(f"{self.name} has ended: {self.log.read_text()[-2000:]}")
        return self

    @property
    def control(self):
        return self.folder / f"{self.name}.control"

    def cli(self, *arguments, check=True):
        return run(self.plimsoll, *arguments, "--control", self.control, check=check)

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
        return self.cli("pool", "show", "ceph", check=False).stdout


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


# What held in the scene that runs.
CHECKED = []
# What is ended when a scene fails, too.
SERVERS = []


def expect(what, found, said=""):
    if not found:
        raise SystemExit(f"FAILED: {what} {said}")
    CHECKED.append(what)
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
    SERVERS.append(second.process)
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


class Load(threading.Thread):
    """Writes drawn blocks, each durable when it is acknowledged, and reads them again."""

    def __init__(self, uri, seed, model=None):
        super().__init__(daemon=True)
        self.uri, self.draw, self.over = uri, random.Random(seed), threading.Event()
        # Each block's contents that it may have: one, or one more that was under way.
        self.model = {} if model is None else model
        self.writes, self.ended, self.wrong = 0, "", ""

    def run(self):
        try:
            h = connect(self.uri)
            while not self.over.is_set() and not self.wrong:
                at, content = self.draw.randrange(4096), self.draw.randbytes(4096)
                self.model.setdefault(at, [bytes(4096)]).append(content)
                h.pwrite(content, at * 4096, nbd.CMD_FLAG_FUA)
                self.model[at] = [content]
                self.writes += 1
                self.verify(h, self.draw.choice(list(self.model)))
        except nbd.Error as e:
            self.ended = e.string

    def verify(self, h, at):
        found = bytes(h.pread(4096, at * 4096))
        if found not in self.model[at]:
            self.wrong = f"block {at} differs"
        self.model[at] = [found]

    def more(self, n, seconds=60.0):
        """Waits for this many further writes."""
        wanted = self.writes + n
        wait(f"{n} more writes", lambda: self.writes >= wanted or not self.is_alive(), seconds)

    def end(self, is_served=True):
        self.over.set()
        self.join()
        if self.wrong or is_served and self.ended:
            raise SystemExit(f"FAILED: {self.wrong or self.ended}")

    def all(self, uri):
        """Verifies every block."""
        h = connect(uri)
        for at in list(self.model):
            self.verify(h, at)
        if self.wrong:
            raise SystemExit(f"FAILED: {self.wrong}")


def monitors(t):
    """The monitors are away for ten seconds under load: requests go on, and so does the pool after them."""
    image("monitors")
    node = Node(t.plimsoll, t.folder, "monitors").start()
    load = Load(node.uri, 11)
    load.start()
    load.more(50)
    t.cluster.monitor.kill()
    t.cluster.monitor.wait()
    away = time.monotonic()
    while time.monotonic() < away + 10:
        load.more(10)
    expect("requests go on without monitors", not load.ended and not load.wrong)
    second = Node(t.plimsoll, t.folder, "monitors", name="second")
    refused = run(t.plimsoll, "serve", "--config", second.config, check=False)
    expect("a start without monitors ends by name", refused.returncode != 0 and "check the monitors' addresses" in refused.stderr)
    t.cluster.monitor = t.cluster.start("ceph-mon", "a")
    t.cluster.settled()
    load.more(50)
    load.end()
    load.all(node.uri)
    expect(f"the monitors are back: {load.writes} writes are there", node.is_ready())
    node.stop()


def replaced(t):
    """An OSD dies, is removed, and another takes its place, under load."""
    image("replaced")
    node = Node(t.plimsoll, t.folder, "replaced").start()
    load = Load(node.uri, 12)
    load.start()
    load.more(50)
    t.cluster.daemons[2].kill()
    t.cluster.daemons[2].wait()
    run("ceph", "osd", "down", "2")
    load.more(50)
    run("ceph", "osd", "out", "2")
    run("ceph", "osd", "purge", "2", "--yes-i-really-mean-it")
    wait("the pool doesn't show the OSD any more", lambda: "osd.2" not in node.pool() and "osd.0" in node.pool())
    load.more(50)
    t.cluster.add(2)
    t.cluster.place(2)
    t.cluster.all_up()
    t.cluster.settled()
    wait("the pool shows the new OSD", lambda: "osd.2" in node.pool())
    load.more(50)
    load.end()
    load.all(node.uri)
    expect(f"{load.writes} writes are there after the OSD was replaced", True)
    node.stop()


def racks(t):
    """A client whose place is a rack reads from the replicas in it, as handles for racks assume."""
    (t.folder / "fill").write_bytes(random.Random(5).randbytes(64 * MIB) * 4)
    for i in range(3):
        run("ceph", "osd", "crush", "add-bucket", f"r{i}", "rack")
        run("ceph", "osd", "crush", "move", f"r{i}", "root=default")
        run("ceph", "osd", "crush", "move", f"h{i}", f"rack=r{i}")
    t.cluster.settled()
    # The second image's writes tell replicas that those of the first are stable.
    for name in ("racks", "racks-later"):
        run("rbd", "import", "--dest-pool", "rbd", t.folder / "fill", name)

    def reads(i):
        asked = run("ceph", "daemon", str(t.cluster.folder / f"run/osd.{i}.{t.cluster.pids[i]}.asok"), "perf", "dump", "osd", "op_r")
        return json.loads(asked.stdout)["osd"]["op_r"]

    for i in range(3):
        before = [reads(n) for n in range(3)]
        place = ("--rbd-read-from-replica-policy", "localize", "--crush-location", f"rack=r{i}")
        (t.folder / "back").unlink(missing_ok=True)
        run("rbd", *place, "export", "rbd/racks", t.folder / "back")
        shares = [reads(n) - before[n] for n in range(3)]
        expect(f"reads of rack r{i} by OSD: {shares}", shares[i] >= 60 and 3 * shares[i] > 2 * sum(shares))
        expect("and their bytes are right", (t.folder / "back").read_bytes() == (t.folder / "fill").read_bytes())
    for i in range(3):
        run("ceph", "osd", "crush", "move", f"h{i}", "root=default")
        run("ceph", "osd", "crush", "remove", f"r{i}")
    t.cluster.settled()


def deleted(t):
    """An image that is deleted elsewhere while its gateway hangs: the pool fails by name."""
    image("deleted")
    node = Node(t.plimsoll, t.folder, "deleted").start()
    h = connect(node.uri)
    h.pwrite(b"g" * 4096, 0)
    node.process.send_signal(signal.SIGSTOP)
    wait("the gateway's watch has ended", lambda: "watcher=" not in run("rbd", "status", "rbd/deleted").stdout, 90)
    removed = run("rbd", "rm", "rbd/deleted", check=False)
    node.process.send_signal(signal.SIGCONT)
    expect(f"the image could be removed {removed.stderr[-200:]}", removed.returncode == 0)
    wait("the node says that the lock is lost", lambda: "lock is lost" in node.log.read_text())
    try:
        h.pwrite(b"h" * 4096, 0, nbd.CMD_FLAG_FUA)
        expect("writes fail", False)
    except nbd.Error:
        expect("writes fail", True)
    expect("new clients are refused", not node.is_ready())
    node.stop()
    out = run(t.plimsoll, "serve", "--config", node.config, check=False)
    expect("a start says that there is no image", out.returncode != 0 and "rbd create --size" in out.stderr)


def move(old, new, *more):
    """Moves the pool; what the command says of it."""
    return json.loads(old.cli("pool", "move", "ceph", "--to", new.control, "--json", *more).stdout)


OWN = '[[pool]]\nname = "own"\ndevice = { null = true, size = "64MiB" }'


def moved(t):
    """A pool moves to another gateway under load, in order and back; then by force from one that hangs. Each with one command."""
    image("moved")
    here = Node(t.plimsoll, t.folder, "moved", own=OWN).start()
    there = Node(t.plimsoll, t.folder, "moved", own=OWN, name="there").start(is_owner=False)
    checked = run(t.plimsoll, "check", there.config, check=False)
    expect("`check` says that a client has the lock", checked.returncode == 0 and "has the image's exclusive lock" in checked.stdout)
    load = Load(here.uri, 13)
    load.start()
    load.more(100)
    took = [move(here, there, "--disconnect")]
    expect("the new gateway serves when the command ends", there.is_ready())
    load.end(is_served=False)
    load.all(there.uri)
    expect(f"{load.writes} writes are there after the move", load.writes >= 100)
    for n in range(2):
        took += [move(there, here, "--disconnect"), move(here, there, "--disconnect")]
    load.all(there.uri)
    t.results["moves"] = {what: sorted(round(of[what], 2) for of in took) for what in ("seconds", "unserved_seconds")}
    print(f"  {len(took)} moves: {t.results['moves']}", flush=True)
    # And back, by force.
    load = Load(there.uri, 14, load.model)
    load.start()
    load.more(100)
    there.process.send_signal(signal.SIGSTOP)
    refused = there.cli("pool", "move", "ceph", "--to", here.control, check=False)
    expect("a gateway that hangs isn't taken for one that releases", refused.returncode != 0 and "--force" in refused.stderr)
    by_force = move(there, here, "--force")
    expect("the first gateway serves again", by_force["by_force"] and here.is_ready())
    t.results["moves"]["by_force_seconds"] = round(by_force["seconds"], 1)
    print(f"  moved by force in {by_force['seconds']:.1f} s, 5 s of it without an answer", flush=True)
    listed = re.findall(r"^\S+:0/\d+ (\d+-\d+-\d+)", run("ceph", "osd", "blocklist", "ls").stdout, re.MULTILINE)
    days = [(date.fromisoformat(end) - date.today()).days for end in listed]
    expect(f"the old owner is blocked for a year (days: {days})", max(days, default=0) > 360)
    known = {at: list(contents) for at, contents in load.model.items()}
    after = Load(here.uri, 15, known)
    after.start()
    after.more(50)
    there.process.send_signal(signal.SIGCONT)
    load.join(60)
    expect(f"the client of the gateway that hung hears of it ({load.ended})", load.ended and not load.is_alive())
    wait("the gateway that hung says why", lambda: "lock is lost" in there.log.read_text())
    after.more(50)
    after.end()
    after.all(here.uri)
    expect(f"{load.writes} and {after.writes} writes are there: it wrote nothing after it was taken", True)
    here.stop()
    there.stop()


def cache(t, name, mode):
    """A pool's cache in a file."""
    return f'[pool.cache]\nfile = "{t.folder / name}"\ndevice_size = "64MiB"\nmode = "{mode}"\nweu = "256KiB"'


def cache_of(node):
    return json.loads(node.cli("cache", "status", "ceph", "--json").stdout)


def blocked():
    return set(re.findall(r"^\S+:0/\d+", run("ceph", "osd", "blocklist", "ls").stdout, re.MULTILINE))


def cached(t):
    """A write-back cache on an image: a move in order drains it; without its owner a failover is refused by name until it is given up."""
    image("cached")
    here = Node(t.plimsoll, t.folder, "cached", cache(t, "here.cache", "back"), own=OWN).start()
    there = Node(t.plimsoll, t.folder, "cached", own=OWN, name="there").start(is_owner=False)

    def is_back(node):
        volume = cache_of(node)["volumes"][0]
        return volume["mode"] == "back" and volume["behind"]

    load = Load(here.uri, 21)
    load.start()
    load.more(500)
    expect("the cache is written back to", is_back(here))
    took = move(here, there, "--disconnect")
    load.end(is_served=False)
    load.all(there.uri)
    print(f"  moved in {took['seconds']:.2f} s, {took['unserved_seconds']:.2f} s of it without a gateway", flush=True)
    expect(f"a move in order drains the cache: {load.writes} writes are there", load.writes >= 500)
    move(there, here, "--disconnect")
    expect("the cache is written back to again where there is one", is_back(here))
    load.all(here.uri)

    # What only the cache may have.
    image_has = {at: list(contents) for at, contents in load.model.items()}
    h, draw = connect(here.uri), random.Random(22)
    newest = {at: draw.randbytes(4096) for at in range(256)}
    for at, content in newest.items():
        h.pwrite(content, at * 4096)
    h.flush()
    before = blocked()
    here.process.send_signal(signal.SIGSTOP)
    refused = here.cli("pool", "move", "ceph", "--to", there.control, "--force", check=False)
    named = "newest data of volumes v" in refused.stderr
    expect("a failover by force without the cache is refused by name", refused.returncode != 0 and named, refused.stderr)
    expect("and doesn't block the owner", blocked() == before)
    here.process.send_signal(signal.SIGCONT)
    h.pwrite(newest[0], 0)
    right = all(bytes(h.pread(4096, at * 4096)) == content for at, content in newest.items())
    expect("the owner goes on, with its data", right)
    here.process.kill()
    here.process.wait()
    refused = there.cli("pool", "take", "ceph", check=False)
    named = "volumes v" in refused.stderr and "plimsoll cache give-up" in refused.stderr
    expect("nor is the pool of an owner that is dead taken without the cache", refused.returncode != 0 and named, refused.stderr)
    run(t.plimsoll, "cache", "give-up", "v", "--pool", "ceph", "--lose-data", "--config", there.config)
    there.cli("pool", "take", "ceph")
    h = connect(there.uri)
    found = {at: bytes(h.pread(4096, at * 4096)) for at in newest}
    older = sum(content != newest[at] for at, content in found.items())
    known = all(content == newest[at] or content in image_has.get(at, [bytes(4096)]) for at, content in found.items())
    expect(f"once given up it is served: {older} of {len(found)} blocks have the image's older content, and none another", known)
    for at in range(256):
        found[at] = draw.randbytes(4096)
        h.pwrite(found[at], at * 4096)
    h.shutdown()
    # The former owner comes back with the cache that was given up.
    here.start(is_owner=False)
    move(there, here, "--disconnect")
    h = connect(here.uri)
    right = all(bytes(h.pread(4096, at * 4096)) == content for at, content in found.items())
    expect("the cache that was given up counts for nothing when its owner comes back", right and cache_of(here)["start_extents"] == 0)
    here.stop()
    there.stop()


def warm(t):
    """Write-through caches of two gateways: one is warm only if no other gateway had the pool since."""
    image("warm")
    here = Node(t.plimsoll, t.folder, "warm", cache(t, "warm-here.cache", "through"), own=OWN).start()
    there = Node(t.plimsoll, t.folder, "warm", cache(t, "warm-there.cache", "through"), own=OWN, name="there").start(is_owner=False)
    contents = [random.Random(seed).randbytes(4 * MIB) for seed in range(3)]

    def fill(node, content):
        h = connect(node.uri)
        inserted = cache_of(node)["inserted"]
        h.pwrite(content, 0)
        h.flush()
        wait("the cache has it", lambda: bytes(h.pread(4 * MIB, 0)) == content and cache_of(node)["inserted"] > inserted + 100)

    def has(node, content, is_warm):
        found = cache_of(node)["start_extents"]
        right = bytes(connect(node.uri).pread(4 * MIB, 0)) == content
        return right and (found > 0) == is_warm

    fill(here, contents[0])
    move(here, there)
    expect("a cache that never had the pool is cold", has(there, contents[0], False))
    fill(there, contents[1])
    move(there, here)
    expect("a cache is cold if another gateway had the pool since, and the data are right", has(here, contents[1], False))
    fill(here, contents[2])
    here.stop()
    here.start()
    expect("a cache is warm after a restart if nobody else had the pool", has(here, contents[2], True))
    move(here, there)
    expect("the other one is cold again", has(there, contents[2], False))
    here.stop()
    there.stop()


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


def load(uri, seconds, pid, at=0, depth=8):
    """Random reads of 4 KiB by fio; requests a second, p50, p99 and p99.9 in milliseconds, and the server's processor time for each read."""
    before = processor_us(pid)
    out = run(
        "fio", "--name=r", "--ioengine=nbd", f"--uri={uri}", "--rw=randread", "--bs=4k", f"--iodepth={depth}", f"--offset={at}", "--size=64m",
        "--time_based", f"--runtime={seconds}", "--randseed=7", "--output-format=json", timeout=seconds + 60,
    ).stdout
    used = processor_us(pid) - before
    r = json.loads(out[out.index("{") :])["jobs"][0]["read"]
    p = r["clat_ns"]["percentile"]
    return {
        "iops": r["iops"], "reads": r["total_ios"], "p50": p["50.000000"] / 1e6, "p99": p["99.000000"] / 1e6,
        "p99.9": p["99.900000"] / 1e6, "max": r["clat_ns"]["max"] / 1e6, "cpu_us": used / r["total_ios"],
    }


def processor_us(pid):
    """User and system time of a process and its threads, in microseconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1_000_000 // os.sysconf("SC_CLK_TCK")


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
        SERVERS.append(self.process)
        wait("qemu-storage-daemon", self.socket.exists)

    def stop(self):
        self.process.terminate()
        self.process.wait()


POLICIES = [("qsd default", "", "")] + [("qsd balance", "balance", "")] + [(f"qsd localize h{i}", "localize", f"host=h{i}") for i in range(2)]


def place_of(content, uri):
    """Finds the beginning of a volume's bytes in its image."""
    h = connect(uri)
    at = next((at for at in range(0, 256 * MIB, 65536) if bytes(h.pread(512, at)) == content[:512]), None)
    is_whole = at is not None and all(bytes(h.pread(MIB, at + n)) == content[n : n + MIB] for n in range(0, len(content), MIB))
    expect(f"qemu-storage-daemon reads the volume's bytes in the same image, at {at}", is_whole)
    return at


def steered(t):
    """Reads while osd.1 is stopped 30 of every 100 ms: steered, and what there is besides, by turns on one image."""
    rows, place = [], None

    def measured(name, number, server, uri, at=0):
        for state in ("healthy", "slow"):
            slow = Slow(t.cluster.pids[1]) if state == "slow" else None
            if slow:
                slow.start()
            try:
                load(uri, 2, server.pid, at)
                r = {"row": name, "osd.1": state, "round": number, **load(uri, t.seconds, server.pid, at)}
            finally:
                if slow:
                    slow.end()
            rows.append(r)
            print(
                f"  {number} {name:22} {state:8} {r['iops']:7.0f} reads/s  p50 {r['p50']:6.2f}  p99 {r['p99']:6.2f}  p99.9 {r['p99.9']:6.2f}"
                f"  max {r['max']:7.2f} ms  {r['cpu_us']:4.0f} us of CPU a read",
                flush=True,
            )

    image("steered", "1G")
    fill = random.Random(5).randbytes(64 * MIB)
    for number in range(1, t.rounds + 1):
        for name, extra in (("steered", ""), ("one black box", 'sched = "blackbox"')):
            node = Node(t.plimsoll, t.folder, "steered", extra, volume="768MiB").start()
            if not extra:
                wait("reads are steered", lambda: "not steered" not in node.pool() and "osd.2" in node.pool())
            h = connect(node.uri)
            for offset in range(0, 64 * MIB, MIB):
                h.pwrite(fill[offset : offset + MIB], offset)
            # Later writes of every group tell replicas that the earlier ones are stable: elsewhere, in objects that aren't read. 16 groups
            # have 176 objects there.
            for offset in range(64 * MIB, 768 * MIB, 4 * MIB):
                h.pwrite(b"w" * 4096, offset)
            h.shutdown()
            measured(name, number, node.process, node.uri)
            if not extra and number == t.rounds:
                print(node.pool())
            node.stop()
        for name, policy, location in POLICIES:
            daemon = Daemon(t.folder, "steered", policy, location)
            place = place_of(fill, daemon.uri) if place is None else place
            measured(name, number, daemon.process, daemon.uri, place)
            daemon.stop()
    t.results["steered"] = summary(rows, t.rounds)
    for name, r in t.results["steered"]["ratios"].items():
        print(f"  {name}: {r['median']:.2f} (by round: {', '.join(f'{of:.2f}' for of in r['rounds'])})", flush=True)


def summary(rows, rounds):
    """Medians of the rounds, and ratios within each round."""
    of = {(r["row"], r["osd.1"], r["round"]): r for r in rows}
    keys = dict.fromkeys((r["row"], r["osd.1"]) for r in rows)
    values = ("iops", "p50", "p99", "p99.9", "max", "cpu_us")
    every = range(1, rounds + 1)
    medians = [{"row": row, "osd.1": state, **{v: median(of[row, state, n][v] for n in every) for v in values}} for row, state in keys]
    wanted = {
        "p99.9 with a slow OSD over the healthy one's (goal: at most 2)": ("p99.9", ("steered", "slow"), ("steered", "healthy")),
        "p99.9 with a slow OSD over qemu-storage-daemon's (goal: at most 0.2)": ("p99.9", ("steered", "slow"), ("qsd default", "slow")),
        "p99.9 with a slow OSD over that of a node that doesn't steer": ("p99.9", ("steered", "slow"), ("one black box", "slow")),
        "p99.9 healthy over qemu-storage-daemon's": ("p99.9", ("steered", "healthy"), ("qsd default", "healthy")),
        "CPU a read, healthy, over qemu-storage-daemon's": ("cpu_us", ("steered", "healthy"), ("qsd default", "healthy")),
        "CPU a read, slow, over qemu-storage-daemon's": ("cpu_us", ("steered", "slow"), ("qsd default", "slow")),
        "reads/s, healthy, over qemu-storage-daemon's": ("iops", ("steered", "healthy"), ("qsd default", "healthy")),
        "reads/s, slow, over qemu-storage-daemon's": ("iops", ("steered", "slow"), ("qsd default", "slow")),
    }
    ratios = {}
    for name, (value, above, below) in wanted.items():
        by_round = [of[(*above, n)][value] / of[(*below, n)][value] for n in every]
        ratios[name] = {"rounds": by_round, "median": median(by_round)}
    return {"rows": rows, "medians": medians, "ratios": ratios}


def facts(t):
    """The run's circumstances, for its record."""
    here = Path(__file__).resolve().parent
    return {
        "date": date.today().isoformat(),
        "commit": run("git", "-C", here, "describe", "--always", "--dirty", "--exclude=*").stdout.strip(),
        "ceph": run("ceph-osd", "--version").stdout.split()[2],
        "qemu": run("qemu-storage-daemon", "--version").stdout.split()[2],
        "kernel": os.uname().release, "processors": os.cpu_count(), "niceness": os.nice(0), "seconds": t.seconds, "rounds": t.rounds,
    }


SCENES = [data, lock, killed, osds, monitors, resized, deleted, full, moved, cached, warm, racks, steered, replaced]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("plimsoll")
    p.add_argument("--only", action="append", default=[])
    p.add_argument("--seconds", type=int, default=10)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--json")
    t = p.parse_args()
    t.plimsoll = str(Path(t.plimsoll).resolve())
    t.results = {}
    with tempfile.TemporaryDirectory(prefix="plimsoll-ceph-") as folder:
        t.folder = Path(folder)
        (t.folder / "ceph").mkdir()
        began = time.monotonic()
        t.cluster = Cluster(t.folder / "ceph")
        print(f"cluster up in {time.monotonic() - began:.0f} s", flush=True)
        try:
            scenes = {}
            for scene in SCENES:
                if not t.only or scene.__name__ in t.only:
                    print(f"{scene.__name__}: {scene.__doc__}", flush=True)
                    began, CHECKED[:] = time.monotonic(), []
                    scene(t)
                    scenes[scene.__name__] = {"seconds": round(time.monotonic() - began, 1), "held": list(CHECKED)}
            if t.json:
                Path(t.json).write_text(json.dumps({**facts(t), "scenes": scenes, **t.results}, indent=1))
        finally:
            for server in SERVERS:
                server.kill()
            t.cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
