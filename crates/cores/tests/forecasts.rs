//! Forecasts of policies that serve by weights, reservations and shares, against what happens to the same requests.

mod common;

use common::{Machine, at_us, best_effort, critical, us};
use plimsoll_base::{IoHead, IoId, Rng, Span, Time};
use plimsoll_cores::{Allotment, CoresConfig, PolicyConfig};
use plimsoll_stack::{Offered, OwnTerms, Terms};
use std::collections::BTreeMap;

const MCLOCK: PolicyConfig = PolicyConfig::Mclock;
const CAKE: PolicyConfig = PolicyConfig::Cake { interval: Span::from_millis(20) };

/// A tenant's requests.
#[derive(Clone, Copy)]
enum Load {
    /// Always so many of it in the pool.
    Closed(usize),
    /// So many at once, at random times, this far apart on average.
    Open(u64, Span),
}

fn allotted(terms: Terms, reservation: u64, limit: u64) -> Terms {
    Terms { own: OwnTerms::of(&Allotment { cores: 0, reservation, limit }), ..terms }
}

/// By tenant, in percent of the mean wait: the mean error of the forecasts of their requests' waits, and the mean forecast. Four cores, requests
/// of 50 to 150 us, four seconds of which the first isn't judged.
fn errors(policy: PolicyConfig, tenants: &[(Terms, u64, Load)]) -> Vec<(u64, u64)> {
    let mut rng = Rng::new(3, "service");
    let mut m = Machine::new(CoresConfig { policy, ..CoresConfig::new(4) }, move |_, _| us(50 + rng.below(101)));
    for (tenant, (terms, ..)) in (1..).zip(tenants) {
        m.set_tenant(tenant, Some(terms.clone()));
    }
    let mut forecasts: BTreeMap<IoId, Span> = BTreeMap::new();
    let mut ask = |m: &mut Machine, tenant: usize| {
        let head: IoHead = m.head(tenant as u16 + 1, tenants[tenant].1);
        let wait = m.stack.forecast(m.now, &head).wait;
        let Offered::Accepted(id) = m.offer_head(head) else { panic!("it has no deadline") };
        forecasts.insert(id, wait);
    };
    let mut bursts: Vec<Time> = vec![Time::ZERO; tenants.len()];
    let (mut seen, mut gaps) = (0, Rng::new(4, "gaps"));
    for (tenant, (.., load)) in tenants.iter().enumerate() {
        if let Load::Closed(n) = load {
            (0..*n).for_each(|_| ask(&mut m, tenant));
        }
    }
    while m.now < at_us(4_000_000) {
        for (tenant, (.., load)) in tenants.iter().enumerate() {
            if let Load::Open(n, apart) = load
                && bursts[tenant] <= m.now
            {
                bursts[tenant] = m.now + Span::from_nanos((apart.as_nanos() as f64 * gaps.exp1()) as u64 + 1);
                (0..*n).for_each(|_| ask(&mut m, tenant));
            }
        }
        let next_burst = bursts.iter().filter(|at| **at > m.now).min().copied().unwrap_or(Time::NEVER);
        if m.next_at() <= next_burst {
            m.step()
        } else {
            m.now = next_burst
        }
        for i in seen..m.ended.len() {
            let tenant = usize::from(m.ended[i].1.io.tenant.0) - 1;
            if matches!(tenants[tenant].2, Load::Closed(_)) {
                ask(&mut m, tenant);
            }
        }
        seen = m.ended.len();
    }
    let judged = |tenant: usize| {
        let (mut error, mut forecast, mut waited) = (0, 0, 0);
        for (_, c) in m.ended.iter().filter(|(_, c)| usize::from(c.io.tenant.0) == tenant + 1) {
            if c.io.arrived_at >= at_us(1_000_000) {
                let (said, was) = (forecasts[&c.io.id].as_nanos(), c.dispatched_at.since(c.io.arrived_at).as_nanos());
                (error, forecast, waited) = (error + said.abs_diff(was), forecast + said, waited + was);
            }
        }
        (error * 100 / waited, forecast * 100 / waited)
    };
    (0..tenants.len()).map(judged).collect()
}

fn check(name: &str, policy: PolicyConfig, tenants: &[(Terms, u64, Load)], most: u64) {
    let errors = errors(policy, tenants);
    assert!(
        errors.iter().all(|e| e.0 <= most),
        "{name}: error and forecast in percent of the wait, by tenant: {errors:?}"
    );
}

#[test]
fn mclocks_forecasts_follow_weights() {
    let loads = [(800, 40), (100, 40), (100, 4)];
    let tenants = loads.map(|(weight, n)| (best_effort(weight), 4096, Load::Closed(n)));
    check("weights", MCLOCK, &tenants, 6);
}

#[test]
fn mclocks_forecasts_follow_reservations_and_limits() {
    let tenants = [
        (allotted(best_effort(10), 10_000, 0), 4096, Load::Closed(16)),
        (allotted(best_effort(1000), 0, 0), 4096, Load::Closed(64)),
        (allotted(best_effort(1000), 0, 4000), 4096, Load::Closed(16)),
    ];
    check("reservations", MCLOCK, &tenants, 6);
}

#[test]
fn mclocks_forecasts_follow_bursts() {
    let tenants = [
        (best_effort(900), 4096, Load::Open(200, Span::from_millis(30))),
        (best_effort(100), 4096, Load::Open(200, Span::from_millis(40))),
        (best_effort(100), 4096, Load::Closed(32)),
    ];
    check("bursts", MCLOCK, &tenants, 40);
}

#[test]
fn cakes_forecasts_follow_weights() {
    let loads = [(800, 40), (100, 40), (100, 4)];
    let tenants = loads.map(|(weight, n)| (best_effort(weight), 4096, Load::Closed(n)));
    check("Cake, weights", CAKE, &tenants, 6);
}

#[test]
fn cakes_forecasts_follow_shares_and_reserved_cores() {
    for bound_us in [400, 1500] {
        let tenants = [
            (critical(9900, bound_us), 4096, Load::Closed(16)),
            (best_effort(400), 65_536, Load::Closed(32)),
            (best_effort(100), 4096, Load::Closed(32)),
        ];
        check("Cake, shares", CAKE, &tenants, 10);
    }
}

#[test]
fn cakes_forecasts_follow_bursts() {
    let tenants = [
        (best_effort(900), 4096, Load::Open(200, Span::from_millis(30))),
        (best_effort(100), 16_384, Load::Open(200, Span::from_millis(40))),
        (best_effort(100), 4096, Load::Closed(32)),
    ];
    check("Cake, bursts", CAKE, &tenants, 35);
}

#[test]
fn forecasts_know_of_those_that_come_meanwhile() {
    for (name, policy) in [("mclock", MCLOCK), ("Cake", CAKE)] {
        let tenants = [
            (best_effort(900), 4096, Load::Open(1, us(50))),
            (best_effort(100), 4096, Load::Closed(32)),
            (best_effort(100), 4096, Load::Open(1, us(200))),
        ];
        check(&format!("{name}, steady"), policy, &tenants, 50);
    }
}
