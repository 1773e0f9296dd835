//! Care of the gate in a control segment, for the shim and for the proxy. The tender beats, turns the knobs, follows an operator's
//! changes, and takes places back from processes that died.

use crate::control::{Controller, PMode, ZetaMode};
use crate::gate::{ConnId, Knobs};
use crate::profile::Profile;
use crate::segment::{FAILED_SILENT, P_WANTED_AUTO, Segment, wake_process};
use crate::tune::parallelism::TunerConfig;
use crate::tune::zeta::ZetaConfig;
use plimsoll_base::{Span, Time};
use std::sync::atomic::{AtomicU32, Ordering};

/// To be called so often: well below what is taken for silence.
pub const LOOK: Span = Span::from_millis(20);
/// Looks between two searches for dead processes: each process is asked for by two system calls and more.
const REAP_EVERY: u32 = 15;
/// In the segment's flags: the tuner holds.
const FROZEN: u32 = 1;
/// In the segment's flags: everything passes.
const OFF: u32 = 2;

/// Connection that was let in and must be woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Woken {
    /// The connection.
    pub conn: ConnId,
    /// Its process; 0 if that doesn't matter.
    pub owner_pid: u32,
}

impl Woken {
    /// Wakes it: threads sleep on the segment; a PostgreSQL process waits for its latch's signal.
    pub fn wake(&self, segment: &Segment) {
        match segment.profile() {
            // Of another namespace its number is another process': it looks by itself every tenth of a second.
            Some(Profile::Postgres) if segment.is_mixed() => {}
            Some(Profile::Postgres) => wake_process(self.owner_pid),
            _ => segment.wake(self.conn),
        }
    }
}

/// Looks after a gate. Its task is in the segment, where an operator changes it.
pub struct Tender {
    controller: Controller,
    looks: u32,
}

fn given(value: &AtomicU32) -> Option<u32> {
    Some(value.load(Ordering::Relaxed)).filter(|n| *n != 0)
}

/// Returns the configured method of finding P.
pub fn p_wanted(segment: &Segment) -> PMode {
    let control = segment.control();
    match control.p_wanted.load(Ordering::Relaxed) {
        P_WANTED_AUTO => {
            let usual = TunerConfig::default();
            let floor = given(&control.p_floor).unwrap_or(usual.floor);
            let ceiling = given(&control.p_ceiling).unwrap_or(usual.ceiling);
            PMode::Auto(TunerConfig { floor, ceiling, ..usual })
        }
        p => PMode::Fixed(p),
    }
}

/// Returns the configured method of finding ζ.
pub fn zeta_wanted(segment: &Segment) -> ZetaMode {
    let control = segment.control();
    if let Some(zeta) = given(&control.zeta_wanted) {
        return ZetaMode::Fixed(zeta);
    }
    let usual = ZetaConfig::default();
    ZetaMode::Auto(ZetaConfig {
        unfairness_max_milli: given(&control.unfairness_max_milli).map_or(usual.unfairness_max_milli, u64::from),
        variability_max_milli: given(&control.variability_max_milli).map(u64::from),
        ..usual
    })
}

impl Tender {
    /// Takes the segment's gate over.
    pub fn new(segment: &Segment, controller: Controller) -> Tender {
        segment.join();
        segment.control().controller_pid.store(std::process::id(), Ordering::Relaxed);
        Tender { controller, looks: 0 }
    }

    /// False once another process looks after the gate: two would turn its knobs against each other.
    pub fn is_in_charge(&self, segment: &Segment) -> bool {
        segment.control().controller_pid.load(Ordering::Relaxed) == std::process::id()
    }

    /// Says that the controller is alive, without a look.
    pub fn beat(&self, segment: &Segment, now: Time) {
        if self.is_in_charge(segment) {
            segment.control().heartbeat_ns.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Looks once, by the thread `tid`. Connections that are notified in another way aren't among those to be woken.
    pub fn look(&mut self, segment: &Segment, tid: u32, now: Time) -> Vec<Woken> {
        if !self.is_in_charge(segment) {
            return Vec::new();
        }
        self.beat(segment, now);
        let control = segment.control();
        if self.looks.is_multiple_of(REAP_EVERY) {
            reap(segment, tid, now);
        }
        self.looks = self.looks.wrapping_add(1);
        let flags = control.flags.load(Ordering::Relaxed);
        self.controller.freeze(flags & FROZEN != 0);
        self.controller.set_pressure(control.pressure_milli.load(Ordering::Relaxed));
        self.controller.set_p(p_wanted(segment));
        let Some(mut guard) = segment.lock_in_time(tid, now) else { return Vec::new() };
        let mut gate = guard.gate();
        self.controller.set_zeta(zeta_wanted(segment), gate.head.knobs.zeta);
        let open = u32::from(flags & OFF != 0);
        if gate.head.knobs.open != open {
            // Also closes what failed open while nobody beat.
            let knobs = Knobs { open, ..gate.head.knobs };
            gate.set_knobs(now, knobs);
            control.failed_open.fetch_and(!FAILED_SILENT, Ordering::Relaxed);
        }
        self.controller.look(&mut gate, now);
        if segment.profile() == Some(Profile::MysqlPool) {
            // A pooled connection's event can only be armed again within the server: its waiting threads look every 25 ms.
            return Vec::new();
        }
        let granted = std::iter::from_fn(|| {
            let conn = gate.take_grant()?;
            Some(Woken { conn, owner_pid: gate.conns[conn.0 as usize].owner_pid })
        });
        granted.collect()
    }
}

/// Takes places back from processes that died. These are asked for without the lock: there may be thousands.
fn reap(segment: &Segment, tid: u32, now: Time) {
    let Some(owners) = segment.lock_in_time(tid, now).map(|mut guard| guard.gate().owners()) else { return };
    let dead: Vec<u32> = owners.into_iter().filter(|pid| segment.is_dead(*pid)).collect();
    if !dead.is_empty()
        && let Some(mut guard) = segment.lock_in_time(tid, now)
    {
        guard.gate().reap(now, &mut |pid| dead.contains(&pid));
    }
}
