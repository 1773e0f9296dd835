#!/usr/bin/python3
"""Real MariaDB and PostgreSQL under the shaper: P by the tuner against fixed P, interleaved, and against what else limits connections.

usage: bench/shape.py PLIMSOLL mariadb|postgres [--rounds N] [--load tpcc-like|ycsb-like|hot-rows] [--clients N] [--tune S] [--seconds S]

Each round: a load with P by the tuner that begins anew (`--tune` seconds of search, not counted), and in between the same load at each fixed
P of a grid, each measured for `--seconds`. The round's regret is how far the tuner's throughput lies below the best fixed one's. Once in each
round the same load runs without a gate, and behind MariaDB's own pool of threads or PgBouncer. Medians over rounds, as Markdown.
Shim and program: build them with `cargo build --release -p plimsoll -p plimsoll-shape-shim`. Runs the servers as their packages' accounts.
"""
import argparse, glob, json, os, pwd, random, shutil, signal, socket, statistics, subprocess, sys, tempfile, time

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

    def drive(self, seconds, warm=1, to=None, prepare=False):
        command = ["drive", self.a.load, "--speaks", self.speaks, "--port", str(to or self.port), "--account", self.account, "--database", "t",
                   "--clients", str(self.a.clients), "--seconds", str(seconds), "--warm", str(warm), "--scale", str(self.a.scale), "--json"]
        return json.loads(self.shape(*command, *(["--prepare"] if prepare else [])))

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

    def others(self):
        """The same data under the server's own pool; runs while the shaped server is stopped."""
        with Program([*self.command(), "--thread-handling=pool-of-threads", "--user=mysql"], f"{self.folder}/log"):
            self.ready()
            return self.drive(self.a.seconds)


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

    def others(self):
        with Program(self.command(), f"{self.folder}/log", user="postgres"):
            self.ready()
            at = port()
            with open(f"{self.folder}/bouncer.ini", "w") as f:
                f.write(f"[databases]\nt = host=127.0.0.1 port={self.port} dbname=t\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {at}\n"
                        f"auth_type = any\nauth_file = {self.folder}/users\npool_mode = transaction\ndefault_pool_size = 20\nmax_client_conn = 600\n"
                        f"unix_socket_dir =\nlogfile = {self.folder}/bouncer.log\n")
            with open(f"{self.folder}/users", "w") as f:
                f.write('"root" ""\n')
            with Program(["pgbouncer", f"{self.folder}/bouncer.ini"], f"{self.folder}/log", user="postgres"):
                end = time.time() + 20
                while socket.socket().connect_ex(("127.0.0.1", at)):
                    assert time.time() < end, "PgBouncer doesn't come up"
                    time.sleep(0.1)
                return self.drive(self.a.seconds, to=at)


def one_round(d, a, n):
    """Throughput and unfairness between clients by setting; fixed settings in an order of their own each round, the tuner's in the middle."""
    got = {}
    with d.shaped(d.command()):
        d.ready()
        order = GRID + ["unlimited"]
        random.Random(n).shuffle(order)
        half = len(order) // 2
        for p in order[:half]:
            d.set_p(p)
            got[p] = d.drive(a.seconds)
        d.set_p("auto")
        got["auto"] = d.drive(a.seconds, warm=a.tune)
        top = json.loads(d.shape("top", "--once", "--json", "--control", d.control))
        got["auto"]["p"] = top["p"]
        for p in order[half:]:
            d.set_p(p)
            got[p] = d.drive(a.seconds)
    got["other"] = d.others()
    return got


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("plimsoll")
    p.add_argument("server", choices=["mariadb", "postgres"])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--load", default="tpcc-like", choices=["tpcc-like", "ycsb-like", "hot-rows"])
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--scale", type=int, default=4)
    p.add_argument("--tune", type=int, default=60)
    p.add_argument("--seconds", type=int, default=5)
    a = p.parse_args()
    a.plimsoll = os.path.abspath(a.plimsoll)
    folder = tempfile.mkdtemp(prefix="shape-")
    os.chmod(folder, 0o755)
    try:
        d = {"mariadb": MariaDb, "postgres": Postgres}[a.server](a, f"{folder}/server")
        with d.shaped(d.command()):
            d.ready()
            d.prepare()
        rounds = []
        for n in range(a.rounds):
            got = one_round(d, a, n)
            rounds.append(got)
            fixed = {k: v for k, v in got.items() if isinstance(k, int)}
            best = max(fixed, key=lambda k: fixed[k]["rate"])
            regret = 100 * (1 - got["auto"]["rate"] / fixed[best]["rate"])
            got["regret"] = regret
            rates = ", ".join(f"{k}: {v['rate']:.0f}" for k, v in got.items() if isinstance(v, dict))
            print(f"round {n + 1} of {a.rounds}: best fixed P {best}; tuner P {got['auto']['p']}, {regret:+.1f} % below it; {rates}", file=sys.stderr)
        print(f"\n{a.server}, {a.load}, {a.clients} clients, medians of {a.rounds} rounds of {a.seconds} s\n")
        print("| | transactions/s | least to most | p99 ms | unfairness between clients % | errors |\n|---|---|---|---|---|---|")
        for k in GRID + ["unlimited", "auto", "other"]:
            of = lambda name: [r[k][name] for r in rounds]
            name = {"auto": f"P by the tuner ({', '.join(str(r['auto']['p']) for r in rounds)})", "other": d.other,
                    "unlimited": "no limit"}.get(k, f"P = {k}")
            m = statistics.median
            print(f"| {name} | {m(of('rate')):.0f} | {min(of('rate')):.0f} to {max(of('rate')):.0f} | {m(of('p99_us')) / 1000:.1f} "
                  f"| {m(of('unfairness_percent')):.1f} | {sum(of('errors'))} |")
        near = sum(r["regret"] <= 10 for r in rounds)
        regrets = ", ".join(f"{r['regret']:.1f}" for r in rounds)
        print(f"\nThe tuner within 10 % of the round's best fixed P in {near} of {a.rounds} rounds; regrets {regrets} %.")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


main()
