//! The examples of every command's help work as printed: those for a running node are run against one.

mod common;
use common::{Server, run};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

/// A node on which all examples make sense: they name the pool `main`, the volumes `web`, `vol` and `archive`, the tenants `web` and `reports`.
const CONFIG: &str = r#"
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "main"
device = { file = "main.img", size = "16GiB" }
sched = "cfq"
cores = 4
fence = { slots = 8, hybrid = true }
tape = "main.tape"
[pool.cache]
file = "fast.img"
device_size = "1280MiB"
mode = "back"
[pool.logs]
extents = 4096
[[tenant]]
name = "web"
class = "best-effort"
deadline = "50ms"
[[tenant]]
name = "reports"
class = "best-effort"
[[volume]]
name = "web"
pool = "main"
size = "1GiB"
tenant = "web"
[[volume]]
name = "vol"
pool = "main"
size = "64MiB"
tenant = "web"
[[volume]]
name = "archive"
pool = "main"
size = "64MiB"
tenant = "web"
[[grant]]
peer = "local"
volumes = ["*"]
tenants = ["*"]
"#;

/// Commands whose examples aren't run here, with the reason.
const ELSEWHERE: [(&str, &str); 28] = [
    ("plimsoll demo", "measures for 80 seconds, tests/demo.rs"),
    ("plimsoll mkfs", "files and mounts, tests/files.rs"),
    ("plimsoll mount", "serves, tests/files.rs"),
    ("plimsoll fsck", "a file system, tests/files.rs"),
    ("plimsoll fs", "a file system, tests/files.rs"),
    ("plimsoll tape", "a tape that is complete, tests/tape.rs"),
    ("plimsoll lab", "a program of its own, tests/lab.rs"),
    ("plimsoll host", "an agent and disks that are read, tests/host.rs"),
    ("plimsoll shape", "databases, tests/shape.rs"),
    ("plimsoll tune", "systems to tune, tests/tune.rs"),
    ("plimsoll trace", "traces as files, tests/traces"),
    ("plimsoll replay", "takes minutes, tests/replay.rs"),
    ("plimsoll profile", "measures devices, tests/models.rs"),
    ("plimsoll serve", "serves, every test here"),
    ("plimsoll init", "devices, tests/service.rs"),
    ("plimsoll drain", "ends the node, tests/service.rs"),
    ("plimsoll top", "a terminal, or a loop that is told to end"),
    ("plimsoll events --follow", "doesn't end"),
    ("plimsoll bands status", "a pool with bands, tests/bands.rs"),
    ("plimsoll fence baseline", "measures for half a minute, tests/fence.rs"),
    ("plimsoll fence status main --baseline", "needs a baseline, tests/fence.rs"),
    ("plimsoll pool restore", "a pool that no node serves, tests/lifecycle.rs"),
    ("plimsoll pool remove", "a pool that left the file, tests/pools.rs"),
    ("plimsoll pool release", "a pool on an RBD image, tests/rbd.rs"),
    ("plimsoll pool take", "a pool on an RBD image, tests/rbd.rs"),
    ("plimsoll pool move", "needs another node, tests/rbd_move.rs"),
    ("plimsoll volume move", "needs another node, tests/rbd_move.rs"),
    ("plimsoll volume resync", "needs other nodes, tests/replicas.rs"),
];

/// Examples that a healthy node refuses, with a part of the refusal.
const REFUSED: [(&str, &str); 5] = [
    ("plimsoll pool recover main", "no flush has failed"),
    ("plimsoll cache give-up vol --lose-data --config", "uses this device"),
    ("plimsoll cache give-up", "its device hasn't failed"),
    ("plimsoll volume delete db --control control.sock", "no terminal to ask on"),
    ("plimsoll fence plan --tenants 4 --best 19ms --worst 98ms --profile", "disk.profile.toml"),
];

fn help(path: &[String]) -> String {
    let arguments: Vec<&str> = path[1..].iter().map(String::as_str).chain(["--help"]).collect();
    String::from_utf8(run(env!("CARGO_BIN_EXE_plimsoll"), &arguments).stdout).unwrap()
}

/// The lines of a section that are indented by two spaces.
fn section<'a>(help: &'a str, heading: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = help.lines().skip_while(move |l| *l != heading).skip(1);
    lines
        .take_while(|l| l.starts_with("  ") || l.is_empty())
        .filter_map(|l| l.strip_prefix("  "))
        .filter(|l| !l.starts_with(' '))
}

/// All examples, by the command whose help has them, in the order of the help.
fn examples(path: Vec<String>, all: &mut Vec<String>) {
    let help = help(&path);
    let here = section(&help, "Examples:").chain(section(&help, "Example:"));
    all.extend(here.filter(|l| l.starts_with("plimsoll ")).map(str::to_string));
    if ELSEWHERE.iter().any(|(command, _)| *command == path.join(" ")) {
        return;
    }
    for line in section(&help, "Commands:") {
        let name = line.split_whitespace().next().unwrap_or("help");
        if name != "help" {
            examples([path.clone(), vec![name.to_string()]].concat(), all);
        }
    }
}

#[test]
fn examples_work_as_printed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), CONFIG);
    // A volume of the configuration isn't renamed.
    server.cli(&["volume", "create", "scratch", "--pool", "main", "--size", "64MiB", "--tenant", "web"]);
    let mut all = Vec::new();
    examples(vec!["plimsoll".into()], &mut all);
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|e| seen.insert(e.clone()) && !ELSEWHERE.iter().any(|(command, _)| e.starts_with(command)));
    assert!(all.len() > 40, "{all:#?}");
    // What is made comes before what is deleted.
    all.sort_by_key(|e| (e.contains(" delete ") || e.contains(" remove "), !e.contains(" create ")));
    let mut failed = BTreeMap::new();
    for example in &all {
        if let Err(why) = works(dir.path(), example) {
            failed.insert(example, why);
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(server.stop());
}

fn works(dir: &Path, example: &str) -> Result<(), String> {
    // The packaged node's files are here.
    let line = example.replace("/run/plimsoll/", "").replace("/etc/plimsoll/plimsoll.toml", "node.toml");
    let binary = env!("CARGO_BIN_EXE_plimsoll");
    let line = line.replacen("plimsoll ", &format!("{binary} "), 1).replace("| plimsoll ", &format!("| {binary} "));
    let mut program = Command::new("sh");
    program.args(["-c", &line]).current_dir(dir).env("PLIMSOLL_CONTROL", "control.sock").stdin(Stdio::null());
    let output = program.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    match REFUSED.iter().find(|(refused, _)| example.starts_with(refused)) {
        Some((_, part)) if !output.status.success() && said.contains(part) => Ok(()),
        Some(_) => Err(format!("isn't refused as expected: {said}")),
        None if output.status.success() => Ok(()),
        None => Err(said),
    }
}
