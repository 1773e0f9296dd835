//! Tests of the controller on a gate: its order (P first, then ζ and weights), and the effect of ζ in the gate.

use plimsoll_base::{Rng, Span, Time};
use plimsoll_shape::control::{ControlConfig, Controller, PMode, ZetaMode};
use plimsoll_shape::gate::{Answered, ConnId, Knobs, OwnGate, UserClass, Verdict};
use plimsoll_shape::tune::parallelism::{Stage, TunerConfig};
use plimsoll_shape::tune::zeta::ZetaConfig;

/// Clients in a closed loop before a database that takes a millisecond or so for each transaction, and longer for many at a time.
struct Loop {
    own: OwnGate,
    running: Vec<(u64, ConnId)>,
    rng: Rng,
    now_us: u64,
    /// From an answer to the client's next request.
    think_us: u64,
    asks: Vec<(u64, ConnId)>,
}

/// The controller's look, as the tender's.
const LOOK_US: u64 = 20_000;

impl Loop {
    fn new(users: u32, knobs: Knobs) -> Loop {
        let mut own = OwnGate::new(64, 64, knobs, Time::ZERO);
        let mut g = own.gate();
        let conns: Vec<ConnId> = (0..users)
            .map(|i| {
                let user = g.user(Time::ZERO, &format!("u{i}")).unwrap();
                let conn = g.open(0).unwrap();
                g.identify(conn, user);
                conn
            })
            .collect();
        let asks = conns.iter().map(|c| (0, *c)).collect();
        Loop { own, running: Vec::new(), rng: Rng::new(5, "service"), now_us: 0, think_us: 0, asks }
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
            for (_, id) in ended {
                let think = if self.think_us == 0 { 0 } else { self.rng.below(2 * self.think_us) };
                self.asks.push((self.now_us + think, id));
            }
            let (due, later) = std::mem::take(&mut self.asks).into_iter().partition(|a| a.0 <= self.now_us);
            self.asks = later;
            let due: Vec<(u64, ConnId)> = due;
            let mut begun = Vec::new();
            for (_, id) in due {
                if g.request(now, id) == Verdict::Go {
                    begun.push(id);
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

/// AP-A5: most connections of a pool are silent at any moment; who asks and who waits is the demand.
#[test]
fn p_is_found_among_clients_that_think() {
    for (clients, think_us) in [(60, 16_000), (60, 30_000), (40, 6_000)] {
        let mut load = Loop::new(clients, Knobs::default());
        load.think_us = think_us;
        let mut c = Controller::new(auto(), 2);
        let mut settled = 0;
        load.run(&mut c, 120, |c, _| {
            settled += u32::from(c.tuner().is_some_and(|t| t.stage() == Stage::Climbing));
        });
        assert!(c.tuner().is_some(), "{clients} clients, {think_us} us: it begins");
        assert!(settled > 1000, "{clients} clients, {think_us} us: it comes to its end ({settled} looks)");
    }
}

/// Nothing is learned of P while the gate holds nothing.
#[test]
fn nothing_is_learned_while_the_gate_is_off() {
    let mut load = Loop::new(24, Knobs::default());
    let mut c = Controller::new(auto(), 2);
    load.run(&mut c, 3, |_, _| {});
    let set = |load: &mut Loop, open| {
        let now = Time::ZERO + Span::from_micros(load.now_us);
        let mut g = load.own.gate();
        let knobs = Knobs { open, ..g.head.knobs };
        g.set_knobs(now, knobs);
    };
    let state = |c: &Controller| format!("{:?}", c.tuner().expect("it has begun"));
    set(&mut load, 1);
    load.run(&mut c, 4, |_, _| {});
    let before = state(&c);
    load.run(&mut c, 20, |_, _| {});
    assert_eq!(state(&c), before);
    set(&mut load, 0);
    load.run(&mut c, 40, |_, _| {});
    assert_ne!(state(&c), before, "and it goes on");
}

#[test]
fn a_zeta_that_an_operator_sets_stays_until_it_is_the_loops_again() {
    let mut load = Loop::new(24, Knobs { p: 8, ..Knobs::default() });
    let mut c = Controller::new(ControlConfig::new(PMode::Fixed(8)), 2);
    load.run(&mut c, 5, |_, _| {});
    c.set_zeta(ZetaMode::Fixed(3), 4);
    load.run(&mut c, 6, |_, _| {});
    load.run(&mut c, 12, |_, own| assert_eq!(own.gate().head.knobs.zeta, 3));
    c.set_zeta(ZetaMode::Auto(ZetaConfig::default()), 3);
    let mut seen = std::collections::BTreeSet::new();
    load.run(&mut c, 20, |_, own| {
        seen.insert(own.gate().head.knobs.zeta);
    });
    assert!(seen.len() > 1, "{seen:?}");
}

/// A window in which many went in beyond P is no measure of that P.
#[test]
fn windows_that_escapes_spoilt_are_passed_over() {
    let mut load = Loop::new(24, Knobs { hold_max_ns: 3_000_000, ..Knobs::default() });
    let mut c = Controller::new(auto(), 2);
    let mut at_two = Vec::new();
    load.run(&mut c, 8, |c, own| {
        let g = own.gate();
        if g.head.knobs.p == 2 {
            at_two.push((g.head.counters.escapes(), format!("{:?}", c.tuner())));
        }
    });
    assert!(at_two.last().expect("P of 2 is sampled").0 > at_two[0].0 + 20, "they escape there");
    assert_eq!(at_two[0].1, at_two[at_two.len().min(60) - 1].1, "and for more than a second nothing is concluded");
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
        let fixed = ControlConfig { zeta: ZetaMode::Kept, ..ControlConfig::new(PMode::Fixed(4)) };
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
