//! `plimsoll shape -- SERVER …`

use super::tuning::{Tuning, tender};
use super::{Which, group_by, lock, read_rules, segment, tid};
use anyhow::{Context, Result, bail};
use clap::Args;
use plimsoll_shape::profile::Profile;
use plimsoll_shape::segment::{Segment, monotonic};
use plimsoll_shape::tend::{LOOK, Tender};
use plimsoll_shape::users::GroupBy;
use rustix::process::Signal;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Start of a server under the shim.
#[derive(Args)]
pub struct Run {
    /// Server's kind: mysql-thread, mysql-pool, postgres, redis, mongo, generic.
    #[arg(long, required = true)]
    profile: Option<Profile>,
    #[command(flatten)]
    tuning: Tuning,
    /// User of a connection that no rule matches: account, database, peer, connection.
    #[arg(long, default_value = "account", value_parser = group_by)]
    group_by: GroupBy,
    /// Rules: users, their weights and objectives.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Run the server as this account of /etc/passwd.
    #[arg(long)]
    user: Option<String>,
    /// The shim's library [default: libplimsoll_shim.so beside this program, or in /usr/lib/plimsoll].
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
        let segment = segment(&self.which.control, self.tuning.knobs(), account)?;
        self.tuning.store_all(&segment)?;
        segment.control().profile.store(profile.code(), Ordering::Relaxed);
        lock(&segment)?.set_rules(&rules);
        segment.control().group_by.store(self.group_by.code(), Ordering::Relaxed);
        self.storage.watch(&self.which.control, self.tuning.p())?;
        let mut command = Command::new(&program);
        // Some programs are one file of several names, and ask which one they were called by (Debian's redis-server).
        command.arg0(&self.server[0]).args(&self.server[1..]);
        if let Some((uid, gid)) = account {
            command.uid(uid).gid(gid);
        }
        let control = std::fs::canonicalize(&self.which.control)?;
        command.env("LD_PRELOAD", preload(&shim)).env("PLIMSOLL_SHAPE_SEGMENT", control);
        command.env("PLIMSOLL_SHAPE_PROFILE", profile.to_string()).env("PLIMSOLL_SHAPE_PROGRAM", &program);
        // Its own group: what ends this program from the keyboard is passed on once, below.
        command.process_group(0);
        let tender = tender(&segment)?;
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        look_after(&segment, tender, profile, child)
    }

    fn shim(&self) -> Result<PathBuf> {
        let found = || {
            let beside = std::env::current_exe()?.with_file_name("libplimsoll_shim.so");
            let packaged = PathBuf::from("/usr/lib/plimsoll/libplimsoll_shim.so");
            std::io::Result::Ok(if beside.exists() || !packaged.exists() { beside } else { packaged })
        };
        let path = self.shim.clone().map_or_else(found, Ok)?;
        let hint = "build it with `cargo build --release -p plimsoll-shape-shim`, or name it with --shim";
        std::fs::canonicalize(&path).with_context(|| format!("{}: {hint}", path.display()))
    }
}

/// The shim before the libraries that the operator preloads, such as an allocator.
fn preload(shim: &Path) -> OsString {
    let mut all = shim.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
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
fn look_after(segment: &Segment, mut tender: Tender, profile: Profile, mut child: Child) -> Result<()> {
    // Signals are blocked in this one thread and looked for between two beats.
    let stop = signals::Stop::new()?;
    let mut warned = false;
    loop {
        if let Some(status) = child.try_wait()? {
            if tender.is_in_charge(segment) {
                segment.control().controller_pid.store(0, Ordering::Relaxed);
            }
            if !status.success() && !stop.was_asked() {
                bail!("the server ended: {status}");
            }
            return Ok(());
        }
        if let Some(signal) = stop.take() {
            let pid = rustix::process::Pid::from_child(&child);
            // An interrupt ends: PostgreSQL by it ("fast", where a termination waits for all clients), MariaDB, which ignores it, by a termination.
            let signal = match signal {
                Signal::INT if profile != Profile::Postgres => Signal::TERM,
                signal => signal,
            };
            // It may have ended just now: the next look sees that.
            let _ = rustix::process::kill_process(pid, signal);
        }
        tender.look(segment, tid(), monotonic()).iter().for_each(|w| w.wake(segment));
        warned = warned || warn_if_blind(segment);
        // The gate tells nobody of stalls and windows: it is looked at.
        std::thread::sleep(Duration::from_nanos(LOOK.as_nanos()));
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

pub mod signals {
    //! Signals that end the server, taken between two beats.

    use anyhow::Result;
    use rustix::process::Signal;
    use std::cell::Cell;
    use tokio::runtime::{Builder, Runtime};
    use tokio::signal::unix::{SignalKind, signal};
    use tokio::sync::mpsc;

    /// Options of the command line.
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
            self.asked.set(self.asked.get() || matches!(signal, Signal::TERM | Signal::INT));
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
