//! Every policy against nodes that answer, refuse, fail, keep silent or come late: each get ends once, in bounded tries.

use plimsoll_base::{Rng, Span, Time};
use plimsoll_client::{
    Answer, Course, Ended, Get, Orders, PolicyKind, PolicySettings, Preference, Probe, ReplicaPolicy, Reply, Step,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A node's behaviour on a try.
#[derive(Clone, Copy, Debug)]
enum Does {
    Answers {
        ms: u64,
    },
    Refuses {
        wait_ms: u64,
    },
    /// Refuses only what has a deadline.
    RefusesDeadlines {
        wait_ms: u64,
    },
    Fails,
    Silent,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Answer(u32, Reply),
    Began(u32),
    Probe(u16),
    Timer,
}

/// A driver by hand: a clock, a list of what will happen, and nothing else.
struct Hand<'a> {
    course: Course,
    policy: &'a mut dyn ReplicaPolicy,
    nodes: &'a [Does],
    now: Time,
    events: BTreeMap<(Time, u32), Event>,
    made: u32,
    ended: Vec<(Time, Ended)>,
    sent: u32,
}

fn ms(n: u64) -> Span {
    Span::from_millis(n)
}

impl Hand<'_> {
    fn after(&mut self, span: Span, e: Event) {
        self.made += 1;
        self.events.insert((self.now + span, self.made), e);
    }

    fn carry_out(&mut self, step: Step) {
        let Step { orders: Orders { sends, cancels, probes, timers, .. }, ended } = step;
        self.ended.extend(ended.map(|e| (self.now, e)));
        for s in sends {
            let number = self.sent;
            self.sent += 1;
            assert_eq!(self.course.tries()[number as usize].node, s.node);
            let (after, reply) = match self.nodes[usize::from(s.node)] {
                Does::Answers { ms: after } => {
                    if s.tells {
                        self.after(ms(after / 2), Event::Began(number));
                    }
                    (ms(after), Reply::Done)
                }
                Does::Refuses { wait_ms } => (ms(1), Reply::Busy(ms(wait_ms))),
                Does::RefusesDeadlines { wait_ms } if s.deadline.is_some() => (ms(1), Reply::Busy(ms(wait_ms))),
                Does::RefusesDeadlines { wait_ms } => (ms(wait_ms), Reply::Done),
                Does::Fails => (ms(1), Reply::Failed),
                Does::Silent => continue,
            };
            self.after(after, Event::Answer(number, reply));
        }
        for number in cancels {
            let t = self.course.tries()[number as usize];
            let had =
                self.events.iter().find(|(_, e)| matches!(e, Event::Answer(n, _) if *n == number)).map(|(k, _)| *k);
            // What hasn't begun ends at once.
            if let Some(key) = had.filter(|_| !t.begun) {
                self.events.remove(&key);
                self.after(ms(1), Event::Answer(number, Reply::Failed));
            }
        }
        for node in probes {
            if !matches!(self.nodes[usize::from(node)], Does::Silent) {
                self.after(ms(1), Event::Probe(node));
            }
        }
        for at in timers {
            self.after(at.since(self.now), Event::Timer);
        }
    }

    fn run(&mut self) {
        let step = self.course.begin(self.now, self.policy);
        self.carry_out(step);
        while let Some(((at, _), event)) = self.events.pop_first() {
            self.now = at;
            let step = match event {
                Event::Answer(n, reply) => {
                    let answer = Answer { reply, in_flight: 1, service: ms(5) };
                    self.course.answered(at, n, answer, self.policy)
                }
                Event::Began(n) if self.course.tries()[n as usize].reply.is_some() => continue,
                Event::Began(n) => self.course.began(at, n, self.policy),
                Event::Probe(node) => self.course.probed(at, Probe { node, in_flight: 1, latency: ms(5) }, self.policy),
                Event::Timer => self.course.timer(at, self.policy),
            };
            self.carry_out(step);
        }
    }
}

fn does() -> impl Strategy<Value = Does> {
    prop_oneof![
        4 => (1u64..60).prop_map(|ms| Does::Answers { ms }),
        2 => (1u64..90).prop_map(|wait_ms| Does::Refuses { wait_ms }),
        2 => (1u64..90).prop_map(|wait_ms| Does::RefusesDeadlines { wait_ms }),
        2 => Just(Does::Fails),
        1 => Just(Does::Silent),
    ]
}

fn settings() -> PolicySettings {
    PolicySettings { limit: ms(13), order: Preference::Drawn, clients: 3, ..PolicySettings::default() }
}

/// Plays one get; gives how it ended, after how long, and the driver's last state.
fn play(kind: PolicyKind, policy: &mut dyn ReplicaPolicy, nodes: &[Does], get: Get) -> (Ended, Span, Course) {
    let now = get.arrived_at;
    let mut hand = Hand {
        course: Course::new(get),
        policy,
        nodes,
        now,
        events: BTreeMap::new(),
        made: 0,
        ended: Vec::new(),
        sent: 0,
    };
    hand.run();
    assert_eq!(hand.ended.len(), 1, "{kind}: a get ends once: {:?}", hand.course);
    let (at, how) = hand.ended[0];
    assert_eq!(hand.course.ended(), Some(how));
    (how, at.since(now), hand.course)
}

fn a_get(number: u64, replicas: u16, draw: u64, until: Time) -> Get {
    let arrived_at = Time::ZERO + ms(1000 * number);
    Get {
        number,
        arrived_at,
        until,
        client: 0,
        replicas: (0..replicas).collect(),
        offset: 0,
        len: 4096,
        draw,
        limit: None,
        refusable: false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn every_get_ends_once_in_bounded_tries(
        gets in proptest::collection::vec((proptest::collection::vec(does(), 1..6), any::<u64>()), 1..12),
        learns: bool,
    ) {
        for kind in PolicyKind::ALL {
            let mut policy = kind.build(&PolicySettings { learns, ..settings() }).expect("a limit that can be kept");
            for (i, (nodes, draw)) in gets.iter().enumerate() {
                let number = i as u64;
                let until = Time::ZERO + ms(1000 * number + 400);
                let get = a_get(number, nodes.len() as u16, *draw, until);
                let (how, took, course) = play(kind, &mut policy, nodes, get);
                prop_assert!(course.tries().len() <= 2 * nodes.len(), "{kind}: {course:?}");
                prop_assert!(took <= ms(400), "{kind}: beyond the caller's own limit");
                match how {
                    Ended::Done(n) => prop_assert!(!course.tries()[n as usize].abandoned),
                    Ended::Failed => {
                        let all_healthy = nodes.iter().all(|n| matches!(n, Does::Answers { .. }));
                        prop_assert!(!all_healthy, "{kind}: every node would have answered: {course:?}");
                    }
                }
                // An error of all nodes is told as soon as the last of them has said so.
                if nodes.iter().all(|n| matches!(n, Does::Fails)) {
                    prop_assert!(how == Ended::Failed && took <= ms(20 + nodes.len() as u64), "{kind}: {took}");
                }
            }
        }
    }
}

#[test]
fn one_healthy_node_of_three_is_found_by_every_policy() {
    for kind in PolicyKind::ALL {
        for healthy in 0..3 {
            for draw in (0..6).map(|i| i | i << 62) {
                let mut nodes = [Does::Fails; 3];
                nodes[healthy] = Does::Answers { ms: 5 };
                let mut policy = kind.build(&settings()).expect("a limit that can be kept");
                let (how, ..) = play(kind, &mut policy, &nodes, a_get(0, 3, draw, Time::NEVER));
                assert!(matches!(how, Ended::Done(_)), "{kind}, node {healthy}");
            }
        }
    }
}

#[test]
fn what_fails_over_isnt_held_up_by_a_node_that_hangs() {
    use PolicyKind::{Clone, Hedged, HedgedCancel, MittBudget, Prequal, Tied, Timeout};
    for kind in [Timeout, Clone, Hedged, HedgedCancel, Prequal, MittBudget, Tied] {
        let nodes = [Does::Silent, Does::Answers { ms: 5 }, Does::Answers { ms: 5 }];
        let order = Preference::Placement;
        let mut policy = kind.build(&PolicySettings { order, budget_permille: 1000, ..settings() }).expect("possible");
        let (how, took, _) = play(kind, &mut policy, &nodes, a_get(0, 3, 0, Time::ZERO + ms(900)));
        assert!(matches!(how, Ended::Done(_)) && took <= ms(20), "{kind}: {how:?} after {took}");
    }
}

#[test]
fn the_same_answers_give_the_same_orders() {
    let run = |kind: PolicyKind| {
        let mut rng = Rng::new(9, "nodes");
        let mut policy = kind.build(&PolicySettings { learns: true, ..settings() }).expect("possible");
        let one = |number| {
            let nodes: Vec<Does> = (0..3).map(|_| Does::Answers { ms: 1 + rng.below(40) }).collect();
            let (how, took, course) = play(kind, &mut policy, &nodes, a_get(number, 3, rng.next_u64(), Time::NEVER));
            (how, took, course.tries().to_vec())
        };
        (0..200).map(one).collect::<Vec<_>>()
    };
    for kind in PolicyKind::ALL {
        assert_eq!(run(kind), run(kind), "{kind}");
    }
}
