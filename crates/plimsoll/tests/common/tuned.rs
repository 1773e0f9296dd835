//! A system of shell commands to tune: what it's set to is a file's last line.
#![allow(dead_code)] // each test file uses its own part

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

pub fn plimsoll(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(args).output().expect("it starts")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A system of shell commands: its times depend on the file that `apply` writes.
pub fn system(dir: &Path, measure: &str) -> String {
    let d = dir.display();
    let file = format!(
        "[[parameter]]\nname = \"mode\"\nvalues = [\"quick\", \"steady\"]\n\
         [graph]\nroot = \"request\"\ncomponents = [\"request\"]\n\
         [objective]\nminimise = \"p99\"\nbounds = [\"p50 <= 5ms\"]\n\
         [period]\nepochs = 4\nepoch = \"10ms\"\n\
         [adapter]\napply = \"echo {{mode}} >> {d}/applied; test ! -e {d}/broken\"\nmeasure = \"{measure}\"\ntimeout = \"2s\"\n"
    );
    let path = dir.join("t.toml");
    fs::write(&path, file).unwrap();
    path.display().to_string()
}

/// 400 requests: quick ones take 1 ms, one in twenty 100; steady ones take 8 to 12.
pub const MEASURE: &str = "awk -v m=$(tail -1 DIR/applied) 'BEGIN { for (i = 0; i < 400; i++) \
                       print i \\\",request,\\\" (m == \\\"quick\\\" ? (i % 20 ? 1 : 100) : 8 + i % 5) }'";

pub fn measure(dir: &Path) -> String {
    MEASURE.replace("DIR", &dir.display().to_string())
}

pub fn applied(dir: &Path) -> Vec<String> {
    fs::read_to_string(dir.join("applied")).unwrap_or_default().lines().map(String::from).collect()
}
