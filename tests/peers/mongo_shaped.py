#!/usr/bin/python3
"""SecantusDB, a real server of MongoDB's protocol, under `plimsoll shape --profile mongo`, with MongoDB's own driver: the cap, exemptions,
transactions, clients that vanish. Needs pymongo and secantusdb (`make shape-mongo` installs them).

usage: mongo_shaped.py PLIMSOLL
"""
import os, re, signal, socket, subprocess, sys, sysconfig, tempfile, threading, time

import pymongo

P, CLIENTS, SECONDS = 2, 12, 5
UP_S, END_S, ATTEMPTS = 60, 60, 5


class Shaped:
    """The server under the shaper, on a port that nobody else took."""

    def __init__(self, plimsoll, folder):
        self.plimsoll, self.folder = plimsoll, folder
        for attempt in range(ATTEMPTS):
            # Between looking and the server's own bind somebody may take it: then another one is tried.
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                self.port = s.getsockname()[1]
            self.control, self.seen = f"{folder}/segment{attempt}", f"{folder}/most{attempt}"
            self.start(attempt)
            if self.is_up():
                return
            self.end()
        raise AssertionError(f"the server did not come up: {self.log()}")

    def start(self, attempt):
        watched = os.path.join(os.path.dirname(os.path.abspath(__file__)), "secantus_watched.py")
        # The program's real path is started, which knows nothing of the environment that this one is installed in.
        environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
        server = [os.path.realpath(sys.executable), watched, self.seen, "--port", str(self.port), "--storage-path", f"{self.folder}/data{attempt}"]
        command = [self.plimsoll, "shape", "--profile", "mongo", "--p", str(P), "--control", self.control, "--", *server]
        with open(f"{self.folder}/log", "ab") as log:
            self.child = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def log(self):
        with open(f"{self.folder}/log", errors="replace") as f:
            return f.read()[-2000:]

    def is_up(self):
        """Answers as MongoDB does, so it is ours that listens there."""
        end = time.time() + UP_S
        while time.time() < end and self.child.poll() is None:
            try:
                with pymongo.MongoClient("127.0.0.1", self.port, serverSelectionTimeoutMS=500, directConnection=True) as c:
                    c.admin.command("ping")
                return self.child.poll() is None
            except pymongo.errors.PyMongoError:
                time.sleep(0.1)
        return False

    def end(self):
        self.child.send_signal(signal.SIGTERM)
        try:
            self.child.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
            raise AssertionError(f"it did not end within {END_S} s of being asked to: {self.log()}") from None

    def shape(self, *command):
        return subprocess.run([self.plimsoll, "shape", *command, "--control", self.control], check=True, capture_output=True, text=True).stdout

    def metrics(self):
        return {k: float("inf") if v == "+Inf" else int(v) for k, v in re.findall(r"^plimsoll_shape_(\S+) (\d+|\+Inf)$", self.shape("metrics"), re.M)}

    def client(self):
        return pymongo.MongoClient("127.0.0.1", self.port, serverSelectionTimeoutMS=20_000, directConnection=True)

    def until(self, what, holds):
        end = time.time() + 60
        while not holds():
            assert time.time() < end, f"{what}\n{self.log()}"
            time.sleep(0.1)

    def load(self, seconds):
        """Clients that update and find; how much they did, and the most commands that the server ran at one moment."""
        if os.path.exists(self.seen):
            os.remove(self.seen)
        done, failed, stop = [0] * CLIENTS, [], threading.Event()

        def work(i):
            try:
                with self.client() as c:
                    while not stop.is_set():
                        c.t.hot.update_one({"_id": i % 4}, {"$inc": {"n": 1}})
                        assert c.t.hot.find_one({"_id": i % 4})["n"] > 0
                        done[i] += 2
            except Exception as e:
                failed.append(e)

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(CLIENTS)]
        [t.start() for t in threads]
        stop.wait(seconds)
        # Some clients vanish in the middle of it.
        raw = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(20)]
        [s.close() for s in raw]
        stop.set()
        [t.join(60) for t in threads]
        assert not failed, failed
        assert not any(t.is_alive() for t in threads), "a client hangs"
        with open(self.seen) as f:
            return sum(done), int(f.read())


def check(s):
    with s.client() as c:
        c.t.hot.insert_many([{"_id": i, "n": 0} for i in range(4)])
    done, most = s.load(SECONDS)
    with s.client() as c:
        total = sum(d["n"] for d in c.t.hot.find())
        try:
            with c.start_session() as session, session.start_transaction():
                c.t.hot.update_one({"_id": 0}, {"$inc": {"n": 1}}, session=session)
                c.t.hot.find_one({"_id": 0}, session=session)
            transactions = "committed"
        except pymongo.errors.PyMongoError as e:
            transactions = f"not by this server ({e})"
    s.until("nothing is left inside", lambda: s.metrics()['inside{place="ordinary"}'] == 0 and s.metrics()["waiting"] == 0)
    m = s.metrics()
    s.shape("set", "p=unlimited")
    s.until("P is gone", lambda: s.metrics()["p"] > 1_000_000)
    _, unshaped = s.load(2)
    print(f"{done} operations in {SECONDS} s by {CLIENTS} clients, the server ran at most {most} at a time (P = {P}; without it {unshaped}); "
          f"{m['held_total']} waited; stall escapes {m['stall_escapes_total']}, unparsed {m['unparsed_total']}; transaction {transactions}")
    assert total == done // 2, "every update is there"
    assert most <= P + m["stall_escapes_total"] + m["hold_escapes_total"] and m["held_total"] > 0 and m["finished_total"] >= done
    assert unshaped > P, "the server sees how many there are"
    assert (m["unparsed_total"], m["panics_total"]) == (0, 0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        shaped = Shaped(os.path.abspath(sys.argv[1]), folder)
        try:
            check(shaped)
        finally:
            shaped.end()


main()
