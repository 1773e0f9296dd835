//! What the controller does with a gate, and in which order: P first, ζ and weights after it; and what ζ is in the gate.

use plimsoll_base::{Rng, Span, Time};
use plimsoll_shape::control::{ControlConfig, Controller, PMode};
use plimsoll_shape::gate::{Answered, ConnId, Knobs, OwnGate, UserClass, Verdict};
use plimsoll_shape::tune::parallelism::{Stage, TunerConfig};

/// Clients in a closed loop before a database that takes a millisecond or so for each transaction, and longer for many at a time.
struct Loop {
    own: OwnGate,
    conns: Vec<ConnId>,
    running: Vec<(u64, ConnId)>,
    rng: Rng,
    now_us: u64,
}

/// The controller's look, as the tender's.
const LOOK_US: u64 = 20_000;

impl Loop {
    fn new(users: u32, knobs: Knobs) -> Loop {
        let mut own = OwnGate::new(64, 64, knobs, Time::ZERO);
        let mut g = own.gate();
        let conns = (0..users)
            .map(|i| {
                let user = g.user(Time::ZERO, &format!("u{i}")).unwrap();
                let conn = g.open(0).unwrap();
                g.identify(conn, user);
                conn
            })
            .collect();
        Loop { own, conns, running: Vec::new(), rng: Rng::new(5, "service"), now_us: 0 }
    }

    /// Until `seconds`; `look` is called at each look of the controller.
    fn run(&mut self, c: &mut Controller, seconds: u64, mut look: impl FnMut(&Controller, &mut OwnGate)) {
        let at = |us: u64| Time::ZERO + Span::from_micros(us);
        while self.now_us < seconds * 1_000_000 {
            self.now_us += 100;
            let now = at(self.now_us);
            let (ended, running) = std::mem::take(&mut self.running).into_iter().partition(|r| r.0 <= self.now_us);
            self.running = running;
            let ended: Vec<(u64, ConnId)> = ended;
            let mut g = self.own.gate();
            ended.iter().for_each(|(_, id)| g.answered(now, *id, Answered::Done));
            let mut begun = Vec::new();
            for id in &self.conns {
                if !g.is_inside(*id) && !g.is_waiting(*id) && g.request(now, *id) == Verdict::Go {
                    begun.push(*id);
                }
            }
            let is_look = self.now_us.is_multiple_of(LOOK_US);
            if is_look {
                c.look(&mut g, now);
            }
            begun.extend(std::iter::from_fn(|| g.take_grant()));
            for id in begun {
                // Four cores, and what more than some eight cost each other.
                let inside = self.running.len() as u64 + 1;
                let each = (500 + self.rng.below(1000)) * inside.max(4) / 4 * (400 + inside * inside) / 400;
                self.running.push((self.now_us + each, id));
            }
            if is_look {
                look(c, &mut self.own);
            }
        }
    }
}

fn auto() -> ControlConfig {
    ControlConfig::new(PMode::Auto(TunerConfig::default()))
}

/// AP-M7, AP-M10: while P is sampled, ζ stands still; after that it moves, within tenths of a second instead of P's seconds.
#[test]
fn p_is_settled_before_zeta_moves_and_then_zeta_is_the_quicker() {
    let mut load = Loop::new(24, Knobs::default());
    let mut c = Controller::new(auto(), 2);
    let (mut sampled, mut settled) = (Vec::new(), Vec::new());
    load.run(&mut c, 90, |c, own| {
        let knobs = own.gate().head.knobs;
        match c.tuner().map(|t| t.stage()) {
            Some(Stage::Climbing) => settled.push((knobs.p, knobs.zeta)),
            Some(_) => sampled.push((knobs.p, knobs.zeta)),
            None => {}
        }
    });
    let moves =
        |all: &[(u32, u32)], f: &dyn Fn(&(u32, u32)) -> u32| all.windows(2).filter(|w| f(&w[0]) != f(&w[1])).count();
    assert!(sampled.len() > 100 && moves(&sampled, &|k| k.0) > 5, "P is sampled");
    assert_eq!(moves(&sampled, &|k| k.1), 0, "and ζ stands still meanwhile");
    let quick = &settled[..settled.len().min(150)];
    assert!(moves(quick, &|k| k.1) >= 2, "in three seconds ζ has moved: {quick:?}");
    assert_eq!(moves(quick, &|k| k.0), 0, "and P hasn't");
}

/// AP-M13, AP-M14: the weight of a latency-sensitive user follows what its tail measures against its objective; best effort keeps its own.
#[test]
fn the_weight_of_a_tail_objective_follows_what_is_measured() {
    let weights = |objective: Span| {
        let mut load = Loop::new(40, Knobs { p: 4, zeta: 1, ..Knobs::default() });
        let g = load.own.gate();
        for u in 1..=5 {
            g.users[u].set_class(UserClass::LatencySensitive);
            g.users[u].objective_us = objective.as_micros();
        }
        let fixed = ControlConfig { zeta: None, ..ControlConfig::new(PMode::Fixed(4)) };
        load.run(&mut Controller::new(fixed, 1), 60, |_, _| {});
        let g = load.own.gate();
        (g.users[1].weight_milli, g.users[6].weight_milli)
    };
    // Forty users in turns of four at a millisecond each: ten milliseconds a round.
    let (loose, tight) = (weights(Span::from_secs(10)), weights(Span::from_millis(6)));
    assert_eq!((loose.0, loose.1), (1000, 1000));
    assert!(tight.0 > 1500 && tight.1 == 1000, "{tight:?}");
}

/// AP-M3, AP-M12: a turn is ζ transactions of one user in a row, which is what keeps its pages in the database's cache.
#[test]
fn a_turn_is_zeta_transactions_of_one_user_in_a_row() {
    for zeta in [1, 2, 5] {
        let mut own = OwnGate::new(8, 64, Knobs { p: 1, zeta, ..Knobs::default() }, Time::ZERO);
        let mut g = own.gate();
        let mut of = std::collections::BTreeMap::new();
        for i in 0..30u32 {
            let user = g.user(Time::ZERO, &format!("u{}", i % 3)).unwrap();
            let conn = g.open(0).unwrap();
            g.identify(conn, user);
            of.insert(conn, i % 3);
        }
        let all: Vec<ConnId> = of.keys().copied().collect();
        all.iter().for_each(|id| assert!(matches!(g.request(Time::ZERO, *id), Verdict::Go | Verdict::Wait)));
        let (mut order, mut inside) = (Vec::new(), all[0]);
        for ms in 1..200u64 {
            let now = Time::ZERO + Span::from_millis(ms);
            g.answered(now, inside, Answered::Done);
            g.request(now, inside);
            inside = g.take_grant().expect("somebody waits");
            order.push(of[&inside]);
        }
        // The first turn was begun by who found the gate empty, and the next lie apart once.
        let rest = &order[zeta as usize..];
        let cut = rest.iter().position(|u| *u != rest[0]).unwrap();
        let turns: Vec<usize> = rest[cut..].chunk_by(|a, b| a == b).map(<[u32]>::len).collect();
        let whole = &turns[4..turns.len() - 1];
        assert!(whole.iter().all(|n| *n == zeta as usize), "{zeta}: {turns:?}");
    }
}
