//! The gate against a naive gate made of vectors, and its promises as properties.

use plimsoll_base::{Rng, Span, Time};
use plimsoll_shape::gate::{Answered, ConnId, Knobs, OwnGate, Verdict};
use proptest::prelude::*;

const USERS: u32 = 5;
const CONNS: u32 = 24;

fn ms(n: u64) -> Time {
    Time::from_nanos(n * 1_000_000)
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Doing {
    Rest,
    Waits { since: u64 },
    Runs,
    Idle { since: u64 },
    Lent,
    Pinned,
}

/// The same rules over vectors, every search from the start.
struct Naive {
    p: usize,
    zeta: u32,
    lend: u64,
    hold: u64,
    weights: Vec<u64>,
    doing: Vec<Doing>,
    over: Vec<bool>,
    /// Waiting connections, oldest first.
    queue: Vec<u32>,
    in_turn: Vec<u32>,
    /// Users whose turn is to come, in the order in which they lined up.
    line: Vec<u32>,
    left: Vec<u32>,
    /// Virtual times: of all, of each user, and until when a turn holds.
    now: u64,
    at: Vec<u64>,
    ends: Vec<u64>,
    is_new: Vec<bool>,
    lined_up: u64,
}

fn user(c: u32) -> u32 {
    c % USERS
}

impl Naive {
    fn normal(&self) -> usize {
        let inside = |(d, over): (&Doing, &bool)| matches!(d, Doing::Runs | Doing::Idle { .. }) && !over;
        self.doing.iter().zip(&self.over).filter(|x| inside(*x)).count()
    }
    fn waits(&self, u: u32) -> bool {
        self.queue.iter().any(|c| user(*c) == u)
    }
    fn pick(&mut self) -> u32 {
        if self.in_turn.is_empty() {
            // The first of those that are least far.
            let next = (0..self.line.len()).min_by_key(|i| self.at[self.line[*i] as usize]).unwrap();
            let u = self.line.remove(next) as usize;
            self.now = self.now.max(self.at[u]);
            self.left[u] = self.zeta;
            self.ends[u] = self.at[u] + 1_000_000_000 * u64::from(self.zeta) / self.weights[u];
            self.in_turn.push(u as u32);
        }
        let u = self.in_turn[0];
        *self.queue.iter().find(|c| user(**c) == u).unwrap()
    }
    fn enter(&mut self, c: u32, over: bool) {
        let u = user(c);
        self.queue.retain(|x| *x != c);
        (self.doing[c as usize], self.over[c as usize]) = (Doing::Runs, over);
        if !over {
            self.left[u as usize] -= 1;
            self.at[u as usize] += 1_000_000_000 / self.weights[u as usize];
        }
        let in_turn = self.in_turn.contains(&u);
        if !self.waits(u) {
            self.forget(u);
        } else if in_turn && self.left[u as usize] == 0 {
            self.forget(u);
            self.line_up(u);
        }
    }
    fn line_up(&mut self, u: u32) {
        let u = u as usize;
        if self.at[u] <= self.now {
            (self.at[u], self.is_new[u]) = (self.now, true);
        } else if self.is_new[u] {
            self.is_new[u] = false;
            let part = self.lined_up * 40_503 % 65_536;
            self.at[u] += 1_000_000_000 * u64::from(self.zeta) / self.weights[u] / 65_536 * part;
        }
        self.lined_up += 1;
        self.left[u] = 0;
        self.line.push(u as u32);
    }
    fn forget(&mut self, u: u32) {
        for ring in [&mut self.in_turn, &mut self.line] {
            ring.retain(|x| *x != u);
        }
    }
    fn wait(&mut self, c: u32, now: u64) {
        let u = user(c) as usize;
        if !self.waits(u as u32) {
            if self.left[u] > 0 && self.now < self.ends[u] {
                self.in_turn.push(u as u32);
            } else {
                self.line_up(u as u32);
            }
        }
        self.queue.push(c);
        self.doing[c as usize] = Doing::Waits { since: now };
    }
    fn pump(&mut self, now: u64, told: &mut Vec<u32>) {
        while !self.queue.is_empty() {
            if self.normal() >= self.p && !self.lend(now) {
                break;
            }
            let c = self.pick();
            self.enter(c, false);
            told.push(c);
        }
    }
    fn lend(&mut self, now: u64) -> bool {
        if self.p == 0 || self.normal() > self.p {
            return false;
        }
        let idle = |(c, d): (usize, &Doing)| match d {
            Doing::Idle { since } if !self.over[c] => Some((*since, c)),
            _ => None,
        };
        // Answers of one instant are told apart by nothing here: the test gives each its own.
        let Some((since, c)) = self.doing.iter().enumerate().filter_map(idle).min() else { return false };
        if now < since + self.lend {
            return false;
        }
        self.doing[c] = Doing::Lent;
        true
    }
    fn request(&mut self, c: u32, now: u64, told: &mut Vec<u32>) -> Verdict {
        match self.doing[c as usize] {
            Doing::Rest => {
                if self.queue.is_empty() && self.normal() < self.p {
                    (self.doing[c as usize], self.over[c as usize]) = (Doing::Runs, false);
                    return Verdict::Go;
                }
                self.wait(c, now);
                self.pump(now, told);
                let own = told.iter().position(|x| *x == c);
                own.map(|i| told.remove(i)).map_or(Verdict::Wait, |_| Verdict::Go)
            }
            Doing::Waits { .. } => Verdict::Wait,
            Doing::Pinned => {
                self.over[c as usize] = self.normal() >= self.p;
                self.doing[c as usize] = Doing::Runs;
                self.pay(user(c));
                Verdict::Go
            }
            Doing::Lent => {
                self.over[c as usize] = self.normal() >= self.p;
                self.doing[c as usize] = Doing::Runs;
                Verdict::Go
            }
            _ => {
                self.doing[c as usize] = Doing::Runs;
                Verdict::Go
            }
        }
    }
    /// A request that is let in past the queue pays like all.
    fn pay(&mut self, u: u32) {
        let lined_up = self.line.contains(&u);
        self.at[u as usize] += 1_000_000_000 / self.weights[u as usize];
        if lined_up {
            self.forget(u);
            self.line_up(u);
        }
    }
    fn tick(&mut self, now: u64, told: &mut Vec<u32>) {
        self.pump(now, told);
        while let Some(&c) = self.queue.first()
            && matches!(self.doing[c as usize], Doing::Waits { since } if now >= since + self.hold)
        {
            self.enter(c, true);
            told.push(c);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Request(u32),
    Done(u32),
    Open(u32),
    Pin(u32),
    Close(u32),
    Wait(u64),
    SetP(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..CONNS).prop_map(Step::Request),
        4 => (0..CONNS).prop_map(Step::Done),
        2 => (0..CONNS).prop_map(Step::Open),
        1 => (0..CONNS).prop_map(Step::Pin),
        1 => (0..CONNS).prop_map(Step::Close),
        1 => (0u64..400).prop_map(Step::Wait),
        1 => (0u32..6).prop_map(Step::SetP),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Every decision is the naive gate's; the cap holds exactly; nobody waits for longer than the bound.
    #[test]
    fn decides_as_the_naive_gate_does(p in 1u32..5, zeta in 1u32..4, steps in prop::collection::vec(step(), 1..250)) {
        let (lend, hold) = (50, 900);
        let knobs = Knobs { p, zeta, lend_ns: ms(lend).as_nanos(), hold_max_ns: ms(hold).as_nanos(),
            stall_ns: Span::from_secs(1000).as_nanos(), ..Knobs::default() };
        let mut own = OwnGate::new(USERS as usize + 1, CONNS as usize, knobs, Time::ZERO);
        let weights: Vec<u64> = (0..USERS).map(|u| 1000 + 500 * u64::from(u)).collect();
        let mut ids = Vec::new();
        for c in 0..CONNS {
            let mut g = own.gate();
            let u = g.user(Time::ZERO, &format!("u{}", user(c))).unwrap();
            g.users[u as usize].weight_milli = weights[user(c) as usize] as u32;
            let id = g.open(0).unwrap();
            g.identify(id, u);
            ids.push(id);
        }
        let mut naive = Naive { p: p as usize, zeta, lend, hold, weights, doing: vec![Doing::Rest; CONNS as usize],
            over: vec![false; CONNS as usize], queue: vec![], in_turn: vec![], line: vec![], left: vec![0; USERS as usize],
            now: 0, at: vec![0; USERS as usize], ends: vec![0; USERS as usize], is_new: vec![false; USERS as usize], lined_up: 0 };
        let mut now = 0;
        for s in steps {
            now += 1;
            let mut told = vec![];
            let mut g = own.gate();
            match s {
                Step::Request(c) => {
                    let want = naive.request(c, now, &mut told);
                    prop_assert_eq!(g.request(ms(now), ids[c as usize]), want);
                }
                Step::Done(c) if matches!(naive.doing[c as usize], Doing::Runs) => {
                    naive.doing[c as usize] = Doing::Rest;
                    naive.over[c as usize] = false;
                    naive.pump(now, &mut told);
                    g.answered(ms(now), ids[c as usize], Answered::Done);
                }
                Step::Open(c) if matches!(naive.doing[c as usize], Doing::Runs) => {
                    naive.doing[c as usize] = Doing::Idle { since: now };
                    naive.pump(now, &mut told);
                    g.answered(ms(now), ids[c as usize], Answered::Open);
                }
                Step::Pin(c) if matches!(naive.doing[c as usize], Doing::Runs) => {
                    (naive.doing[c as usize], naive.over[c as usize]) = (Doing::Pinned, false);
                    naive.pump(now, &mut told);
                    g.answered(ms(now), ids[c as usize], Answered::Pinned);
                }
                Step::Close(c) => {
                    naive.queue.retain(|x| *x != c);
                    if !naive.waits(user(c)) { naive.forget(user(c)); }
                    naive.doing[c as usize] = Doing::Rest;
                    naive.over[c as usize] = false;
                    g.close(ms(now), ids[c as usize]);
                    naive.pump(now, &mut told);
                    let again = g.open(0).unwrap();
                    let u = g.user(Time::ZERO, &format!("u{}", user(c))).unwrap();
                    g.identify(again, u);
                    ids[c as usize] = again;
                }
                Step::Wait(n) => {
                    now += n;
                    naive.tick(now, &mut told);
                    g.tick(ms(now));
                    let overdue = |c: &u32| matches!(naive.doing[*c as usize], Doing::Waits { since } if since + hold <= now);
                    prop_assert!(!naive.queue.iter().any(overdue));
                }
                Step::SetP(p) => {
                    naive.p = p as usize;
                    naive.pump(now, &mut told);
                    let knobs = Knobs { p, ..g.head.knobs };
                    g.set_knobs(ms(now), knobs);
                }
                _ => {}
            }
            let mut g = own.gate();
            let got: Vec<ConnId> = std::iter::from_fn(|| g.take_grant()).collect();
            let want: Vec<ConnId> = told.iter().map(|c| ids[*c as usize]).collect();
            prop_assert_eq!(got, want);
            prop_assert_eq!(g.head.normal as usize, naive.normal());
            g.check();
        }
    }
}

/// A closed loop: every connection asks again as soon as it is answered. Service times are drawn by user.
fn closed_loop(p: u32, zeta: u32, conns_of: &[u32], weights: &[u32], charge_time: u32, slow: &[u64]) -> Vec<u64> {
    let knobs = Knobs { p, zeta, charge_time, ..Knobs::default() };
    let mut own = OwnGate::new(16, 256, knobs, Time::ZERO);
    let mut ids = Vec::new();
    for (u, (&n, &w)) in conns_of.iter().zip(weights).enumerate() {
        for _ in 0..n {
            let mut g = own.gate();
            let user = g.user(Time::ZERO, &format!("u{u}")).unwrap();
            g.users[user as usize].weight_milli = w * 1000;
            let id = g.open(0).unwrap();
            g.identify(id, user);
            ids.push((id, u));
        }
    }
    let mut rng = Rng::new(7, "service");
    let mut running: Vec<(u64, ConnId)> = Vec::new();
    let who = |id: ConnId| ids.iter().find(|x| x.0 == id).unwrap().1;
    let serve = |id: ConnId, now: u64, rng: &mut Rng| (now + slow[who(id)] + rng.below(1000), id);
    let mut done = vec![0; conns_of.len()];
    let mut time = vec![0; conns_of.len()];
    for (id, _) in &ids {
        if own.gate().request(Time::ZERO, *id) == Verdict::Go {
            running.push(serve(*id, 0, &mut rng));
        }
    }
    let mut high = 0;
    for _ in 0..40_000 {
        running.sort();
        let (now, id) = running.remove(0);
        let mut g = own.gate();
        g.answered(Time::from_nanos(now), id, Answered::Done);
        done[who(id)] += 1;
        time[who(id)] += slow[who(id)];
        if g.request(Time::from_nanos(now), id) == Verdict::Go {
            running.push(serve(id, now, &mut rng));
        }
        while let Some(id) = own.gate().take_grant() {
            running.push(serve(id, now, &mut rng));
        }
        high = high.max(running.len());
    }
    assert_eq!(high, p as usize, "the cap is exact and places don't stay empty");
    if charge_time == 1 { time } else { done }
}

#[test]
fn backlogged_users_get_equal_shares_whatever_the_number_of_their_connections() {
    let done = closed_loop(4, 8, &[56, 12, 10], &[1, 1, 1], 0, &[10_000; 3]);
    let mean = done.iter().sum::<u64>() / 3;
    assert!(done.iter().all(|d| d.abs_diff(mean) <= 16), "{done:?}");
}

#[test]
fn shares_follow_weights() {
    let done = closed_loop(4, 2, &[30, 30, 30], &[1, 3, 6], 0, &[10_000; 3]);
    assert!((done[1] * 100 / done[0]).abs_diff(300) <= 3, "{done:?}");
    assert!((done[2] * 100 / done[0]).abs_diff(600) <= 6, "{done:?}");
}

/// The turns of a heavy user with one connection lie apart: its longest wait is a part of the round, not the round.
#[test]
fn a_weight_shortens_the_longest_wait_of_a_single_connection() {
    for weight in [1, 2, 5] {
        let mut own = OwnGate::new(32, 32, Knobs { p: 2, zeta: 1, ..Knobs::default() }, Time::ZERO);
        let ids: Vec<ConnId> = (0..21)
            .map(|i| {
                let mut g = own.gate();
                let u = g.user(Time::ZERO, &format!("u{i}")).unwrap();
                g.users[u as usize].weight_milli = if i == 0 { weight * 1000 } else { 1000 };
                let id = g.open(0).unwrap();
                g.identify(id, u);
                id
            })
            .collect();
        let mut running: Vec<ConnId> = Vec::new();
        for id in &ids {
            if own.gate().request(Time::ZERO, *id) == Verdict::Go {
                running.push(*id);
            }
        }
        let (mut since, mut longest) = (0, 0);
        for now in 1..4000 {
            let id = running.remove(0);
            let mut g = own.gate();
            g.answered(ms(now), id, Answered::Done);
            if g.request(ms(now), id) == Verdict::Go {
                running.push(id);
            }
            while let Some(id) = own.gate().take_grant() {
                since += 1;
                if id == ids[0] {
                    longest = if now > 100 { longest.max(since) } else { 0 };
                    since = 0;
                }
                running.push(id);
            }
        }
        let round = 20 + weight;
        assert!((round / weight..=round / weight + 5).contains(&longest), "weight {weight}: {longest} starts");
    }
}

#[test]
fn with_time_charged_a_user_of_slow_statements_gets_no_more_time() {
    let flat = closed_loop(4, 4, &[20, 20], &[1, 1], 0, &[10_000, 500_000]);
    assert!(flat[0].abs_diff(flat[1]) <= 8, "{flat:?}");
    let timed = closed_loop(4, 4, &[20, 20], &[1, 1], 1, &[10_000, 500_000]);
    assert!((timed[0] * 100 / timed[1]).abs_diff(100) <= 10, "{timed:?}");
}

#[test]
fn dead_processes_leave_no_place_taken() {
    let mut own = OwnGate::new(2, 8, Knobs { p: 2, ..Knobs::default() }, Time::ZERO);
    let mut g = own.gate();
    let ids: Vec<ConnId> = (1..=6).map(|pid| g.open(pid).unwrap()).collect();
    ids.iter().for_each(|id| assert!(matches!(g.request(ms(0), *id), Verdict::Go | Verdict::Wait)));
    g.reap(ms(1), &mut |pid| pid <= 3);
    assert_eq!(std::iter::from_fn(|| g.take_grant()).collect::<Vec<_>>(), [ids[3], ids[4]]);
    g.check();
    g.repair(ms(2));
    g.check();
    assert_eq!((g.head.normal, g.head.waiting), (2, 1));
    assert!(g.open(9).is_some());
}

#[test]
fn a_full_table_says_so() {
    let mut own = OwnGate::new(2, 1, Knobs::default(), Time::ZERO);
    let mut g = own.gate();
    assert!(g.open(0).is_some() && g.open(0).is_none());
    assert!(g.user(Time::ZERO, "a").is_some() && g.user(Time::ZERO, "b").is_none());
    assert_eq!(g.head.counters.overflow, 2);
}

/// A login that is seen late (cut in two, or behind a first request) holds from the next transaction on.
#[test]
fn a_connection_becomes_anothers_once_it_is_at_rest() {
    let mut own = OwnGate::new(4, 4, Knobs { p: 1, ..Knobs::default() }, Time::ZERO);
    let mut g = own.gate();
    let (a, b) = (g.user(Time::ZERO, "a").unwrap(), g.user(Time::ZERO, "b").unwrap());
    let (one, two) = (g.open(0).unwrap(), g.open(0).unwrap());
    g.identify(one, a);
    assert_eq!(g.user_of(one), a);
    g.request(ms(1), one);
    g.identify(one, b);
    assert_eq!((g.user_of(one), g.users[a as usize].inside), (a, 1), "inside it is still a's");
    assert_eq!(g.request(ms(2), two), Verdict::Wait);
    g.identify(two, b);
    g.answered(ms(3), one, Answered::Done);
    assert_eq!((g.user_of(one), g.users[a as usize].finished, g.users[b as usize].conns), (b, 1, 1));
    g.check();
    assert_eq!(g.take_grant(), Some(two));
    g.answered(ms(4), two, Answered::Done);
    assert_eq!((g.user_of(two), g.users[b as usize].conns, g.users[a as usize].conns), (b, 2, 0));
    g.request(ms(5), one);
    assert_eq!(g.request(ms(6), two), Verdict::Wait);
    g.identify(two, a);
    assert!(g.cancel(ms(7), two));
    assert_eq!(g.user_of(two), a, "and who gave up waiting");
    g.close(ms(8), two);
    g.check();
}
