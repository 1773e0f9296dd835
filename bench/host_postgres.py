"""Three hot standbys of one PostgreSQL, each on a modelled disk, under host mode's preloaded library; for bench/host_replicas.py.

Back ends of the role `app` have a deadline, those of `patient` have none. The primary changes a table all the time, so the standbys recover
while they are read.
"""
import glob, os, pathlib, pwd, shutil, signal, subprocess

from host_disks import run, wait_for

BUSY = "Device or resource busy"


def bin_folder():
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    assert found, "PostgreSQL isn't installed: apt-get install postgresql"
    return found[-1]


def account():
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": "/"}


class Server:
    def __init__(self, data, sockets, port, log, environment, *settings):
        self.data, self.sockets, self.port, self.log, self.environment = data, sockets, port, log, environment
        common = ["listen_addresses=", f"port={port}", f"unix_socket_directories={sockets}", "shared_buffers=1MB", "autovacuum=off",
                  "log_line_prefix=%u|%b|", "log_min_error_statement=panic", "max_connections=100"]
        self.settings = [word for setting in [*common, *settings] for word in ("-c", setting)]
        self.process = None
        self.start()

    def start(self):
        with open(self.log, "a") as log:
            environment = {**os.environ, **self.environment}
            self.process = subprocess.Popen([f"{bin_folder()}/postgres", "-D", self.data, *self.settings], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, env=environment, **account())
        # Recovery beside the noise is slow.
        wait_for(f"the server in {self.data} answers: {self.log}", lambda: self.asked("SELECT 1").returncode == 0, 180)

    def asked(self, sql, role="patient"):
        role = "root" if role == "patient" and not self.environment else role
        return subprocess.run(["psql", "-X", "-A", "-t", "-q", "-h", self.sockets, "-p", str(self.port), "-U", role, "-d", "postgres", "-c", sql],
                              capture_output=True, text=True)

    def ask(self, sql):
        done = self.asked(sql)
        assert done.returncode == 0, f"{self.data}: {sql}: {done.stderr}"
        return done.stdout.strip()

    def stop(self, how=signal.SIGQUIT):
        if self.process:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None


class Standbys:
    def __init__(self, folder, disks, libraries, host_socket, limit_us, fill):
        """`fill` makes the table `t` in the database whose folder it's given."""
        self.folder, self.disks = folder, disks
        self.servers, self.writer = [], None
        sockets, primary = folder / "sockets", folder / "primary"
        for made in sockets, primary:
            made.mkdir()
            shutil.chown(made, "postgres", "postgres")
        library = folder / "libplimsoll_deadline.so"  # the tree may not be readable for PostgreSQL's account
        shutil.copy(pathlib.Path(libraries) / library.name, library)
        run(f"{bin_folder()}/initdb", "-D", primary, "-A", "trust", "-U", "root", "--no-locale", "--wal-segsize=1", "--no-sync", **account())
        self.primary = Server(primary, sockets, 5500, folder / "primary.log", {}, "fsync=off", "max_wal_size=32MB", "min_wal_size=8MB",
                              "wal_keep_size=64MB")
        self.primary.ask("CREATE ROLE app LOGIN; CREATE ROLE patient LOGIN IN ROLE pg_monitor")
        database = self.primary.ask("SELECT oid FROM pg_database WHERE datname = 'postgres'")
        fill(primary / "base" / database)
        self.primary.ask("CREATE TABLE w AS SELECT i AS id, 0 AS n FROM generate_series(1, 100000) i; CREATE INDEX ON w (id); "
                         "GRANT SELECT ON t, w TO app, patient")
        self.primary.ask("VACUUM FREEZE")
        self.dirs = []
        try:
            for i, disk in enumerate(disks):
                root = disk.folder / "fs"
                shutil.chown(root, "postgres", "postgres")
                data = root / "data"
                run(f"{bin_folder()}/pg_basebackup", "-h", sockets, "-p", "5500", "-U", "root", "-D", data, "-R", "-X", "stream", "-c", "fast", **account())
                preload = {
                    "LD_PRELOAD": str(library),
                    "PLIMSOLL_HOST_SOCKET": str(host_socket),
                    "PLIMSOLL_DEADLINES": f"{data}/base={limit_us}us",
                    "PLIMSOLL_DEADLINE_PROCESSES": "postgres",
                    "PLIMSOLL_DEADLINE_TITLES": "postgres: app",
                    "PLIMSOLL_DEADLINE_FIRST": "refuse",
                }
                self.servers.append(Server(data, sockets, 5501 + i, folder / f"standby{i}.log", preload, "max_standby_streaming_delay=-1", "recovery_init_sync_method=syncfs",
                                           "max_wal_size=16MB", "min_wal_size=4MB"))
                self.dirs.append(data / "base" / database)
            script = folder / "change.sql"
            script.write_text("\\set id random(1, 100000)\nUPDATE w SET n = n + 1 WHERE id = :id;\n")
            self.writer = subprocess.Popen(["pgbench", "-n", "-h", sockets, "-p", "5500", "-U", "root", "-f", script, "-R", "20", "-T", "100000",
                                            "--random-seed=1", "postgres"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except BaseException:
            self.close()
            raise

    def check(self, noise):
        """The standbys have the primary's contents, also one that recovers beside the noise; refusals are of `app` alone."""
        beside = noise(self.disks)
        try:
            one = self.servers[0]
            one.stop()  # as if it had crashed
            for path, _, names in os.walk(one.data):
                for name in names:
                    fd = os.open(os.path.join(path, name), os.O_RDONLY)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(fd)
            one.start()
        finally:
            beside.close()
        assert self.writer.poll() is None, "the primary's changes ended early"
        self.writer.terminate()
        self.writer.wait()
        end = self.primary.ask("SELECT pg_current_wal_lsn()")
        contents = "SELECT md5(string_agg(t::text, '' ORDER BY k)) FROM t; SELECT md5(string_agg(w::text, '' ORDER BY id)), sum(n) FROM w"
        expected = self.primary.ask(contents)
        assert int(expected.split("|")[1]) > 0, "the primary's changes"
        refused = 0
        for server in self.servers:
            wait_for(f"{server.data} has all of the log", lambda: server.ask(f"SELECT pg_last_wal_replay_lsn() >= '{end}'") == "t", 120)
            assert server.ask(contents) == expected, f"{server.data}: contents differ"
            log = server.log.read_text()
            assert "PANIC" not in log, server.log
            lines = [line for line in log.splitlines() if BUSY in line]
            others = [line for line in lines if not line.startswith("app|client backend|")]
            assert not others, f"{server.log}: {others[0]}"
            refused += len(lines)
        return f"the standbys have the primary's contents, one after a recovery beside the noise; {refused} refusals, all of the role app"

    def close(self):
        if self.writer:
            self.writer.kill()
            self.writer.wait()
        for server in [*self.servers, self.primary]:
            server.stop()
