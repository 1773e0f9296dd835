#!/usr/bin/env python3
"""Records what a real file's or device's requests take, beside noise of several kinds, for `plimsoll lab run AUTO-RECORDED`.

usage: bench/device_times.py FILE FOLDER [--rounds N] [--seconds S] [--noise KIND...]

Readers (Poisson, 4 to 32 KiB at random, direct) run in processes of their own. `quiet` is without noise, `own` has bursts of writes that
end in fsync, which a predictor sees; `seq`, `sync` and `deep` are fio's, beside the recorded requests, which it doesn't: streaming writes,
small writes each with fsync, deep reads. Kinds alternate within a round. A FILE that isn't there is made (1 GiB) and removed
at the end. One CSV a round and kind is written to FOLDER: t_us,dev,op,offset,size,q_us,svc_us,ctx.
"""
import argparse, mmap, multiprocessing, os, random, subprocess, time

BYTES = 1 << 30
KINDS = {
    "quiet": None,
    "own": None,
    "seq": ["--rw=write", "--bs=1M", "--iodepth=4", "--direct=1", "--thinktime=200ms", "--thinktime_blocks=64"],
    "sync": ["--rw=randwrite", "--bs=16k", "--fsync=1", "--numjobs=2", "--thinktime=300ms", "--thinktime_blocks=100"],
    "deep": ["--rw=randread", "--bs=64k", "--iodepth=32", "--direct=1", "--thinktime=300ms", "--thinktime_blocks=400"],
}


def reader(path, seed, until, rate, out):
    rng, rows = random.Random(seed), []
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 32 << 10)
    while (now := time.monotonic_ns()) < until:
        time.sleep(rng.expovariate(rate))
        size = 4096 << rng.randrange(4)
        offset = rng.randrange((BYTES - size) // 4096) * 4096
        began = time.monotonic_ns()
        os.preadv(fd, [memoryview(buffer)[:size]], offset)
        rows.append((began, "R", offset, size, time.monotonic_ns() - began))
    out.put(rows)


def writer(path, seed, until, out):
    rng, rows = random.Random(seed), []
    fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 256 << 10)
    while time.monotonic_ns() < until:
        time.sleep(rng.expovariate(1 / 0.4))
        for _ in range(rng.randrange(20, 200)):
            offset = rng.randrange((BYTES - (256 << 10)) // 4096) * 4096
            began = time.monotonic_ns()
            os.pwritev(fd, [buffer], offset)
            rows.append((began, "W", offset, 256 << 10, time.monotonic_ns() - began))
        began = time.monotonic_ns()
        os.fsync(fd)
        rows.append((began, "F", 0, 0, time.monotonic_ns() - began))
    out.put(rows)


def record(path, kind, seconds, seed, csv):
    out = multiprocessing.Queue()
    until = time.monotonic_ns() + int(seconds * 1e9)
    jobs = [multiprocessing.Process(target=reader, args=(path, f"{seed}-{i}", until, 150, out)) for i in range(4)]
    if kind == "own":
        jobs.append(multiprocessing.Process(target=writer, args=(path, f"{seed}-w", until, out)))
    noise = None
    if KINDS[kind]:
        noise = subprocess.Popen(["fio", "--name=noise", f"--filename={path}.noise", "--size=1G", "--ioengine=libaio", "--time_based",
                                  f"--runtime={seconds}", "--output=/dev/null", *KINDS[kind]])
    for job in jobs:
        job.start()
    rows = sorted(row for _ in jobs for row in out.get())
    for job in jobs:
        job.join()
    if noise and noise.wait() != 0:
        raise SystemExit(f"fio failed with {noise.returncode}")
    first = rows[0][0]
    with open(csv, "w") as f:
        f.write("t_us,dev,op,offset,size,q_us,svc_us,ctx\n")
        for began, op, offset, size, took in rows:
            f.write(f"{(began - first) / 1000:.1f},0,{op},{offset},{size},,{took / 1000:.1f},\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("file")
    p.add_argument("folder")
    p.add_argument("--rounds", type=int, default=10)
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--noise", nargs="+", choices=KINDS, default=list(KINDS))
    a = p.parse_args()
    made = [] if os.path.exists(a.file) else [a.file]
    if made:
        with open(a.file, "wb") as f:
            for _ in range(BYTES >> 20):
                f.write(os.urandom(1 << 20))
    if any(KINDS[k] for k in a.noise):
        made.append(f"{a.file}.noise")
    try:
        for n in range(a.rounds):
            for kind in a.noise:
                record(a.file, kind, a.seconds, f"{n}-{kind}", os.path.join(a.folder, f"{kind}-{n}.csv"))
                print(f"round {n}: {kind}", flush=True)
    finally:
        for path in made:
            if os.path.exists(path):
                os.remove(path)


if __name__ == "__main__":
    main()
