//! A program under the library keeps its locks, descriptors, signals, messages, threads and children. The agent is posed, so
//! that each read that isn't resident would be late; no privilege is needed.

#[path = "../../host/tests/common/posed.rs"]
mod posed;

use plimsoll_testkit::library_folder;
use posed::Posed;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output, Stdio};

/// Functions of all programs here. `late` waits for the agent: until it's found, no read is refused.
const COMMON: &str = r#"
import ctypes, errno, fcntl, os, signal, socket, subprocess, sys, threading, time
def rd(fd, n, at):
    try:
        return len(os.pread(fd, n, at))
    except OSError as e:
        return errno.errorcode[e.errno]
def wait_for(what, f):
    end = time.monotonic() + 30
    while not f():
        assert time.monotonic() < end, what
        time.sleep(.002)
def evict(fd):
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
def make(name, n):
    open(name, "wb").write(os.urandom(n))
    fd = os.open(name, os.O_RDWR)
    os.fsync(fd)
    return fd
def is_refused(fd, n, at):
    evict(fd)
    return rd(fd, n, at) == "EBUSY"
def late(fd, n=4096, at=0):
    rd(fd, n, at)
    wait_for("a read is refused", lambda: is_refused(fd, n, at))
def threads():
    return len(os.listdir("/proc/self/task"))
c = ctypes.CDLL(None, use_errno=True)
c.syscall.restype = ctypes.c_long
def cached(fd, n):
    """Pages of the first n bytes in memory, by cachestat(2): no read brings them in."""
    found = (ctypes.c_uint64 * 5)()
    u = ctypes.c_uint64
    assert c.syscall(451, ctypes.c_long(fd), (u * 2)(0, n), found, ctypes.c_long(0)) == 0, ctypes.get_errno()
    return found[0]
def comes_in(fd, n):
    wait_for("the refused pages come in", lambda: cached(fd, n) == -(-n // 4096))
"#;

struct Machine {
    dir: tempfile::TempDir,
    library: std::path::PathBuf,
}

impl Machine {
    fn new() -> Machine {
        let library = library_folder("plimsoll-host-shim").join("libplimsoll_deadline.so");
        // On the disk that has the build, as /tmp may have none.
        Machine { dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(), library }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("host.sock")
    }

    fn agent(&self) -> Posed {
        Posed::start(self.dir.path(), &self.socket(), false)
    }

    fn python(&self, program: &str) -> Command {
        let mut python = Command::new("timeout");
        python.args(["60", "python3", "-c"]).arg(format!("{COMMON}{program}")).current_dir(self.dir.path());
        python.env("LD_PRELOAD", &self.library).env("PLIMSOLL_HOST_SOCKET", self.socket());
        let folder = self.dir.path().display();
        python.env("PLIMSOLL_DEADLINES", format!("{folder}=20ms;{folder}/calm=100s"));
        python.env("PLIMSOLL_DEADLINE_PROCESSES", "python3").stdin(Stdio::null());
        python
    }

    fn run(&self, program: &str) -> String {
        text(&self.python(program).output().unwrap())
    }

    /// The program ends in order, by its own checks.
    fn holds(&self, program: &str) {
        let said = self.run(&format!("{program}\nprint('DONE')"));
        assert!(said.contains("DONE"), "{said}");
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn locks_and_descriptors_stay_the_programs() {
    let machine = Machine::new();
    let _agent = machine.agent();
    machine.holds(
        r#"
fd = make("db", 1 << 20)
fcntl.lockf(fd, fcntl.LOCK_EX)
other = make("flocked", 8192)
reader, writer = os.pipe()
late(fd)
# The order has been carried out.
comes_in(fd, 4096)
env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
def probe(name, lock):
    program = f"""import fcntl, os
try:
    fcntl.{lock}(os.open("{name}", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("taken")
except OSError:
    print("locked")
"""
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True).stdout
assert probe("db", "lockf") == b"locked\n"
# An flock ends with the program's descriptor: the thread has no copy of it.
fcntl.flock(other, fcntl.LOCK_EX)
late(other)
comes_in(other, 4096)
assert probe("flocked", "flock") == b"locked\n"
os.close(other)
assert probe("flocked", "flock") == b"taken\n"
# The background thread has none of the program's descriptors: a pipe ends when the program closes it.
os.close(writer)
signal.alarm(20)
assert os.read(reader, 1) == b""
for task in os.listdir("/proc/self/task"):
    if open(f"/proc/self/task/{task}/comm").read() == "plimsoll-fetch\n":
        names = [os.readlink(f"/proc/self/task/{task}/fd/{n}") for n in os.listdir(f"/proc/self/task/{task}/fd")]
        assert not any(n.startswith(os.getcwd()) for n in names), names
        break
else:
    assert False, "no thread"
"#,
    );
}

#[test]
fn a_file_that_this_user_could_not_open_comes_in_too() {
    let machine = Machine::new();
    let _agent = machine.agent();
    machine.holds(
        r#"
fd = make("db", 1 << 20)
os.chmod("db", 0)
if os.getuid() == 0:
    os.chown("db", 65534, 65534)
    late(fd)
    os.setresuid(65534, 65534, 0)
late(fd)
comes_in(fd, 4096)
"#,
    );
}

#[test]
fn messages_harm_nobody() {
    let machine = Machine::new();
    let closed = r#"
os.close(2)
fd = os.open("data", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
assert fd == 2
os.pwrite(fd, b"HEADER--" * 16, 0)
os.pread(fd, 16, 0)
assert open("data", "rb").read() == b"HEADER--" * 16
"#;
    machine.holds(closed);
    let broken = r#"
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
reader, writer = os.pipe()
os.dup2(writer, 2)
os.close(reader)
fd = make("f", 4096)
os.pread(fd, 16, 0)
"#;
    machine.holds(broken);
    let full = r#"
reader, writer = os.pipe()
os.set_blocking(writer, False)
try:
    while True: os.write(writer, b"x" * 4096)
except BlockingIOError: pass
os.set_blocking(writer, True)
os.dup2(writer, 2)
fd = make("f", 4096)
os.pread(fd, 16, 0)
"#;
    machine.holds(full);
    // A program in the background, whose terminal stops those that write.
    let background = r#"
import pty, termios
pid, terminal = pty.fork()
if pid == 0:
    mode = termios.tcgetattr(2)
    mode[3] |= termios.TOSTOP
    termios.tcsetattr(2, termios.TCSANOW, mode)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        rd(make("f", 4096), 16, 0)
        os._exit(0)
    status = os.waitpid(child, os.WUNTRACED)[1]
    os.kill(child, signal.SIGKILL) if os.WIFSTOPPED(status) else None
    os._exit(0 if status == 0 else 9)
assert b"plimsoll: no host agent" in os.read(terminal, 4096)
assert os.waitpid(pid, 0)[1] == 0
"#;
    machine.holds(background);
    assert!(machine.run("os.pread(make('f', 4096), 16, 0)").contains("no host agent can be reached"));
}

#[test]
fn signals_and_errno_stay_the_programs() {
    let machine = Machine::new();
    machine.holds(
        r#"
fd = make("f", 8192)
b = ctypes.create_string_buffer(16)
ctypes.set_errno(0)
assert c.pread(fd, b, 16, 0) == 16 and ctypes.get_errno() == 0, ctypes.get_errno()
assert threads() == 1, "a thread, and no agent"
"#,
    );
    let _agent = machine.agent();
    machine.holds(
        r#"
fd = make("f", 8192)
late(fd)
assert threads() == 2
signal.signal(signal.SIGUSR1, lambda *a: None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
assert signal.SIGUSR1 in signal.sigpending()
for task in os.listdir("/proc/self/task"):
    status = open(f"/proc/self/task/{task}/status").read()
    if "plimsoll-fetch" in status:
        blocked = int([l for l in status.splitlines() if l.startswith("SigBlk")][0].split()[1], 16)
        # All but the two that the C library keeps for itself, and those that can't be blocked.
        assert blocked & (1 << 9 | 1 << 13 | 1 << 1 | 1 << 63) == 1 << 9 | 1 << 13 | 1 << 1 | 1 << 63, hex(blocked)
"#,
    );
}

#[test]
fn a_hung_agent_hangs_nobody_and_its_backlog_is_not_filled() {
    let machine = Machine::new();
    let listener = UnixListener::bind(machine.socket()).unwrap();
    let program = r#"
fd = make("f", 8192)
begun = time.monotonic()
for _ in range(200):
    assert rd(fd, 16, 0) == 16
    time.sleep(.02)
assert time.monotonic() - begun < 30
print("DONE", file=sys.stderr)
os._exit(0)
"#;
    let said = machine.run(program);
    assert!(said.contains("DONE"), "{said}");
    listener.set_nonblocking(true).unwrap();
    let mut n = 0;
    while listener.accept().is_ok() {
        n += 1;
    }
    assert_eq!(n, 1, "connections of a program in four seconds");
    // A backlog that is full: connect(2) would wait.
    // SAFETY: our own listening socket.
    assert_eq!(unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&listener), 0) }, 0);
    let mut held = Vec::new();
    while let Ok(stream) = plimsoll_host::link::reach(&machine.socket()) {
        held.push(stream);
    }
    machine.holds("signal.alarm(20)\nfd = make('f', 8192)\nassert rd(fd, 16, 0) == 16");
}

#[test]
fn ends_of_files_and_empty_reads_are_read() {
    let machine = Machine::new();
    let _agent = machine.agent();
    machine.holds(
        r#"
fd = make("f", 8292)
late(fd)
late(fd, 4096, 8192)
evict(fd); assert rd(fd, 4096, 8292) == 0
evict(fd); assert rd(fd, 4096, 9000) == 0
evict(fd); assert rd(fd, 0, 100) == 0
direct = os.open("f", os.O_RDONLY | os.O_DIRECT)
assert rd(direct, 0, 0) == 0
"#,
    );
}

#[test]
fn a_large_refused_read_comes_in() {
    let machine = Machine::new();
    let _agent = machine.agent();
    machine.holds(
        r#"
n = 16 << 20
fd = make("big", n)
late(fd, n)
comes_in(fd, n)
wait_for("it's read", lambda: rd(fd, n, 0) == n)
evict(fd)
for at in range(0, 1 << 20, 8192): c.readahead(fd, ctypes.c_int64(at), 4096)
assert rd(fd, n, 0) == "EBUSY"
comes_in(fd, n)
"#,
    );
}

#[test]
fn a_read_of_more_than_the_kernel_takes_is_read() {
    let machine = Machine::new();
    let _agent = machine.agent();
    machine.holds(
        r#"
import mmap
fd = os.open("sparse", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 1 << 20)
late(fd)
memory = mmap.mmap(-1, 0x80002000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
c.pread.restype = ctypes.c_ssize_t
read = lambda: c.pread(fd, ctypes.c_void_p(at), ctypes.c_size_t(0x80001000), ctypes.c_int64(0))
wait_for("it's read", lambda: read() == 1 << 20)
"#,
    );
}

#[test]
fn children_of_fork_read_and_begin_anew() {
    let machine = Machine::new();
    let _agent = machine.agent();
    machine.holds(
        r#"
fd = make("f", 8192)
def reads():
    while not stop: rd(fd, 16, 0)
stop = False
running = [threading.Thread(target=reads) for _ in range(3)]
for t in running: t.start()
for i in range(100):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        c.pread(fd, ctypes.create_string_buffer(16), 16, 0)
        if i == 99:
            late(fd)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, i
stop = True
for t in running: t.join()
"#,
    );
}

#[test]
fn a_child_of_fork_does_not_wait_for_a_hung_agents_answer() {
    let machine = Machine::new();
    let _listener = UnixListener::bind(machine.socket()).unwrap();
    machine.holds(
        r#"
fd = make("f", 8192)
for _ in range(3):
    t = threading.Thread(target=lambda: rd(fd, 16, 0))
    t.start()
    def waits():
        try:
            return "unix" in open(f"/proc/self/task/{t.native_id}/wchan").read()
        except OSError:
            return False
    wait_for("it has read, or waits for the agent", lambda: not t.is_alive() or waits())
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        c.pread(fd, ctypes.create_string_buffer(16), 16, 0)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    t.join()
"#,
    );
}

#[test]
fn all_forms_of_pread_are_covered() {
    let machine = Machine::new();
    let _agent = machine.agent();
    machine.holds(
        r#"
fd = make("f", 8192)
late(fd)
b = ctypes.create_string_buffer(4096)
class Vec(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("n", ctypes.c_size_t)]
v = Vec(ctypes.addressof(b), 4096)
z = ctypes.c_int64(0)
calls = {
    "pread": lambda: c.pread(fd, b, 4096, z), "pread64": lambda: c.pread64(fd, b, 4096, z),
    "__pread_chk": lambda: c.__getattr__("__pread_chk")(fd, b, 4096, z, 4096),
    "__pread64_chk": lambda: c.__getattr__("__pread64_chk")(fd, b, 4096, z, 4096),
    "preadv": lambda: c.preadv(fd, ctypes.byref(v), 1, z), "preadv64": lambda: c.preadv64(fd, ctypes.byref(v), 1, z),
    "preadv2": lambda: c.preadv2(fd, ctypes.byref(v), 1, z, 0), "preadv64v2": lambda: c.preadv64v2(fd, ctypes.byref(v), 1, z, 0),
}
for name, call in calls.items():
    def is_busy():
        evict(fd)
        ctypes.set_errno(0)
        return call() == -1 and ctypes.get_errno() == errno.EBUSY
    wait_for(name, is_busy)
os.lseek(fd, 4096, os.SEEK_SET)
assert c.preadv2(fd, ctypes.byref(v), 1, ctypes.c_int64(-1), 0) == 4096
assert os.lseek(fd, 0, os.SEEK_CUR) == 8192
pid = os.fork()
if pid == 0:
    c.__getattr__("__pread_chk")(fd, b, 4096, z, 4095)
    os._exit(0)
assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGABRT
"#,
    );
}

#[test]
fn wrong_costs_of_an_idle_disk_do_not_refuse_for_ever() {
    let machine = Machine::new();
    let _agent = Posed::start(machine.dir.path(), &machine.socket(), true);
    machine.holds(
        r#"
import mmap
make("f", 1 << 20)
fd = os.open("f", os.O_RDONLY | os.O_DIRECT)
memory = mmap.mmap(-1, 4096)
def read():
    try:
        return os.preadv(fd, [memory], 0)
    except OSError as e:
        return errno.errorcode[e.errno]
# Reads that are in time, and find their pages in memory: they learn nothing of the disk.
os.mkdir("calm")
calm = make("calm/f", 4096)
refused, through = 0, []
def is_second():
    global refused
    assert rd(calm, 16, 0) == 16
    begun = time.monotonic()
    if read() == "EBUSY":
        refused += 1
        first.append(begun)
    elif refused:
        through.append((begun, time.monotonic()))
    return len(through) == 2
first = []
wait_for("two are let through", is_second)
# A second passes before each, by the library's clock between these.
assert through[0][1] - first[0] >= 1, "too early after the first refusal"
assert through[1][1] - through[0][0] >= 1, "one a second"
"#,
    );
}
