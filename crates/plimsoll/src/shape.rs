//! `plimsoll shape`: starts a server under the shim, or a proxy before one, and looks after the gate.

mod attach;
mod drive;
mod knobs;
mod metrics;
mod proxy;
mod run;
mod storage;
mod top;
mod tuning;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use plimsoll_shape::gate::Knobs;
use plimsoll_shape::segment::{HEARTBEAT_MAX_NS, Segment, monotonic};
use plimsoll_shape::users::{GroupBy, Rule, parse_rules};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Give a database's users fair, stable service from outside of it.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(
    after_help = "Examples:\n  plimsoll shape --profile mysql-thread --p auto --user mysql -- mariadbd --datadir=/var/lib/mysql\n  plimsoll shape top\n  plimsoll shape set p=16 weight:web=3"
)]
pub struct Shape {
    #[command(subcommand)]
    command: Option<ShapeCommand>,
    #[command(flatten)]
    run: run::Run,
}

#[derive(Subcommand)]
enum ShapeCommand {
    /// Watch users, their shares and waits
    Top(top::Top),
    /// Look after a server whose controller is gone
    Attach(attach::Attach),
    /// Change knobs: p=16, p=auto, p_floor=4, zeta=8, weight:USER=3, objective:USER=60, rules=FILE, … (`set --help` has all)
    Set(knobs::Set),
    /// Hold all knobs where they are; `--undo` lets them move again
    Freeze(knobs::Freeze),
    /// Let everything pass; `--undo` shapes again
    Off(knobs::Off),
    /// Print metrics in Prometheus' text format
    Metrics(metrics::Metrics),
    /// Shape as a TCP proxy, for servers that nothing can be preloaded into
    Proxy(proxy::Proxy),
    /// Put a TPC-C-like, YCSB-like or hot-row load on a server
    Drive(drive::Drive),
}

impl Shape {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.command {
            None => self.run.run(),
            Some(ShapeCommand::Top(c)) => c.run(),
            Some(ShapeCommand::Attach(c)) => c.run(),
            Some(ShapeCommand::Set(c)) => c.run(),
            Some(ShapeCommand::Freeze(c)) => c.run(),
            Some(ShapeCommand::Off(c)) => c.run(),
            Some(ShapeCommand::Metrics(c)) => c.run(),
            Some(ShapeCommand::Proxy(c)) => c.run(),
            Some(ShapeCommand::Drive(c)) => c.run(),
        }
    }
}

/// Which shaped server is meant.
#[derive(Args)]
pub struct Which {
    /// The control segment's file.
    #[arg(long, value_name = "FILE", default_value = "/run/plimsoll/shape.segment", env = "PLIMSOLL_SHAPE_CONTROL")]
    control: PathBuf,
}

impl Which {
    fn open(&self) -> Result<Segment> {
        let hint = "is a server running under `plimsoll shape`? Name its file with --control";
        Segment::open(&self.control).with_context(|| format!("{}: {hint}", self.control.display()))
    }
}

/// This thread's id, for the segment's lock.
fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// The process that looks after it. A process of that number alone may be another one by now: it must have beaten.
fn is_tended(segment: &Segment) -> Option<u32> {
    let control = segment.control();
    let pid = control.controller_pid.load(Ordering::Relaxed);
    let silent_ns = monotonic().as_nanos().saturating_sub(control.heartbeat_ns.load(Ordering::Relaxed));
    (pid != 0 && !segment.is_dead(pid) && silent_ns < HEARTBEAT_MAX_NS).then_some(pid)
}

/// A new control segment, which the server's account may write to.
fn segment(path: &Path, knobs: Knobs, account: Option<(u32, u32)>) -> Result<Segment> {
    if let Some(pid) = Segment::open(path).ok().as_ref().and_then(is_tended) {
        bail!("{}: in use by process {pid}; give this server another file with --control", path.display());
    }
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let segment =
        Segment::create(path, knobs, monotonic()).with_context(|| format!("cannot make {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    if let Some((uid, gid)) = account {
        chown(path, Some(uid), Some(gid)).with_context(|| format!("cannot give {} away", path.display()))?;
    }
    Ok(segment)
}

fn group_by(text: &str) -> Result<GroupBy, String> {
    match text {
        "account" => Ok(GroupBy::Account),
        "database" => Ok(GroupBy::Database),
        "peer" => Ok(GroupBy::Peer),
        "connection" => Ok(GroupBy::Connection),
        other => Err(format!("`{other}` is none of account, database, peer, connection")),
    }
}

fn read_rules(path: Option<&Path>) -> Result<Vec<Rule>> {
    let Some(path) = path else { return Ok(Vec::new()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    match parse_rules(&text) {
        Ok(rules) => Ok(rules),
        Err(e) => bail!("{}: {e}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_file_that_is_none_or_is_in_use_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let open = |path: &Path| {
            let found = Which { control: path.to_path_buf() }.open();
            format!("{:#}", found.err().expect("it isn't there, or isn't one"))
        };
        assert!(open(&path).contains("is a server running under `plimsoll shape`?"));
        std::fs::write(&path, "short").unwrap();
        assert!(open(&path).contains("too short for a control segment"));
        std::fs::write(&path, "x".repeat(4096)).unwrap();
        assert!(open(&path).contains("not a control segment of the shaper"));
        let made = segment(&path, Knobs::default(), None).unwrap();
        // A controller that runs: this one.
        made.control().controller_pid.store(std::process::id(), Ordering::Relaxed);
        let e = segment(&path, Knobs::default(), None).err().expect("in use");
        assert!(e.to_string().contains("give this server another file with --control"), "{e}");
        // The same number, but nothing has beaten for long.
        made.control().heartbeat_ns.store(1, Ordering::Relaxed);
        assert!(segment(&path, Knobs::default(), None).is_ok());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[8] = 99;
        std::fs::write(dir.path().join("newer"), &bytes).unwrap();
        assert!(open(&dir.path().join("newer")).contains("version 99 of the control segment"));
        bytes[8] = plimsoll_shape::segment::VERSION as u8;
        std::fs::write(dir.path().join("cut"), &bytes[..9000]).unwrap();
        assert!(open(&dir.path().join("cut")).contains("9000 bytes for"));
    }

    #[test]
    fn words_that_are_none_are_named() {
        use super::tuning::{p_mode, percent, zeta_mode};
        assert_eq!(p_mode("0").unwrap_err(), "P = 0 would let nobody in: 1 is the least");
        assert_eq!(zeta_mode("auto"), Ok(0));
        assert_eq!(zeta_mode("0").unwrap_err(), "`0` is neither auto nor within 1 to 1024");
        assert_eq!((percent("12.5"), percent("0").is_err()), (Ok(125), true));
        assert!(p_mode("fast").unwrap_err().contains("`fast` is neither auto, unlimited nor a number"));
        assert!(group_by("colour").unwrap_err().contains("`colour` is none of account, database, peer, connection"));
        let e = "oracle".parse::<plimsoll_shape::profile::Profile>().unwrap_err().to_string();
        assert!(e.contains("no profile `oracle`") && e.contains("mysql-thread"), "{e}");
        let e = format!("{:#}", read_rules(Some(Path::new("no-such-rules"))).unwrap_err());
        assert!(e.contains("cannot read no-such-rules"), "{e}");
    }
}
