//! Tests of tenants without a core, and of cores that nobody needs any more.

mod common;

use common::{Machine, at_us, best_effort, critical, us};
use plimsoll_base::{Class, IoFlags, IoHead, IoId, Objective, Outcome, Span, TenantId, Time};
use plimsoll_cores::{CoresConfig, PolicyConfig, QwinConfig};
use plimsoll_stack::{Offered, Terms};

fn qwin(cores: u32) -> CoresConfig {
    CoresConfig { policy: PolicyConfig::Qwin(QwinConfig::default()), ..CoresConfig::new(cores) }
}

/// Each request takes 100 us.
fn hundred_us(config: CoresConfig) -> Machine {
    Machine::new(config, |_, _| us(100))
}

/// One latency-critical tenant (1) and one best-effort one (2).
fn two(config: CoresConfig, bound_us: u64) -> Machine {
    let mut m = hundred_us(config);
    m.set_tenant(1, Some(critical(9990, bound_us)));
    m.set_tenant(2, Some(best_effort(100)));
    m
}

/// A tenant without a core isn't starved by the tenant that has them all. A core is lent every second, and the forecast includes
/// that wait. A deadline that passes meanwhile ends its read.
#[test]
fn an_overload_neither_starves_nor_deceives_who_has_no_core() {
    let mut m = two(qwin(1), 2000);
    m.offer_many(64, 1, 4096);
    let patient = m.offer(2, 4096);
    assert!(matches!(patient, Offered::Accepted(_)));
    let forecast = m.stack.forecast(m.now, &m.head(2, 4096)).total();
    assert!(forecast >= Span::from_secs(1), "{forecast}");
    let hasty = IoHead { deadline: at_us(50_000), ..m.head(2, 4096) };
    assert!(matches!(m.offer_head(hasty), Offered::Busy(_)), "busy at once");
    let mut seen = 0;
    while m.now < at_us(3_500_000) {
        m.step();
        for i in seen..m.ended.len() {
            if m.ended[i].1.io.tenant == TenantId(1) {
                m.offer(1, 4096);
            }
        }
        seen = m.ended.len();
    }
    let done = m.ended.iter().find(|e| e.1.io.tenant == TenantId(2)).expect("it was lent the core");
    assert!(done.1.outcome.is_done() && done.0 <= at_us(1_100_000), "{:?}", done.0);
}

/// A read that was let in and then loses its cores is told when its deadline passes, not when it gets a core again.
#[test]
fn a_deadline_that_passes_without_a_core_is_told_then() {
    let told = passes_without_a_core(IoFlags::NONE);
    assert!(matches!(told.1, Outcome::Busy { .. }), "{:?}", told.1);
    assert!((at_us(30_000)..at_us(32_000)).contains(&told.0), "at {:?}", told.0);
}

/// The same read of a client that waits is served when it gets a core.
#[test]
fn a_read_of_a_client_that_waits_is_served_after_its_deadline() {
    let served = passes_without_a_core(IoFlags::WAITS);
    assert!(served.1.is_done() && served.0 > at_us(32_000), "{served:?}");
}

/// A read is let in with a deadline of 30 ms and then loses its cores: when and how it ends.
fn passes_without_a_core(flags: IoFlags) -> (Time, Outcome) {
    let mut m = Machine::new(qwin(2), |_, head: &IoHead| us(if head.len > 4096 { 10_000 } else { 100 }));
    m.set_tenant(1, Some(critical(9990, 2000)));
    m.set_tenant(2, Some(best_effort(100)));
    m.offer_many(1, 2, 65_536);
    let accepted = IoHead { deadline: at_us(30_000), flags, ..m.head(2, 4096) };
    assert!(matches!(m.offer_head(accepted), Offered::Accepted(_)));
    m.offer_many(200, 1, 4096);
    let mut seen = 0;
    loop {
        if let Some((at, c)) = m.ended.iter().find(|e| e.1.io.deadline.is_set()) {
            return (*at, c.outcome);
        }
        m.step();
        for i in seen..m.ended.len() {
            if m.ended[i].1.io.tenant == TenantId(1) {
                m.offer(1, 4096);
                m.offer(1, 4096);
            }
        }
        seen = m.ended.len();
    }
}

#[test]
fn where_queues_are_more_than_cores_the_heaviest_are_served_by_their_own() {
    let of = |bound_us, weight| {
        let objectives = vec![Objective { percentile_bp: 9900, bound: us(bound_us) }];
        Some(Terms::of(Class::LatencyCritical { objectives, weight }, 128))
    };
    let mut m = hundred_us(qwin(2));
    for (tenant, bound, weight) in [(1, 2000, 10), (2, 2100, 10), (3, 2200, 1000)] {
        m.set_tenant(tenant, of(bound, weight));
        m.offer_many(32, tenant, 4096);
    }
    let mut seen = 0;
    while m.now < at_us(3_000_000) {
        m.step();
        for i in seen..m.ended.len() {
            let tenant = m.ended[i].1.io.tenant.0;
            m.offer(tenant, 4096);
        }
        seen = m.ended.len();
    }
    let done = [1, 2, 3].map(|t| m.responses(t).len());
    assert!(done[2] > done[0].min(done[1]) * 10, "{done:?}: the one of weight 1000 came last");
    assert!(done.iter().all(|n| *n > 0), "{done:?}: and nobody has nothing");
}

/// QW-M9: a queue that is empty keeps one core, however many it had when the last of its requests ended.
#[test]
fn an_empty_queue_keeps_one_core() {
    let mut m = Machine::new(qwin(24), |_, head: &IoHead| us(if head.tenant == TenantId(1) { 1000 } else { 50_000 }));
    m.set_tenant(1, Some(critical(9900, 5000)));
    m.set_tenant(2, Some(best_effort(100)));
    m.offer_many(40, 2, 4096);
    m.offer_many(12, 1, 4096);
    while m.responses(1).len() < 12 {
        m.step();
    }
    let q = &m.cores().status(m.now).queues[0];
    assert!(q.cores_max > 2, "{} at most: it had asked for more", q.cores_max);
    assert_eq!(q.cores, 1);
    // The same if what waits is withdrawn.
    let ids: Vec<IoId> = (0..12)
        .filter_map(|_| match m.offer(1, 4096) {
            Offered::Accepted(id) => Some(id),
            _ => None,
        })
        .collect();
    m.run_until(m.now + us(6000));
    ids.into_iter().for_each(|id| m.cancel(id));
    while m.cores().queues().get(0).in_service > 0 {
        m.step();
    }
    assert_eq!(m.cores().status(m.now).queues[0].cores, 1);
}

/// A queue that nobody uses any more has no cores, whoever decides, and its number is used again.
#[test]
fn changed_objectives_leave_nothing_behind() {
    let policies = [
        PolicyConfig::Qwin(QwinConfig::default()),
        PolicyConfig::Static,
        PolicyConfig::Shenango { interval: us(100) },
        PolicyConfig::Cake { interval: us(1000) },
    ];
    for policy in policies {
        let mut m = hundred_us(CoresConfig { policy, ..CoresConfig::new(4) });
        m.set_tenant(2, Some(best_effort(100)));
        for bound in 1000..1200 {
            m.set_tenant(1, Some(critical(9900, bound)));
            m.set_tenant(2, Some(best_effort(1 + bound as u32)));
            m.offer_many(8, 1, 4096);
            m.run_until(m.now + us(5000));
        }
        let status = m.cores().status(m.now);
        assert!(m.cores().queues().len() <= 6, "{}: {} queues", status.policy, m.cores().queues().len());
        let dead: u32 = status.queues.iter().filter(|q| q.tenants.is_empty()).map(|q| q.cores).sum();
        assert_eq!(dead, 0, "{}", status.policy);
        assert_eq!(m.responses(1).len(), 1600, "{}", status.policy);
    }
}
