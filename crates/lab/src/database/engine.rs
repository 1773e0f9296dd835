//! The model's events, its users, and what stands before the server.

use super::limiter::Limit;
use super::throttle::Throttle;
use super::{DatabaseConfig, Front, Measured, Neighbour, Sensitive, Setting};
use plimsoll_base::{LatencyHistogram, Rng, Span, Time};
use plimsoll_replay::lru::Lru;
use plimsoll_shape::control::{ControlConfig, Controller, PMode, ZetaMode};
use plimsoll_shape::gate::{Answered, ConnId, Gate, Knobs, OwnGate, P_UNLIMITED, UserClass, Verdict};
use plimsoll_shape::tune::parallelism::TunerConfig;
use plimsoll_shape::tune::pressure::Pressure;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    /// A client asks.
    Ask(u32),
    /// A thread that was let in runs.
    Enter(u32),
    /// A thread that was woken for a ticket looks for it.
    Ticket(u32),
    Burst(u32),
    Disk(u32),
    Look,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Page(u64),
    Lock(u64),
    Log,
}

pub(super) struct User {
    conn: ConnId,
    pub arrived: Time,
    pub entered: Time,
    asked: Time,
    pub steps: VecDeque<Step>,
    pub held: Vec<u64>,
    /// Start of its own pages: it drifts, as users move on.
    pub window: u64,
    pub home: u64,
    pub used_core: u64,
    pub used_disk: u64,
    /// Core time since it last waited for a core.
    pub in_slice: u64,
    pub committing: bool,
    pub wait_from: Time,
    pub lock_wait: Span,
    pub done: u64,
    pub sum: f64,
    pub squares: f64,
}

/// Between two looks of the controller.
const LOOK: Span = Span::from_millis(20);
/// Windows of the limiters.
const LIMIT_WINDOW_LOOKS: u64 = 5;
/// Between two forecasts of the storage.
const PRESSURE_LOOKS: u64 = 5;

#[derive(Default)]
pub(super) struct Sums {
    pub hits: u64,
    pub reads: u64,
    pub core_ns: u64,
    pub crowded_ns: u64,
    pub delay: Span,
    pub inside_time: Span,
    pub finished: u64,
    pub inside_max: u32,
    pub disk_samples: (u64, u64),
}

pub(super) struct Model {
    pub now: Time,
    pub cfg: DatabaseConfig,
    pub rng: Rng,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    sequence: u64,
    pub users: Vec<User>,
    pub gate: OwnGate,
    pub cache: Lru,
    pub cores_busy: usize,
    pub run_queue: VecDeque<u32>,
    /// Of the disks, less what a neighbour takes.
    pub channels: usize,
    pub disks_busy: usize,
    pub disk_queue: VecDeque<(u32, u64)>,
    pub arm: u64,
    pub locks: Vec<(Option<u32>, VecDeque<u32>)>,
    pub tickets: u32,
    pub ticket_queue: VecDeque<u32>,
    pub inside: u32,
    measuring: bool,
    pub sums: Sums,
    window: (Span, u64),
    pub sensitive: LatencyHistogram,
    pub sensitive_users: usize,
    throttle: Option<(Throttle, LatencyHistogram)>,
    neighbour: Option<Neighbour>,
    pressure: Option<Pressure>,
}

/// Runs the model under a seed.
pub fn run(setting: &Setting, seed: u64) -> Measured {
    let mut model = Model::new(setting, seed);
    let mut control = control(setting);
    let mut limit = match setting.front {
        Front::Queue(l) | Front::Queues(l) => Some(Limit::new(l, setting.database.cores, setting.users)),
        _ => None,
    };
    let begin = Time::ZERO + setting.warm;
    let end = begin + setting.time;
    for u in 0..setting.users as u32 {
        // Not all in one instant: within a round trip, as clients that start one after the other.
        let at = model.rng.below(setting.database.round_trip.as_nanos().max(1));
        model.at(Time::from_nanos(at), Event::Ask(u));
    }
    model.at(Time::ZERO + LOOK, Event::Look);
    let mut looks = 0;
    while let Some(Reverse((now, _, event))) = model.events.pop() {
        if now > end {
            break;
        }
        model.now = now;
        if !model.measuring && now >= begin {
            model.start_measuring();
        }
        match event {
            Event::Ask(u) => model.ask(u),
            Event::Enter(u) => model.enter(u),
            Event::Ticket(u) => model.woken_for_ticket(u),
            Event::Burst(u) => model.burst_done(u),
            Event::Disk(u) => model.disk_done(u),
            Event::Look => {
                looks += 1;
                model.look(&mut control, &mut limit, looks);
            }
        }
    }
    model.report(setting)
}

fn control(setting: &Setting) -> Option<Controller> {
    match setting.front {
        Front::Fixed { p, zeta } => {
            let config = ControlConfig { zeta: ZetaMode::Kept, ..ControlConfig::new(PMode::Fixed(p)) };
            Some(Controller::new(config, zeta))
        }
        Front::Auto { zeta, bounds } => {
            let p = PMode::Auto(TunerConfig { floor: 4, ..TunerConfig::default() });
            let mode = bounds.map_or(ZetaMode::Kept, ZetaMode::Auto);
            Some(Controller::new(ControlConfig { zeta: mode, ..ControlConfig::new(p) }, zeta))
        }
        Front::None | Front::Queue(_) | Front::Queues(_) | Front::Throttle => None,
    }
}

impl Model {
    fn new(setting: &Setting, seed: u64) -> Model {
        let cfg = setting.database;
        let (p, zeta) = match setting.front {
            Front::Fixed { p, zeta } => (p, zeta),
            Front::Auto { zeta, .. } => (P_UNLIMITED, zeta),
            _ => (P_UNLIMITED, 1),
        };
        // Long holds must stay visible as such: no escapes within a run.
        let knobs = Knobs { p, zeta, hold_max_ns: Span::from_secs(600).as_nanos(), ..Knobs::default() };
        let mut gate = OwnGate::new(setting.users + 2, setting.users, knobs, Time::ZERO);
        let mut rng = Rng::new(seed, "database");
        let one_queue = matches!(setting.front, Front::Queue(_));
        let users = (0..setting.users)
            .map(|i| {
                let name = if one_queue { "all".to_string() } else { format!("u{}", setting.user_of(i)) };
                User::new(&mut gate.gate(), &name, setting.sensitive.filter(|s| i < s.users), &cfg, &mut rng)
            })
            .collect();
        let rows: u64 = cfg.locks.iter().map(|l| l.each).sum();
        let throttled = setting.sensitive.filter(|_| setting.front == Front::Throttle);
        Model {
            now: Time::ZERO,
            cfg,
            rng,
            events: BinaryHeap::new(),
            sequence: 0,
            users,
            gate,
            cache: Lru::new(cfg.cache_pages as u64),
            cores_busy: 0,
            run_queue: VecDeque::new(),
            channels: cfg.channels,
            disks_busy: 0,
            disk_queue: VecDeque::new(),
            arm: 0,
            locks: vec![(None, VecDeque::new()); (cfg.homes * rows) as usize],
            tickets: cfg.tickets.unwrap_or(u32::MAX),
            ticket_queue: VecDeque::new(),
            inside: 0,
            measuring: false,
            sums: Sums::default(),
            window: (Span::ZERO, 0),
            sensitive: LatencyHistogram::new(),
            sensitive_users: setting.sensitive.map_or(0, |s| s.users),
            neighbour: setting.neighbour,
            pressure: setting.neighbour.and_then(|n| n.wanted).map(Pressure::new),
            throttle: throttled.map(|s| (Throttle::new(s.p999), LatencyHistogram::new())),
        }
    }

    pub fn at(&mut self, t: Time, e: Event) {
        self.sequence += 1;
        self.events.push(Reverse((t, self.sequence, e)));
    }

    fn start_measuring(&mut self) {
        self.measuring = true;
        self.sums = Sums::default();
        for u in &mut self.users {
            (u.done, u.sum, u.squares, u.lock_wait) = (0, 0.0, 0.0, Span::ZERO);
        }
        self.sensitive.clear();
    }

    /// The user's client sends its next transaction.
    fn ask(&mut self, u: u32) {
        let now = self.now;
        let user = &mut self.users[u as usize];
        (user.arrived, user.asked) = (now, now);
        let conn = user.conn;
        if self.gate.gate().request(now, conn) == Verdict::Go {
            self.enter(u);
        }
        self.let_in();
    }

    fn let_in(&mut self) {
        while let Some(id) = self.gate.gate().take_grant() {
            // Its thread sleeps outside, and holds its place while it wakes up.
            self.at(self.now + self.cfg.wake, Event::Enter(id.0));
        }
    }

    fn enter(&mut self, u: u32) {
        self.inside += 1;
        self.sums.inside_max = self.sums.inside_max.max(self.inside);
        self.users[u as usize].entered = self.now;
        self.plan(u);
        self.take_ticket(u);
    }

    /// The server has answered.
    pub fn answered(&mut self, u: u32) {
        self.inside -= 1;
        let now = self.now;
        let user = &mut self.users[u as usize];
        let (total, inside) = (now.since(user.arrived), now.since(user.entered));
        user.done += 1;
        user.sum += total.as_millis_f64();
        user.squares += total.as_millis_f64().powi(2);
        self.sums.finished += 1;
        self.sums.delay += total - inside;
        self.sums.inside_time += inside;
        self.window = (self.window.0 + inside, self.window.1 + 1);
        let sensitive = (u as usize) < self.sensitive_users;
        if sensitive {
            self.sensitive.record(total);
        }
        let (conn, asked) = (user.conn, user.asked);
        self.gate.gate().answered(now, conn, Answered::Done);
        self.let_in();
        let mut next = now + self.cfg.round_trip;
        if let Some((throttle, times)) = &mut self.throttle {
            if sensitive {
                times.record(total);
            } else {
                next = next.max(asked + throttle.gap());
            }
        }
        self.at(next, Event::Ask(u));
    }

    fn look(&mut self, control: &mut Option<Controller>, limit: &mut Option<Limit>, looks: u64) {
        let samples = self.sums.disk_samples;
        self.sums.disk_samples = (samples.0 + self.disk_queue.len() as u64, samples.1 + 1);
        let now = self.now;
        if let Some(n) = self.neighbour {
            let there = now.as_nanos() % n.every.as_nanos() < n.every.as_nanos() / 2;
            self.channels = self.cfg.channels - if there { n.takes } else { 0 };
        }
        if let (Some(pressure), Some(c), true) =
            (&mut self.pressure, &mut *control, looks.is_multiple_of(PRESSURE_LOOKS))
        {
            // What a request would wait that came now: a FIFO's forecast.
            let wait = self.cfg.read.scale(self.disk_queue.len() as u64, self.channels.max(1) as u64);
            c.set_pressure(pressure.forecast(wait));
        }
        let mut gate = self.gate.gate();
        if let Some(c) = control {
            c.look(&mut gate, now);
        }
        if let Some(l) = limit {
            if looks.is_multiple_of(LIMIT_WINDOW_LOOKS) && self.window.1 > 0 {
                l.window(Span::from_nanos(self.window.0.as_nanos() / self.window.1));
                self.window = (Span::ZERO, 0);
            }
            gate.tick(now);
            let knobs = Knobs { p: l.limit(), ..gate.head.knobs };
            gate.set_knobs(now, knobs);
        }
        if let Some((throttle, times)) = &mut self.throttle {
            // What a user without an objective needs for one transaction, unthrottled: what it would be slowed from.
            let alone = Span::from_nanos(self.window.0.as_nanos() / self.window.1.max(1));
            if throttle.window(times, alone.max(throttle.gap())) {
                times.clear();
                self.window = (Span::ZERO, 0);
            }
        }
        self.let_in();
        self.at(now + LOOK, Event::Look);
    }
}

impl User {
    fn new(gate: &mut Gate<'_>, name: &str, sensitive: Option<Sensitive>, cfg: &DatabaseConfig, rng: &mut Rng) -> User {
        let user = gate.user(Time::ZERO, name).expect("the gate has a place for each user");
        if let Some(s) = sensitive.filter(|s| s.controlled) {
            gate.users[user as usize].set_class(UserClass::LatencySensitive);
            gate.users[user as usize].objective_us = s.p999.as_micros();
        }
        let conn = gate.open(0).expect("the gate has a place for each user");
        gate.identify(conn, user);
        User {
            conn,
            arrived: Time::ZERO,
            entered: Time::ZERO,
            asked: Time::ZERO,
            steps: VecDeque::new(),
            held: Vec::new(),
            window: 0,
            home: rng.below(cfg.homes),
            used_core: 0,
            used_disk: 0,
            in_slice: 0,
            committing: false,
            wait_from: Time::ZERO,
            lock_wait: Span::ZERO,
            done: 0,
            sum: 0.0,
            squares: 0.0,
        }
    }
}
