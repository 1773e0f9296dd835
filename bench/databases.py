#!/usr/bin/python3
"""Live: MariaDB and PostgreSQL on a modelled SATA flash drive beside a noisy neighbour, without promises and with.

usage: bench/databases.py PLIMSOLL [--databases mariadb,postgresql] [--seconds S] [--rounds N] [--within MS] [--json OUT]

A database's files are on ext4 on a volume: NBD, nbdfuse, a loop device. sysbench (oltp_read_write, 4 threads) drives MariaDB, pgbench (TPC-B, 4
clients) PostgreSQL, each commit durable. The neighbour reads and writes 64 KiB, 16 deep, on a volume of the same drive. Each round measures
the database alone, beside the neighbour without promises, and beside it with: a pool with cores, and a database with an objective for its I/O (p99
within --within ms). Medians over the rounds. Needs root, /dev/fuse, fio with its nbd engine, and the databases.
"""
import contextlib, glob, json, os, pwd, re, shutil, signal, statistics, subprocess, sys, tempfile, time

from lib import arguments, head, keep, row
from node import Node, fio, fio_job, uri

MODEL = "sized:2G:vf-sata-60g"
THREADS = 4
# Seconds before what is measured: the bound on best effort learns in them.
RAMP = 5
NEIGHBOUR = ["--rw=randrw", "--bs=64k", "--iodepth=16", "--randrepeat=1", "--norandommap"]


def sections(within_us):
    promise = f'class = "latency-critical"\nobjectives = [{{ percentile = 99, within = "{within_us}us" }}]' if within_us else 'class = "best-effort"'
    return f"""
[[pool]]
name = "p"
device = {{ file = "p.img", size = "2GiB", model = "{MODEL}" }}
{"cores = 16" if within_us else ""}
{"core_depth = 2" if within_us else ""}
[[tenant]]
name = "db"
{promise}
jobs_max = 64
[[tenant]]
name = "neighbour"
class = "best-effort"
[[volume]]
name = "db"
pool = "p"
size = "1GiB"
tenant = "db"
[[volume]]
name = "neighbour"
pool = "p"
size = "256MiB"
tenant = "neighbour"
"""


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def until(what, holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.05)


def account(name):
    """Runs a command as the user that a database's package has made."""
    user = pwd.getpwnam(name)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": "/"}


@contextlib.contextmanager
def mounted(folder, make):
    """The volume `db` as an ext4 at `folder`/mnt; `make`: with a new file system."""
    nbd, at = f"{folder}/nbd", f"{folder}/mnt"
    for made in (nbd, at):
        os.makedirs(made, exist_ok=True)
    fuse = subprocess.Popen(["nbdfuse", f"{nbd}/vol", uri(folder, "db")])
    loop = None
    try:
        until("nbdfuse shows the volume", lambda: os.path.exists(f"{nbd}/vol"))
        loop = run("losetup", "--find", "--show", "--direct-io=on", f"{nbd}/vol").strip()
        if make:
            run("mkfs.ext4", "-q", "-E", "lazy_itable_init=1,lazy_journal_init=1", loop)
        run("mount", loop, at)
        yield at
    finally:
        subprocess.run(["umount", at], stderr=subprocess.DEVNULL)
        if loop:
            subprocess.run(["losetup", "--detach", loop])
        subprocess.run(["umount", f"{nbd}/vol"], stderr=subprocess.DEVNULL)
        fuse.terminate()
        fuse.wait()


class Server:
    """A database server that runs until its `with` block ends."""

    def __init__(self, command, user, ready, end):
        self.end = end
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **account(user))
        until(f"{command[0]} answers", ready)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(self.end)
        self.process.wait()


def answers(*command):
    return lambda: subprocess.run(command, capture_output=True).returncode == 0


class MariaDb:
    tools = ["mariadbd", "mariadb-install-db", "mariadb", "sysbench"]

    def __init__(self, folder):
        self.data, self.socket = f"{folder}/mnt/data", f"{folder}/db.sock"
        self.bench = ["sysbench", "oltp_read_write", "--db-driver=mysql", f"--mysql-socket={self.socket}", "--mysql-user=root", "--mysql-db=sbtest",
                      "--tables=2", "--table-size=100000", f"--threads={THREADS}", "--percentile=99", "--rand-seed=1"]

    def make(self):
        os.makedirs(self.data)
        shutil.chown(self.data, "mysql", "mysql")
        run("mariadb-install-db", "--no-defaults", f"--datadir={self.data}", "--skip-test-db", "--auth-root-authentication-method=normal",
            "--innodb-log-file-size=32M", **account("mysql"))
        with self.server():
            run("mariadb", "--no-defaults", "-uroot", f"--socket={self.socket}", "-e", "CREATE DATABASE sbtest")
            run(*self.bench, "prepare")

    def server(self):
        command = ["mariadbd", "--no-defaults", "--skip-networking", "--innodb-buffer-pool-size=128M", "--innodb-log-file-size=32M",
                   f"--datadir={self.data}", f"--socket={self.socket}"]
        ask = ["mariadb", "--no-defaults", "-uroot", f"--socket={self.socket}", "-e", "SELECT 1"]
        return Server(command, "mysql", answers(*ask), signal.SIGTERM)

    def load(self, seconds, _folder):
        run(*self.bench, f"--time={RAMP}", "run")
        out = run(*self.bench, f"--time={seconds}", "run")
        number = lambda pattern: float(re.search(pattern, out).group(1))
        return {"p99_ms": number(r"99th percentile:\s+([\d.]+)"), "per_s": number(r"transactions:\s+\d+\s+\(([\d.]+) per sec")}


class PostgreSql:
    tools = ["pgbench", "psql"]

    def __init__(self, folder):
        self.bin = max(glob.glob("/usr/lib/postgresql/*/bin"), default="")
        self.data, self.socket = f"{folder}/mnt/data", folder
        self.ask = ["-h", self.socket, "-U", "root"]

    def make(self):
        os.makedirs(self.data, mode=0o700)
        shutil.chown(self.data, "postgres", "postgres")
        run(f"{self.bin}/initdb", "-D", self.data, "-A", "trust", "-U", "root", "--no-locale", **account("postgres"))
        with self.server():
            run("pgbench", "-i", "-q", "-s", "10", *self.ask, "postgres")

    def server(self):
        command = [f"{self.bin}/postgres", "-D", self.data, "-c", "listen_addresses=", "-c", "shared_buffers=16MB", "-c",
                   f"unix_socket_directories={self.socket}"]
        return Server(command, "postgres", answers("psql", *self.ask, "-d", "postgres", "-c", "SELECT 1"), signal.SIGINT)

    def load(self, seconds, folder):
        log = f"{folder}/transactions"
        for old in glob.glob(f"{log}.*"):
            os.remove(old)
        run("pgbench", "-n", "-c", str(THREADS), "-j", "1", "-T", str(seconds + RAMP), "--random-seed=1", "--log", f"--log-prefix={log}", *self.ask,
            "postgres")
        rows = [line.split() for name in glob.glob(f"{log}.*") for line in open(name)]
        began = min(int(r[4]) for r in rows)
        times = sorted(int(r[2]) / 1e3 for r in rows if int(r[4]) >= began + RAMP)
        return {"p99_ms": times[len(times) * 99 // 100], "per_s": len(times) / seconds}


DATABASES = {"mariadb": MariaDb, "postgresql": PostgreSql}


class Bench:
    """A database on a drive that all measurements of it use."""

    def __init__(self, plimsoll, folder, name, seconds):
        self.plimsoll, self.folder, self.seconds = plimsoll, f"{folder}/{name}", seconds
        os.makedirs(self.folder, mode=0o777)
        os.chmod(self.folder, 0o1777)
        self.database = DATABASES[name](self.folder)
        missing = [tool for tool in self.database.tools if not shutil.which(tool)]
        assert not missing, f"{', '.join(missing)}: not installed; `make demo-databases` installs what it needs"
        with Node(plimsoll, self.folder, sections(None)) as _, mounted(self.folder, make=True):
            self.database.make()

    def measure(self, neighbour, within_us=None):
        with Node(self.plimsoll, self.folder, sections(within_us)) as node, mounted(self.folder, make=False), self.database.server():
            beside = fio(self.folder, "neighbour", self.seconds, RAMP, *NEIGHBOUR) if neighbour else None
            found = self.database.load(self.seconds, self.folder)
            if beside:
                job = fio_job(beside)
                found["neighbour_mb_s"] = (job["read"]["bw_bytes"] + job["write"]["bw_bytes"]) / 1e6
            if within_us:
                database = next(t for t in json.loads(node.cli("tenant", "list", "--json")) if t["name"] == "db")
                found |= {"within_ms": within_us / 1e3, "io_p99_ms": database["objectives"][0]["measured_us"] / 1e3}
            return found

    def round(self, within_ms):
        return {"alone": self.measure(False), "without": self.measure(True), "with": self.measure(True, int(within_ms * 1000))}


def table(everything):
    head("database", "", "alone", "beside the neighbour, without promises", "with")
    for name, rounds in everything.items():
        def median(mode, key):
            return statistics.median(r[mode][key] for r in rounds)

        for text, key in (("transactions' p99, ms", "p99_ms"), ("transactions/s", "per_s")):
            row(name, text, *(f"{median(mode, key):.1f}" for mode in ("alone", "without", "with")))
        row("", f"p99 of its I/O, ms (objective {median('with', 'within_ms'):.1f})", "", "", f"{median('with', 'io_p99_ms'):.2f}")
        row("", "neighbour, MB/s", "", *(f"{median(mode, 'neighbour_mb_s'):.1f}" for mode in ("without", "with")))


def main():
    parser = arguments(__doc__, seconds=15, rounds=1)
    parser.add_argument("--databases", default="mariadb,postgresql")
    parser.add_argument("--within", type=float, default=4, help="the objective of a database's I/O: p99 in ms")
    args = parser.parse_args()
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        sys.exit("bench/databases.py mounts volumes: run it as root, on a host with /dev/fuse")
    everything = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for name in args.databases.split(","):
            bench = Bench(args.plimsoll, folder, name, args.seconds)
            for round_ in range(args.rounds):
                print(f"{name}: round {round_ + 1} of {args.rounds}", file=sys.stderr)
                everything.setdefault(name, []).append(bench.round(args.within))
                for mode, found in everything[name][-1].items():
                    print(f"  {mode}: " + ", ".join(f"{k} {v:.2f}" for k, v in found.items()), file=sys.stderr)
    table(everything)
    keep(args.json, args, everything)


main()
