//! Promises over many requests: "p99 within d" as a sliding budget of slow requests.
//!
//! A deadline by itself refuses every read that would miss it. A tenant that was promised a percentile may have some slow
//! ones, and would rather have them served than refused: as long as its budget lasts, a read that would be late is
//! accepted after all.

use plimsoll_base::{Completion, Io, IoHead, Op, Span, TenantId, Time};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports, Terms};
use std::collections::BTreeMap;

/// A window in so many parts; the oldest part goes as a whole.
const PARTS: usize = 16;

/// How many of a tenant's last reads may be slow.
#[derive(Clone, Debug)]
pub struct SlowBudget {
    slow_permyriad: u64,
    part_len: u64,
    /// Reads and slow reads of each part.
    parts: [(u64, u64); PARTS],
    at: usize,
}

impl SlowBudget {
    /// `percentile_bp` hundredths of a percent (9900 is p99) of each `window` reads must be in time.
    ///
    /// # Panics
    /// If the percentile isn't within 1..=9999 or the window is zero.
    pub fn new(percentile_bp: u16, window: u64) -> SlowBudget {
        assert!((1..=9999).contains(&percentile_bp) && window > 0, "a share of some reads");
        let slow_permyriad = 10_000 - u64::from(percentile_bp);
        SlowBudget { slow_permyriad, part_len: window.div_ceil(PARTS as u64), parts: [(0, 0); PARTS], at: 0 }
    }

    fn promises_as(&self, other: &SlowBudget) -> bool {
        (self.slow_permyriad, self.part_len) == (other.slow_permyriad, other.part_len)
    }

    /// A read ended.
    pub fn ended(&mut self, slow: bool) {
        if self.parts[self.at].0 == self.part_len {
            self.at = (self.at + 1) % PARTS;
            self.parts[self.at] = (0, 0);
        }
        self.parts[self.at].0 += 1;
        self.parts[self.at].1 += u64::from(slow);
    }

    /// Reads in the window, and those of them that were slow.
    pub fn spent(&self) -> (u64, u64) {
        self.parts.iter().fold((0, 0), |a, p| (a.0 + p.0, a.1 + p.1))
    }

    /// May one more be slow, with `accepted` already accepted to be?
    pub fn allows(&self, accepted: u64) -> bool {
        let (reads, slow) = self.spent();
        (slow + accepted + 1) * 10_000 <= (reads + 1) * self.slow_permyriad
    }
}

struct Tenant {
    budget: SlowBudget,
    /// Reads under way that were accepted though expected late.
    late: u64,
    /// All that ever were.
    let_in: u64,
}

/// A tenant's budget as seen from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BudgetView {
    /// Whose.
    pub tenant: TenantId,
    /// Reads that its window holds.
    pub reads: u64,
    /// Those of them that were slow.
    pub slow: u64,
    /// Reads accepted since the start though they were expected late.
    pub let_in: u64,
}

/// The topmost layer of a pool whose tenants have percentile budgets.
pub struct Budgets {
    tenants: BTreeMap<TenantId, Tenant>,
    failover_hop: Span,
}

impl Budgets {
    /// Nobody has one yet. `failover_hop` is the pool's.
    pub fn new(failover_hop: Span) -> Budgets {
        Budgets { tenants: BTreeMap::new(), failover_hop }
    }

    /// Gives a tenant a budget, or another one.
    pub fn set(&mut self, tenant: TenantId, budget: SlowBudget) {
        let (late, let_in) = self.tenants.get(&tenant).map_or((0, 0), |t| (t.late, t.let_in));
        self.tenants.insert(tenant, Tenant { budget, late, let_in });
    }

    /// The budgets as they are now.
    pub fn views(&self) -> Vec<BudgetView> {
        let view = |(tenant, t): (&TenantId, &Tenant)| {
            let (reads, slow) = t.budget.spent();
            BudgetView { tenant: *tenant, reads, slow, let_in: t.let_in }
        };
        self.tenants.iter().map(view).collect()
    }

    fn is_late(&self, at: Time, head: &IoHead, f: &Forecast) -> bool {
        head.may_be_refused() && !f.never_refused && at + f.total() > head.deadline + self.failover_hop
    }
}

/// What a layer notes in a request's tag while it's below: it was let in on the budget.
const ON_BUDGET: u64 = 1 << 63;

impl Layer for Budgets {
    fn name(&self) -> &'static str {
        "budgets"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let f = below.ask(0, at, head);
        match self.tenants.get(&head.tenant) {
            Some(t) if self.is_late(at, head, &f) && t.budget.allows(t.late) => {
                // Accepted on the budget: as if it were just in time.
                let most = (head.deadline + self.failover_hop).since(at);
                let wait = f.wait.min(most);
                Forecast { wait, service: most - wait, ..f }
            }
            _ => f,
        }
    }

    fn submit(&mut self, _now: Time, mut io: Io, out: &mut Actions) {
        if io.may_be_refused()
            && io.expected_at == io.deadline + self.failover_hop
            && let Some(t) = self.tenants.get_mut(&io.tenant)
        {
            t.late += 1;
            t.let_in += 1;
            io.head.tag |= ON_BUDGET;
            // It was let in knowing that: nobody below gives it back for it.
            io.head.deadline = Time::NEVER;
        }
        out.submit(0, io);
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        let on_budget = c.io.tag & ON_BUDGET != 0;
        c.io.head.tag &= !ON_BUDGET;
        if on_budget {
            c.io.head.deadline = Time::from_nanos(c.io.expected_at.as_nanos() - self.failover_hop.as_nanos());
        }
        if c.io.op == Op::Read
            && c.io.deadline.is_set()
            && c.outcome.is_done()
            && let Some(t) = self.tenants.get_mut(&c.io.tenant)
        {
            // A budget that was taken away and given again knows nothing of those before.
            t.late = t.late.saturating_sub(u64::from(on_budget));
            t.budget.ended(now > c.io.deadline + self.failover_hop);
        } else if on_budget && let Some(t) = self.tenants.get_mut(&c.io.tenant) {
            t.late = t.late.saturating_sub(1);
        }
        out.complete(c);
    }

    fn tenant(&mut self, _now: Time, tenant: TenantId, terms: Option<&Terms>, _out: &mut Actions) {
        match terms.and_then(|t| t.budget) {
            Some((percentile_bp, window)) => {
                let budget = SlowBudget::new(percentile_bp, u64::from(window));
                if self.tenants.get(&tenant).is_none_or(|t| !t.budget.promises_as(&budget)) {
                    self.set(tenant, budget);
                }
            }
            None => {
                self.tenants.remove(&tenant);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.tenants.values().all(|t| t.late == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Class, Data, Outcome, VolumeKey};
    use plimsoll_stack::{Offered, Stack, StackConfig, Target};

    #[test]
    fn a_budget_slides() {
        let mut b = SlowBudget::new(9000, 160);
        assert!(!b.allows(0), "nothing was in time yet");
        (0..160).for_each(|_| b.ended(false));
        assert!(b.allows(0) && b.allows(14) && !b.allows(16), "a tenth of 160");
        (0..16).for_each(|_| b.ended(true));
        assert!(!b.allows(0));
        (0..160).for_each(|_| b.ended(false));
        assert!(b.allows(0), "the slow ones have slid out");
    }

    /// A layer that says a wait, and a device that takes it.
    struct Says(Span);
    impl Layer for Says {
        fn name(&self) -> &'static str {
            "says"
        }
        fn offer(&self, below: &[Offer]) -> Offer {
            below[0]
        }
        fn forecast(&self, _: Time, _: &IoHead, below: Ports<'_>) -> Forecast {
            below.serve(self.0, Span::ZERO, plimsoll_base::Confidence::CERTAIN)
        }
        fn submit(&mut self, _: Time, io: Io, out: &mut Actions) {
            out.submit(0, io);
        }
        fn is_idle(&self) -> bool {
            true
        }
    }

    #[test]
    fn terms_set_a_budget_and_takes_it_away() {
        let mut s = Stack::new(StackConfig::default(), vec![]);
        s.push(Box::new(Budgets::new(Span::ZERO)), vec![]);
        let class = Class::BestEffort { weight: 100 };
        let terms = |budget| Terms { budget, ..Terms::of(class.clone(), 1) };
        let set = |s: &mut Stack, budget| s.set_tenant(Time::ZERO, TenantId(7), Some(&terms(budget)));
        let views = |s: &Stack| s.layer::<Budgets>().expect("it's there").views();
        set(&mut s, Some((9900, 1600)));
        s.with_layer(Time::ZERO, |b: &mut Budgets, _| {
            b.tenants.get_mut(&TenantId(7)).expect("just set").budget.ended(true);
        });
        set(&mut s, Some((9900, 1600)));
        let spent = BudgetView { tenant: TenantId(7), reads: 1, slow: 1, let_in: 0 };
        assert_eq!(views(&s), [spent], "the same promise again spends nothing back");
        set(&mut s, Some((9000, 1600)));
        assert_eq!(views(&s)[0].slow, 0);
        set(&mut s, None);
        assert!(views(&s).is_empty());
        set(&mut s, Some((9000, 1600)));
        s.set_tenant(Time::ZERO, TenantId(7), None);
        assert!(views(&s).is_empty(), "it went, and its budget with it");
    }

    #[test]
    fn a_late_read_is_accepted_while_the_budget_lasts() {
        let offer =
            Offer { size_bytes: 1 << 30, block_bytes: 512, io_bytes_max: 1 << 20, atomic_bytes: 512, queue_max: 64 };
        let config = StackConfig::default();
        let mut s = Stack::new(config, vec![offer]);
        s.push(Box::new(Budgets::new(config.failover_hop)), vec![Target::Node(1)]);
        s.push(Box::new(Says(Span::from_millis(30))), vec![Target::Device(0)]);
        s.start(Time::ZERO);
        s.with_layer(Time::ZERO, |b: &mut Budgets, _| b.set(TenantId(1), SlowBudget::new(9000, 160)));
        let mut now = Time::ZERO;
        let (mut done, mut late, mut busy) = (0, 0, 0);
        for i in 0..1000u64 {
            // Nine of ten have time enough.
            let deadline = if i % 3 == 0 { 20 } else { 100 };
            let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(1), 0, 512, now);
            head.deadline = now + Span::from_millis(deadline);
            match s.offer(now, Io::new(head, Data::Absent)) {
                Offered::Busy(_) => busy += 1,
                Offered::Accepted(_) => {
                    now += Span::from_millis(30);
                    let (d, io) = s.next_device_io().expect("sent at once");
                    s.device_done(now, d, Completion { io, outcome: Outcome::Done, dispatched_at: now });
                    let c = s.next_done().expect("ended");
                    assert!(c.io.deadline.is_set() && c.io.tag & ON_BUDGET == 0, "as it came");
                    done += 1;
                    late += u64::from(now > c.io.deadline);
                }
            }
        }
        assert!(busy > 200 && late > 0, "{busy} {late}");
        assert!(late * 10 <= done + 10, "at most a tenth is late: {late} of {done}");
        assert!(s.is_idle());
    }
}
