//! Properties under every policy and any load: each request ends once, no core is lost or used twice, and equal runs have equal
//! results.

mod common;

use common::{Machine, at_us, best_effort, critical, us};
use plimsoll_base::{IoHead, IoId, Span, Time};
use plimsoll_cores::Allotment;
use plimsoll_cores::{CorePolicy, CoreRule, CoresConfig, Deadlines, PolicyConfig, QwinConfig};
use plimsoll_stack::{Offered, OwnTerms, Terms};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn allotted(terms: Terms, cores: u32, reservation: u64, limit: u64) -> Terms {
    Terms { own: OwnTerms::of(&Allotment { cores, reservation, limit }), ..terms }
}

fn policies() -> Vec<PolicyConfig> {
    let mut all = vec![
        PolicyConfig::ShareEverything,
        PolicyConfig::PartialSharing,
        PolicyConfig::TwoPriorities,
        PolicyConfig::Cake { interval: Span::from_millis(2) },
        PolicyConfig::Shenango { interval: us(50) },
        PolicyConfig::Static,
        PolicyConfig::Mclock,
        PolicyConfig::Clairvoyant { service: vec![(Time::ZERO, us(150))] },
    ];
    for deadlines in [Deadlines::Window, Deadlines::Each] {
        for rule in [
            CoreRule::BySlack,
            CoreRule::Always(CorePolicy::Conservative),
            CoreRule::Always(CorePolicy::SloAware),
            CoreRule::Always(CorePolicy::Aggressive),
        ] {
            all.push(PolicyConfig::Qwin(QwinConfig { deadlines, rule, poll_windows: 5, ..QwinConfig::default() }));
        }
    }
    all
}

#[derive(Clone, Debug)]
enum Step {
    Offer { tenant: u16, kib: u64 },
    Pause { us: u64 },
    Cancel { nth: usize },
    SetTenant { tenant: u16, kind: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1u16..7, 1u64..65).prop_map(|(tenant, kib)| Step::Offer { tenant, kib }),
        2 => (0u64..400).prop_map(|us| Step::Pause { us }),
        1 => (0usize..64).prop_map(|nth| Step::Cancel { nth }),
        1 => (1u16..5, 0u8..5).prop_map(|(tenant, kind)| Step::SetTenant { tenant, kind }),
    ]
}

/// Runs the steps; gives what ended in order, as text.
fn run(config: &CoresConfig, steps: &[Step]) -> String {
    let mut m = Machine::new(config.clone(), |_, head| us(50 + head.id.0 * 7919 % 200 + head.len / 1024));
    m.set_tenant(1, Some(allotted(critical(9990, 2000), 2, 5000, 20_000)));
    m.set_tenant(2, Some(allotted(critical(9900, 1000), 9, 0, 4000)));
    m.set_tenant(3, Some(best_effort(100)));
    let mut offered = BTreeMap::new();
    for s in steps {
        match s {
            Step::Offer { tenant, kib } => match m.offer(*tenant, kib * 1024) {
                Offered::Accepted(id) => drop(offered.insert(id, 0)),
                Offered::Busy(f) => panic!("nothing has a deadline: {f:?}"),
            },
            Step::Pause { us: n } => {
                let until = m.now + us(*n);
                m.run_until(until);
            }
            Step::Cancel { nth } => {
                if let Some(&id) = offered.keys().rev().nth(*nth) {
                    m.cancel(id);
                }
            }
            Step::SetTenant { tenant, kind } => {
                let terms = match kind {
                    0 => None,
                    1 => Some(best_effort(50)),
                    n => Some(critical(9900, 700 * u64::from(*n))),
                };
                m.set_tenant(*tenant, terms);
            }
        }
        let q = m.cores().queues();
        let owned: u32 = q.all().iter().map(|q| q.cores()).sum();
        assert_eq!(owned + q.unowned(), q.cores, "a core is lost");
        let waiting: usize = q.all().iter().map(|q| q.waiting().len()).sum();
        assert_eq!(waiting + q.busy as usize, m.stack.inflight(), "a request is lost");
    }
    m.finish();
    let mut text = String::new();
    for (at, c) in &m.ended {
        *offered.get_mut(&c.io.id).expect("it was offered") += 1;
        text += &format!("{at:?} {:?} {:?}\n", c.io.id, c.outcome);
    }
    assert!(offered.values().all(|&n| n == 1), "each ends once");
    assert!(m.stack.is_idle());
    let status = m.cores().status(m.now);
    assert_eq!(status.busy, 0);
    // Nothing is left over in the windows either.
    for at in 0..status.queues.len() {
        assert_eq!(m.cores().policy().windows(at).map_or(0, |w| w.left), 0, "queue {at}");
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn each_request_ends_once(steps in proptest::collection::vec(step(), 1..250), cores in 1u32..9, depth in 1u32..4) {
        for policy in policies() {
            let config = CoresConfig { cores, depth, policy, revoke_late: true, history_max: 10 };
            run(&config, &steps);
        }
    }
}

#[test]
fn the_same_run_twice_is_the_same() {
    let steps: Vec<Step> = (0..2000u64)
        .map(|i| match i % 7 {
            0 => Step::Pause { us: i * 31 % 300 },
            6 if i % 35 == 6 => Step::Cancel { nth: (i % 5) as usize },
            _ => Step::Offer { tenant: (i * 13 % 5) as u16 + 1, kib: i * 17 % 60 + 1 },
        })
        .collect();
    for policy in policies() {
        let config = CoresConfig { policy, ..CoresConfig::new(6) };
        assert_eq!(run(&config, &steps), run(&config, &steps), "{:?}", config.policy);
    }
}

/// Two tenants, one with an objective of 2 ms and a burst of small requests, beside best effort with large ones: who gets what
/// under each baseline.
#[test]
fn baselines_are_what_they_are_called() {
    let run = |policy| {
        let config = CoresConfig { policy, ..CoresConfig::new(8) };
        let mut m = Machine::new(config, |_, head| if head.len > 8192 { us(400) } else { us(100) });
        m.set_tenant(1, Some(allotted(critical(9990, 2000), 2, 0, 0)));
        m.set_tenant(2, Some(best_effort(100)));
        for round in 0..100u64 {
            let t = at_us(round * 2000);
            m.run_until(t);
            m.offer_many(60, 2, 65_536);
            m.offer_many(20, 1, 4096);
        }
        m.run_until(at_us(200_000));
        let mut lc = m.responses(1);
        lc.sort_unstable();
        (lc[lc.len() * 9 / 10].as_micros(), m.responses(2).len())
    };
    let (shared, _) = run(PolicyConfig::ShareEverything);
    let (turns, _) = run(PolicyConfig::PartialSharing);
    let (priority, be_priority) = run(PolicyConfig::TwoPriorities);
    let (shenango, _) = run(PolicyConfig::Shenango { interval: us(20) });
    let (fixed, be_fixed) = run(PolicyConfig::Static);
    let (qwin, be_qwin) = run(PolicyConfig::Qwin(QwinConfig::default()));
    assert!(shared > 10_000, "behind all of best effort: {shared}");
    assert!(turns < shared / 2, "{turns}");
    assert!(priority < turns, "{priority}");
    assert!(shenango < 2000 && fixed < 2000 && qwin < 2000, "{shenango} {fixed} {qwin}");
    assert!(be_qwin > be_fixed, "cores aren't idle: {be_qwin} {be_fixed}");
    assert!(be_priority > 0);
}

#[test]
fn mclock_reserves_and_limits() {
    let policy = PolicyConfig::Mclock;
    let of = |weight, reservation, limit| allotted(best_effort(weight), 0, reservation, limit);
    let tenants = [of(1, 4000, 0), of(1, 0, 3000), of(3, 0, 0), of(1, 0, 0)];
    // Two cores at 200 us: 10,000 a second.
    let mut m = Machine::new(CoresConfig { policy, ..CoresConfig::new(2) }, |_, _| us(200));
    for (tenant, terms) in (1..).zip(tenants) {
        m.set_tenant(tenant, Some(terms));
        m.offer_many(9000, tenant, 4096);
    }
    m.run_until(at_us(1_000_000));
    let n = [1, 2, 3, 4].map(|t| m.responses(t).len());
    // The first has its reservation; of the other 6,000 it, the third and the fourth share 1:3:1 what the second (1) leaves.
    assert!((4000..=5100).contains(&n[0]), "{n:?}");
    assert!(n[1] <= 3010, "{n:?}");
    assert!((2.6..=3.4).contains(&(n[2] as f64 / n[3] as f64)), "{n:?}");
}

#[test]
fn cake_moves_shares_by_the_last_interval() {
    let policy = PolicyConfig::Cake { interval: Span::from_millis(10) };
    let mut m = Machine::new(CoresConfig { policy, ..CoresConfig::new(4) }, |_, _| us(100));
    m.set_tenant(1, Some(critical(9900, 1000)));
    m.set_tenant(2, Some(best_effort(100)));
    let late = |m: &Machine, from: usize| m.responses(1)[from..].iter().filter(|&&r| r > us(1000)).count();
    let (mut seen, mut first) = (0, None);
    for tenant in [1, 2] {
        m.offer_many(32, tenant, 4096);
    }
    while m.now < at_us(400_000) {
        m.step();
        for i in seen..m.ended.len() {
            let tenant = m.ended[i].1.io.tenant.0;
            m.offer(tenant, 4096);
        }
        seen = m.ended.len();
        if m.now > at_us(10_000) && first.is_none() {
            first = Some((late(&m, 0), m.responses(1).len()));
        }
    }
    let (late_first, n_first) = first.expect("it ran");
    assert!(late_first * 2 > n_first, "with equal shares most are late: {late_first} of {n_first}");
    let n = m.responses(1).len();
    assert!(late(&m, n - 1000) < 500, "later fewer are: {}", late(&m, n - 1000));
}

/// However idle the device is, a limit is waited for: who promises a deadline beyond it hears so at once.
#[test]
fn mclocks_forecast_knows_the_limit() {
    let mut m = Machine::new(CoresConfig { policy: PolicyConfig::Mclock, ..CoresConfig::new(8) }, |_, _| us(100));
    m.set_tenant(1, Some(allotted(best_effort(100), 0, 0, 100)));
    let mut accepted = 0;
    for _ in 0..50 {
        let head = IoHead { deadline: m.now + us(20_000), ..m.head(1, 4096) };
        accepted += usize::from(matches!(m.offer_head(head), Offered::Accepted(_)));
    }
    assert!((1..=4).contains(&accepted), "{accepted}: two or three of 100 a second fit into 20 ms");
    m.finish();
    let late = m.ended.iter().filter(|e| !e.1.outcome.is_done()).count();
    assert!(late <= 1, "{late} of {accepted} were let in and then not served in time");
}

/// Two tenants with the same weight, one of them on an idle device for a while: policies under which both have half afterwards.
fn that_share_alike() -> Vec<PolicyConfig> {
    let order = |p: &PolicyConfig| matches!(p, PolicyConfig::ShareEverything | PolicyConfig::TwoPriorities);
    policies().into_iter().filter(|p| !order(p)).collect()
}

/// 10,000 requests of a tenant alone, with fewer in flight than the cores take.
fn alone(m: &mut Machine, tenant: u16) {
    for _ in 0..10_000 {
        m.offer(tenant, 4096);
        m.finish();
    }
}

/// Of the first 2,000 that end while both have 5,000 to do: the first one's.
fn first_ones_part(m: &mut Machine, tenants: [u16; 2]) -> usize {
    let from = m.ended.len();
    for tenant in [tenants[1], tenants[0]] {
        m.offer_many(5000, tenant, 4096);
    }
    while m.ended.len() < from + 2000 {
        m.step();
    }
    let part = m.ended[from..][..2000].iter().filter(|e| e.1.io.tenant.0 == tenants[0]).count();
    m.finish();
    part
}

/// A device's use while nobody else wanted it is held against nobody; nor is it against the next tenant with the queue's number.
#[test]
fn who_used_an_idle_device_has_its_share_afterwards() {
    for policy in that_share_alike() {
        let mut m = Machine::new(CoresConfig { policy: policy.clone(), ..CoresConfig::new(2) }, |_, _| us(100));
        for tenant in [1, 2] {
            m.set_tenant(tenant, Some(best_effort(100)));
        }
        alone(&mut m, 1);
        let part = first_ones_part(&mut m, [1, 2]);
        assert!((900..=1100).contains(&part), "{part} of 2000 under {policy:?}");
        // Another in its place, and one with other terms.
        alone(&mut m, 1);
        m.set_tenant(1, None);
        m.set_tenant(3, Some(best_effort(100)));
        let part = first_ones_part(&mut m, [3, 2]);
        assert!((900..=1100).contains(&part), "{part} of 2000 under {policy:?}, of a new tenant");
        alone(&mut m, 3);
        m.offer_many(3, 3, 4096);
        m.set_tenant(3, Some(best_effort(101)));
        let part = first_ones_part(&mut m, [2, 3]);
        assert!((900..=1100).contains(&part), "{part} of 2000 under {policy:?}, beside changed terms");
    }
}

/// Reservations kept a tenant ahead of its share; it is gone, and a tenant without one has its number.
#[test]
fn a_new_tenant_owes_nothing_for_the_one_before() {
    let mut m = Machine::new(CoresConfig { policy: PolicyConfig::Mclock, ..CoresConfig::new(2) }, |_, _| us(100));
    m.set_tenant(1, Some(allotted(best_effort(100), 0, 18_000, 0)));
    m.set_tenant(2, Some(best_effort(100)));
    m.offer_many(12_000, 2, 4096);
    m.offer_many(10_000, 1, 4096);
    while m.responses(1).len() < 10_000 {
        m.step();
    }
    for weight in [100, 100, 50] {
        m.set_tenant(1, None);
        m.set_tenant(1, Some(best_effort(weight)));
        let (from, weight) = (m.responses(1).len(), weight as usize);
        m.offer_many(400, 1, 4096);
        let before = m.ended.len();
        while m.responses(1).len() < from + 400 {
            m.step();
        }
        let took = m.ended.len() - before;
        assert!(took <= 400 * (weight + 100) / weight + 20, "400 of a tenant of weight {weight} were among {took}");
    }
}

/// A tenant at its limit falls behind in its share, and neither a newcomer nor a higher limit of its own may make others wait for that.
#[test]
fn time_at_a_limit_is_not_saved_up() {
    let of = |limit| Some(allotted(critical(9900, 1000), 0, 0, limit));
    let mut m = Machine::new(CoresConfig { policy: PolicyConfig::Mclock, ..CoresConfig::new(2) }, |_, _| us(100));
    m.set_tenant(1, of(100));
    for tenant in [2, 3] {
        m.set_tenant(tenant, Some(best_effort(100)));
    }
    m.offer_many(4000, 1, 4096);
    for _ in 0..10_000 {
        let ended = m.responses(2).len();
        m.offer(2, 4096);
        while m.responses(2).len() == ended {
            m.step();
        }
    }
    let part = |m: &mut Machine, of: u16, others: &[u16]| {
        let from = m.ended.len();
        others.iter().for_each(|t| m.offer_many(2000, *t, 4096));
        while m.ended.len() < from + 1000 {
            m.step();
        }
        m.ended[from..].iter().filter(|e| e.1.io.tenant.0 == of).count()
    };
    let newcomer = part(&mut m, 3, &[2, 3]);
    assert!((400..=600).contains(&newcomer), "{newcomer} of 1000");
    // Another with its objectives shares its queue and has no limit: the queue has none any more, and twice the weight.
    m.set_tenant(4, of(0));
    let raised = part(&mut m, 1, &[]);
    assert!((400..=600).contains(&raised), "{raised} of 1000");
}

/// A promise to who used an idle device isn't broken by who comes.
#[test]
fn forecasts_hold_after_an_idle_device_was_used() {
    for policy in that_share_alike() {
        let mut m = Machine::new(CoresConfig { policy: policy.clone(), ..CoresConfig::new(2) }, |_, _| us(100));
        for tenant in [1, 2] {
            m.set_tenant(tenant, Some(best_effort(100)));
        }
        alone(&mut m, 1);
        m.offer_many(5000, 2, 4096);
        for _ in 0..100 {
            let wait = m.stack.forecast(m.now, &m.head(1, 4096)).wait;
            let ended = m.responses(1).len();
            m.offer(1, 4096);
            while m.responses(1).len() == ended {
                m.step();
            }
            let took = m.responses(1)[ended];
            assert!(took <= wait * 2 + us(400), "{took:?} against {wait:?} under {policy:?}");
        }
    }
}

/// Cake reserved cores for a tenant with objectives. It is gone, and a best-effort tenant has its number.
#[test]
fn cakes_reserved_cores_go_with_their_tenant() {
    let policy = PolicyConfig::Cake { interval: Span::from_millis(10) };
    let mut m = Machine::new(CoresConfig { policy, ..CoresConfig::new(4) }, |_, _| us(100));
    m.set_tenant(1, Some(critical(9900, 50)));
    m.set_tenant(2, Some(best_effort(100)));
    // No share is enough for its bound.
    while m.now < at_us(300_000) {
        m.offer_many(4, 1, 4096);
        let until = m.now + us(200);
        m.run_until(until);
    }
    m.finish();
    m.set_tenant(1, None);
    m.set_tenant(3, Some(best_effort(100)));
    assert_eq!(m.cores().queues().known(plimsoll_base::TenantId(3)), Some(0), "it has the number");
    let part = first_ones_part(&mut m, [3, 2]);
    assert!((900..=1100).contains(&part), "{part} of 2000");
}

/// Tens of thousands of deadlines pass at once, while no core is free or as one gets free, and then as many other requests are withdrawn: one
/// call ends a part of them, so that others have their turn before the rest. All hear of it at once.
#[test]
fn deadlines_that_pass_together_are_ended_in_parts() {
    const MANY: usize = 30_000;
    let cake = PolicyConfig::Cake { interval: Span::from_millis(2) };
    let policies =
        [PolicyConfig::Qwin(QwinConfig::default()), cake, PolicyConfig::Mclock, PolicyConfig::ShareEverything];
    let just_late = us(1000) + Span::from_nanos(1);
    for (policy, takes) in policies.into_iter().flat_map(|p| [(p.clone(), us(1_000_000)), (p, just_late)]) {
        let mut m = Machine::new(CoresConfig { policy: policy.clone(), ..CoresConfig::new(1) }, move |_, _| takes);
        m.set_tenant(1, Some(critical(9900, 1000)));
        m.offer(1, 4096);
        for _ in 0..MANY {
            let offered = m.offer_head(IoHead { deadline: at_us(1000), ..m.head(1, 4096) });
            assert!(matches!(offered, Offered::Accepted(_)), "nothing was measured yet");
        }
        let offer = |m: &mut Machine| match m.offer(1, 4096) {
            Offered::Accepted(id) => id,
            Offered::Busy(f) => panic!("it has no deadline: {f:?}"),
        };
        let patient: Vec<_> = (0..MANY).map(|_| offer(&mut m)).collect();
        let (mut most, mut wakes) = (0, 0);
        while m.ended.len() < MANY {
            let before = m.ended.len();
            m.step();
            most = most.max(m.ended.len() - before);
            wakes += 1;
            assert!(m.now < at_us(3000) && wakes < MANY, "{} of {MANY} have ended under {policy:?}", m.ended.len());
        }
        // And the one whose core got free.
        assert!((1..=257).contains(&most), "{most} at once under {policy:?}, {takes}");
        patient.into_iter().rev().for_each(|id| m.cancel(id));
        // All but the one that is in service.
        assert!(takes == just_late || m.ended.len() == 2 * MANY, "{} have ended under {policy:?}", m.ended.len());
        m.finish();
        let done = m.ended.iter().filter(|e| e.1.outcome.is_done()).count();
        // Some of the patient were served where the core got free.
        let most_done = if takes == just_late { 5 } else { 1 };
        assert_eq!(m.ended.len(), 2 * MANY + 1, "{policy:?}");
        assert!((1..=most_done).contains(&done), "{done} done under {policy:?}, {takes}");
        let ids: BTreeSet<IoId> = m.ended.iter().map(|(_, c)| c.io.id).collect();
        assert_eq!(ids.len(), m.ended.len(), "a request ended twice under {policy:?}");
    }
}

/// A core gets free in front of more late requests than a call ends, just after passed deadlines were looked for: the request behind them is
/// served at once.
#[test]
fn a_core_does_not_stay_free_behind_many_late_requests() {
    let cake = PolicyConfig::Cake { interval: Span::from_millis(2) };
    for policy in [PolicyConfig::Qwin(QwinConfig::default()), cake, PolicyConfig::Mclock, PolicyConfig::ShareEverything]
    {
        let mut m = Machine::new(CoresConfig { policy: policy.clone(), ..CoresConfig::new(1) }, |_, _| us(1000));
        m.set_tenant(1, Some(critical(9900, 1000)));
        m.run_until(at_us(10_000));
        m.offer(1, 4096);
        for deadline in std::iter::once(10_900).chain(std::iter::repeat_n(10_990, 1000)) {
            let offered = m.offer_head(IoHead { deadline: at_us(deadline), ..m.head(1, 4096) });
            assert!(matches!(offered, Offered::Accepted(_)), "nothing was measured yet");
        }
        let Offered::Accepted(last) = m.offer(1, 4096) else { panic!("it has no deadline") };
        m.finish();
        let of_last = m.ended.iter().find(|(_, c)| c.io.id == last).expect("all have ended");
        assert_eq!((of_last.0, m.ended.len()), (at_us(12_000), 1003), "{policy:?}");
    }
}
