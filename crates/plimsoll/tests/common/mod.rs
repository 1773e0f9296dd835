//! A node of our own for each test: the built binary on a unix socket in a temporary folder, ended by its process id.
#![allow(dead_code)] // each test file uses its own part

pub mod busy;
pub mod client;
pub mod database;
pub mod exposition;
pub mod fenced;
pub mod http;
pub mod images;
pub mod killed;
pub mod mount;
pub mod noise;
pub mod nvme;
pub mod prometheus;
pub mod promised;
pub mod schema;
pub mod shaped;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A running node.
pub struct Server {
    child: Child,
    pub dir: PathBuf,
}

impl Server {
    /// `plimsoll cache status p --json`.
    pub fn cache_status(&self) -> serde_json::Value {
        serde_json::from_str(&self.cli(&["cache", "status", "p", "--json"])).expect("JSON")
    }

    /// Asks for the cache's status, a program each time, until it holds; returns it.
    #[track_caller]
    pub fn wait_for_cache(&self, what: &str, holds: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let status = self.cache_status();
            if holds(&status) {
                return status;
            }
            assert!(Instant::now() < end, "{what}: {status}");
            // Nothing tells of a change; the question is a program of its own.
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts a node with `config` written to `dir/node.toml`, and waits until it serves.
    pub fn start(dir: &Path, config: &str) -> Server {
        Server::try_start(dir, config).unwrap_or_else(|e| panic!("the node did not start: {e}"))
    }

    /// The same; what the node said if it ended instead.
    pub fn try_start(dir: &Path, config: &str) -> Result<Server, String> {
        Server::try_start_with(dir, config, &[])
    }

    /// The same, with variables in its environment.
    pub fn try_start_with(dir: &Path, config: &str, environment: &[(&str, &str)]) -> Result<Server, String> {
        let mut program = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        program.envs(environment.iter().copied());
        Server::spawn(program, dir, config)
    }

    /// Starts a node that may have so many files open.
    pub fn start_limited(dir: &Path, config: &str, files_max: u32) -> Server {
        let mut program = Command::new("sh");
        let script = format!("ulimit -n {files_max}; exec \"$0\" \"$@\"");
        program.args(["-c", &script, env!("CARGO_BIN_EXE_plimsoll")]);
        Server::spawn(program, dir, config).unwrap_or_else(|e| panic!("the node did not start: {e}"))
    }

    /// Starts a node whose kernel refuses some calls; what it said if it ended instead.
    pub fn try_start_refused(dir: &Path, config: &str, refused: &[Refused]) -> Result<Server, String> {
        Server::spawn(refusing(refused), dir, config)
    }

    fn spawn(mut program: Command, dir: &Path, config: &str) -> Result<Server, String> {
        let file = dir.join("node.toml");
        std::fs::write(&file, config).unwrap();
        let mut child = program
            .args(["serve", "--config"])
            .arg(&file)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary is built with the test");
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        if !line.contains("serves") {
            let output = child.wait_with_output().unwrap();
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        // Whatever it says later must not fill the pipes.
        std::thread::spawn(move || out.lines().for_each(drop));
        let err = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || err.lines().for_each(drop));
        Ok(Server { child, dir: dir.to_path_buf() })
    }

    /// The NBD socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("nbd.sock")
    }

    /// An export's address for foreign clients.
    pub fn uri(&self, export: &str) -> String {
        let export = export.replace('?', "%3F");
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    /// Asks the control socket.
    pub fn control(&self, method: &str, path: &str) -> http::Answer {
        http::unix(&self.dir.join("control.sock"), method, path, None)
    }

    /// `plimsoll …` on this node must succeed.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let socket = self.dir.join("control.sock");
        ok(env!("CARGO_BIN_EXE_plimsoll"), &[arguments, &["--control", socket.to_str().unwrap()]].concat())
    }

    /// `plimsoll …` on this node must fail; what it says.
    pub fn cli_fails(&self, arguments: &[&str]) -> String {
        let socket = self.dir.join("control.sock");
        let arguments = [arguments, &["--control", socket.to_str().unwrap()]].concat();
        let output = run(env!("CARGO_BIN_EXE_plimsoll"), &arguments);
        assert!(!output.status.success(), "{arguments:?} went well");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Its exit status, if it has ended.
    pub fn has_ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid()).unwrap();
        let _ = rustix::process::kill_process(pid, signal); // it may have ended
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// As `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// As SIGTERM; true if it ended well.
    pub fn stop(mut self) -> bool {
        let pid = rustix::process::Pid::from_raw(self.pid()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap().success()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended already
        let _ = self.child.wait();
    }
}

/// A system call that the kernel refuses, by its number, with the error.
pub type Refused = (u32, u32);
/// `io_uring_setup`, on all architectures.
pub const IO_URING_SETUP: u32 = 425;
/// `ftruncate`.
pub const FTRUNCATE: u32 = if cfg!(target_arch = "aarch64") { 46 } else { 77 };

/// Runs a program under a seccomp filter: CALL=ERROR,… PROGRAM ARGUMENT…
const REFUSE: &str = r#"
import ctypes, os, struct, sys

refused = [tuple(map(int, r.split("="))) for r in sys.argv[1].split(",")]
code = [(0x20, 0, 0, 0)]  # load the call's number
for number, error in refused:
    code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | error)]
code.append((0x06, 0, 0, 0x7FFF0000))
filters = b"".join(struct.pack("HBBI", *c) for c in code)
buffer = ctypes.create_string_buffer(filters, len(filters))


class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


program = Program(len(code), ctypes.cast(buffer, ctypes.c_void_p))
libc = ctypes.CDLL(None, use_errno=True)
for call in ((38, 1, 0, 0, 0), (22, 2, ctypes.byref(program), 0, 0)):
    if libc.prctl(*call):
        raise OSError(ctypes.get_errno(), f"prctl {call[0]}")
os.execv(sys.argv[2], sys.argv[2:])
"#;

/// `plimsoll` with a kernel that refuses some calls.
pub fn refusing(refused: &[Refused]) -> Command {
    let calls: Vec<String> = refused.iter().map(|(call, error)| format!("{call}={error}")).collect();
    let mut program = Command::new("python3");
    program.args(["-c", REFUSE, &calls.join(","), env!("CARGO_BIN_EXE_plimsoll")]);
    program
}

/// A configuration with one pool of `device` and one volume `vol`.
pub fn config(device: &str, volume_size: &str) -> String {
    format!(
        r#"
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
device = {device}
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "vol"
pool = "p"
size = "{volume_size}"
tenant = "t"
[[grant]]
peer = "local"
volumes = ["*"]
tenants = ["*"]
"#
    )
}

/// Measures a device model's profile into `dir/name`.
pub fn write_profile(dir: &Path, device: &str, name: &str) {
    let out = dir.join(name);
    ok(env!("CARGO_BIN_EXE_plimsoll"), &["profile", device, "--out", out.to_str().unwrap()]);
}

/// Runs a foreign program to its end.
pub fn run(program: &str, args: &[&str]) -> Output {
    // Debian's libnbd module is for Debian's Python, which another one may hide.
    let path = format!("/usr/bin:{}", std::env::var("PATH").unwrap_or_default());
    Command::new(program)
        .args(args)
        .env("PATH", path)
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e} (`make test` installs it)"))
}

/// Runs a foreign program that must succeed; what it printed.
pub fn ok(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}:\n{text}");
    text
}

/// An authority, a server's certificate for the loopback address, and one for each client, as libnbd looks for them.
const CERTIFICATES: &str = r#"
set -eu
cd "$1"
authority() { openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj "/CN=$1" -keyout $1.key -out $1.crt 2>/dev/null; }
signed() { # name, authority, subject, extension
    openssl req -newkey rsa:2048 -nodes -subj "$3" -keyout $1.key -out $1.csr 2>/dev/null
    printf "$4" > $1.ext
    openssl x509 -req -in $1.csr -CA $2.crt -CAkey $2.key -CAcreateserial -days 30 -extfile $1.ext -out $1.crt 2>/dev/null
}
client() { # name, authority
    signed $1 $2 /CN=$1 "extendedKeyUsage=clientAuth"
    mkdir $1; cp ca.crt $1/ca-cert.pem; cp $1.crt $1/client-cert.pem; cp $1.key $1/client-key.pem
}
authority ca; authority stranger
signed server ca /CN=node "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth"
client alice ca; client bob ca; client mallory stranger
"#;

/// Makes them in `dir`.
pub fn certify(dir: &Path) {
    ok("bash", &["-c", CERTIFICATES, "certificates", dir.to_str().unwrap()]);
}
