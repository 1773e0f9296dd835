"""Nodes of our own for benchmarks, anybody on their unix sockets; and fio as their client."""
import json, os, re, subprocess

FRAME = """
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
{sections}
[[grant]]
peer = "local"
volumes = ["*"]
"""

ONE = """
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
"""


def one(device, size, pool=""):
    """The sections of one pool of one device, and a volume `vol`. `pool` is more of the pool's section."""
    return ONE.format(device=device, size=size, pool=pool)


def configured(folder, sections):
    """Writes a configuration into `folder`, made if need be; its file."""
    os.makedirs(folder, exist_ok=True)
    file = os.path.join(folder, "node.toml")
    with open(file, "w") as f:
        f.write(FRAME.format(sections=sections))
    return file


def uri(folder, volume="vol"):
    return f"nbd+unix:///{volume}?socket={folder}/nbd.sock"


class Node:
    """Runs until it's stopped, or its `with` block ends."""

    def __init__(self, plimsoll, folder, sections):
        self.plimsoll, self.folder = os.path.abspath(plimsoll), folder
        command = [self.plimsoll, "serve", "--config", configured(folder, sections)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        assert "serves" in line, f"the node did not start: {line}"

    def cli(self, *arguments):
        """Returns the output of `plimsoll ARGUMENTS` on this node."""
        control = ["--control", f"{self.folder}/control.sock"]
        return subprocess.run([self.plimsoll, *arguments, *control], check=True, capture_output=True, text=True).stdout

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def slowed(text, factor):
    """A flash profile's text with every time multiplied by `factor`."""
    def times(match):
        return match.group(1) + re.sub(r"[0-9.]+", lambda n: str(float(n.group()) * factor), match.group(2))

    text = re.sub(r"^((?:\w+_us|read_transfer_us|write_transfer_us) = )(.*)$", times, text, flags=re.M)
    return re.sub(r"^(link_mb_per_s = )(.*)$", lambda m: f"{m.group(1)}{float(m.group(2)) / factor}", text, flags=re.M)


def fio(folder, volume, seconds, ramp, *arguments, enter=None):
    """Starts fio on a volume; `enter` is called in its process first."""
    command = ["fio", f"--name={volume}", "--ioengine=nbd", f"--uri={uri(folder, volume)}", "--time_based", f"--runtime={seconds}",
               f"--ramp_time={ramp}", "--output-format=json", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=enter)


def fio_job(process):
    """Waits for the end of fio, and returns its measurements."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    return json.loads(out[out.index("{"):])["jobs"][0]
