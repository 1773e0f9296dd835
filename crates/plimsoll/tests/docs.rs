//! The documents are true: commands of `docs/start.md` and the guides run as printed, configurations in them are accepted, and
//! `docs/reference/cli.md` is what the program's help says.
//!
//! A block marked `sh` is executed, in the order of the page; a block marked `text` after it is its output, compared in shape: numbers
//! don't matter, and lines may be left out. A block marked `toml` is a configuration or a part of one, a block marked `toml tune` a tune
//! file. `<!-- not run: REASON -->` before a block exempts it.

mod common;
use common::Server;
use plimsoll_node::config::Config;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Blocks that may be exempt in all pages together.
const EXEMPT_MAX: usize = 5;

/// Pages whose commands aren't executed yet, as their blocks have no mark: they are tested by other means. Only to be shortened.
const UNMARKED: [(&str, &str); 2] =
    [("shaper.md", "tests/shape.rs, tests/shape_control.rs"), ("demo.md", "tests/demo.rs")];

/// The node that guides' commands are run against.
const NODE: &str = r#"
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
[pool.cache]
file = "fast.img"
device_size = "1280MiB"
[pool.logs]
extents = 4096
[[tenant]]
name = "web"
class = "best-effort"
[[tenant]]
name = "reports"
class = "best-effort"
[[volume]]
name = "web"
pool = "main"
size = "64MiB"
tenant = "web"
[[volume]]
name = "vol"
pool = "main"
size = "64MiB"
tenant = "web"
[[volume]]
name = "peer"
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

struct Block {
    page: PathBuf,
    /// From 1.
    line: usize,
    mark: String,
    text: String,
    exempt: bool,
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").canonicalize().unwrap()
}

fn pages() -> Vec<PathBuf> {
    let guides = std::fs::read_dir(docs().join("guides")).unwrap().map(|e| e.unwrap().path());
    let mut all: Vec<PathBuf> = guides.chain([docs().join("start.md")]).collect();
    all.retain(|p| p.extension().is_some_and(|e| e == "md"));
    all.sort();
    all
}

fn is_unmarked(page: &Path) -> bool {
    UNMARKED.iter().any(|(name, _)| page.file_name().is_some_and(|n| n == *name))
}

fn blocks(page: &Path) -> Vec<Block> {
    let text = std::fs::read_to_string(page).unwrap();
    let (mut all, mut open, mut exempt): (Vec<Block>, Option<Block>, bool) = (Vec::new(), None, false);
    for (at, line) in text.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(mark)) => {
                let (page, mark) = (page.to_path_buf(), mark.trim().to_string());
                open = Some(Block { page, line: at + 1, mark, text: String::new(), exempt });
                exempt = false;
            }
            (Some(_), Some(_)) => all.extend(open.take()),
            (Some(block), None) => block.text += &format!("{line}\n"),
            (None, None) if line.starts_with("<!-- not run: ") && line.len() > 30 => exempt = true,
            (None, None) => {}
        }
    }
    all
}

/// Numbers become N, and blanks one blank.
fn shape(text: &str) -> String {
    let mut out = String::new();
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        if c.is_ascii_digit() {
            while characters.peek().is_some_and(|c| c.is_ascii_digit() || *c == '.') {
                characters.next();
            }
            out.push('N');
        } else {
            out.push(c);
        }
    }
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs a page's commands in `dir` and compares what they print. They are in a process group of their own, which is ended.
fn run_page(page: &Path, dir: &Path, control: &str) -> Result<(), String> {
    let blocks = blocks(page);
    let mut script = String::from("exec 2>&1\nset -e -o pipefail\n");
    for (n, block) in blocks.iter().enumerate().filter(|(_, b)| b.mark == "sh" && !b.exempt) {
        script += &format!("echo '@@{n}'\n{}", block.text.replace("/run/plimsoll/", ""));
    }
    script += "echo '@@end'\n";
    let binary = Path::new(env!("CARGO_BIN_EXE_plimsoll")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let mut bash = Command::new("timeout");
    bash.args(["120", "bash", "-c", &script]).current_dir(dir).process_group(0).stdin(Stdio::null());
    let child = bash.env("PATH", path).env("PLIMSOLL_CONTROL", control).stdout(Stdio::piped()).spawn().unwrap();
    let group = rustix::process::Pid::from_child(&child);
    let output = child.wait_with_output().unwrap();
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL); // usually nobody is left
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        return Err(format!("{}: {}:\n{printed}", page.display(), output.status));
    }
    for (n, expected) in blocks.iter().enumerate().filter(|(_, b)| b.mark == "text") {
        let Some(at) = (0..n).rev().find(|k| blocks[*k].mark == "sh") else { continue };
        let got = printed.split(&format!("@@{at}\n")).nth(1).unwrap_or_default();
        let got = shape(got.split("@@").next().unwrap_or_default());
        for line in expected.text.lines().map(shape) {
            if !got.contains(&line) {
                return Err(format!("{}:{}: `{line}` isn't printed:\n{got}", page.display(), expected.line));
            }
        }
    }
    Ok(())
}

#[test]
fn the_tutorial_runs_as_printed() {
    let dir = tempfile::tempdir().unwrap();
    run_page(&docs().join("start.md"), dir.path(), "nowhere").unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn commands_of_the_guides_run_as_printed() {
    let mut failed = Vec::new();
    let is_run = |p: &PathBuf| !is_unmarked(p) && blocks(p).iter().any(|b| b.mark == "sh" && !b.exempt);
    let all: Vec<_> = pages().into_iter().filter(|p| !p.ends_with("start.md") && is_run(p)).collect();
    assert!(all.len() >= 8, "{all:?}");
    for page in all {
        let dir = tempfile::tempdir().unwrap();
        let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces/small.csv");
        std::fs::copy(trace, dir.path().join("small.csv")).unwrap();
        let server = Server::start(dir.path(), NODE);
        failed.extend(run_page(&page, dir.path(), "control.sock").err());
        assert!(server.stop(), "{}", page.display());
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A part of a configuration, completed by what it leaves out.
fn completed(part: &str) -> Result<toml::Table, toml::de::Error> {
    let mut part: toml::Table = part.parse()?;
    let mut whole: toml::Table = NODE.parse()?;
    // `[pool.cache]` alone is of the first pool.
    if let Some(toml::Value::Table(keys)) = part.get("pool").cloned() {
        let mut pool = whole["pool"][0].as_table().unwrap().clone();
        pool.extend(keys);
        part.insert("pool".into(), toml::Value::Array(vec![pool.into()]));
    }
    let named = |t: &toml::Value| t.get("name").and_then(|n| n.as_str()).map(str::to_string);
    for (key, value) in part {
        match (whole.get_mut(&key), value) {
            (Some(toml::Value::Array(all)), toml::Value::Array(new)) => {
                // What has a name that is there adds its keys to that.
                for entry in new {
                    match all.iter_mut().find(|old| named(old).is_some() && named(old) == named(&entry)) {
                        Some(toml::Value::Table(old)) => old.extend(entry.as_table().unwrap().clone()),
                        _ => all.push(entry),
                    }
                }
            }
            (Some(toml::Value::Table(all)), toml::Value::Table(new)) => all.extend(new),
            (_, value) => drop(whole.insert(key, value)),
        }
    }
    Ok(whole)
}

#[test]
fn configurations_of_the_documents_are_accepted() {
    let mut wrong = Vec::new();
    let all: Vec<Block> = pages().iter().flat_map(|p| blocks(p)).filter(|b| b.mark == "toml" && !b.exempt).collect();
    for block in all.iter().filter(|b| !is_unmarked(&b.page)) {
        let place = format!("{}:{}", block.page.display(), block.line);
        let checked = completed(&block.text).map_err(|e| e.to_string()).and_then(|table| {
            Config::parse(&toml::to_string(&table).unwrap(), Path::new("node.toml")).map_err(|e| e.to_string())
        });
        wrong.extend(checked.err().map(|e| format!("{place}: {e}")));
    }
    assert!(all.len() >= 6);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn tune_files_of_the_documents_are_accepted() {
    let all: Vec<Block> = pages().iter().flat_map(|p| blocks(p)).filter(|b| b.mark == "toml tune").collect();
    assert!(!all.is_empty());
    let dir = tempfile::tempdir().unwrap();
    for block in all {
        let file = dir.path().join("tune.toml");
        std::fs::write(&file, &block.text).unwrap();
        let checked = Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(["tune", "check"]).arg(&file).output().unwrap();
        let errors = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{}:{}: {errors}", block.page.display(), block.line);
    }
}

/// Few blocks are exempt, each with a reason; a block of commands has a mark.
#[test]
fn few_blocks_are_exempt() {
    let all: Vec<Block> = pages().iter().flat_map(|p| blocks(p)).collect();
    let exempt: Vec<_> = all.iter().filter(|b| b.exempt).map(|b| format!("{}:{}", b.page.display(), b.line)).collect();
    assert!(exempt.len() <= EXEMPT_MAX, "{exempt:?}");
    for block in all.iter().filter(|b| b.mark.is_empty() && !is_unmarked(&b.page)) {
        let commands = block.text.lines().any(|l| l.starts_with("plimsoll "));
        assert!(!commands, "{}:{}: mark it `sh`, so that it is run", block.page.display(), block.line);
    }
}

fn help(path: &[String], page: &mut String) {
    let arguments: Vec<&str> = path[1..].iter().map(String::as_str).chain(["--help"]).collect();
    let mut program = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    program.args(&arguments).env_remove("PLIMSOLL_CONTROL").env_remove("PLIMSOLL_TOKEN_FILE");
    let help = String::from_utf8(program.output().unwrap().stdout).unwrap();
    let lines: Vec<&str> =
        help.lines().filter(|l| !l.trim_start().starts_with("-h, --help")).map(str::trim_end).collect();
    let text = lines.join("\n").replace(" [env: PLIMSOLL_CONTROL=]", "").replace(" [env: PLIMSOLL_TOKEN_FILE=]", "");
    *page += &format!("\n## {}\n\n```text\n{}\n```\n", path.join(" "), text.trim_end());
    let commands = help.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| l.starts_with("  "));
    for name in commands.filter(|l| !l.starts_with("   ")).filter_map(|l| l.split_whitespace().next()) {
        if name != "help" && path.len() < 4 {
            help_of(path, name, page);
        }
    }
}

fn help_of(path: &[String], name: &str, page: &mut String) {
    // The lab is a program of its own, with help of its own.
    if name != "lab" {
        help(&[path, &[name.to_string()]].concat(), page);
    }
}

/// `PLIMSOLL_WRITE_DOCS=1` writes the page.
#[test]
fn the_reference_of_commands_is_current() {
    let mut page = String::from(
        "# Commands\n\n<!-- Generated: PLIMSOLL_WRITE_DOCS=1 cargo test -p plimsoll --test docs the_reference. Don't edit. -->\n",
    );
    help(&["plimsoll".to_string()], &mut page);
    let file = docs().join("reference/cli.md");
    if std::env::var_os("PLIMSOLL_WRITE_DOCS").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = known.lines().zip(page.lines()).find(|(a, b)| a != b);
    assert!(known == page, "docs/reference/cli.md isn't current (PLIMSOLL_WRITE_DOCS=1 writes it): {differs:?}");
}
