//! Admission: which reads with a deadline are accepted, beyond the forecast's own verdict. The topmost layer of a pool.
//!
//! The stack refuses a read whose forecast is late. This layer changes the forecast in three cases:
//!
//! * A read that is forecast in time and yet is too likely late gets the [`Room`] on top, if the pool has one. Now and then such a read
//!   is accepted all the same, as the room could otherwise refuse every read and never learn better.
//! * While nothing is known of the device, a pool with room accepts a read only if no other read is in flight. The sum of unknown times
//!   is no forecast.
//! * A tenant whose deadline is of a percentile has late reads accepted while its [`SlowBudget`] lasts.

use crate::budgets::SlowBudget;
use crate::room::{Room, RoomConfig, RoomView, Tolerance};
use plimsoll_base::{Completion, Confidence, Io, IoFlags, IoHead, Op, Outcome, Span, TenantId, Time};
use plimsoll_stack::layer::CHECKED_MAX;
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports, Terms};
use serde::{Deserialize, Serialize};
use slab::Slab;
use std::collections::BTreeMap;

/// Settings of a pool's admission.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdmissionConfig {
    /// The room that is left for errors of forecasts; `None`: a read is accepted by its forecast alone, as published.
    pub room: Option<RoomConfig>,
}

/// A tenant's budget as seen from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BudgetView {
    /// The tenant.
    pub tenant: TenantId,
    /// Reads that its window holds.
    pub reads: u64,
    /// Those of them that were slow.
    pub slow: u64,
    /// Reads accepted since the start though they were expected late.
    pub let_in: u64,
}

/// A tenant's tolerance as seen from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToleranceView {
    /// The tenant.
    pub tenant: TenantId,
    /// The share of misses that is aimed at, in hundredths of a percent.
    pub miss_permyriad: u64,
    /// The largest chance to be late with which a read is accepted now, in millionths.
    pub chance_ppm: u64,
    /// Reads refused since the start though they were forecast in time.
    pub refused: u64,
}

#[derive(Default)]
struct Tenant {
    /// Its deadline's percentile, if it is of one.
    budget: Option<SlowBudget>,
    /// `None` until its first read with a deadline has ended.
    tolerance: Option<Tolerance>,
    /// Reads under way that were accepted though expected late.
    late: u64,
    /// All that ever were.
    let_in: u64,
    /// Reads refused for the room.
    refused: u64,
    in_time: InTime,
    /// Time at which a read of it with a deadline was last accepted.
    accepted_at: Time,
    /// Doublings of [`PROBE_AFTER`].
    doubled: u32,
}

impl Tenant {
    /// Passes a read whatever its chance: nothing was accepted for long, or too much refused of what has ample time.
    fn must_pass(&self, at: Time, is_ample: bool, probe_after: Span) -> bool {
        at.since(self.accepted_at) >= (probe_after * (1 << self.doubled))
            || (is_ample && self.in_time.are_most_refused())
    }

    fn may_let_in(&self) -> bool {
        self.budget.as_ref().is_some_and(|b| b.allows(self.late))
    }

    fn tolerance(&self, config: RoomConfig) -> Tolerance {
        let half_of_budget = self.budget.as_ref().map(|b| (b.slow_permyriad() / 2).max(1) as u16);
        self.tolerance.unwrap_or_else(|| Tolerance::new(half_of_budget.unwrap_or(config.miss_permyriad)))
    }
}

/// A read under way.
struct Read {
    /// As it came.
    tag: u64,
    entered_at: Time,
    deadline: Time,
    /// `None` if it was let in on a budget: then it is the budget's, not the forecast's.
    forecast: Option<Span>,
    /// Accepted before anything was known of the device.
    is_blind: bool,
}

/// Reads that were forecast in time lately.
#[derive(Default)]
struct InTime {
    all: u32,
    refused: u32,
}

/// Reads beyond which older ones weigh half.
const IN_TIME_MAX: u32 = 256;

impl InTime {
    fn count(&mut self, refused: bool) {
        self.all += 1;
        self.refused += u32::from(refused);
        if self.all >= IN_TIME_MAX {
            (self.all, self.refused) = (self.all / 2, self.refused / 2);
        }
    }

    /// True if the room has refused more than three quarters of them.
    fn are_most_refused(&self) -> bool {
        4 * self.refused > 3 * self.all
    }
}

/// A read whose deadline leaves this many tenths of its forecast is refused for its chance only while at most three quarters of the
/// reads that are forecast in time are: errors that large are stalls of the device or of the host, and strike whoever waits or not.
const AMPLE_TENTHS: u64 = 25;

/// While no read of a tenant with a deadline is accepted for so long, the next one is whatever its chance, or the room could refuse all
/// and so never learn better. Doubles with each read that is late.
const PROBE_AFTER: Span = Span::from_secs(1);
/// The same while the room still guesses.
const PROBE_AFTER_AT_START: Span = Span::from_millis(100);
/// Doublings at most: 64 s.
const PROBE_DOUBLINGS: u32 = 6;

/// See the module's documentation.
pub struct Admission {
    config: AdmissionConfig,
    failover_hop: Span,
    tenants: BTreeMap<TenantId, Tenant>,
    reads: Slab<Read>,
    /// Number of `reads` that are blind.
    blind: u32,
    room: Room,
}

/// The verdict over a read.
enum Verdict {
    /// As it was forecast: accepted if that is in time.
    Forecast,
    /// Accepted though it is forecast late.
    LetIn,
    /// Refused though it is forecast in time: it ends within this time only as surely as it must.
    Risky(Span),
}

impl Admission {
    /// Nothing is known yet. `failover_hop` is the pool's.
    pub fn new(config: AdmissionConfig, failover_hop: Span) -> Admission {
        Admission {
            config,
            failover_hop,
            tenants: BTreeMap::new(),
            reads: Slab::new(),
            blind: 0,
            room: Room::default(),
        }
    }

    /// The budgets as they are now.
    pub fn budgets(&self) -> Vec<BudgetView> {
        let view = |(tenant, t): (&TenantId, &Tenant)| {
            let (reads, slow) = t.budget.as_ref()?.spent();
            Some(BudgetView { tenant: *tenant, reads, slow, let_in: t.let_in })
        };
        self.tenants.iter().filter_map(view).collect()
    }

    /// The tolerances as they are now, of tenants that had reads with a deadline.
    pub fn tolerances(&self) -> Vec<ToleranceView> {
        let view = |(tenant, t): (&TenantId, &Tenant)| {
            let tolerance = t.tolerance?;
            let (miss_permyriad, chance_ppm) = (tolerance.miss_permyriad(), tolerance.chance_ppm());
            Some(ToleranceView { tenant: *tenant, miss_permyriad, chance_ppm, refused: t.refused })
        };
        self.tenants.iter().filter_map(view).collect()
    }

    /// The errors of forecasts that it has learned; empty without a room.
    pub fn room(&self) -> Vec<RoomView> {
        self.room.views()
    }

    fn verdict(&self, at: Time, head: &IoHead, f: &Forecast) -> Verdict {
        if head.op != Op::Read || !head.deadline.is_set() || f.never_refused {
            return Verdict::Forecast;
        }
        let tenant = self.tenants.get(&head.tenant);
        let may_let_in = || head.may_be_refused() && tenant.is_some_and(Tenant::may_let_in);
        if at + f.total() > head.deadline + self.failover_hop {
            return if may_let_in() { Verdict::LetIn } else { Verdict::Forecast };
        }
        let Some(config) = self.config.room else { return Verdict::Forecast };
        // Until the first reads have ended. A read that was priced at nothing keeps that price while it waits.
        let knows_nothing = f.confidence == Confidence::NONE && !self.room.is_learning();
        if self.blind > 0 || (knows_nothing && !self.reads.is_empty()) {
            return Verdict::Risky(Span::ZERO);
        }
        let left = head.deadline.since(at);
        let is_ample = left.as_nanos() >= f.total().as_nanos().saturating_mul(AMPLE_TENTHS) / 10;
        let probe_after = if self.room.is_guessing() { PROBE_AFTER_AT_START } else { PROBE_AFTER };
        let Some(tenant) = tenant.filter(|t| !t.must_pass(at, is_ample, probe_after)) else { return Verdict::Forecast };
        let tolerable = tenant.tolerance(config).chance_ppm();
        if self.room.chance_ppm(f.total(), left) <= tolerable || may_let_in() {
            return Verdict::Forecast;
        }
        Verdict::Risky(self.room.within(f.total(), tolerable))
    }

    fn read_ended(&mut self, now: Time, read: &Read, head: &IoHead, outcome: Outcome) {
        if head.flags.has(IoFlags::LATE) {
            return; // it waits, and nothing was promised to it
        }
        let withdrawn = matches!(outcome, Outcome::Busy { .. });
        let judged = outcome.is_done() || withdrawn;
        if judged
            && self.config.room.is_some()
            && let Some(forecast) = read.forecast
        {
            // One that was given back is known only to have been late.
            let ended_at = if withdrawn { now.max(read.deadline + Span::from_nanos(1)) } else { now };
            self.room.note(now, forecast, ended_at.since(read.entered_at));
        }
        let let_in = read.forecast.is_none();
        if !read.deadline.is_set() {
            return;
        }
        // Only a tenant with a budget is known before its first read.
        let t = match self.config.room {
            Some(_) => self.tenants.entry(head.tenant).or_default(),
            None => match self.tenants.get_mut(&head.tenant) {
                Some(t) => t,
                None => return,
            },
        };
        // A budget that was taken away and given again knows nothing of those before.
        t.late = t.late.saturating_sub(u64::from(let_in));
        if let Some(budget) = t.budget.as_mut().filter(|_| outcome.is_done()) {
            budget.ended(now > read.deadline + self.failover_hop);
        }
        let broken = withdrawn || now > read.deadline;
        if let Some(config) = self.config.room.filter(|_| judged && !let_in && self.room.is_learning()) {
            let mut tolerance = t.tolerance(config);
            tolerance.ended(broken);
            t.tolerance = Some(tolerance);
            t.doubled = if broken { (t.doubled + 1).min(PROBE_DOUBLINGS) } else { t.doubled.saturating_sub(1) };
        }
    }
}

impl Layer for Admission {
    fn name(&self) -> &'static str {
        "admission"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let f = below.ask(0, at, head);
        match self.verdict(at, head, &f) {
            Verdict::Forecast => f,
            Verdict::LetIn => {
                // As if it were just in time.
                let most = (head.deadline + self.failover_hop).since(at);
                let wait = f.wait.min(most);
                Forecast { wait, service: most - wait, ..f }
            }
            Verdict::Risky(within) => {
                let least = (head.deadline + self.failover_hop).since(at) + Span::from_nanos(1);
                below.after(within.max(least).saturating_sub(f.total()), f)
            }
        }
    }

    fn submit(&mut self, now: Time, mut io: Io, out: &mut Actions) {
        if io.op == Op::Read {
            let promised = io.deadline.is_set();
            let mut forecast = Some(io.expected_at.since(now));
            if promised
                && !io.flags.has(IoFlags::LATE)
                && let Some(t) = self.tenants.get_mut(&io.tenant)
            {
                t.accepted_at = now;
                let is_expected_late = io.expected_at == io.deadline + self.failover_hop;
                if io.may_be_refused() && is_expected_late && t.budget.is_some() {
                    t.late += 1;
                    t.let_in += 1;
                    forecast = None;
                } else {
                    t.in_time.count(false);
                }
            }
            let is_blind = forecast == Some(Span::ZERO) && self.config.room.is_some() && !self.room.is_learning();
            self.blind += u32::from(is_blind);
            let read = Read { tag: io.tag, entered_at: now, deadline: io.deadline, forecast, is_blind };
            if forecast.is_none() {
                // It was let in knowing that: nobody below gives it back for it.
                io.head.deadline = Time::NEVER;
            }
            io.head.tag = self.reads.insert(read) as u64;
        }
        out.submit(0, io);
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        if c.io.op == Op::Read {
            let read = self.reads.remove(c.io.tag as usize);
            self.blind -= u32::from(read.is_blind);
            self.read_ended(now, &read, &c.io.head, c.outcome);
            (c.io.head.tag, c.io.head.deadline) = (read.tag, read.deadline);
        }
        out.complete(c);
    }

    fn refused(&mut self, _now: Time, head: &IoHead, forecast: &Forecast, _out: &mut Actions) {
        // The room is the part that this layer itself has added.
        if forecast.parts[0] > Span::ZERO
            && let Some(t) = self.tenants.get_mut(&head.tenant)
        {
            t.refused += 1;
            t.in_time.count(true);
        }
    }

    fn tenant(&mut self, _now: Time, tenant: TenantId, terms: Option<&Terms>, _out: &mut Actions) {
        let Some(terms) = terms else {
            self.tenants.remove(&tenant);
            return;
        };
        let budget = terms.budget.map(|(percentile_bp, window)| SlowBudget::new(percentile_bp, u64::from(window)));
        let t = self.tenants.entry(tenant).or_default();
        let same = match (&t.budget, &budget) {
            (Some(a), Some(b)) => a.promises_as(b),
            (None, None) => true,
            _ => false,
        };
        if !same {
            (t.budget, t.tolerance) = (budget, None);
        }
    }

    fn is_idle(&self) -> bool {
        self.reads.is_empty()
    }

    fn check(&self) {
        if self.reads.len() > CHECKED_MAX {
            return;
        }
        let count = |is: fn(&Read) -> bool| self.reads.iter().filter(|(_, r)| is(r)).count() as u64;
        assert_eq!(u64::from(self.blind), count(|r| r.is_blind), "the number of blind reads is wrong");
        let late: u64 = self.tenants.values().map(|t| t.late).sum();
        assert!(late <= count(|r| r.forecast.is_none()), "a budget has reads that aren't under way");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Class, Data, Outcome, VolumeKey};
    use plimsoll_stack::{Offered, Stack, StackConfig, Target};

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
        s.push(Box::new(Admission::new(AdmissionConfig::default(), Span::ZERO)), vec![]);
        let class = Class::BestEffort { weight: 100 };
        let terms = |budget| Terms { budget, ..Terms::of(class.clone(), 1) };
        let set = |s: &mut Stack, budget| s.set_tenant(Time::ZERO, TenantId(7), Some(&terms(budget)));
        let views = |s: &Stack| s.layer::<Admission>().expect("it's there").budgets();
        set(&mut s, Some((9900, 1600)));
        s.with_layer(Time::ZERO, |a: &mut Admission, _| {
            let t = a.tenants.get_mut(&TenantId(7)).expect("just set");
            t.budget.as_mut().expect("just set").ended(true);
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
        s.push(Box::new(Admission::new(AdmissionConfig::default(), config.failover_hop)), vec![Target::Node(1)]);
        s.push(Box::new(Says(Span::from_millis(30))), vec![Target::Device(0)]);
        s.start(Time::ZERO);
        let terms = Terms { budget: Some((9000, 160)), ..Terms::of(Class::BestEffort { weight: 1 }, 1) };
        s.set_tenant(Time::ZERO, TenantId(1), Some(&terms));
        let mut now = Time::ZERO;
        let (mut done, mut late, mut busy) = (0, 0, 0);
        for i in 0..1000u64 {
            // Nine of ten have time enough.
            let deadline = if i % 3 == 0 { 20 } else { 100 };
            let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(1), 0, 512, now);
            head.deadline = now + Span::from_millis(deadline);
            if i % 99 == 0 {
                // Late, of a client that waits: no budget is spent on it.
                head.flags = IoFlags::WAITS;
                let before = s.layer::<Admission>().expect("it's there").budgets();
                assert!(matches!(s.offer(now, Io::new(head, Data::Absent)), Offered::Accepted(_)));
                now += Span::from_millis(30);
                let (d, io) = s.next_device_io().expect("sent at once");
                s.device_done(now, d, Completion { io, outcome: Outcome::Done, dispatched_at: now });
                assert!(s.next_done().is_some_and(|c| c.io.flags.has(IoFlags::LATE) && c.io.deadline.is_set()));
                assert_eq!(s.layer::<Admission>().expect("it's there").budgets(), before);
                continue;
            }
            match s.offer(now, Io::new(head, Data::Absent)) {
                Offered::Busy(_) => busy += 1,
                Offered::Accepted(_) => {
                    now += Span::from_millis(30);
                    let (d, io) = s.next_device_io().expect("sent at once");
                    s.device_done(now, d, Completion { io, outcome: Outcome::Done, dispatched_at: now });
                    let c = s.next_done().expect("ended");
                    assert!(c.io.deadline.is_set(), "as it came");
                    done += 1;
                    late += u64::from(now > c.io.deadline);
                }
            }
        }
        assert!(busy > 200 && late > 0, "{busy} {late}");
        assert!(late * 10 <= done + 10, "at most a tenth is late: {late} of {done}");
        assert!(s.is_idle());
    }

    /// A device that takes between 5 and 15 ms where 10 are forecast, and reads that have 10 to 20 ms: by the forecast alone a
    /// quarter of them is late, with the room half a percent is, and most that had enough time are accepted. Where clients wait the same
    /// holds of those reads that would have been accepted.
    #[test]
    fn the_room_keeps_the_misses_of_accepted_reads_at_their_share() {
        let run = |room: Option<RoomConfig>, flags: IoFlags| {
            let offer = Offer {
                size_bytes: 1 << 30,
                block_bytes: 512,
                io_bytes_max: 1 << 20,
                atomic_bytes: 512,
                queue_max: 64,
            };
            let config = StackConfig { failover_hop: Span::ZERO, ..StackConfig::default() };
            let mut s = Stack::new(config, vec![offer]);
            s.push(Box::new(Admission::new(AdmissionConfig { room }, Span::ZERO)), vec![Target::Node(1)]);
            s.push(Box::new(Says(Span::from_millis(10))), vec![Target::Device(0)]);
            s.start(Time::ZERO);
            let mut rng = plimsoll_base::Rng::new(7, "room");
            let mut now = Time::ZERO;
            let (mut accepted, mut missed, mut in_time) = (0u64, 0u64, 0u64);
            for i in 0..40_000u64 {
                now += Span::from_millis(20);
                let took = Span::from_micros(5_000 + rng.below(10_000));
                let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(1), 0, 512, now);
                let within = Span::from_micros(10_000 + rng.below(10_000));
                (head.deadline, head.flags) = (now + within, flags);
                let judged = i >= 2_000;
                in_time += u64::from(judged && took <= within);
                if let Offered::Accepted(_) = s.offer(now, Io::new(head, Data::Absent)) {
                    let (d, io) = s.next_device_io().expect("sent at once");
                    now += took;
                    s.device_done(now, d, Completion { io, outcome: Outcome::Done, dispatched_at: now });
                    let c = s.next_done().expect("ended");
                    assert_eq!(c.io.deadline, head.deadline, "as it came");
                    let judged = judged && !c.io.flags.has(IoFlags::LATE);
                    accepted += u64::from(judged);
                    missed += u64::from(judged && now > head.deadline);
                }
            }
            assert!(s.is_idle());
            (missed as f64 / accepted as f64, accepted as f64 / in_time as f64)
        };
        for flags in [IoFlags::NONE, IoFlags::WAITS] {
            let (missed, _) = run(None, flags);
            assert!(missed > 0.1, "{missed}");
            let (missed, accepted) = run(Some(RoomConfig::DEFAULT), flags);
            assert!((0.002..0.008).contains(&missed) && accepted > 0.6, "{flags:?}: {missed} {accepted}");
        }
    }

    /// A host that stops one in twenty reads for long: no read would be sure enough. A quarter of those that have ample time is accepted,
    /// and soon after the stalls, most.
    #[test]
    fn stalls_refuse_most_reads_but_not_all_and_not_for_long() {
        let offer =
            Offer { size_bytes: 1 << 30, block_bytes: 512, io_bytes_max: 1 << 20, atomic_bytes: 512, queue_max: 64 };
        let mut s = Stack::new(StackConfig { failover_hop: Span::ZERO, ..StackConfig::default() }, vec![offer]);
        let config = AdmissionConfig { room: Some(RoomConfig::DEFAULT) };
        s.push(Box::new(Admission::new(config, Span::ZERO)), vec![Target::Node(1)]);
        s.push(Box::new(Says(Span::from_millis(6))), vec![Target::Device(0)]);
        s.start(Time::ZERO);
        let mut rng = plimsoll_base::Rng::new(3, "stalls");
        let mut now = Time::ZERO;
        let mut accepted = [0; 4];
        for i in 0..8_000 {
            now += Span::from_millis(4);
            let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(1), 0, 512, now);
            head.deadline = now + Span::from_millis(20);
            if let Offered::Accepted(_) = s.offer(now, Io::new(head, Data::Absent)) {
                accepted[i / 2_000] += 1;
                let stalled = i < 4_000 && rng.below(20) == 0;
                now += Span::from_millis(if stalled { 50 } else { 6 });
                let (d, io) = s.next_device_io().expect("sent at once");
                s.device_done(now, d, Completion { io, outcome: Outcome::Done, dispatched_at: now });
                s.next_done().expect("ended");
            }
        }
        assert!((450..900).contains(&accepted[1]), "a quarter, while it stalls: {accepted:?}");
        assert!(accepted[3] > 1500, "most, ten seconds after it: {accepted:?}");
    }

    /// A tenant all of whose reads are too likely late isn't refused for ever because another's are accepted.
    #[test]
    fn a_tenant_is_asked_again_whatever_others_get() {
        let offer =
            Offer { size_bytes: 1 << 30, block_bytes: 512, io_bytes_max: 1 << 20, atomic_bytes: 512, queue_max: 64 };
        let mut s = Stack::new(StackConfig { failover_hop: Span::ZERO, ..StackConfig::default() }, vec![offer]);
        let config = AdmissionConfig { room: Some(RoomConfig::DEFAULT) };
        s.push(Box::new(Admission::new(config, Span::ZERO)), vec![Target::Node(1)]);
        s.push(Box::new(Says(Span::from_millis(10))), vec![Target::Device(0)]);
        s.start(Time::ZERO);
        let mut rng = plimsoll_base::Rng::new(5, "two tenants");
        let mut now = Time::ZERO;
        let mut accepted = 0;
        for i in 0..6_000u64 {
            now += Span::from_millis(10);
            let (tenant, within) = if i % 2 == 0 { (1, 100) } else { (2, 12) };
            let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(tenant), 0, 512, now);
            head.deadline = now + Span::from_millis(within);
            if let Offered::Accepted(_) = s.offer(now, Io::new(head, Data::Absent)) {
                // A tenth takes 15 ms for half of the time.
                let slow = i < 3_000 && rng.below(10) == 0;
                now += Span::from_millis(if slow { 15 } else { 9 });
                let (d, io) = s.next_device_io().expect("sent at once");
                s.device_done(now, d, Completion { io, outcome: Outcome::Done, dispatched_at: now });
                s.next_done().expect("ended");
                accepted += u64::from(tenant == 2 && i >= 4_000);
            }
        }
        assert!(accepted > 5, "{accepted} of the last 1,000");
    }
}
