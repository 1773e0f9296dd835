//! Counts pauses in which the host stops this machine, and their lengths, as seen by a thread that only sleeps.
//!
//! A modelled device answers at the model's due time, as far as it can. A virtual machine that isn't run, or cores that others keep busy,
//! make any answer late. With this thread's pauses, a test of a live volume can tell the node's own lateness from the host's. The host is
//! the cause where this thread oversleeps by more than [`PAUSE_MIN`].

use plimsoll_base::{LatencyHistogram, Span};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Length of one sleep: short, as an idle virtual processor wakes the later the longer it slept.
const SLEEP: Duration = Duration::from_millis(2);

/// Oversleeping by this much is a pause. Waking an idle machine takes up to 140 us at the 99th percentile.
pub const PAUSE_MIN: Span = Span::from_micros(250);

/// A thread that counts pauses until this is dropped.
#[derive(Debug)]
pub struct Watchdog {
    pauses: Arc<Mutex<LatencyHistogram>>,
}

impl Watchdog {
    /// Starts the thread.
    pub fn start() -> std::io::Result<Watchdog> {
        let pauses = Arc::new(Mutex::new(LatencyHistogram::new()));
        let watched = Arc::downgrade(&pauses);
        std::thread::Builder::new().name("watchdog".into()).spawn(move || watch(&watched))?;
        Ok(Watchdog { pauses })
    }

    /// The pauses so far.
    pub fn pauses(&self) -> LatencyHistogram {
        self.pauses.lock().expect("no panic while held").clone()
    }
}

fn watch(pauses: &Weak<Mutex<LatencyHistogram>>) {
    if let Err(error) = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)) {
        tracing::warn!(%error, "could not get fine timers: short pauses of the host can't be distinguished from late timers; lateness figures are less certain");
    }
    while let Some(pauses) = pauses.upgrade() {
        crate::panics::point("watchdog");
        let began = Instant::now();
        std::thread::sleep(SLEEP);
        let over = Span::from(began.elapsed().saturating_sub(SLEEP));
        if over >= PAUSE_MIN {
            pauses.lock().expect("no panic while held").record(over);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_with_its_owner() {
        let w = Watchdog::start().unwrap();
        let watched = Arc::downgrade(&w.pauses);
        assert_eq!(w.pauses().count_at_most(PAUSE_MIN / 2), 0, "nothing shorter is a pause");
        drop(w);
        while watched.strong_count() > 0 {
            std::thread::sleep(SLEEP);
        }
    }
}
