//! The running system that a tune file's adapter sets and measures, and its restoration when the tuner ends.

use anyhow::{Context, Result, anyhow};
use plimsoll_tune::adapter::Guarded;
use plimsoll_tune::file::TuneFile;
use plimsoll_tune::shell::{Shell, Stop};
use plimsoll_tune::space::{Setting, Space};
use std::fmt;
use std::path::Path;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal ended the command; the system is as the message says.
#[derive(Debug)]
pub struct Interrupted(String);

/// Exit status that a shell reports for a command that SIGINT ended.
pub const STATUS_INTERRUPTED: u8 = 130;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Interrupted {}

/// Runs `what` on the system of a tune file; `current` are NAME=VALUE words of the setting that it has now, if that is known.
/// SIGINT, SIGTERM and SIGHUP end the adapter's command that runs, with all it started; the system is put back, and the error is
/// an [`Interrupted`].
pub fn with_system<T>(
    f: &TuneFile,
    file: &Path,
    current: &[String],
    what: impl FnOnce(&mut Guarded<'_>) -> Result<T>,
) -> Result<T> {
    let missing = || anyhow!("{}: it has no [adapter] to set and measure with", file.display());
    let mut shell = Shell::new(f.adapter.clone().ok_or_else(missing)?, f.space.clone());
    let current = parsed(&f.space, current)?;
    let stop = shell.stop();
    listen(stop.clone())?;
    let done = what(&mut Guarded::new(&mut shell, &f.space, current));
    done.map_err(|e| if stop.was_asked() { Interrupted(format!("{e:#}")).into() } else { e })
}

/// The setting of `NAME=VALUE` words; `None` without any.
fn parsed(space: &Space, words: &[String]) -> Result<Option<Setting>> {
    if words.is_empty() {
        return Ok(None);
    }
    let pairs: Option<Vec<(&str, &str)>> = words.iter().map(|w| w.split_once('=')).collect();
    let setting = space.named(&pairs.context("--current takes NAME=VALUE")?);
    setting.map(Some).ok_or_else(|| anyhow!("--current must name one of the tune file's values for each parameter"))
}

/// Hears signals from now on, in a thread of its own.
fn listen(stop: Stop) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let mut signals: Vec<Signal> = {
        let _in_it = runtime.enter();
        kinds.into_iter().filter(|k| !is_ignored(*k)).map(signal).collect::<Result<_, _>>()?
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                let heard = std::future::poll_fn(|context| {
                    let any = signals.iter_mut().any(|s| s.poll_recv(context).is_ready());
                    if any { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
                });
                heard.await;
                // Nothing of the adapter runs that could be ended, and whoever asks twice means it.
                if !stop.ask() {
                    std::process::exit(STATUS_INTERRUPTED.into());
                }
            }
        });
    });
    Ok(())
}

/// Returns whether the parent (nohup, a shell's background job) had this signal ignored
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:")).map(str::trim).unwrap_or_default();
    u64::from_str_radix(mask, 16).is_ok_and(|m| m >> (kind.as_raw_value() - 1) & 1 == 1)
}
