//! `plimsoll shape` over a real server, and its commands.

use super::{ok, run};
pub use plimsoll_testkit::{free_port, until};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");

/// The shim's library.
pub fn shim() -> PathBuf {
    plimsoll_testkit::library_folder("plimsoll-shape-shim").join("libplimsoll_shim.so")
}

/// Ends with the test, however that ends.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended already
        let _ = self.0.wait();
    }
}

pub fn shape(arguments: &[&str]) -> Output {
    run(PLIMSOLL, &[&["shape"], arguments].concat())
}

pub fn said(arguments: &[&str]) -> String {
    ok(PLIMSOLL, &[&["shape"], arguments].concat())
}

/// Returns the error output of a wrong command.
pub fn refused(arguments: &[&str]) -> String {
    let out = shape(arguments);
    assert!(!out.status.success(), "{arguments:?} was taken");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// `plimsoll shape … -- SERVER` while it runs.
pub struct Shaped {
    pub child: Child,
    pub control: String,
}

impl Shaped {
    pub fn start(dir: &Path, options: &[&str], server: &[&str]) -> Shaped {
        let control = dir.join("segment").display().to_string();
        let log = std::fs::File::options().create(true).append(true).open(dir.join("log")).unwrap();
        let child = Command::new(PLIMSOLL)
            .args(["shape", "--control", &control, "--shim", &shim().display().to_string()])
            .args(options)
            .arg("--")
            .args(server)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Shaped { child, control }
    }

    pub fn top(&self) -> serde_json::Value {
        let text = said(&["top", "--once", "--json", "--control", &self.control]);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    pub fn command(&self, name: &str, more: &[&str]) -> String {
        said(&[&[name, "--control", &self.control], more].concat())
    }

    pub fn signal(&self, which: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), which).unwrap();
    }

    /// Asks the process to end, and the server with it. Returns whether it ended well.
    pub fn stop(mut self) -> bool {
        self.signal(rustix::process::Signal::TERM);
        let mut status = None;
        until("it ends with its server", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().success()
    }
}

impl Drop for Shaped {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|s| s.is_none()) {
            // A test that failed: its server goes too, and then it.
            self.signal(rustix::process::Signal::TERM);
            let end = Instant::now() + Duration::from_secs(15);
            while Instant::now() < end && self.child.try_wait().is_ok_and(|s| s.is_none()) {
                std::thread::sleep(Duration::from_millis(50));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub fn ping(port: u16, times: u32) -> std::io::Result<()> {
    let mut c = TcpStream::connect(("127.0.0.1", port))?;
    c.set_read_timeout(Some(Duration::from_secs(20)))?;
    for _ in 0..times {
        c.write_all(b"PING\r\n")?;
        let mut answer = [0; 7];
        c.read_exact(&mut answer)?;
        assert_eq!(&answer, b"+PONG\r\n");
    }
    Ok(())
}
