"""Modelled disks on this host, and noise on them, for benchmarks of host mode.

A disk is nbdkit's memory behind a delay, one request at a time in the order of arrival, mounted through nbdfuse, a loop device and ext4.
"""
import os, pathlib, subprocess, sys, threading, time

READ_MS = 4


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


def wait_for(what, f, seconds=30):
    end = time.monotonic() + seconds
    while not f():
        if time.monotonic() > end:
            sys.exit(f"waited without effect: {what}")
        time.sleep(0.01)


class Disk:
    def __init__(self, folder, name, megabytes=128, read_ahead_kb=0):
        self.folder = folder / name
        (self.folder / "fuse").mkdir(parents=True)
        (self.folder / "fs").mkdir()
        socket, image = self.folder / "nbd.sock", self.folder / "fuse/nbd"
        # One thread takes requests in the order of their arrival. Several would wait for one lock, which is given in no order.
        order = ["--threads=1", "--filter=delay"]
        model = ["memory", f"{megabytes}M", f"rdelay={READ_MS}ms"]
        self.nbdkit = subprocess.Popen(["nbdkit", "--foreground", "--exit-with-parent", *order, "--unix", socket, *model])
        wait_for("nbdkit listens", socket.exists)
        self.fuse = subprocess.Popen(["nbdfuse", image, "--unix", socket])
        wait_for("nbdfuse mounts", lambda: image.exists() and image.stat().st_size)
        self.loop = run("losetup", "--find", "--show", "--direct-io=on", image)
        run("mkfs.ext4", "-q", "-E", "nodiscard", "-O", "^has_journal", self.loop)
        run("mount", "-o", "noatime", self.loop, self.folder / "fs")
        (pathlib.Path("/sys/block") / self.loop[5:] / "queue/read_ahead_kb").write_text(str(read_ahead_kb))

    def close(self):
        subprocess.run(["umount", "--lazy", self.folder / "fs"])
        subprocess.run(["losetup", "--detach", self.loop])
        subprocess.run(["fusermount3", "-u", "-z", self.folder / "fuse"], stderr=subprocess.DEVNULL)
        subprocess.run(["umount", "--lazy", self.folder / "fuse/nbd"], stderr=subprocess.DEVNULL)
        for child in self.fuse, self.nbdkit:
            child.kill()
            child.wait()


class Noise:
    """Eight readers at a disk, a second each disk in turn."""

    def __init__(self, disks):
        self.stop, self.at, self.begun = False, 0, time.monotonic()
        self.threads = [threading.Thread(target=self.read, args=(d, i, t)) for i, d in enumerate(disks) for t in range(8)]
        self.disks = len(disks)
        for t in self.threads:
            t.start()

    def read(self, disk, turn, seed):
        import mmap

        fd = os.open(disk.loop, os.O_RDONLY | os.O_DIRECT)
        buffer, n = mmap.mmap(-1, 4096), seed * 7919
        while not self.stop:
            if int(time.monotonic() - self.begun) % self.disks != turn:
                time.sleep(0.005)  # another disk has the noise now; the hands change each second
                continue
            os.preadv(fd, [buffer], n % 30_000 * 4096)
            n += 104_729
        os.close(fd)

    def close(self):
        self.stop = True
        for t in self.threads:
            t.join()
