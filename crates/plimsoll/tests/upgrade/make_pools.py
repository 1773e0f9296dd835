#!/usr/bin/python3
"""Makes the pools of an older version that the test `upgrade` opens: `make_pools.py OLD_BINARY OUT_DIR`.

OLD_BINARY is `plimsoll` built at the commit whose pools are wanted; folder `7b1e008` is named after it. Each pool is
filled over NBD, flushed, and its node is killed, so that flushed data are where a running node keeps them: in the logs, in
the cache, in NVRAM. One archive a pool comes out, with its configuration and `expected.json`: the version of each sector.

A sector's content is its number and its version (two 64-bit little-endian numbers), repeated; version 0 is zeroes. Needs
python3-libnbd.
"""
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import nbd

SECTOR = 512
SECTORS = 4096

COMMON = """
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
{pool}
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "a"
pool = "p"
size = "2MiB"
tenant = "t"
[[volume]]
name = "b"
pool = "p"
size = "2MiB"
tenant = "t"
[[grant]]
peer = "local"
volumes = ["*"]
tenants = ["*"]
"""
LOGS = """[pool.logs]
group = "1MiB"
log = "64KiB"
extents = 4096
logged_write = "16KiB"
idle = "10m"
clean_when_idle = false
"""
CACHE = """[pool.cache]
file = "fast.img"
device_size = "8MiB"
weu = "256KiB"
mode = "back"
watermark_percent = 90
"""
SLOW = 'device = { file = "slow.img", size = "16MiB" }\n'
POOLS = {
    "plain": SLOW,
    "logs": SLOW + LOGS,
    "cache": SLOW + CACHE,
    "cache-bare": SLOW + CACHE + 'codec = "none"\ndedup = "off"\n',
    "cache-per-volume": SLOW + CACHE.replace('"8MiB"', '"16MiB"') + 'sharing = "pervolume"\n',
    "cache-nvram": SLOW + CACHE + 'nvram = { file = "nvram.img", size = "8MiB" }\n',
    "cache-and-logs": SLOW + CACHE + LOGS,
}


def content(sector, version):
    if version == 0:
        return bytes(SECTOR)
    return (sector.to_bytes(8, "little") + version.to_bytes(8, "little")) * (SECTOR // 16)


class Volume:
    def __init__(self, name, directory):
        self.versions = [0] * SECTORS
        self.handle = nbd.NBD()
        self.handle.connect_uri(f"nbd+unix:///{name}?socket={directory}/nbd.sock")

    def write(self, first, count, version):
        data = b"".join(content(s, version) for s in range(first, first + count))
        self.handle.pwrite(data, first * SECTOR)
        self.versions[first:first + count] = [version] * count

    def zero(self, first, count, trim):
        call = self.handle.trim if trim else self.handle.zero
        call(count * SECTOR, first * SECTOR)
        self.versions[first:first + count] = [0] * count


def fill(volume, seed):
    """Large and small writes over one another, some zeroed, everything flushed a few times on the way."""
    draw = random.Random(seed)
    for version in range(1, 400):
        first = draw.randrange(SECTORS - 64)
        kind = draw.random()
        if kind < 0.08:
            volume.zero(first // 8 * 8, 8 * draw.randrange(1, 8), trim=kind < 0.04)
        elif kind < 0.2:
            volume.write(first, 64, version)
        else:
            volume.write(first, draw.choice([1, 2, 8, 8, 16]), version)
        if version % 50 == 0:
            volume.handle.flush()
    volume.handle.flush()


def make(binary, name, pool, out):
    with tempfile.TemporaryDirectory() as directory:
        text = COMMON.format(pool=pool)
        if "pervolume" in pool:
            text = text.replace('tenant = "t"\n[[', 'tenant = "t"\ncache_size = "5MiB"\n[[')
        with open(f"{directory}/plimsoll.toml", "w") as f:
            f.write(text)
        node = subprocess.Popen([binary, "serve", "--config", f"{directory}/plimsoll.toml"], stdout=subprocess.DEVNULL)
        try:
            end = time.monotonic() + 30
            while True:
                try:
                    volumes = {n: Volume(n, directory) for n in "ab"}
                    break
                except nbd.Error:
                    if time.monotonic() > end or node.poll() is not None:
                        raise
                    time.sleep(0.05)
            for seed, volume in enumerate(volumes.values()):
                fill(volume, f"{name} {seed}")
        finally:
            node.send_signal(signal.SIGKILL)
            node.wait()
        with open(f"{directory}/expected.json", "w") as f:
            json.dump({n: v.versions for n, v in volumes.items()}, f)
        files = [f for f in sorted(os.listdir(directory)) if not f.endswith(".sock")]
        subprocess.run(["tar", "-C", directory, "--sparse", "--owner=0", "--group=0", "-czf", f"{out}/{name}.tar.gz", *files], check=True)
        print(name, files, os.path.getsize(f"{out}/{name}.tar.gz"))


def main():
    binary, out = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    for name, pool in POOLS.items():
        make(os.path.abspath(binary), name, pool, out)


main()
