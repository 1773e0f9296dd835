//! `plimsoll shape -- SERVER …`

use super::{Which, group_by, p_mode, read_rules, segment, tid};
use anyhow::{Context, Result, bail};
use clap::Args;
use plimsoll_shape::control::{ControlConfig, Controller, PMode};
use plimsoll_shape::gate::Knobs;
use plimsoll_shape::profile::Profile;
use plimsoll_shape::segment::{Segment, monotonic};
use plimsoll_shape::tend::{LOOK, Tender, Woken};
use plimsoll_shape::tune::parallelism::TunerConfig;
use plimsoll_shape::users::GroupBy;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How a server is started.
#[derive(Args)]
pub struct Run {
    /// How the server reads: mysql-thread, mysql-pool, postgres, redis, mongo, generic.
    #[arg(long, required = true)]
    profile: Option<Profile>,
    /// Transactions inside at a time: a number, `auto`, or `unlimited`.
    #[arg(long, default_value = "auto", value_parser = p_mode)]
    p: PMode,
    /// Never fewer than this with `--p auto`.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    p_floor: u32,
    /// Never more than this with `--p auto`.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(2..))]
    p_ceiling: u32,
    /// Whose a connection is where no rule matches: account, database, peer, connection.
    #[arg(long, default_value = "account", value_parser = group_by)]
    group_by: GroupBy,
    /// Rules: users, their weights and objectives.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Nobody is held for longer.
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    hold_max_ms: u64,
    /// Run the server as this account of /etc/passwd.
    #[arg(long)]
    user: Option<String>,
    /// The shim's library [default: libplimsoll_shim.so beside this program].
    #[arg(long, value_name = "FILE")]
    shim: Option<PathBuf>,
    #[command(flatten)]
    storage: super::storage::Storage,
    #[command(flatten)]
    which: Which,
    /// The server and its arguments.
    #[arg(last = true, required = true)]
    server: Vec<String>,
}

impl Run {
    /// Starts the server and looks after the gate until it ends.
    pub fn run(self) -> Result<()> {
        let profile = self.profile.context("say how the server reads with --profile")?;
        let shim = self.shim()?;
        let program = which_program(&self.server[0])?;
        let account = self.user.as_deref().map(account).transpose()?;
        let rules = read_rules(self.rules.as_deref())?;
        let knobs = Knobs { hold_max_ns: self.hold_max_ms * 1_000_000, ..Knobs::default() };
        let segment = segment(&self.which.control, knobs, account)?;
        segment.lock(tid(), monotonic()).set_rules(&rules);
        segment.control().group_by.store(self.group_by.code(), Ordering::Relaxed);
        self.storage.watch(&self.which.control, self.p)?;
        let mut command = Command::new(&program);
        // Some programs are one file of several names, and ask which one they were called by (Debian's redis-server).
        command.arg0(&self.server[0]).args(&self.server[1..]);
        if let Some((uid, gid)) = account {
            command.uid(uid).gid(gid);
        }
        let control = std::fs::canonicalize(&self.which.control)?;
        command.env("LD_PRELOAD", &shim).env("PLIMSOLL_SHAPE_SEGMENT", control);
        command.env("PLIMSOLL_SHAPE_PROFILE", profile.to_string()).env("PLIMSOLL_SHAPE_PROGRAM", &program);
        // Its own group: what ends this program from the keyboard is passed on once, below.
        command.process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let p = match self.p {
            PMode::Auto(_) => {
                PMode::Auto(TunerConfig { floor: self.p_floor, ceiling: self.p_ceiling, ..TunerConfig::default() })
            }
            fixed => fixed,
        };
        let controller = Controller::new(ControlConfig::new(p), Knobs::default().zeta);
        look_after(&segment, Tender::new(&segment, controller, p), child)
    }

    fn shim(&self) -> Result<PathBuf> {
        let beside = || std::env::current_exe().map(|p| p.with_file_name("libplimsoll_shim.so"));
        let path = self.shim.clone().map_or_else(beside, Ok)?;
        let hint = "build it with `cargo build --release -p plimsoll-shape-shim`, or name it with --shim";
        std::fs::canonicalize(&path).with_context(|| format!("{}: {hint}", path.display()))
    }
}

/// The program's file, as the shim will see it.
fn which_program(name: &str) -> Result<PathBuf> {
    let found = if name.contains('/') {
        Some(PathBuf::from(name))
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
        dirs.map(|d: PathBuf| d.join(name)).find(|p| p.is_file())
    };
    let found = found.filter(|p| p.is_file()).with_context(|| format!("{name}: there is no such program"))?;
    Ok(std::fs::canonicalize(found)?)
}

fn account(name: &str) -> Result<(u32, u32)> {
    let passwd = std::fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    let line = passwd.lines().find(|l| l.split(':').next() == Some(name));
    let line = line.with_context(|| format!("there is no account `{name}` in /etc/passwd"))?;
    let field = |i: usize| line.split(':').nth(i).and_then(|f| f.parse().ok());
    field(2).zip(field(3)).with_context(|| format!("/etc/passwd has no numbers for `{name}`"))
}

/// Beats, tunes and reaps until the server ends.
fn look_after(segment: &Segment, mut tender: Tender, mut child: Child) -> Result<()> {
    // Signals are blocked in this one thread and looked for between two beats.
    let stop = signals::Stop::new()?;
    let mut warned = false;
    loop {
        if let Some(status) = child.try_wait()? {
            segment.control().controller_pid.store(0, Ordering::Relaxed);
            if !status.success() && !stop.was_asked() {
                bail!("the server ended: {status}");
            }
            return Ok(());
        }
        if let Some(signal) = stop.take() {
            let pid = rustix::process::Pid::from_child(&child);
            // It may have ended just now: the next look sees that.
            let _ = rustix::process::kill_process(pid, signal);
        }
        wake(segment, &tender.look(segment, tid(), monotonic()));
        warned = warned || warn_if_blind(segment);
        // The gate tells nobody of stalls and windows: it is looked at.
        std::thread::sleep(Duration::from_nanos(LOOK.as_nanos()));
    }
}

/// Wakes who was let in: threads sleep on the segment; a PostgreSQL process waits for its latch's signal, which others ignore; a
/// pool's own waiting threads look by themselves.
fn wake(segment: &Segment, who: &[Woken]) {
    let server = segment.control().server_pid.load(Ordering::Relaxed);
    for w in who {
        segment.wake(w.conn);
        if let (true, Some(pid)) = (w.owner_pid != server, rustix::process::Pid::from_raw(w.owner_pid as i32)) {
            // It may be gone: then it's reaped.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::URG);
        }
    }
}

/// Connections come in, and nothing is seen of what they send: a static program, or reads that don't go through the C library.
fn warn_if_blind(segment: &Segment) -> bool {
    let control = segment.control();
    let blind = control.accepted.load(Ordering::Relaxed) >= 10 && control.reads_seen.load(Ordering::Relaxed) == 0;
    if blind {
        eprintln!(
            "plimsoll: nothing is seen of this server's clients, so nothing is shaped; use `plimsoll shape proxy`"
        );
    }
    blind
}

mod signals {
    //! Signals that end the server, taken between two beats.

    use anyhow::Result;
    use rustix::process::Signal;
    use std::cell::Cell;
    use tokio::runtime::{Builder, Runtime};
    use tokio::signal::unix::{SignalKind, signal};
    use tokio::sync::mpsc;

    /// What was asked for.
    pub struct Stop {
        runtime: Runtime,
        asked: Cell<bool>,
        receiver: std::cell::RefCell<mpsc::UnboundedReceiver<Signal>>,
    }

    impl Stop {
        pub fn new() -> Result<Stop> {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (sender, receiver) = mpsc::unbounded_channel();
            let kinds = [
                (SignalKind::terminate(), Signal::TERM),
                (SignalKind::interrupt(), Signal::INT),
                (SignalKind::hangup(), Signal::HUP),
            ];
            for (kind, which) in kinds {
                let (sender, mut stream) = (sender.clone(), runtime.block_on(async { signal(kind) })?);
                runtime.spawn(async move {
                    while stream.recv().await.is_some() {
                        // Nobody listens any more only when this program ends.
                        let _ = sender.send(which);
                    }
                });
            }
            Ok(Stop { runtime, asked: Cell::new(false), receiver: std::cell::RefCell::new(receiver) })
        }

        pub fn take(&self) -> Option<Signal> {
            self.runtime.block_on(async { tokio::task::yield_now().await });
            let signal = self.receiver.borrow_mut().try_recv().ok()?;
            // PostgreSQL means "fast" by an interrupt, MariaDB ignores it: both end on a termination.
            let signal = if signal == Signal::INT { Signal::TERM } else { signal };
            self.asked.set(self.asked.get() || signal == Signal::TERM);
            Some(signal)
        }

        pub fn was_asked(&self) -> bool {
            self.asked.get()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_accounts_that_are_not_there_are_named() {
        assert!(
            which_program("no-such-server")
                .unwrap_err()
                .to_string()
                .contains("no-such-server: there is no such program")
        );
        assert!(account("no-such-account").unwrap_err().to_string().contains("`no-such-account`"));
        assert_eq!(account("root").unwrap(), (0, 0));
        assert!(which_program("sh").unwrap().is_absolute());
    }
}
