#!/usr/bin/python3
"""Real MariaDB and PostgreSQL under the shaper: P by the tuner against fixed P, and against what else limits connections.

usage: bench/shape.py PLIMSOLL mariadb|postgres [--rounds N] [--others N] [--load tpcc-like|ycsb-like|hot-rows] [--clients N] [--tune S]

A round: the tuner begins anew under load and searches for `--tune` seconds. Then, under the same load, the P it found and each fixed P of a grid
take turns, a second each, there and back, `--turns` times: whatever else runs on the machine slows all alike. What is compared is each one's part
of its turn; the round's regret is how far the tuner's lies below the best fixed one's. In the first `--others` rounds the load also runs with the
tuner's P, without a limit, and through MariaDB's own pool of threads or PgBouncer, in turns too. Medians, as Markdown.
Shim and program: build them with `cargo build --release -p plimsoll -p plimsoll-shape-shim`. Runs the servers as their packages' accounts.
"""
import argparse, contextlib, glob, json, os, pwd, random, re, shutil, signal, socket, statistics, subprocess, sys, tempfile, time

GRID = [2, 4, 8, 16, 32]


def port():
    """Free, and below the ports of outgoing connections."""
    while True:
        n = random.randrange(12000, 30000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", n))
                return n
            except OSError:
                pass


def owned(path, account):
    os.makedirs(path, exist_ok=True)
    who = pwd.getpwnam(account)
    os.chown(path, who.pw_uid, who.pw_gid)
    return path


class Program:
    """A child that is ended with its block."""

    def __init__(self, command, log, **options):
        self.log = open(log, "ab")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, cwd="/", **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Database:
    def __init__(self, a, folder):
        self.a, self.folder, self.port = a, folder, port()
        self.control = f"{folder}/segment"

    def shape(self, *arguments):
        return subprocess.run([self.a.plimsoll, "shape", *arguments], check=True, capture_output=True, text=True).stdout

    def set_p(self, p):
        self.shape("set", "--control", self.control, f"p={p}")

    def metrics(self):
        """Those without labels; no limit on P is infinite."""
        said = self.shape("metrics", "--control", self.control)
        return {k: float(v) for k, v in re.findall(r"^plimsoll_shape_(\w+) (\d+|\+Inf)$", said, re.M)}

    def done(self):
        """Transactions that ended and stand: a deadlock's victim is no throughput."""
        m = self.metrics()
        return m["finished_total"] - m["undone_total"]

    def found(self):
        """The tuner's P."""
        p = self.metrics()["p"]
        return "unlimited" if p == float("inf") else int(p)

    def command_of_load(self, seconds, warm=1, to=None):
        return ["drive", self.a.load, "--speaks", self.speaks, "--port", str(to or self.port), "--account", self.account, "--database", "t",
                   "--clients", str(self.a.clients), "--seconds", str(seconds), "--warm", str(warm), "--scale", str(self.a.scale), "--json"]

    def drive(self, seconds, to=None, prepare=False):
        return json.loads(self.shape(*self.command_of_load(seconds, to=to), *(["--prepare"] if prepare else [])))

    def load(self, seconds):
        """The load in the background."""
        return Program([self.a.plimsoll, "shape", *self.command_of_load(seconds)], f"{self.folder}/log")

    def shaped(self, command, *more):
        return Program([self.a.plimsoll, "shape", "--profile", self.profile, "--p", "auto", "--group-by", "connection", "--control",
                        self.control, "--user", self.runs_as, *more, "--", *command], f"{self.folder}/log")

    def ready(self):
        end = time.time() + 60
        while True:
            try:
                self.connects()
                return
            except subprocess.CalledProcessError:
                assert time.time() < end, open(f"{self.folder}/log").read()[-2000:]
                time.sleep(0.2)


class MariaDb(Database):
    speaks, profile, account, runs_as, other = "mysql", "mysql-thread", "b", "mysql", "MariaDB's pool of threads"

    def __init__(self, a, folder):
        super().__init__(a, folder)
        owned(folder, "mysql")
        subprocess.run(["mariadb-install-db", "--no-defaults", f"--datadir={folder}/data", f"--tmpdir={folder}", "--user=mysql",
                        "--auth-root-authentication-method=normal", "--skip-test-db"], check=True, capture_output=True)

    def command(self):
        return ["/usr/sbin/mariadbd", "--no-defaults", f"--datadir={self.folder}/data", f"--port={self.port}", f"--socket={self.folder}/sock",
                "--bind-address=127.0.0.1", "--innodb-buffer-pool-size=256M", "--innodb-log-file-size=256M", "--max-connections=600",
                "--innodb-flush-log-at-trx-commit=2", "--skip-name-resolve", "--performance-schema=OFF"]

    def sql(self, text):
        subprocess.run(["mariadb", "--no-defaults", "-uroot", f"-S{self.folder}/sock", "-e", text], check=True, capture_output=True)

    def connects(self):
        self.sql("SELECT 1")

    def prepare(self):
        self.sql("CREATE DATABASE t; CREATE USER b@'127.0.0.1'; GRANT ALL ON *.* TO b@'127.0.0.1'")
        self.drive(1, prepare=True)

    @contextlib.contextmanager
    def other_server(self):
        """A second server with data of its own under its own pool of threads; its port."""
        twin = MariaDb(self.a, tempfile.mkdtemp(prefix="twin-", dir=self.folder))
        with Program([*twin.command(), "--thread-handling=pool-of-threads", "--user=mysql"], f"{self.folder}/log"):
            twin.ready()
            twin.prepare()
            yield twin.port


class Postgres(Database):
    speaks, profile, account, runs_as, other = "postgres", "postgres", "root", "postgres", "PgBouncer (transactions, pool of 20)"

    def __init__(self, a, folder):
        super().__init__(a, folder)
        self.bin = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
        owned(folder, "postgres")
        subprocess.run([f"{self.bin}/initdb", "-D", f"{folder}/data", "-A", "trust", "-U", "root", "--no-sync"], check=True, capture_output=True,
                       user="postgres", cwd="/")

    def command(self):
        settings = ["listen_addresses=127.0.0.1", "synchronous_commit=off", "max_connections=600", "shared_buffers=256MB",
                    f"unix_socket_directories={self.folder}"]
        return [f"{self.bin}/postgres", "-D", f"{self.folder}/data", "-p", str(self.port), *[w for s in settings for w in ("-c", s)]]

    def sql(self, text, database="postgres"):
        subprocess.run(["psql", "-h", self.folder, "-p", str(self.port), "-U", "root", "-d", database, "-c", text], check=True, capture_output=True)

    def connects(self):
        self.sql("SELECT 1")

    def prepare(self):
        self.sql("CREATE DATABASE t")
        self.drive(1, prepare=True)

    @contextlib.contextmanager
    def other_server(self):
        """PgBouncer before the same server; its port."""
        at = port()
        with open(f"{self.folder}/bouncer.ini", "w") as f:
            f.write(f"[databases]\nt = host=127.0.0.1 port={self.port} dbname=t user=root\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {at}\n"
                    f"auth_type = any\nauth_file = {self.folder}/users\npool_mode = transaction\ndefault_pool_size = 20\nmax_client_conn = 600\n"
                    f"unix_socket_dir =\nlogfile = {self.folder}/bouncer.log\n")
        with open(f"{self.folder}/users", "w") as f:
            f.write('"root" ""\n')
        with Program(["pgbouncer", f"{self.folder}/bouncer.ini"], f"{self.folder}/log", user="postgres"):
            end = time.time() + 20
            while socket.socket().connect_ex(("127.0.0.1", at)):
                assert time.time() < end, "PgBouncer doesn't come up"
                time.sleep(0.1)
            yield at


def parts(turns):
    """By setting: in each turn its part of the turn's mean, and its rates."""
    means = [statistics.mean(t.values()) for t in turns]
    return {k: ([t[k] / m for t, m in zip(turns, means)], [t[k] for t in turns]) for k in turns[0]}


def one_round(d, a, n):
    settings = [*GRID, "unlimited", "tuner"]
    turns = []
    d.set_p("auto")
    with d.load(a.tune + int(a.turns * len(settings) * 1.5) + 10):
        time.sleep(a.tune)
        found = d.found()
        for turn in range(a.turns):
            got = {}
            for k in settings if turn % 2 == 0 else settings[::-1]:
                d.set_p(found if k == "tuner" else k)
                time.sleep(0.25)
                begun, before = time.monotonic(), d.done()
                time.sleep(0.75)
                got[k] = (d.done() - before) / (time.monotonic() - begun)
            turns.append(got)
    return found, parts(turns)


def kinds(runs):
    """Errors of some runs, by kind."""
    sums = {}
    for run in runs:
        for kind, n in run.items():
            sums[kind] = sums.get(kind, 0) + n
    return ", ".join(f"{n} x {kind}" for kind, n in sums.items()) or "0"


def beside(d, a, found):
    """The tuner's P, no limit, and what else there is, in turns."""
    rows = {"tuner": [], "unlimited": [], "other": []}
    with d.other_server() as at:
        for turn in range(4):
            for k in list(rows) if turn % 2 == 0 else list(rows)[::-1]:
                d.set_p(found if k == "tuner" else "unlimited")
                rows[k].append(d.drive(3, to=at if k == "other" else None))
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("plimsoll")
    p.add_argument("server", choices=["mariadb", "postgres"])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--others", type=int, default=1)
    p.add_argument("--load", default="tpcc-like", choices=["tpcc-like", "ycsb-like", "hot-rows"])
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--scale", type=int, default=4)
    p.add_argument("--tune", type=int, default=45)
    p.add_argument("--turns", type=int, default=6)
    a = p.parse_args()
    a.plimsoll = os.path.abspath(a.plimsoll)
    folder = tempfile.mkdtemp(prefix="shape-")
    os.chmod(folder, 0o755)
    # However it is ended, its servers end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    m, rounds, others = statistics.median, [], []
    try:
        d = {"mariadb": MariaDb, "postgres": Postgres}[a.server](a, f"{folder}/server")
        with d.shaped(d.command()):
            d.ready()
            d.prepare()
            for n in range(a.rounds):
                found, got = one_round(d, a, n)
                part = {k: m(v[0]) for k, v in got.items()}
                best = max(GRID, key=lambda k: part[k])
                regret = 100 * (1 - part["tuner"] / part[best])
                rounds.append((found, got, regret))
                shown = ", ".join(f"{k}: {m(v[1]):.0f} ({part[k]:.2f})" for k, v in got.items())
                print(f"round {n + 1} of {a.rounds}: best fixed P {best}; the tuner's {found} is {regret:+.1f} % below it; {shown}", file=sys.stderr)
                if n < a.others:
                    others.append(beside(d, a, found))
        print(f"{a.server}, {a.load}, {a.clients} clients, {a.rounds} rounds of {a.turns} turns of a second each\n")
        print("| | transactions/s, median | part of its turn, median (least to most of rounds) |\n|---|---|---|")
        for k in [*GRID, "unlimited", "tuner"]:
            name = {"tuner": f"P by the tuner ({', '.join(str(r[0]) for r in rounds)})", "unlimited": "no limit"}.get(k, f"P = {k}")
            part = [m(r[1][k][0]) for r in rounds]
            print(f"| {name} | {m(x for r in rounds for x in r[1][k][1]):.0f} | {m(part):.3f} ({min(part):.3f} to {max(part):.3f}) |")
        near = sum(r[2] <= 10 for r in rounds)
        regrets = ", ".join(f"{r[2]:.1f}" for r in rounds)
        print(f"\nThe tuner within 10 % of the round's best fixed P in {near} of {a.rounds} rounds; regrets {regrets} %.\n")
        print("| | transactions/s | p99 ms | unfairness between clients % | errors, by kind |\n|---|---|---|---|---|")
        for k, name in [("tuner", "P by the tuner"), ("unlimited", "no limit"), ("other", d.other)]:
            of = lambda what: [x[what] for o in others for x in o[k]]
            if others:
                print(f"| {name} | {m(of('rate')):.0f} | {m(of('p99_us')) / 1000:.1f} | {m(of('unfairness_percent')):.1f} | {kinds(of('errors_by_kind'))} |")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
