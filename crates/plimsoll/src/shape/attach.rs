//! `plimsoll shape attach`: looks after a server whose controller is gone.

use super::tuning::{Tuning, tender};
use super::{Which, is_tended, tid};
use anyhow::{Result, bail};
use clap::Args;
use plimsoll_shape::segment::monotonic;
use plimsoll_shape::tend::LOOK;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Look after a server that runs under the shim and whose controller is gone: until then it passes everything.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll shape attach --control /run/plimsoll/shape.segment")]
pub struct Attach {
    #[command(flatten)]
    tuning: Tuning,
    #[command(flatten)]
    which: Which,
}

impl Attach {
    /// Runs the command, until the server ends. Ended itself, it lets everything pass.
    pub fn run(self) -> Result<()> {
        let segment = self.which.open()?;
        let control = segment.control();
        let at = self.which.control.display();
        if let Some(pid) = is_tended(&segment) {
            bail!("{at}: process {pid} looks after it; `plimsoll shape set` changes what that does");
        }
        let server = control.server_pid.load(Ordering::Relaxed);
        if server == 0 || segment.is_dead(server) {
            bail!("{at}: no server runs under it");
        }
        self.tuning.store(&segment)?;
        let mut tender = tender(&segment)?;
        let stop = super::run::signals::Stop::new()?;
        while !segment.is_dead(server) && tender.is_in_charge(&segment) && stop.take().is_none() {
            tender.look(&segment, tid(), monotonic()).iter().for_each(|w| w.wake(&segment));
            // The gate tells nobody of stalls and windows: it is looked at.
            std::thread::sleep(Duration::from_nanos(LOOK.as_nanos()));
        }
        if tender.is_in_charge(&segment) {
            control.controller_pid.store(0, Ordering::Relaxed);
        }
        Ok(())
    }
}
