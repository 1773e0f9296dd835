"""The package against real nodes: PLIMSOLL names the program that serves them."""

import asyncio
import os
import subprocess

import plimsoll
import pytest

CONFIG = """
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
[[pool]]
name = "p"
device = { file = "disk.img", size = "64MiB" }
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "vol"
pool = "p"
size = "16MiB"
tenant = "t"
[[grant]]
peer = "local"
volumes = ["*"]
tenants = ["*"]
"""


@pytest.fixture
def nodes(tmp_path):
    running = []
    for i in range(3):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "node.toml").write_text(CONFIG)
        command = [os.environ["PLIMSOLL"], "serve", "--config", str(folder / "node.toml")]
        node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert "serves" in node.stdout.readline()
        running.append((node, f"nbd+unix:///vol?socket={folder}/nbd.sock"))
    yield running
    for node, _ in running:
        node.kill()
        node.wait()


def test_it_reads_and_goes_on_when_nodes_die(nodes):
    addresses = [address for _, address in nodes]
    with plimsoll.Volume(addresses, policy="mitt", deadline=0.5) as volume:
        assert volume.size == 16 << 20
        assert volume.read(4096, 8192) == bytes(8192)
        assert volume.read(0, 512, deadline=1.0, limit=5) == bytes(512)
        nodes[0][0].kill()
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
    a, b, c = [address for _, address in nodes]
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
    addresses = [address for _, address in nodes]
    with plimsoll.Volume(addresses) as volume:
        for arguments in [(0, 0), (16 << 20, 512), (0, 512, 0.0), (0, 512, -1.0)]:
            with pytest.raises(ValueError):
                volume.read(*arguments)
    with pytest.raises(ValueError, match="nbd://HOST"):
        plimsoll.Volume(["http://example.org"])
    with pytest.raises(ValueError):
        plimsoll.Volume(addresses, policy="sloth")
    with pytest.raises(plimsoll.OpenError, match="no replica can be read"):
        plimsoll.Volume(["nbd+unix:///vol?socket=/nonexistent"])
