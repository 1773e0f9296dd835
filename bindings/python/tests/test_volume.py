"""The package against real nodes: PLIMSOLL names the program that serves them."""

import array
import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import plimsoll
import pytest
from plimsoll import _plimsoll

CONFIG = """
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
DEVICE
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "vol"
pool = "p"
size = "SIZE"
tenant = "t"
[[grant]]
peer = "local"
volumes = ["*"]
tenants = ["*"]
"""
PLAIN = 'device = { file = "disk.img", size = "64MiB" }'
DISK = '''device = { file = "disk.img", size = "64GiB", model = "hdd-160g-7200" }
profile = "disk.profile"'''
SIZE = 16 << 20


class Node:
    """A node of its own in a folder, ended by its process id."""

    def __init__(self, folder, device=PLAIN, size="16MiB"):
        folder.mkdir()
        self.folder = folder
        if "profile" in device:
            self.run("profile", "hdd-160g-7200", "--out", folder / "disk.profile")
        (folder / "node.toml").write_text(CONFIG.replace("DEVICE", device).replace("SIZE", size))
        command = [os.environ["PLIMSOLL"], "serve", "--config", str(folder / "node.toml")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert "serves" in self.process.stdout.readline()
        self.address = f"nbd+unix:///vol?socket={folder}/nbd.sock"

    @staticmethod
    def run(*arguments):
        return subprocess.run([os.environ["PLIMSOLL"], *map(str, arguments)], check=True, capture_output=True, text=True).stdout

    def cli(self, *arguments):
        return self.run(*arguments, "--control", self.folder / "control.sock")

    def shown(self):
        return json.loads(self.cli("volume", "show", "vol", "--json"))

    def stop(self):
        """Stops all its threads: it says nothing any more."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        while any(") T " not in (task / "stat").read_text() for task in tasks.iterdir()):
            time.sleep(0.001)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def nodes(tmp_path):
    running = [Node(tmp_path / str(i)) for i in range(3)]
    yield running
    for node in running:
        node.kill()


@pytest.fixture
def disk(tmp_path):
    node = Node(tmp_path / "disk", DISK)
    yield node
    node.kill()


def addresses_of(nodes):
    return [node.address for node in nodes]


def threads():
    return len(list(Path("/proc/self/task").iterdir()))


def test_it_reads_and_goes_on_when_nodes_die(nodes):
    addresses = addresses_of(nodes)
    with plimsoll.Volume(addresses, policy="mitt", deadline=0.5) as volume:
        assert volume.size == 16 << 20
        assert volume.read(4096, 8192) == bytes(8192)
        assert volume.read(0, 512, deadline=1.0, limit=5) == bytes(512)
        nodes[0].kill()
        for i in range(20):
            assert volume.read(512 * i, 512) == bytes(512)
        counts = volume.counts()
        assert counts["gets"] == 22 and counts["failed"] == 0
        assert sorted(r["state"] for r in volume.replicas())[-2:] == ["up", "up"]

        async def many():
            return await asyncio.gather(*(volume.read_async(4096 * i, 4096) for i in range(8)))

        assert asyncio.run(many()) == [bytes(4096)] * 8
    with pytest.raises(ValueError):
        volume.read(0, 512)


def test_a_set_of_objects_is_read_group_by_group(nodes):
    a, b, c = addresses_of(nodes)
    with plimsoll.Volume([[a, b], [b, c]], object_bytes=1 << 20) as objects:
        assert objects.size == 32 << 20
        assert objects.read(7 << 20, 4096) == bytes(4096)
        assert len(objects.replicas()) == 4
        with pytest.raises(ValueError, match="two objects"):
            objects.read((1 << 20) - 512, 1024)
    for replicas, size in [([[a, b]], None), ([a, b], 4096), ([[a]], 0)]:
        with pytest.raises((ValueError, plimsoll.OpenError)):
            plimsoll.Volume(replicas, object_bytes=size)


def test_what_is_wrong_is_said(nodes):
    addresses = addresses_of(nodes)
    with plimsoll.Volume(addresses) as volume:
        for arguments in [(0, 0), (16 << 20, 512), (0, 512, 0.0), (0, 512, -1.0), (-512, 512), (0, -512), (1 << 64, 512)]:
            with pytest.raises(ValueError):
                volume.read(*arguments)
            with pytest.raises(ValueError):
                asyncio.run(volume.read_async(*arguments))
        with pytest.raises(TypeError):
            volume.read("0", 512)
    with pytest.raises(ValueError, match="nbd://HOST"):
        plimsoll.Volume(["http://example.org"])
    with pytest.raises(ValueError):
        plimsoll.Volume(addresses, policy="sloth")
    for none in [dict(replicas=[]), dict(replicas=[[]], object_bytes=4096), dict(replicas=addresses, stall=0.0)]:
        with pytest.raises(ValueError):
            plimsoll.Volume(**none)
    with pytest.raises(plimsoll.OpenError, match="no replica can be read"):
        plimsoll.Volume(["nbd+unix:///vol?socket=/nonexistent"])
    with plimsoll.Volume(addresses) as volume:
        with pytest.raises(ValueError, match="writable=True"):
            volume.write(0, bytes(512))
        with pytest.raises(ValueError, match="-512"):
            volume.write(-512, bytes(512))
        with pytest.raises(ValueError, match="-512"):
            volume.trim(0, -512)
        with pytest.raises(ValueError, match="read only"):
            volume.readinto(0, bytes(512))
    with pytest.raises(ValueError, match="policy with deadlines"), plimsoll.Volume(addresses, policy="hedged") as volume:
        volume.read(0, 512, refusable=True)
    with pytest.raises(ValueError, match="set of objects is read only"):
        plimsoll.Volume([addresses], object_bytes=4096, writable=True)
    with pytest.raises(plimsoll.OpenError, match="needs all replicas"):
        plimsoll.Volume([*addresses, "nbd+unix:///vol?socket=/nonexistent"], writable=True)


def test_a_refusal_says_how_long_and_how_surely(disk):
    with plimsoll.Volume([disk.address]) as volume:
        with pytest.raises(plimsoll.Busy) as raised:
            volume.read(8 << 20, 4096, deadline=1e-6, refusable=True)
        assert raised.value.wait == 0, "the disk has no queue, it takes longer by itself"
        assert "the device takes too long by itself" in str(raised.value)
        assert 0 <= raised.value.confidence <= 1
        assert isinstance(raised.value, OSError) and plimsoll.Busy is plimsoll.host.Busy

        async def refused():
            with plimsoll.Volume([disk.address], policy="base") as other:
                # Seconds of work: each look is a program of its own, and takes its time.
                queue = [asyncio.create_task(other.read_async(i * 7919 % 256 * 65536, 4096)) for i in range(400)]
                while disk.shown()["traffic"]["inside"] < 32:
                    await asyncio.sleep(0)
                with pytest.raises(plimsoll.Busy) as raised:
                    await volume.read_async(8 << 20, 4096, deadline=1e-3, refusable=True)
                assert 0.001 < raised.value.wait < 10
                await asyncio.gather(*queue)
            return await volume.read_async(8 << 20, 4096, deadline=1e-6)  # waits instead

        assert asyncio.run(refused()) == bytes(4096)


def test_a_refused_read_goes_to_the_next_replica(tmp_path):
    # Any device is refused for such a deadline, once its time is learned: only what memory has can be read within it.
    busy, free = Node(tmp_path / "busy", DISK), Node(tmp_path / "free", PLAIN + '\nmemory = "16MiB"')
    try:
        with plimsoll.Volume([busy.address, free.address], policy="mitt") as volume:
            for i in range(20):
                assert volume.read(4096 * i, 4096, deadline=1e-6, refusable=True) == bytes(4096)
            counts = volume.counts()
            assert counts["busy"] > 0 and counts["failed"] == 0 and counts["tries"] == 20 + counts["busy"]
    finally:
        busy.kill()
        free.kill()


def test_asyncio_needs_no_thread_and_takes_reads_out_of_order(nodes):
    with plimsoll.Volume(addresses_of(nodes), policy="base") as volume:
        before = threads()

        async def many():
            reads = [asyncio.create_task(volume.read_async(4096 * i, 4096)) for i in range(500)]
            await asyncio.sleep(0)
            assert threads() == before
            return await asyncio.gather(*reads)

        for _ in range(2):  # an event loop each
            assert asyncio.run(many()) == [bytes(4096)] * 500
        assert threads() == before and volume.counts()["gets"] == 1000


def test_a_cancelled_read_is_withdrawn_and_a_closed_volume_ends_all(nodes):
    for node in nodes:
        node.cli("inject", "vol", "--stall", "--only", "reads", "--for", "5m")
    volume = plimsoll.Volume(addresses_of(nodes)[:1], policy="base")

    async def cancelled():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(volume.read_async(0, 4096), 0.05)
        while volume.counts()["cancels"] != 1:  # on the client's thread
            await asyncio.sleep(0.001)
        left = [asyncio.create_task(volume.read_async(0, 4096)) for _ in range(3)]
        await asyncio.sleep(0)
        volume.close()
        ended = await asyncio.gather(*left, return_exceptions=True)
        assert [type(e) for e in ended] == [ValueError] * 3 and "closed" in str(ended[0])

    asyncio.run(cancelled())


def test_every_buffer_is_read_into_and_written(nodes):
    octets = bytes(i % 251 for i in range(8192))
    numbers = array.array("I", range(2048))
    with plimsoll.Volume(addresses_of(nodes), writable=True) as volume:
        volume.write(0, octets)
        volume.write(8192, bytearray(octets))
        volume.write(16384, memoryview(octets)[4096:])
        volume.write(20480, numbers)
        volume.write(1 << 20, bytes([7]) * (3 << 20))
        volume.flush()
        into = bytearray(8192)
        for offset in (0, 8192):
            assert volume.readinto(offset, into) == 8192 and into == octets
        assert volume.readinto(16384, memoryview(into)[:4096], 1.0, 5.0) == 4096 and into[:4096] == octets[4096:]
        back = array.array("I", bytes(8192))
        volume.readinto(20480, back)
        assert back == numbers
        volume.trim(1 << 20, 1 << 20)

        async def more():
            await volume.write_async(12 << 20, numbers)
            await asyncio.gather(volume.flush_async(), volume.write_async(13 << 20, octets), volume.trim_async(2 << 20, 1 << 20))
            filled = array.array("I", bytes(8192))
            assert await volume.readinto_async(12 << 20, filled) == 8192
            return filled

        assert asyncio.run(more()) == numbers
        for wrong in [(SIZE, bytes(512)), (0, b"")]:
            with pytest.raises(ValueError):
                volume.write(*wrong)
        with pytest.raises(TypeError):
            volume.readinto(0, memoryview(into)[::2])
        begun = volume.counts()["gets"]
        with pytest.raises(ValueError, match="read only"):
            asyncio.run(volume.readinto_async(0, octets))
        assert volume.counts()["gets"] == begun, "nothing was read"
    for node in nodes:  # each replica has all of it, and none may lack any
        with plimsoll.Volume([node.address]) as volume:
            assert volume.read(0, 8192) == octets and volume.read(13 << 20, 8192) == octets
            assert volume.read(1 << 20, 2 << 20) == bytes(2 << 20) and volume.read(3 << 20, 4096) == bytes([7]) * 4096
        assert node.shown()["behind"] == "no"


def test_writes_of_many_threads_are_one_after_another(nodes):
    with plimsoll.Volume(addresses_of(nodes), writable=True) as volume:
        def write(i):
            for k in range(10):
                volume.write((i * 10 + k) * 4096, bytes([i + 1]) * 4096)

        writers = [threading.Thread(target=write, args=(i,)) for i in range(8)]
        [w.start() for w in writers], [w.join() for w in writers]
        assert all(volume.read(40960 * i, 40960) == bytes([i + 1]) * 40960 for i in range(8))
    assert {node.shown()["generation"] for node in nodes} == {80}


def test_a_write_that_a_replica_lacks_raises_and_marks_it(nodes):
    with plimsoll.Volume(addresses_of(nodes), writable=True) as volume:
        volume.write(0, bytes([1]) * 4096)
        nodes[2].cli("inject", "vol", "--errors", "--only", "writes", "--for", "10m")
        with pytest.raises(plimsoll.WriteError, match="not all replicas have the change"):
            volume.write(0, bytes([2]) * 4096)
        with pytest.raises(plimsoll.WriteError, match="open the volume again"):
            volume.write(0, bytes([3]) * 4096)
    assert [node.shown()["behind"] == "no" for node in nodes] == [True, True, False]
    with plimsoll.Volume(addresses_of(nodes)[:2], writable=True) as volume:
        volume.write(4096, bytes([3]) * 4096)
        assert volume.read(0, 8192) == bytes([2]) * 4096 + bytes([3]) * 4096


def test_a_writer_that_dies_marks_its_replicas(nodes):
    program = "import os, plimsoll, sys; v = plimsoll.Volume(sys.argv[1:], writable=True); v.write(0, bytes(512)); os._exit(0)"
    subprocess.run([sys.executable, "-c", program, *addresses_of(nodes)[:1]], check=True)
    while nodes[0].shown()["behind"] == "no":
        pass  # each look is a program of its own


def test_a_volume_that_is_dropped_holds_up_no_thread(nodes):
    volume = plimsoll.Volume(addresses_of(nodes)[:1], writable=True, limit=20)
    nodes[0].stop()
    completions = _plimsoll.Completions()
    volume._start_write(completions, 0, 0, bytes(512))
    with pytest.raises(plimsoll.ReadTimeout):  # raised by the thread that has begun the write before
        volume.read(0, 512, limit=0.05)
    dropping = threading.Event()

    def go_on():
        dropping.wait()
        for _ in range(10):
            time.sleep(0)
        nodes[0].go_on()

    other = threading.Thread(target=go_on)
    other.start()
    dropping.set()
    del volume  # waits for the write, which waits for the other thread
    [(number, _, error)] = completions.take()
    assert number == 0 and error is None, "the other thread went on before the limit"
    other.join()


def test_an_event_loop_goes_on_while_a_volume_is_closed(nodes):
    async def go_on():
        for _ in range(10):
            await asyncio.sleep(0)
        nodes[0].go_on()

    async def closes():
        async with await asyncio.to_thread(plimsoll.Volume, addresses_of(nodes)[:1], writable=True, limit=20) as volume:
            await volume.write_async(0, bytes(512))
            nodes[0].stop()
            late = asyncio.create_task(volume.write_async(0, bytes(512)))
            with pytest.raises(plimsoll.ReadTimeout):  # raised by the thread that has begun the write before
                await volume.read_async(0, 512, limit=0.05)
            other = asyncio.create_task(go_on())
        assert other.done(), "closing waits for the write, which waits for the other task"
        await late
        with pytest.raises(ValueError, match="closed"):
            await volume.read_async(0, 512)

    asyncio.run(closes())


def test_close_ends_the_writer_while_another_thread_reads(nodes):
    nodes[0].cli("inject", "vol", "--stall", "--only", "reads", "--for", "5m")
    program = """
import os, plimsoll, sys, threading, time
volume = plimsoll.Volume(sys.argv[1:], policy="base", writable=True)
volume.write(0, bytes(512))
threading.Thread(target=volume.read, args=(0, 512), daemon=True).start()
while volume.counts()["tries"] < 1:
    time.sleep(0.001)
volume.close()
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program, nodes[0].address], check=True)
    nodes[0].cli("inject", "vol", "--stop")
    while nodes[0].shown()["connections"] > 0:
        pass  # each look is a program of its own
    assert nodes[0].shown()["behind"] == "no", "its end was an orderly one"


def test_a_child_cant_use_its_parents_volume(nodes):
    with plimsoll.Volume(addresses_of(nodes), writable=True) as volume:
        volume.write(0, bytes([1]) * 512)
        started = lambda: volume._start_flush(_plimsoll.Completions(), 0)  # noqa: E731
        read, write = lambda: volume.read(0, 512, limit=1), lambda: volume.write(0, bytes(512))
        for n in range(2):
            child = os.fork()
            if child == 0:
                signal.alarm(60)  # ends a child that waits
                code = 1
                try:
                    for call in (read, write, volume.flush, started, volume.counts, volume.replicas, lambda: volume.size):
                        with pytest.raises(ValueError, match="forked"):
                            call()
                    volume.close()
                    with plimsoll.Volume(addresses_of(nodes)) as own:  # as the words say
                        assert own.read(0, 512) == bytes([1 + n]) * 512
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            volume.write(0, bytes([2]) * 512)
            assert volume.read(0, 512) == bytes([2]) * 512
    others = plimsoll.Volume(addresses_of(nodes), writable=True)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        del others
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    others.write(0, bytes([3]) * 512)
    assert others.read(0, 512) == bytes([3]) * 512
    others.close()
    assert [node.shown()["behind"] for node in nodes] == ["no"] * 3


def test_the_example_shows_that_a_slow_replica_isnt_waited_for(tmp_path):
    slow = Node(tmp_path / "slow", DISK, "16GiB")
    fast = Node(tmp_path / "fast", 'device = { file = "disk.img", size = "64GiB" }', "16GiB")
    example = Path(__file__).parent.parent / "examples/two_replicas.py"

    async def compare():
        with plimsoll.Volume([slow.address], policy="base") as noise:
            async def read_on(i):
                at = i + 1
                while True:
                    await noise.read_async(at << 20, 4096)
                    at = at * 7919 % 11003

            others = [asyncio.create_task(read_on(i)) for i in range(16)]
            program = await asyncio.create_subprocess_exec(
                sys.executable, example, slow.address, fast.address, stdout=asyncio.subprocess.PIPE
            )
            said, _ = await program.communicate()
            [task.cancel() for task in others]
            await asyncio.gather(*others, return_exceptions=True)
            assert program.returncode == 0
            return said.decode()

    try:
        lines = asyncio.run(compare()).splitlines()
        base, mitt = (float(line.split("p99 ")[1].removesuffix("ms")) for line in lines)
        assert [line.split(":")[0] for line in lines] == ["base", "mitt+wait"] and mitt < base, lines
    finally:
        slow.kill()
        fast.kill()
