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
use plimsoll_shape::segment::{FAILED_SHIM, FAILED_SILENT, Guard, HEARTBEAT_MAX_NS, Segment, monotonic};
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

/// Control segment of the shaped server.
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

/// The gate. If the holder of its lock was stopped, the error names the holder and the state of the server.
fn lock(segment: &Segment) -> Result<Guard<'_>> {
    if let Some(guard) = segment.lock_in_time(tid(), monotonic()) {
        return Ok(guard);
    }
    let failed_open = segment.control().failed_open.load(Ordering::Relaxed);
    let why = failed(failed_open).unwrap_or("the gate did not fail open");
    let owner = segment.lock_owner();
    bail!(
        "the gate's lock can't be had: its owner is {owner}; failed_open is {failed_open}: {why}; resume or end that process, then try again"
    )
}

/// Meaning of [`plimsoll_shape::segment::Control::failed_open`].
fn failed(failed_open: u32) -> Option<&'static str> {
    match failed_open {
        f if f & FAILED_SHIM != 0 => Some("FAILED OPEN: the shim failed, all pass until the server is started again"),
        f if f & FAILED_SILENT != 0 => Some("FAILED OPEN: the controller is silent, all pass"),
        _ => None,
    }
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
    fn no_command_waits_for_ever_for_a_stopped_owner_of_the_lock() {
        use super::{attach::Attach, knobs::Set, metrics::Metrics, top::Top};
        use clap::Command;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment").display().to_string();
        let made = segment(Path::new(&path), Knobs::default(), None).unwrap();
        made.control().server_pid.store(std::process::id(), Ordering::Relaxed);
        made.control().failed_open.store(FAILED_SHIM, Ordering::Relaxed);
        let mut owner = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&owner);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        let guard = made.lock(owner.id(), monotonic());
        let wanted =
            format!("its owner is thread {}, which is stopped; failed_open is 2: FAILED OPEN: the shim", owner.id());
        fn parsed<C: clap::Args + clap::FromArgMatches>(path: &str, more: &[&str]) -> C {
            let args = [&["c", "--control", path], more].concat();
            C::from_arg_matches(&C::augment_args(Command::new("c")).get_matches_from(args)).unwrap()
        }
        for (command, done) in [
            ("top", parsed::<Top>(&path, &["--once"]).run()),
            ("metrics", parsed::<Metrics>(&path, &[]).run()),
            ("set", parsed::<Set>(&path, &["p=4", "weight:web=2"]).run()),
            ("set", parsed::<Set>(&path, &["p=4"]).run()),
            ("attach", parsed::<Attach>(&path, &["--p", "5"]).run()),
            ("attach", parsed::<Attach>(&path, &["--hold-max-ms", "5", "--p", "5"]).run()),
        ] {
            let e = format!("{:#}", done.expect_err(command));
            assert!(e.contains(&wanted), "{command}: {e}");
        }
        assert_eq!(made.control().controller_pid.load(Ordering::Relaxed), 0, "nobody looks after it");
        drop(guard);
        let p = made.control().p_wanted.load(Ordering::Relaxed);
        assert_eq!(p, Knobs::default().p, "nothing is set by halves");
        assert!(parsed::<Set>(&path, &["p=4"]).run().is_ok());
        owner.kill().unwrap();
        owner.wait().unwrap();
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
