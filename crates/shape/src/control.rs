//! The controller: looks at the gate now and then, and turns its knobs. It owns no clock and no gate, so the same one works beside a
//! server, in the proxy and in the simulator.

use crate::gate::{Counters, Gate, Knobs, LogHist, P_UNLIMITED, User, UserClass};
use crate::tune::demand::Demand;
use crate::tune::fairness::{Seen, UserWindow, unfairness_milli, variability_milli};
use crate::tune::parallelism::{Stage, Tuner, TunerConfig};
use crate::tune::pslo::{Pslo, SAMPLES_MIN};
use crate::tune::zeta::{Zeta, ZetaConfig, ZetaWindow};
use plimsoll_base::{Span, Time};

/// Method of finding P.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PMode {
    /// As given.
    Fixed(u32),
    /// By the tuner.
    Auto(TunerConfig),
}

/// Method of finding ζ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ZetaMode {
    /// As it stands in the gate's knobs.
    Kept,
    /// As given.
    Fixed(u32),
    /// By feedback, within these bounds.
    Auto(ZetaConfig),
}

/// Task of the controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControlConfig {
    /// P.
    pub p: PMode,
    /// ζ.
    pub zeta: ZetaMode,
    /// A window of P is at least so long, …
    pub window_min: Span,
    /// … and has at least this number of transactions, …
    pub window_finished: u64,
    /// … or is so long.
    pub window_max: Span,
    /// ζ and weights are looked at so often (AP-M10: about 100 ms).
    pub quick: Span,
}

impl ControlConfig {
    /// With P so found, everything else as usual.
    pub fn new(p: PMode) -> ControlConfig {
        ControlConfig {
            p,
            zeta: ZetaMode::Auto(ZetaConfig::default()),
            window_min: Span::from_millis(300),
            window_finished: 500,
            window_max: Span::from_secs(3),
            quick: Span::from_millis(100),
        }
    }
}

/// Users that have one objective share its controller: a percentile of 99.9 needs a thousand transactions, which one connection alone
/// takes too long for.
struct Tail {
    objective_us: u64,
    pslo: Pslo,
    before: LogHist,
    /// The last window's p99.9 as a part of the objective, in thousandths.
    part_milli: u64,
}

/// The controller's state.
pub struct Controller {
    config: ControlConfig,
    tuner: Option<Tuner>,
    zeta: Option<Zeta>,
    tails: Vec<Tail>,
    /// A change of P shows from then on.
    p_settles: Time,
    /// At the beginning of the window of P.
    p_began: Time,
    p_before: Counters,
    inside_sum: u64,
    looks: u64,
    demand: Demand,
    /// Windows of P in a row that escapes spoilt.
    spoilt: u32,
    /// At the beginning of the quick window.
    quick_began: Time,
    quick_users: Vec<Seen>,
    quick_round: u64,
    frozen: bool,
    last: ZetaWindow,
    pressure_milli: u32,
}

impl Controller {
    /// Begins.
    pub fn new(config: ControlConfig, zeta: u32) -> Controller {
        let loop_of = |mode| if let ZetaMode::Auto(c) = mode { Some(Zeta::new(c, zeta)) } else { None };
        Controller {
            config,
            tuner: None,
            zeta: loop_of(config.zeta),
            tails: Vec::new(),
            p_settles: Time::ZERO,
            p_began: Time::ZERO,
            p_before: Counters::default(),
            inside_sum: 0,
            looks: 0,
            demand: Demand::default(),
            spoilt: 0,
            quick_began: Time::ZERO,
            quick_users: Vec::new(),
            quick_round: 0,
            frozen: false,
            last: ZetaWindow::NONE,
            pressure_milli: 1000,
        }
    }

    /// Holds all knobs where they are, or lets them move again.
    pub fn freeze(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// Changes how P is found.
    pub fn set_p(&mut self, p: PMode) {
        if self.config.p != p {
            (self.config.p, self.tuner) = (p, None);
        }
    }

    /// Changes how ζ is found; a loop goes on from where ζ is, which `zeta` says.
    pub fn set_zeta(&mut self, mode: ZetaMode, zeta: u32) {
        if self.config.zeta != mode {
            self.config.zeta = mode;
            self.zeta = if let ZetaMode::Auto(c) = mode { Some(Zeta::new(c, zeta)) } else { None };
        }
    }

    /// Takes the forecast of the storage below (AP §3.4's joint control): P is multiplied by this number of thousandths, 1000
    /// at most.
    pub fn set_pressure(&mut self, milli: u32) {
        self.pressure_milli = if milli == 0 { 1000 } else { milli.min(1000) };
    }

    /// The optimizer of P, where there is one.
    pub fn tuner(&self) -> Option<&Tuner> {
        self.tuner.as_ref()
    }

    /// Unfairness and variability of the last window in which they could be measured.
    pub fn last(&self) -> ZetaWindow {
        self.last
    }

    /// Looks at the gate; to be called every 10 to 50 ms.
    pub fn look(&mut self, gate: &mut Gate<'_>, now: Time) {
        gate.tick(now);
        self.looks += 1;
        let inside = gate.head.normal + gate.head.over;
        self.inside_sum += u64::from(inside);
        self.demand.look(inside + gate.head.waiting);
        if self.frozen || gate.head.knobs.open != 0 {
            // What is seen while nothing is held, or nothing may be changed, is nothing that P or ζ did.
            self.p_settles = now + self.config.window_min;
            self.begin_window(gate, now);
            self.quick_users.clear();
            (self.quick_began, self.quick_round) = (now, gate.head.round);
        } else {
            self.look_quick(gate, now);
            self.look_at_p(gate, now);
        }
        let knobs = self.knobs(gate.head.knobs);
        if knobs != gate.head.knobs {
            gate.set_knobs(now, knobs);
        }
    }

    fn knobs(&self, now: Knobs) -> Knobs {
        if self.frozen {
            return now;
        }
        let p = match self.config.p {
            PMode::Fixed(p) => p,
            PMode::Auto(_) => self.tuner.as_ref().map_or(P_UNLIMITED, Tuner::p),
        };
        let pressed = (u64::from(p) * u64::from(self.pressure_milli)).div_ceil(1000) as u32;
        // Pressure never closes the gate.
        let least = if let PMode::Auto(limits) = self.config.p { limits.floor } else { 1 };
        let p = if p == P_UNLIMITED || p == 0 { p } else { pressed.max(least.min(p)) };
        let zeta = match self.config.zeta {
            ZetaMode::Fixed(zeta) => zeta,
            _ => self.zeta.map_or(now.zeta, |z| z.zeta()),
        };
        Knobs { p, zeta, ..now }
    }

    fn begin_window(&mut self, gate: &Gate<'_>, now: Time) {
        (self.p_began, self.p_before, self.inside_sum, self.looks) = (now, gate.head.counters, 0, 0);
    }

    fn look_at_p(&mut self, gate: &mut Gate<'_>, now: Time) {
        let PMode::Auto(limits) = self.config.p else { return };
        let counters = gate.head.counters;
        if now < self.p_settles || self.pressure_milli < 1000 {
            // Who was let in under the last P is still inside; or the storage holds P down, and nothing is learned of P itself.
            self.begin_window(gate, now);
            return;
        }
        let took = now.since(self.p_began);
        let finished = counters.finished - self.p_before.finished;
        let enough = finished >= self.config.window_finished && took >= self.config.window_min;
        if !enough && took < self.config.window_max {
            return;
        }
        let demand = self.demand.window();
        let held = counters.held - self.p_before.held;
        let escaped = counters.escapes() - self.p_before.escapes();
        // Somebody had to wait often, or a good part of those that could be inside were.
        let room = u64::from(gate.head.knobs.p.min(demand).max(1));
        let full = finished > 0 && (held * 10 >= finished || self.inside_sum * 4 >= room * self.looks);
        let done = counters.done() - self.p_before.done();
        self.begin_window(gate, now);
        let mut rate_milli = (u128::from(done) * 1_000_000_000_000 / u128::from(took.as_nanos().max(1))) as u64;
        // More were inside than P says: no measure of P, until it shows that it can't do without.
        self.spoilt = if escaped * ESCAPES_PART > finished { self.spoilt + 1 } else { 0 };
        match self.spoilt {
            0 => {}
            1..=SPOILT_MAX => return,
            _ => rate_milli = 0,
        }
        match &mut self.tuner {
            Some(tuner) => {
                let p = tuner.p();
                tuner.users(demand);
                tuner.window(rate_milli, full);
                if tuner.p() != p {
                    (self.p_settles, self.spoilt) = (now + self.config.window_min, 0);
                }
            }
            // The first window has seen how many there are.
            None if full && demand > limits.floor => self.tuner = Some(Tuner::new(limits, demand)),
            None => {}
        }
    }

    fn look_quick(&mut self, gate: &mut Gate<'_>, now: Time) {
        let took = now.since(self.quick_began);
        if took < self.config.quick {
            return;
        }
        // Within less than some rounds shares can't be told from the order of turns.
        let rounds = gate.head.round.wrapping_sub(self.quick_round);
        if rounds < ROUNDS_MIN && took < self.config.window_max {
            return;
        }
        let seen: Vec<Seen> = gate.known_users().iter().map(|u| u.seen(now)).collect();
        let window = |(i, s): (usize, &Seen)| UserWindow::between(s.earlier(&self.quick_users, i), s, took.as_nanos());
        let windows: Vec<UserWindow> = seen.iter().enumerate().map(window).collect();
        let w = ZetaWindow {
            unfairness_milli: unfairness_milli(&windows),
            variability_milli: variability_milli(&windows),
            tail_milli: self.tails.iter().map(|t| t.part_milli).max(),
        };
        self.last = ZetaWindow {
            unfairness_milli: w.unfairness_milli.or(self.last.unfairness_milli),
            variability_milli: w.variability_milli.or(self.last.variability_milli),
            tail_milli: w.tail_milli.or(self.last.tail_milli),
        };
        // P takes precedence (AP-M7): what a sample of it shows of fairness and tails is the sample's.
        if self.tuner.as_ref().is_none_or(|t| t.stage() == Stage::Climbing) {
            if let Some(z) = &mut self.zeta {
                z.window(w);
            }
            self.weights(gate);
        } else {
            self.tails.clear();
        }
        self.quick_users = seen;
        (self.quick_began, self.quick_round) = (now, gate.head.round);
    }

    /// Weights of users with objectives.
    fn weights(&mut self, gate: &mut Gate<'_>) {
        for u in gate.known_users() {
            let objective_us = objective(u);
            if objective_us > 0 && self.tails.iter().all(|t| t.objective_us != objective_us) {
                let pslo = Pslo::new(objective_us, u.weight_milli);
                self.tails.push(Tail {
                    objective_us,
                    pslo,
                    before: times(gate.known_users(), objective_us),
                    part_milli: 0,
                });
            }
        }
        let turns_can_shrink = self.zeta.is_some_and(|z| z.zeta() > 1);
        for tail in &mut self.tails {
            let now = times(gate.known_users(), tail.objective_us);
            let window = now.since(&tail.before);
            if window.count() < SAMPLES_MIN {
                continue;
            }
            tail.before = now;
            let p999_us = window.quantile(999).as_micros();
            tail.part_milli = p999_us * 1000 / tail.objective_us.max(1);
            // Shorter turns for all come first: weight is taken from somebody.
            if tail.part_milli > 1000 && turns_can_shrink {
                continue;
            }
            let weight_milli = tail.pslo.window(p999_us, window.count());
            let known = gate.known_users().len();
            let users = gate.users[..known].iter_mut();
            users.filter(|u| objective(u) == tail.objective_us).for_each(|u| u.weight_milli = weight_milli);
        }
    }
}

/// A user's objective for p99.9 in µs; 0 for none.
fn objective(u: &User) -> u64 {
    if u.class() == UserClass::LatencySensitive { u.objective_us } else { 0 }
}

/// Times of all who have this objective.
fn times(users: &[User], objective_us: u64) -> LogHist {
    let mut all = LogHist::default();
    users.iter().filter(|u| objective(u) == objective_us).for_each(|u| all.merge(&u.total_hist));
    all
}

/// Divisor of a window's transactions: a window with a larger part of escapes than one in this number is discarded.
const ESCAPES_PART: u64 = 20;
/// Spoilt windows that are passed over; after them the P is taken for one that carries nothing by itself.
const SPOILT_MAX: u32 = 3;
/// Rounds of a window in which shares are compared.
const ROUNDS_MIN: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::{Answered, ConnId, OwnGate, Verdict};

    /// 16 clients in a closed loop; each P in use for a while, by looks of 20 ms.
    fn looks(controller: &mut Controller, own: &mut OwnGate, ids: &[ConnId], from_ms: u64, to_ms: u64) -> Vec<u32> {
        let mut running: Vec<ConnId> = ids.iter().copied().filter(|id| own.gate().is_inside(*id)).collect();
        let mut seen = Vec::new();
        for ms in from_ms..to_ms {
            let now = Time::from_nanos(ms * 1_000_000);
            let mut gate = own.gate();
            for id in std::mem::take(&mut running) {
                gate.answered(now, id, Answered::Done);
            }
            for id in ids {
                if !gate.is_inside(*id) && !gate.is_waiting(*id) && gate.request(now, *id) == Verdict::Go {
                    running.push(*id);
                }
            }
            if ms % 20 == 0 {
                controller.look(&mut gate, now);
                seen.push(gate.head.knobs.p);
            }
            while let Some(id) = gate.take_grant() {
                running.push(id);
            }
        }
        seen
    }

    #[test]
    fn under_pressure_p_is_lowered_to_its_floor_at_most_and_nothing_is_learned() {
        let mut own = OwnGate::new(4, 16, Knobs::default(), Time::ZERO);
        let ids: Vec<ConnId> = (0..16).map(|_| own.gate().open(0).expect("room")).collect();
        let limits = TunerConfig { floor: 4, ..TunerConfig::default() };
        let mut c =
            Controller::new(ControlConfig { zeta: ZetaMode::Kept, ..ControlConfig::new(PMode::Auto(limits)) }, 1);
        looks(&mut c, &mut own, &ids, 0, 3000);
        let before = format!("{:?}", c.tuner().expect("it has begun"));
        c.set_pressure(100);
        let seen = looks(&mut c, &mut own, &ids, 3000, 9000);
        assert!(seen.iter().all(|p| *p >= 4), "{seen:?}");
        assert_eq!(*seen.last().expect("looks"), 4);
        assert_eq!(format!("{:?}", c.tuner().expect("still there")), before);
        c.set_pressure(1000);
        looks(&mut c, &mut own, &ids, 9000, 14_000);
        assert_ne!(format!("{:?}", c.tuner().expect("still there")), before, "and it goes on");
    }

    #[test]
    fn a_fixed_p_is_pressed_to_one_at_least_and_no_limit_stays_none() {
        let mut own = OwnGate::new(4, 16, Knobs::default(), Time::ZERO);
        let ids: Vec<ConnId> = (0..16).map(|_| own.gate().open(0).expect("room")).collect();
        for (p, milli, want) in [(16, 500, 8), (16, 1000, 16), (2, 100, 1), (P_UNLIMITED, 100, P_UNLIMITED)] {
            let mut c =
                Controller::new(ControlConfig { zeta: ZetaMode::Kept, ..ControlConfig::new(PMode::Fixed(p)) }, 1);
            c.set_pressure(milli);
            assert_eq!(looks(&mut c, &mut own, &ids, 0, 41).last(), Some(&want));
        }
    }
}
