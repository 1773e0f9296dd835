//! Entries of users: given back when nobody uses them, never before, and what happens when there are none.

use plimsoll_base::{Span, Time};
use plimsoll_shape::gate::names::USER_KEPT;
use plimsoll_shape::gate::{Answered, ConnId, Gate, Knobs, OwnGate, USER_OTHERS, USERS_MAX, UserClass, Verdict};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn at(seconds: u64) -> Time {
    Time::ZERO + Span::from_secs(seconds)
}

/// As the faces do it: a connection of the user of this name, or of `others`.
fn log_in(g: &mut Gate<'_>, now: Time, name: &str) -> (ConnId, u32) {
    let conn = g.open(0).unwrap();
    let user = g.user(now, name).unwrap_or(USER_OTHERS);
    g.identify(conn, user);
    (conn, user)
}

fn names(g: &Gate<'_>) -> Vec<String> {
    g.known_users().iter().map(|u| u.name().into_owned()).collect()
}

#[test]
fn the_user_after_the_last_entry_shares_and_is_served_and_gets_one_once_somebody_is_gone() {
    let mut own = OwnGate::new(USERS_MAX, 3000, Knobs { p: 1, ..Knobs::default() }, Time::ZERO);
    let mut g = own.gate();
    let mut conns: Vec<ConnId> = (1..USERS_MAX).map(|i| log_in(&mut g, at(0), &format!("u{i}")).0).collect();
    assert_eq!((g.known_users().len(), g.head.counters.overflow), (USERS_MAX, 0));
    // The 2,048th name, `others` being one: no entry, but served in its turn like anybody.
    let (late, shared) = log_in(&mut g, at(1), "late");
    assert_eq!((shared, g.head.counters.overflow), (USER_OTHERS, 1));
    assert_eq!(g.request(at(1), conns[0]), Verdict::Go);
    assert_eq!(g.request(at(1), late), Verdict::Wait);
    g.answered(at(1), conns[0], Answered::Done);
    assert_eq!(g.take_grant(), Some(late));
    g.answered(at(1), late, Answered::Done);
    assert_eq!(g.users[USER_OTHERS as usize].finished, 1);
    // Somebody leaves: its entry is its own for a minute, then who asks for one gets it.
    let gone = conns.remove(6);
    let entry = g.user_of(gone);
    g.close(at(100), gone);
    assert_eq!(g.user(at(159), "late"), None);
    assert_eq!((g.user(at(160), "late"), g.head.counters.given_back), (Some(entry), 1));
    let u = &g.users[entry as usize];
    assert_eq!((u.name().into_owned(), u.finished, u.weight_milli, u.conns), ("late".into(), 0, 1000, 0));
    g.check();
}

#[test]
fn who_has_a_connection_a_turn_or_terms_of_its_own_keeps_its_entry() {
    let mut own = OwnGate::new(8, 16, Knobs { p: 1, ..Knobs::default() }, Time::ZERO);
    let mut g = own.gate();
    let (inside, _) = log_in(&mut g, at(0), "inside");
    let (waiting, _) = log_in(&mut g, at(0), "waiting");
    log_in(&mut g, at(0), "idle");
    g.request(at(0), inside);
    assert_eq!(g.request(at(0), waiting), Verdict::Wait);
    // It is another's once its transaction is over.
    let promised = g.user(at(0), "promised").unwrap();
    g.identify(inside, promised);
    let weighted = g.user(at(0), "weighted").unwrap();
    g.users[weighted as usize].weight_milli = 3000;
    let sensitive = g.user(at(0), "sensitive").unwrap();
    g.users[sensitive as usize].set_class(UserClass::LatencySensitive);
    g.users[sensitive as usize].objective_us = 60_000;
    let unused = g.user(at(0), "unused").unwrap();
    g.check();
    let much_later = at(1_000_000);
    assert_eq!(g.user(much_later, "new"), Some(unused));
    assert_eq!(g.user(much_later, "newer"), None, "{:?}", names(&g));
    assert_eq!(names(&g), ["others", "inside", "waiting", "idle", "promised", "weighted", "sensitive", "new"]);
    g.check();
}

/// A process may die anywhere: what it left is repaired by whoever takes the lock next.
#[test]
fn an_entry_whose_taker_died_is_nobodys_and_given_back() {
    let mut own = OwnGate::new(3, 4, Knobs::default(), Time::ZERO);
    let mut g = own.gate();
    let (kept, _) = log_in(&mut g, at(0), "kept");
    let torn = g.user(at(0), "torn").unwrap();
    g.users[torn as usize] = bytemuck::Zeroable::zeroed();
    g.repair(at(1));
    g.check();
    assert_eq!(g.user(at(USER_KEPT.as_nanos() / 1_000_000_000), "next"), Some(torn));
    assert_eq!(names(&g), ["others", "kept", "next"]);
    g.close(at(100), kept);
    g.check();
}

#[derive(Clone, Debug)]
enum Step {
    LogIn(usize, u8),
    Request(usize),
    Done(usize),
    Close(usize),
    Weigh(u8),
    Wait(u64),
    Repair,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..6usize, 0..8u8).prop_map(|(c, n)| Step::LogIn(c, n)),
        4 => (0..6usize).prop_map(Step::Request),
        4 => (0..6usize).prop_map(Step::Done),
        3 => (0..6usize).prop_map(Step::Close),
        1 => (0..8u8).prop_map(Step::Weigh),
        3 => (1..45u64).prop_map(Step::Wait),
        1 => Just(Step::Repair),
    ]
}

/// The test's own knowledge: the names that each connection has or will have, the last use of each name, and the users that were weighed.
#[derive(Default)]
struct Seen {
    conns: [Option<(ConnId, Vec<String>)>; 6],
    used: BTreeMap<String, u64>,
    weighed: Vec<String>,
}

impl Seen {
    fn may_go(&self, name: &str, now: u64) -> bool {
        let used = self.conns.iter().flatten().any(|c| c.1.iter().any(|n| n == name));
        name != "others" && !used && !self.weighed.iter().any(|n| n == name) && now >= self.used[name] + 60
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// An entry changes its name only if nobody used the old one for a minute, the one unused for longest; a newcomer goes without only if
    /// there is none such.
    #[test]
    fn only_what_is_unused_is_given_back(steps in prop::collection::vec(step(), 1..120)) {
        let mut own = OwnGate::new(4, 6, Knobs { p: 2, stall_ns: u64::MAX / 4, ..Knobs::default() }, Time::ZERO);
        let (mut seen, mut now) = (Seen::default(), 0);
        for s in steps {
            let mut g = own.gate();
            match s {
                Step::LogIn(c, n) => {
                    let name = format!("n{n}");
                    let before = names(&g);
                    let user = g.user(at(now), &name);
                    let after = names(&g);
                    let replaced: Vec<&String> = before.iter().zip(&after).filter(|(b, a)| b != a).map(|(b, _)| b).collect();
                    let free: Vec<&String> = before.iter().filter(|n| seen.may_go(n, now)).collect();
                    prop_assert!(replaced.iter().all(|n| free.contains(n)), "{:?} of {:?}", replaced, free);
                    let oldest = free.iter().map(|n| seen.used[*n]).min();
                    prop_assert!(replaced.iter().all(|n| Some(seen.used[*n]) == oldest));
                    prop_assert!(user.is_some() || (free.is_empty() && before.len() == 4), "{:?} may go", free);
                    if !before.contains(&name) && user.is_some() {
                        seen.used.insert(name.clone(), now);
                    }
                    let name = if user.is_some() { name } else { "others".into() };
                    let (conn, all) = seen.conns[c].get_or_insert_with(|| (g.open(0).unwrap(), Vec::new()));
                    let inside = g.is_inside(*conn) || g.is_waiting(*conn);
                    if !inside { all.clear() } else { all.truncate(1) }
                    all.push(name);
                    g.identify(*conn, user.unwrap_or(USER_OTHERS));
                }
                Step::Request(c) => if let Some((conn, _)) = &seen.conns[c] { g.request(at(now), *conn); },
                Step::Done(c) => if let Some((conn, all)) = &mut seen.conns[c] && g.is_inside(*conn) {
                    g.answered(at(now), *conn, Answered::Done);
                    if !g.is_inside(*conn) { all.drain(..all.len() - 1); }
                },
                Step::Close(c) => if let Some((conn, all)) = seen.conns[c].take() {
                    g.close(at(now), conn);
                    seen.used.insert(all.last().unwrap().clone(), now);
                },
                Step::Weigh(n) => {
                    let name = format!("n{n}");
                    if let Some(i) = names(&g).iter().position(|k| *k == name) {
                        g.users[i].weight_milli = 2000;
                        seen.weighed.push(name);
                    }
                }
                Step::Wait(seconds) => {
                    now += seconds;
                    g.tick(at(now));
                }
                // A pending change of user is forgotten: the login named it, and the connection stays what it was.
                Step::Repair => {
                    g.repair(at(now));
                    seen.conns.iter_mut().flatten().for_each(|c| c.1.truncate(1));
                }
            }
            while g.take_grant().is_some() {}
            g.check();
            for (conn, all) in seen.conns.iter().flatten() {
                let name = g.users[g.user_of(*conn) as usize].name();
                prop_assert_eq!(&name, &all[0]);
            }
        }
    }
}
