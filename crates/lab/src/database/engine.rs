//! The model's events.

use super::limiter::Limit;
use super::{CoreOrder, DatabaseConfig, DiskOrder, Front, Measured, Sensitive, Setting};
use crate::lru::Lru;
use plimsoll_base::{LatencyHistogram, Rng, Span, Time};
use plimsoll_shape::control::{ControlConfig, Controller, PMode};
use plimsoll_shape::gate::{Answered, ConnId, Gate, Knobs, OwnGate, P_UNLIMITED, UserClass, Verdict};
use plimsoll_shape::tune::parallelism::TunerConfig;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Burst(u32),
    Disk(u32),
    Look,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Page(u64),
    Lock(u64),
    Log,
}

struct User {
    conn: ConnId,
    arrived: Time,
    entered: Time,
    steps: VecDeque<Step>,
    held: Vec<u64>,
    /// Where its own pages begin: it drifts, as users move on.
    window: u64,
    home: u64,
    used_core: u64,
    used_disk: u64,
    wait_from: Time,
    lock_wait: Span,
    done: u64,
    sum: f64,
    squares: f64,
}

/// Pages are numbered by users' spaces of this size.
const SPACE: u64 = 1 << 24;
/// Between two looks of the controller.
const LOOK: Span = Span::from_millis(20);
/// Windows of the limiters.
const LIMIT_WINDOW_LOOKS: u64 = 5;

struct Model {
    now: Time,
    cfg: DatabaseConfig,
    rng: Rng,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    sequence: u64,
    users: Vec<User>,
    gate: OwnGate,
    cache: Lru,
    cores_busy: usize,
    run_queue: VecDeque<u32>,
    disks_busy: usize,
    disk_queue: VecDeque<(u32, u64)>,
    arm: u64,
    locks: Vec<(Option<u32>, VecDeque<u32>)>,
    inside: u32,
    measuring: bool,
    inside_max: u32,
    hits: u64,
    reads: u64,
    core_ns: u64,
    spin_ns: u64,
    delay: Span,
    inside_time: Span,
    finished: u64,
    window: (Span, u64),
    disk_samples: (u64, u64),
    sensitive: LatencyHistogram,
    sensitive_users: usize,
}

/// Runs the model under a seed.
pub fn run(setting: &Setting, seed: u64) -> Measured {
    let mut model = Model::new(setting, seed);
    let mut control = control(setting);
    let mut limit = match setting.front {
        Front::Queue(l) => Some(Limit::new(l, setting.database.cores, setting.users)),
        _ => None,
    };
    let begin = Time::ZERO + setting.warm;
    let end = begin + setting.time;
    for u in 0..setting.users as u32 {
        model.ask(u);
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
    let fixed = |p, zeta| {
        let config = ControlConfig { zeta: None, ..ControlConfig::new(PMode::Fixed(p)) };
        Some(Controller::new(config, zeta))
    };
    match setting.front {
        Front::Fixed { p, zeta } => fixed(p, zeta),
        Front::Auto { zeta, bounds } => {
            let p = PMode::Auto(TunerConfig { floor: 4, ..TunerConfig::default() });
            Some(Controller::new(ControlConfig { zeta: bounds, ..ControlConfig::new(p) }, zeta))
        }
        Front::None if setting.sensitive.is_some() => fixed(P_UNLIMITED, 1),
        _ => None,
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
            .map(|i| User::new(&mut gate.gate(), i, one_queue, setting.sensitive, &cfg, &mut rng))
            .collect();
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
            disks_busy: 0,
            disk_queue: VecDeque::new(),
            arm: 0,
            locks: vec![(None, VecDeque::new()); (cfg.homes * cfg.rows) as usize],
            inside: 0,
            measuring: false,
            inside_max: 0,
            hits: 0,
            reads: 0,
            core_ns: 0,
            spin_ns: 0,
            delay: Span::ZERO,
            inside_time: Span::ZERO,
            finished: 0,
            window: (Span::ZERO, 0),
            disk_samples: (0, 0),
            sensitive: LatencyHistogram::new(),
            sensitive_users: setting.sensitive.map_or(0, |s| s.users),
        }
    }

    fn at(&mut self, t: Time, e: Event) {
        self.sequence += 1;
        self.events.push(Reverse((t, self.sequence, e)));
    }

    fn start_measuring(&mut self) {
        self.measuring = true;
        (self.hits, self.reads, self.core_ns, self.spin_ns, self.finished) = (0, 0, 0, 0, 0);
        (self.delay, self.inside_time, self.disk_samples) = (Span::ZERO, Span::ZERO, (0, 0));
        for u in &mut self.users {
            (u.done, u.sum, u.squares, u.lock_wait) = (0, 0.0, 0.0, Span::ZERO);
        }
        self.sensitive.clear();
    }

    /// The user sends its next transaction.
    fn ask(&mut self, u: u32) {
        let now = self.now;
        let user = &mut self.users[u as usize];
        user.arrived = now;
        let conn = user.conn;
        if self.gate.gate().request(now, conn) == Verdict::Go {
            self.enter(u);
        }
        self.let_in();
    }

    fn let_in(&mut self) {
        while let Some(id) = self.gate.gate().take_grant() {
            self.enter(id.0);
        }
    }

    fn enter(&mut self, u: u32) {
        self.inside += 1;
        if self.measuring {
            self.inside_max = self.inside_max.max(self.inside);
        }
        let cfg = self.cfg;
        let user = &mut self.users[u as usize];
        user.entered = self.now;
        user.steps.clear();
        // One of ten of its own pages is new from one transaction to the next.
        user.window += cfg.own_pages / 10;
        let own = SPACE * (u64::from(u) + 1) + user.window;
        let mut locks: Vec<u64> = (0..cfg.locks).map(|_| user.home * cfg.rows + self.rng.below(cfg.rows)).collect();
        // In one order: the model has no deadlocks.
        locks.sort_unstable();
        locks.dedup();
        let every = cfg.reads.div_ceil(cfg.locks + 1).max(1);
        let mut locks = locks.into_iter();
        for i in 0..cfg.reads {
            let page = if self.rng.chance(0.75) {
                own + self.rng.below(cfg.own_pages)
            } else {
                self.rng.below(cfg.shared_pages)
            };
            user.steps.push_back(Step::Page(page));
            if (i + 1) % every == 0 {
                user.steps.extend(locks.next().map(Step::Lock));
            }
        }
        user.steps.extend(locks.map(Step::Lock));
        user.steps.push_back(Step::Log);
        self.queue_for_core(u);
    }

    fn queue_for_core(&mut self, u: u32) {
        self.run_queue.push_back(u);
        self.run_cores();
    }

    fn run_cores(&mut self) {
        while self.cores_busy < self.cfg.cores && !self.run_queue.is_empty() {
            let at = match self.cfg.core_order {
                CoreOrder::Fifo => 0,
                CoreOrder::Fair => {
                    let used = |u: &u32| self.users[*u as usize].used_core;
                    (0..self.run_queue.len()).min_by_key(|i| used(&self.run_queue[*i])).unwrap_or(0)
                }
            };
            let u = self.run_queue.remove(at).expect("within the queue");
            self.cores_busy += 1;
            let plain = self.cfg.burst.as_nanos();
            let spin = plain * self.cfg.spin_ppm * u64::from(self.inside.saturating_sub(1)) / 1_000_000;
            let took = ((plain + spin) as f64 * (0.5 + self.rng.unit())) as u64;
            self.core_ns += plain + spin;
            self.spin_ns += spin;
            self.users[u as usize].used_core += took;
            self.at(self.now + Span::from_nanos(took), Event::Burst(u));
        }
    }

    fn burst_done(&mut self, u: u32) {
        self.cores_busy -= 1;
        self.step(u);
        self.run_cores();
    }

    fn step(&mut self, u: u32) {
        match self.users[u as usize].steps.pop_front() {
            Some(Step::Page(page)) => {
                self.reads += 1;
                if self.cache.access(0, page, 1) {
                    self.hits += 1;
                    self.queue_for_core(u);
                } else {
                    self.queue_for_disk(u, page);
                }
            }
            Some(Step::Log) => self.queue_for_disk(u, 0),
            Some(Step::Lock(row)) => self.lock(u, row),
            None => self.commit(u),
        }
    }

    fn lock(&mut self, u: u32, row: u64) {
        let lock = &mut self.locks[row as usize];
        if lock.0.is_some() {
            lock.1.push_back(u);
            self.users[u as usize].wait_from = self.now;
            return;
        }
        lock.0 = Some(u);
        self.users[u as usize].held.push(row);
        self.queue_for_core(u);
    }

    fn queue_for_disk(&mut self, u: u32, page: u64) {
        self.disk_queue.push_back((u, page));
        self.run_disks();
    }

    fn run_disks(&mut self) {
        while self.disks_busy < self.cfg.channels && !self.disk_queue.is_empty() {
            let q = &self.disk_queue;
            let at = match self.cfg.disk_order {
                DiskOrder::Fifo => 0,
                DiskOrder::Fair => (0..q.len()).min_by_key(|i| self.users[q[*i].0 as usize].used_disk).unwrap_or(0),
                DiskOrder::Elevator => (0..q.len()).min_by_key(|i| q[*i].1.wrapping_sub(self.arm)).unwrap_or(0),
            };
            let (u, page) = self.disk_queue.remove(at).expect("within the queue");
            self.arm = page;
            self.disks_busy += 1;
            self.users[u as usize].used_disk += 1;
            let took = Span::from_nanos((self.cfg.read.as_nanos() as f64 * (0.4 + 0.6 * self.rng.exp1())) as u64);
            self.at(self.now + took, Event::Disk(u));
        }
    }

    fn disk_done(&mut self, u: u32) {
        self.disks_busy -= 1;
        if self.users[u as usize].steps.is_empty() {
            self.commit(u);
        } else {
            self.queue_for_core(u);
        }
        self.run_disks();
    }

    fn commit(&mut self, u: u32) {
        for row in std::mem::take(&mut self.users[u as usize].held) {
            let lock = &mut self.locks[row as usize];
            lock.0 = lock.1.pop_front();
            if let Some(next) = lock.0 {
                let user = &mut self.users[next as usize];
                user.held.push(row);
                user.lock_wait += self.now.since(user.wait_from);
                self.queue_for_core(next);
            }
        }
        self.inside -= 1;
        let now = self.now;
        let user = &mut self.users[u as usize];
        let (total, inside) = (now.since(user.arrived), now.since(user.entered));
        user.done += 1;
        user.sum += total.as_millis_f64();
        user.squares += total.as_millis_f64().powi(2);
        self.finished += 1;
        self.delay += total - inside;
        self.inside_time += inside;
        self.window = (self.window.0 + inside, self.window.1 + 1);
        if (u as usize) < self.sensitive_users && self.measuring {
            self.sensitive.record(total);
        }
        let conn = user.conn;
        self.gate.gate().answered(now, conn, Answered::Done);
        self.let_in();
        self.ask(u);
    }

    fn look(&mut self, control: &mut Option<Controller>, limit: &mut Option<Limit>, looks: u64) {
        self.disk_samples = (self.disk_samples.0 + self.disk_queue.len() as u64, self.disk_samples.1 + 1);
        let now = self.now;
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
        self.let_in();
        self.at(now + LOOK, Event::Look);
    }

    fn report(mut self, setting: &Setting) -> Measured {
        let seconds = setting.time.as_secs_f64();
        let n = self.users.len() as f64;
        let mean = self.finished as f64 / n;
        let far = |u: &User| (u.done as f64 - mean).abs();
        let cv = |u: &User| {
            let m = u.sum / u.done.max(1) as f64;
            let variance = (u.squares / u.done.max(1) as f64 - m * m).max(0.0);
            if u.done >= 2 { variance.sqrt() / m } else { 0.0 }
        };
        let s = setting.sensitive.map_or(0, |s| s.users);
        let head = *self.gate.gate().head;
        let finished = self.finished.max(1) as f64;
        Measured {
            rate: self.finished as f64 / seconds,
            unfairness: 100.0 * self.users.iter().map(far).fold(0.0, f64::max) / mean.max(1e-9),
            variability: 100.0 * self.users.iter().map(cv).sum::<f64>() / n,
            delay_ms: self.delay.as_millis_f64() / finished,
            inside_ms: self.inside_time.as_millis_f64() / finished,
            hit: 100.0 * self.hits as f64 / self.reads.max(1) as f64,
            spin: 100.0 * self.spin_ns as f64 / self.core_ns.max(1) as f64,
            lock_waits_ms: self.users.iter().map(|u| u.lock_wait.as_millis_f64()).collect(),
            disk_queue: self.disk_samples.0 as f64 / self.disk_samples.1.max(1) as f64,
            sensitive_p999_ms: self.sensitive.percentile(99.9).as_millis_f64(),
            sensitive_variability: 100.0 * self.users[..s].iter().map(cv).sum::<f64>() / s.max(1) as f64,
            sensitive_rate: self.users[..s].iter().map(|u| u.done).sum::<u64>() as f64 / seconds,
            p: head.knobs.p,
            zeta: head.knobs.zeta,
            inside_max: self.inside_max,
        }
    }
}

impl User {
    fn new(
        gate: &mut Gate<'_>,
        i: usize,
        one_queue: bool,
        sensitive: Option<Sensitive>,
        cfg: &DatabaseConfig,
        rng: &mut Rng,
    ) -> User {
        let name = if one_queue { "all".to_string() } else { format!("u{i}") };
        let user = gate.user(&name).expect("as many places as users");
        if let Some(s) = sensitive.filter(|s| i < s.users && s.controlled) {
            gate.users[user as usize].set_class(UserClass::LatencySensitive);
            gate.users[user as usize].objective_us = s.p999.as_micros();
        }
        let conn = gate.open(0).expect("as many places as users");
        gate.identify(conn, user);
        User {
            conn,
            arrived: Time::ZERO,
            entered: Time::ZERO,
            steps: VecDeque::new(),
            held: Vec::new(),
            window: 0,
            home: rng.below(cfg.homes),
            used_core: 0,
            used_disk: 0,
            wait_from: Time::ZERO,
            lock_wait: Span::ZERO,
            done: 0,
            sum: 0.0,
            squares: 0.0,
        }
    }
}
