#!/usr/bin/env python3
"""The file system beside the example file system of the FUSE library that both use (`simple` of fuser), on tmpfs, alternating; medians.

usage: bench/fs_fuser.py PLIMSOLL [--rounds N] [--seconds S] [--files N] [--mib N] [--threads N] [--json OUT]

As root. `simple` is built from the source of the version in Cargo.lock. It stores each file as a file in a directory of tmpfs, as the
file system's image is. It is there twice: as it is, where the kernel asks it for each attribute, and with the file system's caching
of attributes, names and pages. Passthrough isn't used. tmpfs itself has a line for scale.

`simple` has no journal, no checksums and no fsync, so fsync isn't measured. It writes a directory as a whole at each change: create
and unlink take longer, the more files there are. fio has one request in flight, past the kernel's cache. One thread serves, as
`simple` takes no locks.
"""
import json, os, re, shutil, subprocess, tempfile, time

from lib import ROOT, alternate, arguments, head, keep, middle, row

JOBS = (("write 1M", "write", "1m", "MB/s"), ("read 1M", "read", "1m", "MB/s"),
        ("write 4k", "randwrite", "4k", "1/s"), ("read 4k", "randread", "4k", "1/s"))


def example():
    """Builds `simple`, as it is and with caching: both programs and the library's version."""
    metadata = json.loads(subprocess.run(["cargo", "metadata", "--locked", "--format-version", "1"], cwd=ROOT, check=True, capture_output=True).stdout)
    package, = (p for p in metadata["packages"] if p["name"] == "fuser")
    folder = os.path.join(metadata["target_directory"], f"fuser-{package['version']}")
    programs = [os.path.join(folder, name) for name in ("simple", "simple-cached")]
    if not all(map(os.path.exists, programs)):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(os.path.dirname(package["manifest_path"]), folder)
        # Its own choice of a compiler, and the workspace around it.
        for name in ("rust-toolchain", "rust-toolchain.toml"):
            if os.path.exists(os.path.join(folder, name)):
                os.remove(os.path.join(folder, name))
        with open(os.path.join(folder, "Cargo.toml"), "a") as f:
            f.write("\n[workspace]\n")
        source = os.path.join(folder, "examples/simple.rs")
        with open(source) as f:
            text = f.read()
        cached, times = re.subn(r"Duration::new\(0, 0\)", "Duration::new(60, 0)", text)
        cached, flags = re.subn(r"FopenFlags::empty\(\)", "FopenFlags::FOPEN_KEEP_CACHE", cached)
        assert times and flags, "the example has changed"
        for program, text in zip(programs, (text, cached)):
            with open(source, "w") as f:
                f.write(text)
            out = os.path.join(folder, "target")
            subprocess.run(["cargo", "build", "--release", "--example", "simple", "--target-dir", out], cwd=folder, check=True)
            shutil.copy(os.path.join(out, "release/examples/simple"), program)
    return *programs, package["version"]


def ready(server, at):
    until = time.monotonic() + 30
    while not os.path.ismount(at):
        assert server.poll() is None and time.monotonic() < until, "the mount didn't come"
        time.sleep(0.01)


def throughput(at, seconds, mib):
    """The jobs' results, on one file that the first of them writes."""
    found = {}
    for title, rw, size, unit in JOBS:
        out = subprocess.run(
            ["fio", "--name=x", f"--filename={at}/data", "--ioengine=psync", "--direct=1", f"--rw={rw}", f"--bs={size}", f"--size={mib}M",
             "--time_based", f"--runtime={seconds}", "--fallocate=none", "--randrepeat=0", "--norandommap", "--output-format=json"],
            check=True, capture_output=True, text=True).stdout
        job = json.loads(out[out.index("{"):])["jobs"][0]["read" if "read" in rw else "write"]
        found[f"{title}, {unit}"] = job["bw_bytes"] / 1e6 if unit == "MB/s" else job["iops"]
        if title == JOBS[0][0]:
            # Reads find data everywhere, however short the first job was.
            with open(f"{at}/data", "wb") as f:
                for _ in range(mib):
                    f.write(os.urandom(1 << 20))
    os.remove(f"{at}/data")
    return found


def rate(names, do):
    began = time.perf_counter()
    for name in names:
        do(name)
    return len(names) / (time.perf_counter() - began)


def metadata(at, files):
    """Operations a second in a directory of its own."""
    folder = os.path.join(at, "files")
    os.mkdir(folder)
    names = [os.path.join(folder, f"file-{i:06}") for i in range(files)]
    missing = [f"{name}-missing" for name in names]
    make = lambda name: os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    found = {"create, 1/s": rate(names, make), "stat, 1/s": rate(names, os.stat), "stat of a missing name, 1/s": rate(missing, os.path.exists),
             "unlink, 1/s": rate(names, os.remove)}
    os.rmdir(folder)
    return found


def measure(command, prepare, args):
    """One mount's results; without a command, those of the folder itself."""
    folder = tempfile.mkdtemp(dir="/dev/shm", prefix="bench-")
    at = os.path.join(folder, "mnt")
    os.mkdir(at)
    server = None
    try:
        if command:
            prepare(folder)
            server = subprocess.Popen([word.format(folder=folder, at=at) for word in command], stdout=subprocess.DEVNULL)
            ready(server, at)
        return throughput(at, args.seconds, args.mib) | metadata(at, args.files)
    finally:
        if server:
            if os.path.ismount(at):
                subprocess.run(["umount", at], check=True)
            else:
                server.terminate()
            server.wait()
        shutil.rmtree(folder)


def main():
    parser = arguments(__doc__, seconds=5, rounds=5)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--mib", type=int, default=256, help="size of the file that fio reads and writes")
    parser.add_argument("--threads", type=int, default=1, help="that serve requests")
    args = parser.parse_args()
    simple, cached, version = example()
    make = lambda folder: subprocess.run([args.plimsoll, "mkfs", f"{folder}/fs.img", "--size", f"{3 * args.mib + 256}MiB"], check=True, stdout=subprocess.DEVNULL)
    peer = lambda program: [program, "--data-dir", "{folder}/data", "--mount-point", "{at}", "--n-threads", str(args.threads)]
    subjects = {"tmpfs": (None, None),
                "plimsoll": ([args.plimsoll, "mount", "{folder}/fs.img", "{at}", "--threads", str(args.threads)], make),
                "simple": (peer(simple), lambda folder: None),
                "simple, our caching": (peer(cached), lambda folder: None)}
    found = alternate(subjects, args.rounds, lambda name, _round: measure(*subjects[name], args))
    print(f"fuser {version}, rounds {args.rounds}, {args.seconds} s a job, {args.files} files, {args.threads} threads; median (least..most)\n")
    head("", *subjects)
    for title in found["plimsoll"][0]:
        row(title, *(middle((run[title] for run in found[name]), 0) for name in subjects))
    keep(args.json, args, found, fuser=version)


main()
