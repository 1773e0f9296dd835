#!/usr/bin/python3
"""SecantusDB, a real server of MongoDB's protocol, under `plimsoll shape --profile mongo`, with MongoDB's own driver: the cap, exemptions,
transactions, clients that vanish. Needs pymongo and secantusdb (`make shape-mongo` installs them).

usage: mongo_shaped.py PLIMSOLL
"""
import os, re, signal, socket, subprocess, sys, sysconfig, tempfile, threading, time

import pymongo

P, CLIENTS, SECONDS = 2, 12, 5


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    plimsoll, port = os.path.abspath(sys.argv[1]), free_port()
    folder = tempfile.TemporaryDirectory()
    control = f"{folder.name}/segment"
    # The program's real path is started, which knows nothing of the environment that this one is installed in.
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    server = [os.path.realpath(sys.executable), "-m", "secantus", "--port", str(port), "--storage-path", f"{folder.name}/data"]
    log = open(f"{folder.name}/log", "wb")
    shaped = subprocess.Popen([plimsoll, "shape", "--profile", "mongo", "--p", str(P), "--control", control, "--", *server], stdout=log,
                              stderr=log, env=environment)

    def metrics():
        text = subprocess.run([plimsoll, "shape", "metrics", "--control", control], check=True, capture_output=True, text=True).stdout
        return {k: int(v) for k, v in re.findall(r"^plimsoll_shape_(\S+) (\d+)$", text, re.M)}

    def until(what, holds):
        end = time.time() + 60
        while not holds():
            assert time.time() < end, f"{what}\n{open(f'{folder.name}/log').read()[-2000:]}"
            time.sleep(0.1)

    connect = lambda: pymongo.MongoClient("127.0.0.1", port, serverSelectionTimeoutMS=20_000, directConnection=True)
    try:
        until("the server is up", lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
        with connect() as c:
            c.t.hot.insert_many([{"_id": i, "n": 0} for i in range(4)])
        done, stop = [0] * CLIENTS, threading.Event()

        def work(i):
            with connect() as c:
                while not stop.is_set():
                    c.t.hot.update_one({"_id": i % 4}, {"$inc": {"n": 1}})
                    assert c.t.hot.find_one({"_id": i % 4})["n"] > 0
                    done[i] += 2

        threads = [threading.Thread(target=work, args=(i,)) for i in range(CLIENTS)]
        [t.start() for t in threads]
        most, end = 0, time.time() + SECONDS
        while time.time() < end:
            most = max(most, metrics()['inside{place="ordinary"}'])
        # Some clients vanish in the middle of it.
        raw = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        [s.close() for s in raw]
        stop.set()
        [t.join(60) for t in threads]
        assert not any(t.is_alive() for t in threads), "no client hangs"
        total = 0
        with connect() as c:
            total = sum(d["n"] for d in c.t.hot.find())
            try:
                with c.start_session() as s, s.start_transaction():
                    c.t.hot.update_one({"_id": 0}, {"$inc": {"n": 1}}, session=s)
                    c.t.hot.find_one({"_id": 0}, session=s)
                transactions = "committed"
            except pymongo.errors.PyMongoError as e:
                transactions = f"not by this server ({e})"
        until("nothing is left inside", lambda: metrics()['inside{place="ordinary"}'] == 0 and metrics()["waiting"] == 0)
        m = metrics()
        print(f"{sum(done)} operations in {SECONDS} s by {CLIENTS} clients, at most {most} inside (P = {P}); {m['held_total']} waited; "
              f"stall escapes {m['stall_escapes_total']}, unparsed {m['unparsed_total']}; transaction {transactions}")
        assert total == sum(done) // 2, "every update is there"
        assert most <= P and m["held_total"] > 0 and m["finished_total"] >= sum(done)
        assert (m["unparsed_total"], m["panics_total"]) == (0, 0)
    finally:
        shaped.send_signal(signal.SIGTERM)
        shaped.wait(30)
        folder.cleanup()


main()
