"""A node of our own for a benchmark: one pool of one device, one volume `vol`, anybody on the unix socket."""
import os, subprocess

CONFIG = """
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
device = {device}
{pool}
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "vol"
pool = "p"
size = "{size}"
tenant = "t"
[[grant]]
peer = "local"
volumes = ["*"]
"""


def configured(folder, device, size, pool=""):
    """Writes a configuration into `folder`, made if need be; its file. `pool` is more of the pool's section."""
    os.makedirs(folder, exist_ok=True)
    file = os.path.join(folder, "node.toml")
    with open(file, "w") as f:
        f.write(CONFIG.format(device=device, size=size, pool=pool))
    return file


def uri(folder):
    return f"nbd+unix:///vol?socket={folder}/nbd.sock"


class Node:
    """Runs until it's stopped, or its `with` block ends."""

    def __init__(self, plimsoll, folder, *configuration):
        self.plimsoll, self.folder = plimsoll, folder
        command = [plimsoll, "serve", "--config", configured(folder, *configuration)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        assert "serves" in line, f"the node did not start: {line}"

    def cli(self, *arguments):
        """What `plimsoll ARGUMENTS` on this node prints."""
        control = ["--control", f"{self.folder}/control.sock"]
        return subprocess.run([self.plimsoll, *arguments, *control], check=True, capture_output=True, text=True).stdout

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
