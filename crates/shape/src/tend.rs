//! Looking after the gate in a control segment, whichever face is before the server: beats, turns the knobs, follows what an operator wrote,
//! takes places back from processes that died.

use crate::control::{Controller, PMode};
use crate::gate::{ConnId, Knobs, P_UNLIMITED};
use crate::segment::{P_WANTED_AUTO, Segment, is_dead};
use crate::tune::parallelism::TunerConfig;
use plimsoll_base::{Span, Time};
use std::sync::atomic::Ordering;

/// To be called so often: well below what is taken for silence.
pub const LOOK: Span = Span::from_millis(20);
/// Looks between two searches for dead processes.
const REAP_EVERY: u32 = 5;
/// In the segment's flags: the tuner holds.
const FROZEN: u32 = 1;
/// In the segment's flags: everything passes.
const OFF: u32 = 2;

/// Who was let in and must be woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Woken {
    /// The connection.
    pub conn: ConnId,
    /// Its process; 0 if that doesn't matter.
    pub owner_pid: u32,
}

/// What looks after a gate.
pub struct Tender {
    controller: Controller,
    p: PMode,
    looks: u32,
}

impl Tender {
    /// Takes the segment's gate over. `p`: what holds unless an operator wants another.
    pub fn new(segment: &Segment, controller: Controller, p: PMode) -> Tender {
        segment.control().controller_pid.store(std::process::id(), Ordering::Relaxed);
        segment.control().p_wanted.store(0, Ordering::Relaxed);
        Tender { controller, p, looks: 0 }
    }

    /// One look, by the thread `tid`.
    pub fn look(&mut self, segment: &Segment, tid: u32, now: Time) -> Vec<Woken> {
        let control = segment.control();
        control.heartbeat_ns.store(now.as_nanos(), Ordering::Relaxed);
        let flags = control.flags.load(Ordering::Relaxed);
        self.controller.freeze(flags & FROZEN != 0);
        self.controller.set_pressure(control.pressure_milli.load(Ordering::Relaxed));
        match control.p_wanted.load(Ordering::Relaxed) {
            0 => self.controller.set_p(self.p),
            P_WANTED_AUTO => self.controller.set_p(match self.p {
                PMode::Fixed(_) => PMode::Auto(TunerConfig::default()),
                auto @ PMode::Auto(_) => auto,
            }),
            P_UNLIMITED => self.controller.set_p(PMode::Fixed(P_UNLIMITED)),
            n => self.controller.set_p(PMode::Fixed(n - 1)),
        }
        let mut guard = segment.lock(tid, now);
        let mut gate = guard.gate();
        let open = u32::from(flags & OFF != 0);
        if gate.head.knobs.open != open {
            // Also closes what failed open while nobody beat.
            let knobs = Knobs { open, ..gate.head.knobs };
            gate.set_knobs(now, knobs);
            control.failed_open.store(0, Ordering::Relaxed);
        }
        if self.looks.is_multiple_of(REAP_EVERY) {
            gate.reap(now, &mut is_dead);
        }
        self.looks = self.looks.wrapping_add(1);
        self.controller.look(&mut gate, now);
        let granted = std::iter::from_fn(|| {
            let conn = gate.take_grant()?;
            Some(Woken { conn, owner_pid: gate.conns[conn.0 as usize].owner_pid })
        });
        granted.collect()
    }
}
