#!/usr/bin/env python3
"""Databases whose logs lie on the file system, beside a large sequential reader of it: `ordered` and `manylogs`, alternating, in real time.

usage: bench/fs_live.py PLIMSOLL [--rounds N] [--seconds S] [--json OUT]

As root. The disk is a node's volume on a modelled 15k disk (cheetah-15k5), as a block device: nbdfuse and a loop device. PostgreSQL's
WAL and RocksDB's log are on it, the rest of both is in memory. In manylogs the folders of the logs are marked: their files need durability, but
no place. The reader reads a file of 2.5 GiB from its beginning, 1 MiB at a time, none of it in memory: alone, beside pgbench (four clients, simple
updates), and beside db_bench (each write synced). PostgreSQL is then stopped as by a crash and started again, and its rows are counted.
"""
import json, os, pathlib, re, shutil, subprocess, tempfile, threading, time

from host_disks import run, wait_for
from lib import alternate, arguments, head, keep, middle, row

MIB = 1 << 20
READ_MIB = 2560
CONFIG = """
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
device = { file = "disk.img", size = "24GiB", model = "cheetah-15k5" }
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "v"
pool = "p"
size = "16GiB"
tenant = "t"
[[grant]]
peer = "local"
volumes = ["*"]
"""


class Mount:
    """The file system on a modelled disk of its own."""

    def __init__(self, plimsoll, folder, mode):
        self.at, self.children, self.loop = folder / "mnt", [], None
        self.at.mkdir()
        (folder / "node.toml").write_text(CONFIG)
        (folder / "fuse").mkdir()
        log = folder / "log"
        with open(log, "w") as out:
            self.start([plimsoll, "serve", "--config", "node.toml"], cwd=folder, stdout=out, stderr=out)
        wait_for("the node serves", lambda: "serves" in log.read_text())
        image = folder / "fuse/nbd"
        self.start(["nbdfuse", image, f"nbd+unix:///v?socket={folder}/nbd.sock"])
        wait_for("nbdfuse mounts", lambda: image.exists() and image.stat().st_size)
        self.fuse = folder / "fuse"
        self.loop = run("losetup", "--find", "--show", "--direct-io=on", image)
        run(plimsoll, "mkfs", self.loop, "--journal", mode)
        self.server = self.start([plimsoll, "mount", self.loop, self.at, "--allow-other"])
        wait_for("the file system is mounted", lambda: os.path.ismount(self.at))

    def start(self, command, **more):
        self.children.append(subprocess.Popen([str(word) for word in command], **{"stdout": subprocess.DEVNULL, **more}))
        return self.children[-1]

    def close(self):
        if os.path.ismount(self.at):
            run("umount", self.at)
            self.server.wait()
        if self.loop:
            run("losetup", "--detach", self.loop)
        for child in reversed(self.children):
            child.terminate()
            child.wait()


class Reader:
    """Reads a file from its beginning, again and again. The disk's own pages are dropped each time: the file system reads through them."""

    def __init__(self, path, device):
        self.path, self.device, self.stop, self.bytes, self.took_s = path, device, False, 0, 0.0
        self.thread = threading.Thread(target=self.read)

    def read(self):
        import mmap

        fd, device = os.open(self.path, os.O_RDONLY | os.O_DIRECT), os.open(self.device, os.O_RDONLY)
        buffer, begun = mmap.mmap(-1, MIB), time.monotonic()
        while not self.stop:
            at = self.bytes % (READ_MIB * MIB)
            if at == 0:
                os.posix_fadvise(device, 0, 0, os.POSIX_FADV_DONTNEED)
            self.bytes += os.preadv(fd, [buffer], at)
        self.took_s = time.monotonic() - begun
        os.close(fd)
        os.close(device)

    def __enter__(self):
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop = True
        self.thread.join()

    def mb_per_s(self):
        return self.bytes / self.took_s / 1e6


class Postgres:
    """A server whose WAL is in `logs`, and the rest in memory."""

    def __init__(self, memory, logs):
        self.bin = max(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
        self.at, self.wal = memory / "postgres", logs / "postgres"
        self.at.mkdir()
        shutil.chown(self.at, "postgres", "postgres")
        shutil.chown(logs, "postgres", "postgres")
        self.run("initdb", "-D", self.at / "data", "--waldir", self.wal, "--auth=trust", "--no-sync")
        self.control("start")
        self.run("pgbench", "-h", self.at, "-i", "-q", "-s", "10", "postgres")

    def run(self, program, *args):
        return run(self.bin / program, *args, user="postgres", group="postgres", extra_groups=[], cwd=self.at, env={"PATH": os.environ["PATH"], "LC_ALL": "C"})

    def control(self, what):
        options = f"-c listen_addresses= -c unix_socket_directories={self.at} -c checkpoint_timeout=1h -c max_wal_size=16GB -c shared_buffers=256MB"
        # Its output goes to a file: the server would keep a pipe open.
        with open(self.at / "control", "w") as out:
            done = subprocess.run([self.bin / "pg_ctl", "-D", self.at / "data", "-w", "-t", "300", "-l", self.at / "log", "-o", options, what], stdout=out, stderr=out,
                                  stdin=subprocess.DEVNULL, user="postgres", group="postgres", extra_groups=[], cwd=self.at)
        assert done.returncode == 0, (self.at / "control").read_text() + (self.at / "log").read_text()

    def load(self, seconds):
        self.run("pgbench", "-h", self.at, "-n", "-N", "-c", "4", "-j", "2", "-T", str(seconds), "--random-seed=7", "-l", f"--log-prefix={self.at}/tx", "postgres")
        took_ms = sorted(int(line.split()[2]) / 1e3 for log in self.at.glob("tx.*") for line in log.read_text().splitlines())
        for log in self.at.glob("tx.*"):
            log.unlink()
        return figures(len(took_ms) / seconds, took_ms[len(took_ms) // 2], took_ms[len(took_ms) * 99 // 100]), len(took_ms)

    def check(self, rows):
        """Ends it as a crash does: what was committed is in the WAL only."""
        self.control_immediate()
        self.control("start")
        found = int(self.run("psql", "-h", self.at, "-XAtc", "select count(*) from pgbench_history", "postgres"))
        assert found >= rows, f"{found} of {rows} acknowledged transactions are there"
        self.control_immediate()

    def control_immediate(self):
        run(self.bin / "pg_ctl", "-D", self.at / "data", "-w", "-m", "immediate", "stop", user="postgres", group="postgres", extra_groups=[], cwd=self.at)


def figures(per_s, p50_ms, p99_ms):
    return {"commits/s": per_s, "p50, ms": p50_ms, "p99, ms": p99_ms}


class RocksDB:
    """A data base whose log is in `logs`, and the rest in memory."""

    def __init__(self, memory, logs):
        self.db = ["--db=" + str(memory / "rocksdb"), f"--wal_dir={logs}"]

    def load(self, seconds):
        # Each thread looks at the clock after each write, not after a thousand: those are a minute here.
        out = run("db_bench", *self.db, "--benchmarks=fillrandom", "--num=10000000", f"--duration={seconds}", "--ops_between_duration_checks=1", "--value_size=400",
                  "--sync=1", "--threads=4", "--histogram=1", "--seed=7", "--compression_type=none")
        per_s = re.search(r"fillrandom\s*:.* (\d+) ops/sec", out).group(1)
        p50, p99 = re.search(r"P50: ([\d.]+) .*P99: ([\d.]+)", out).groups()
        return figures(int(per_s), float(p50) / 1e3, float(p99) / 1e3)

    def check(self):
        out = run("db_bench", *self.db, "--benchmarks=readseq", "--use_existing_db=1", "--num=10000000", "--threads=1")
        assert int(re.search(r"readseq\s*:.* (\d+) operations", out).group(1)), "the data base is empty"


def measure(args):
    def of(mode, _round):
        folder, memory = pathlib.Path(tempfile.mkdtemp(dir="/var/tmp", prefix="fs-live-")), pathlib.Path(tempfile.mkdtemp(dir="/dev/shm", prefix="fs-live-"))
        found, mount = {}, None
        try:
            for each in folder, memory:
                each.chmod(0o755)
            mount = Mount(args.plimsoll, folder, mode)
            large = mount.at / "large"
            with open(large, "wb") as f:
                for _ in range(READ_MIB):
                    f.write(os.urandom(MIB))
                os.fsync(f.fileno())
            logs = {name: mount.at / name for name in ("postgres-logs", "rocksdb-logs")}
            for each in logs.values():
                each.mkdir()
                if mode == "manylogs":
                    os.setxattr(each, "user.plimsoll.durability", b"anywhere")
            with Reader(large, mount.loop) as reader:
                time.sleep(args.seconds)
            found["alone"] = {"reader, MB/s": reader.mb_per_s()}
            postgres = Postgres(memory, logs["postgres-logs"])
            with Reader(large, mount.loop) as reader:
                commits, rows = postgres.load(args.seconds)
            found["PostgreSQL"] = {"reader, MB/s": reader.mb_per_s(), **commits}
            postgres.check(rows)
            data_base = RocksDB(memory, logs["rocksdb-logs"])
            with Reader(large, mount.loop) as reader:
                commits = data_base.load(args.seconds)
            data_base.check()
            found["RocksDB"] = {"reader, MB/s": reader.mb_per_s(), **commits}
            for name in "PostgreSQL", "RocksDB":
                found[name]["kept, %"] = 100 * found[name]["reader, MB/s"] / found["alone"]["reader, MB/s"]
                if found[name]["kept, %"] > 120:
                    raise SystemExit(f"{mode}, {name}: the reader was served from memory, so nothing is compared: {found}")
            print(mode, json.dumps(found), flush=True)
            return found
        finally:
            if mount:
                mount.close()
            for each in folder, memory:
                shutil.rmtree(each, ignore_errors=True)
    return of


def main():
    args = arguments(__doc__, seconds=15, rounds=3).parse_args()
    if os.geteuid() != 0:
        raise SystemExit("bench/fs_live.py mounts: run it as root")
    found = alternate(["ordered", "manylogs"], args.rounds, measure(args))
    head("log of", "mode", "reader alone, MB/s", "beside, MB/s", "kept, %", "commits/s", "p50, ms", "p99, ms")
    for name in "PostgreSQL", "RocksDB":
        for mode, rounds in found.items():
            of = lambda what, digits=1: middle((r[name][what] for r in rounds), digits)
            row(name, mode, middle(r["alone"]["reader, MB/s"] for r in rounds), of("reader, MB/s"), of("kept, %"), of("commits/s"), of("p50, ms"), of("p99, ms"))
    keep(args.json, args, found)


main()
