//! The bound on best effort's changes of the device (ours, beyond QWin).
//!
//! QWin gives best effort every core that the objectives don't need at the moment. The device may suffer from that load all the
//! same: its queue, its flushes and its garbage collection serve all tenants. So best effort's writes, zeroes, trims and flushes
//! are held to a *level*: their mean number in flight, in units. A write of 64 KiB is one unit, other writes are in proportion. A
//! level of 4 keeps four such writes in flight; a level of 1/4 keeps one in flight a quarter of the time. A flush, a trim or zeroes
//! are one unit, however long: they cost the device their time, not their range.
//!
//! * Each objective of each queue has a level of its own; the lowest one holds. A late request lowers its level by a sixteenth. A
//!   request in time raises it by a smaller step, if best effort uses the level. Both steps balance where the late requests are
//!   60 % of those that the objective allows.
//! * A late request lowers nothing if best effort had nothing in flight shortly before. The late requests that arrived within one
//!   [`ROUND`] halve a level at most: a stall of the device is one event.
//! * A new level begins at a quarter of a unit and grows quickly until a request is late.
//! * If no request with an objective was in flight for a second, the levels in force are doubled again and again until nothing is
//!   held. The next such request finds the learned levels.
//! * Learned levels also double with time. They double every 4 s while best effort uses its level and no request was late for 10 s.
//!   They double every minute while there is no request with an objective.
//! * Best effort always has a least pace ([`HOLD_UNIT`]): no request at the front of a queue is held longer than [`HOLD_MAX`].

use crate::status::BoundStatus;
use plimsoll_base::{IoHead, Objective, Op, Span, Time};

/// A level of one write of [`UNIT_BYTES`] in flight. Levels are so fine that one request in time raises the lowest one, too.
pub const UNIT: u64 = 1 << 32;
/// Bytes of a write that is one unit.
pub const UNIT_BYTES: u64 = 64 << 10;
/// The lowest level. At this level a request is held no longer than [`HOLD_UNIT`] allows.
pub const FLOOR: u64 = UNIT / 1024;
/// From this level on nothing is held.
pub const OPEN: u64 = 256 * UNIT;
/// Best effort's least pace, at any level: when all that was in flight has ended, the next request follows after this time for
/// each unit that ended last (64 units a second, 4 MiB of writes of 64 KiB), and at the latest after [`HOLD_MAX`].
pub const HOLD_UNIT: Span = Span::from_micros(15_625);
/// See [`HOLD_UNIT`].
pub const HOLD_MAX: Span = Span::from_millis(500);
/// Waiting requests that a forecast looks at; those behind them are taken to be like them.
const LOOKED_AT: usize = 16;

/// A late request lowers a level by this part.
const CUT: u64 = 16;
/// A request in time raises a new level, which no late one has lowered yet, by this part.
const GROW_NEW: u64 = 128;
/// Of a new level.
const FIRST: u64 = UNIT / 4;
/// The late requests of this time halve a level at most.
const ROUND: Span = Span::from_millis(50);
/// Share of the late requests that an objective allows, in thousandths, that is aimed at.
const AIM_PERMILLE: u64 = 600;
/// Time after a change of best effort in which it may still delay requests.
const AFTER: Span = Span::from_millis(100);
/// The most that was in flight is remembered for one to two of these.
const PEAK_EPOCH: Span = Span::from_millis(20);
/// No request of an objective inside for so long: nothing of the kind for [`IDLE_DOUBLES`] more doubles what is passed.
const IDLE: Span = Span::from_secs(1);
const IDLE_DOUBLES: Span = Span::from_millis(250);
/// Time in which a learned level doubles while there is none.
const FADES: Span = Span::from_secs(60);
/// None late for so long though best effort uses its level: levels double every [`CALM_DOUBLES`].
const CALM: Span = Span::from_secs(10);
const CALM_DOUBLES: Span = Span::from_secs(4);
/// Unused credit is saved up for so long.
const SAVED: Span = Span::from_millis(1);
/// Credit is kept in units of this fraction of [`UNIT`], times nanoseconds.
const CREDIT_SHIFT: u32 = 14;

/// Writes longer than this are passed on in pieces.
const WRITE_PIECE: u64 = 1 << 20;
/// The same of zeroes and trims; the piece is adapted to what it takes the device.
const RANGE_PIECE: u64 = 1 << 20;
const RANGE_PIECE_MIN: u64 = 256 << 10;
const RANGE_PIECE_MAX: u64 = plimsoll_stack::ranges::RANGE_BYTES;
const PIECE_SHORT: Span = Span::from_millis(1);
const PIECE_LONG: Span = Span::from_millis(4);

/// True if a best-effort request of this kind is bounded: a change or a flush.
pub fn is_bounded(head: &IoHead) -> bool {
    head.op.is_change() || head.op == Op::Flush
}

fn weight(op: Op, len: u64) -> u64 {
    match op {
        Op::Write => (UNIT / UNIT_BYTES * len).clamp(UNIT / 4, 64 * UNIT),
        _ => UNIT,
    }
}

/// The level of one objective.
#[derive(Clone, Copy, Debug)]
struct Level {
    value: u64,
    is_new: bool,
    /// Time at which the last round of cuts began; `round_from` is the level then.
    round_at: Option<Time>,
    round_from: u64,
}

impl Default for Level {
    fn default() -> Level {
        Level { value: FIRST, is_new: true, round_at: None, round_from: FIRST }
    }
}

impl Level {
    fn cut(&mut self, now: Time, arrived: Time, used: u64) {
        if self.round_at.is_none_or(|at| arrived >= at + ROUND) {
            // What isn't used says nothing of what the device stands.
            (self.round_at, self.round_from) = (Some(now), self.value.min(used.max(UNIT)));
        }
        self.is_new = false;
        let cut = self.value.min(self.round_from);
        self.value = (cut - cut / CUT).max(self.round_from / 2).max(FLOOR);
    }

    fn raise(&mut self, o: &Objective) {
        let all = 10_000 * 1_000;
        let aimed = u64::from(10_000 - o.percentile_bp.min(9_999)) * AIM_PERMILLE;
        // Levels are below 2^40, and a sixteenth of one times the aim below 2^60.
        let more = if self.is_new { self.value / GROW_NEW } else { self.value / CUT * aimed / (all - aimed) };
        self.value = (self.value + more.max(1)).min(OPEN);
    }
}

/// The bound: what best effort may have in flight, learned from the requests that are late.
#[derive(Default)]
pub struct WriteBound {
    /// By queue and objective.
    levels: Vec<Vec<Level>>,
    /// Doublings by which the levels are raised while no request of an objective is inside.
    doubled: u32,
    /// Requests of best effort in flight that are bounded: their weights, and when the last one left.
    in_flight: u64,
    left_at: Option<Time>,
    /// The next one follows this much later at the latest.
    hold: Span,
    /// The most in flight at once in this epoch and the one before it.
    peaks: [u64; 2],
    epoch_at: Time,
    /// Time below the level less time above it, times the difference; less than nothing is a debt.
    credit: i64,
    credit_at: Time,
    /// Time at which a request of an objective was last in flight. `late_at`: when one was last late. `grown_at`: until when
    /// growth with time is done.
    busy_at: Time,
    late_at: Time,
    grown_at: Time,
    cuts: u64,
    pieces: Pieces,
}

/// Lengths of the pieces that zeroes and trims are passed in.
struct Pieces {
    zeroes: u64,
    trims: u64,
}

impl Default for Pieces {
    fn default() -> Pieces {
        Pieces { zeroes: RANGE_PIECE, trims: RANGE_PIECE }
    }
}

fn fine(level: u64) -> i64 {
    (level >> CREDIT_SHIFT) as i64
}

fn ns(span: Span) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)
}

impl WriteBound {
    /// The lowest level, as it counts now; [`OPEN`] if nothing is held.
    pub fn level(&self) -> u64 {
        let learned = self.levels.iter().flatten().map(|l| l.value).min().unwrap_or(OPEN);
        (learned << self.doubled).min(OPEN)
    }

    /// The bound as it is now.
    pub fn status(&self) -> BoundStatus {
        let level = self.level();
        BoundStatus {
            in_flight_bytes: (level < OPEN).then_some(level / (UNIT / UNIT_BYTES)),
            is_least: level <= FLOOR,
            cuts: self.cuts,
        }
    }

    /// True if the objectives of queue `at` decide the level: they have the lowest level, and it holds something back.
    pub fn is_decided_by(&self, at: usize) -> bool {
        let learned = |levels: &Vec<Level>| levels.iter().map(|l| l.value).min().unwrap_or(OPEN);
        let lowest = self.levels.iter().map(learned).min().unwrap_or(OPEN);
        self.level() < OPEN && self.levels.get(at).map(learned) == Some(lowest)
    }

    /// Queue `at` has other objectives, or none, from now on.
    pub fn forget(&mut self, at: usize) {
        if let Some(levels) = self.levels.get_mut(at) {
            levels.clear();
        }
    }

    /// True if best effort can't have made a request late that arrived at `arrived`: it had nothing in flight, or its level was the lowest.
    pub fn is_blameless(&self, arrived: Time) -> bool {
        self.was_quiet(arrived) || self.level() <= FLOOR
    }

    /// True if no best-effort request was in flight that could have delayed a request that arrived at `arrived`.
    fn was_quiet(&self, arrived: Time) -> bool {
        self.in_flight == 0 && self.left_at.is_none_or(|left| left + AFTER < arrived)
    }

    /// Returns the time at which best effort's next bounded request may be passed on. [`Time::ZERO`] is now; [`Time::NEVER`] is
    /// when a request in flight has ended.
    pub fn may_pass_at(&self, now: Time) -> Time {
        let level = self.level();
        if level >= OPEN {
            return Time::ZERO;
        }
        if self.in_flight >= level {
            return Time::NEVER;
        }
        let credit = self.credit_at(now, level);
        if credit >= 0 {
            return Time::ZERO;
        }
        let gain = (fine(level) - fine(self.in_flight)).max(1);
        let mut at = now + Span::from_nanos(credit.unsigned_abs().div_ceil(gain.unsigned_abs()));
        if self.in_flight == 0 {
            at = at.min(self.left_at.unwrap_or(now) + self.hold);
        }
        if at > now { at } else { Time::ZERO }
    }

    /// The least time after which the next request follows one of this weight that has left nothing in flight.
    fn hold_after(weight: u64) -> Span {
        HOLD_UNIT.scale(weight, UNIT).min(HOLD_MAX)
    }

    /// Time for which the bound delays a request behind best effort's `waiting`, oldest first, beside what those take on `slots`
    /// slots, `takes` each. Each bounded one keeps the next from being passed, not only the first.
    pub fn delay_behind<'a>(
        &self,
        now: Time,
        waiting: impl ExactSizeIterator<Item = &'a IoHead>,
        takes: Span,
        slots: u32,
    ) -> Span {
        let (level, all) = (self.level(), waiting.len() as u64);
        if level >= OPEN || all == 0 {
            return Span::ZERO;
        }
        let counted = takes / u64::from(slots.max(1));
        let behind = |head: &IoHead| {
            let weight = weight(head.op, head.len);
            takes.scale(weight, level).min(takes + Self::hold_after(weight)).saturating_sub(counted)
        };
        let (mut bounded, mut looked_at, mut spaced) = (0u64, 0, Span::ZERO);
        let mut first = Span::ZERO;
        for head in waiting.take(LOOKED_AT) {
            if is_bounded(head) {
                if bounded == 0 {
                    first = self.may_pass_at(now).min(now + HOLD_MAX).since(now);
                } else {
                    spaced += behind(head);
                }
                bounded += 1;
            }
            looked_at += 1;
        }
        first + spaced.scale(all, looked_at)
    }

    fn credit_at(&self, now: Time, level: u64) -> i64 {
        let gain = fine(level) - fine(self.in_flight);
        let more = gain.saturating_mul(ns(now.since(self.credit_at)));
        let least = -fine(level).saturating_mul(ns(HOLD_MAX));
        self.credit.saturating_add(more).clamp(least, fine(level).saturating_mul(ns(SAVED)))
    }

    fn settle(&mut self, now: Time) {
        self.credit = self.credit_at(now, self.level());
        self.credit_at = now;
        if now.since(self.epoch_at) >= PEAK_EPOCH {
            (self.peaks, self.epoch_at) = ([self.in_flight, self.peaks[0]], now);
        }
    }

    /// A bounded request of best effort, or a piece of one, is passed on.
    pub fn passed(&mut self, now: Time, head: &IoHead) {
        self.settle(now);
        self.in_flight += weight(head.op, head.len);
        self.peaks[0] = self.peaks[0].max(self.in_flight);
    }

    /// One that was [`WriteBound::passed`] has ended, `took` later.
    pub fn left(&mut self, now: Time, head: &IoHead, took: Span) {
        self.settle(now);
        let weight = weight(head.op, head.len);
        debug_assert!(self.in_flight >= weight, "it wasn't passed");
        self.in_flight = self.in_flight.saturating_sub(weight);
        (self.left_at, self.hold) = (Some(now), Self::hold_after(weight));
        if let Some(piece) = self.pieces.of(head.op) {
            if took < PIECE_SHORT && head.len >= *piece {
                *piece = (*piece * 2).min(RANGE_PIECE_MAX);
            } else if took > PIECE_LONG && head.len >= *piece / 2 {
                // Those that come may all be half as long: the front cuts ranges, too.
                *piece = (*piece / 2).max(RANGE_PIECE_MIN);
            }
        }
    }

    /// The most bytes of such a request that are passed on at once.
    pub fn piece_bytes(&self, op: Op) -> u64 {
        match op {
            Op::Write => WRITE_PIECE,
            Op::WriteZeroes => self.pieces.zeroes,
            Op::Trim => self.pieces.trims,
            _ => u64::MAX,
        }
    }

    /// A request of latency-critical queue `at` has ended, `response` after it arrived.
    pub fn ended(&mut self, now: Time, at: usize, objectives: &[Objective], response: Span) {
        self.settle(now);
        self.busy_at = now;
        if self.levels.len() <= at {
            self.levels.resize_with(at + 1, Vec::new);
        }
        self.levels[at].resize(objectives.len(), Level::default());
        let arrived = now - response;
        let quiet = self.was_quiet(arrived);
        let (used, is_used) = (self.used(), self.is_used());
        for (level, o) in self.levels[at].iter_mut().zip(objectives) {
            if response > o.bound {
                self.late_at = now;
                if !quiet {
                    level.cut(now, arrived, used);
                    self.cuts += 1;
                }
            } else if is_used {
                // What isn't used needn't grow: it would say nothing of what the device stands.
                level.raise(o);
            }
        }
    }

    /// The most that was in flight lately.
    fn used(&self) -> u64 {
        self.peaks[0].max(self.peaks[1]).max(self.in_flight)
    }

    /// True if best effort uses its level: at least half of it, or its credit is spent.
    fn is_used(&self) -> bool {
        self.credit < 0 || self.used() >= self.level() / 2
    }

    /// A request of a latency-critical queue comes.
    pub fn came(&mut self, now: Time) {
        self.settle(now);
        (self.doubled, self.busy_at) = (0, now);
    }

    /// Lets levels grow with time. `is_busy`: a request of a latency-critical queue is inside.
    pub fn tick(&mut self, now: Time, is_busy: impl FnOnce() -> bool) {
        if self.level() >= OPEN {
            return;
        }
        self.settle(now);
        if is_busy() {
            self.busy_at = now;
        }
        let idle_at = self.busy_at + IDLE;
        let is_idle = idle_at <= now;
        let (since, every) = match is_idle {
            true => (idle_at, FADES),
            false if self.is_used() => (self.late_at + CALM, CALM_DOUBLES),
            false => (now, CALM_DOUBLES),
        };
        self.grown_at = self.grown_at.max(since);
        let times = now.since(self.grown_at).as_nanos() / every.as_nanos();
        for level in self.levels.iter_mut().flatten() {
            level.value = (level.value << times.min(20)).min(OPEN);
        }
        self.grown_at += every * times;
        if is_idle {
            self.doubled = (now.since(idle_at).as_nanos() / IDLE_DOUBLES.as_nanos()).min(20) as u32;
        }
    }
}

impl Pieces {
    fn of(&mut self, op: Op) -> Option<&mut u64> {
        match op {
            Op::WriteZeroes => Some(&mut self.zeroes),
            Op::Trim => Some(&mut self.trims),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Rng, TenantId, VolumeKey};
    use proptest::prelude::*;

    const P99: [Objective; 1] = [Objective { percentile_bp: 9900, bound: Span::from_millis(5) }];
    const LATE: Span = Span::from_millis(9);
    const KEPT: Span = Span::from_millis(1);

    fn at_us(us: u64) -> Time {
        Time::ZERO + Span::from_micros(us)
    }

    fn head(op: Op, len: u64) -> IoHead {
        IoHead::new(op, VolumeKey { id: 1, generation: 0 }, TenantId(2), 0, len, Time::ZERO)
    }

    fn write() -> IoHead {
        head(Op::Write, UNIT_BYTES)
    }

    /// Best effort, always with 16 writes to pass, each of which takes 1 ms: what is in flight, in order of their ends.
    #[derive(Default)]
    struct Writer {
        ends: std::collections::VecDeque<Time>,
        passed: u64,
    }

    impl Writer {
        fn step(&mut self, b: &mut WriteBound, now: Time) {
            while self.ends.front().is_some_and(|end| *end <= now) {
                self.ends.pop_front();
                b.left(now, &write(), Span::from_millis(1));
            }
            b.tick(now, || false);
            while self.ends.len() < 16 && b.may_pass_at(now) == Time::ZERO {
                b.passed(now, &write());
                self.ends.push_back(now + Span::from_millis(1));
                self.passed += 1;
            }
        }
    }

    /// A read behind `n` held writes waits for all their turns: what is forecast is within a quarter, and a turn, of what it takes.
    #[test]
    fn each_held_change_counts_in_the_forecast_behind_it() {
        for (level, takes_us) in
            [(UNIT / 64, 1000), (UNIT / 4, 1000), (UNIT, 1000), (4 * UNIT, 1000), (4 * UNIT, 20_000), (FLOOR, 50)]
        {
            let mut b =
                WriteBound { levels: vec![vec![Level { value: level, ..Level::default() }]], ..WriteBound::default() };
            let (takes, heads) = (Span::from_micros(takes_us), vec![write(); 12]);
            // As after a while of writing: one has just ended, and the credit is used up.
            let began = at_us(10_000_000);
            b.passed(began - takes, &write());
            b.left(began, &write(), takes);
            b.credit = 0;
            let slots = 16;
            let forecast = b.delay_behind(began, heads.iter(), takes, slots) + takes * 12 / 16;
            let (mut now, mut inside) = (began, std::collections::VecDeque::new());
            for head in &heads {
                loop {
                    let ends = inside.front().copied().unwrap_or(Time::NEVER);
                    let at = b.may_pass_at(now);
                    if at == Time::ZERO {
                        break;
                    }
                    now = at.min(ends);
                    if now == ends {
                        b.left(now, head, takes);
                        inside.pop_front();
                    }
                }
                b.passed(now, head);
                inside.push_back(now + takes);
            }
            let (actual, turn) = (now.since(began), takes + HOLD_UNIT.min(takes.scale(UNIT, level)));
            let near = actual.max(forecast).saturating_sub(actual.min(forecast));
            assert!(near <= actual / 4 + turn, "level {level}: forecast {forecast:?}, took {actual:?}");
        }
    }

    /// Of the requests with an objective, 4,000 a second, a share is late that grows with what best effort has in flight: the level
    /// settles where six of a thousand are, wherever that is, and opens when nobody is late any more.
    #[test]
    fn the_level_settles_where_the_aim_is() {
        for (late_at_one, aimed) in [(0.003, 2.0), (0.0015, 4.0), (0.06, 0.1)] {
            let (mut b, mut writer, mut rng) = (WriteBound::default(), Writer::default(), Rng::new(1, "bound"));
            let (mut late, mut ended, mut before, mut settled) = (0u64, 0u64, 0, 0);
            for i in 0..400_000u64 {
                let now = at_us(i * 100 + 100_000);
                writer.step(&mut b, now);
                if i % 5 < 2 {
                    let share = late_at_one * writer.ends.len() as f64;
                    let is_late = i < 300_000 && rng.below(1_000_000) < (share * 1e6) as u64;
                    ended += u64::from((20_000..300_000).contains(&i));
                    late += u64::from(is_late && i >= 20_000);
                    b.ended(now, 0, &P99, if is_late { LATE } else { KEPT });
                }
                if i == 20_000 {
                    before = writer.passed;
                }
                if i == 300_000 {
                    settled = writer.passed - before;
                }
            }
            let share = late as f64 / ended as f64;
            assert!((0.004..0.008).contains(&share), "{share} are late, aimed at 0.006");
            // 28 s, each write takes 1 ms: as many are in flight.
            let in_flight = settled as f64 / 28_000.0;
            assert!((aimed * 0.7..aimed * 1.3).contains(&in_flight), "{in_flight} in flight, not {aimed}");
            assert!(b.level() > 16 * UNIT, "{:?} after 10 s without a late one", b.status());
        }
    }

    /// A request that is late while best effort does nothing lowers no level.
    #[test]
    fn only_what_best_effort_can_have_delayed_lowers_the_level() {
        let mut b = WriteBound::default();
        (1..10_000).for_each(|i| b.ended(at_us(i * 1000), 0, &P99, LATE));
        assert_eq!((b.level(), b.status().cuts), (FIRST, 0));
        b.passed(at_us(10_000_000), &write());
        b.left(at_us(10_001_000), &write(), Span::from_millis(1));
        b.ended(at_us(10_002_000), 0, &P99, LATE);
        assert!(b.level() < FIRST);
    }

    #[test]
    fn one_stall_halves_it_at_most() {
        let mut b =
            WriteBound { levels: vec![vec![Level { value: OPEN, ..Level::default() }]], ..WriteBound::default() };
        (0..16).for_each(|_| b.passed(at_us(0), &write()));
        // All came before the first of them ended.
        (0..1000).for_each(|i| b.ended(at_us(50_000 + i), 0, &P99, Span::from_micros(50_000)));
        assert_eq!(b.level(), 8 * UNIT);
    }

    #[test]
    fn ranges_are_charged_by_what_they_take_and_cut_to_that() {
        let mut b = WriteBound::default();
        assert_eq!(weight(Op::WriteZeroes, 1 << 40), weight(Op::Write, UNIT_BYTES));
        let mut now = Time::ZERO;
        let mut pass = |b: &mut WriteBound, took: Span| {
            let zeroes = head(Op::WriteZeroes, b.piece_bytes(Op::WriteZeroes));
            b.passed(now, &zeroes);
            now += took;
            b.left(now, &zeroes, took);
            b.piece_bytes(Op::WriteZeroes)
        };
        assert_eq!((0..4).map(|_| pass(&mut b, Span::from_micros(100))).last(), Some(RANGE_PIECE << 4), "quick");
        assert_eq!((0..9).map(|_| pass(&mut b, Span::from_millis(9))).last(), Some(RANGE_PIECE_MIN), "slow");
        assert_eq!(b.piece_bytes(Op::Trim), RANGE_PIECE, "each kind by itself");
    }

    /// Returns a bound after random events of `steps` steps: a property must hold after any history.
    fn any_history(seed: u64, steps: u64) -> (WriteBound, Writer, Time) {
        let (mut b, mut writer, mut rng) = (WriteBound::default(), Writer::default(), Rng::new(seed, "history"));
        let mut now = Time::ZERO;
        let late = rng.below(100);
        for _ in 0..steps {
            now += Span::from_micros(1 + rng.below(400));
            writer.step(&mut b, now);
            b.came(now);
            b.ended(now, rng.below(3) as usize, &P99, if rng.below(100) < late { LATE } else { KEPT });
        }
        (b, writer, now)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn it_opens_when_objectives_are_idle(seed in any::<u64>(), steps in 0u64..20_000) {
            let (mut b, mut writer, began) = any_history(seed, steps);
            let mut now = began;
            while now < began + Span::from_secs(6) {
                now += Span::from_millis(1);
                writer.step(&mut b, now);
            }
            prop_assert_eq!(b.level(), OPEN);
            prop_assert_eq!(b.may_pass_at(now), Time::ZERO);
        }

        /// Every objective stays broken: best effort still has its least part, and none waits longer than is stated.
        #[test]
        fn nothing_is_held_for_long_though_all_are_late(seed in any::<u64>(), steps in 0u64..20_000, takes in 1u64..200_000) {
            let (mut b, mut writer, mut now) = any_history(seed, steps);
            writer.ends.drain(..).for_each(|_| b.left(now, &write(), Span::from_millis(1)));
            let mut free_since = now;
            let (began, mut passed) = (now, 0);
            while now < began + Span::from_secs(20) {
                b.ended(now, 0, &P99, LATE);
                b.tick(now, || true);
                match b.may_pass_at(now) {
                    Time::ZERO => {
                        prop_assert!(now.since(free_since) <= HOLD_UNIT + Span::from_micros(500));
                        b.passed(now, &write());
                        passed += 1;
                        now += Span::from_micros(takes);
                        b.left(now, &write(), Span::from_micros(takes));
                        free_since = now;
                    }
                    at => {
                        prop_assert!(at > now && at <= free_since + HOLD_UNIT, "{at:?} at {now:?}");
                        now = at.min(now + Span::from_micros(500));
                    }
                }
            }
            // 64 a second, beside what they take.
            let least = 20_000_000 / (takes + HOLD_UNIT.as_micros() + 500);
            prop_assert!(passed >= least, "{passed} of {least}");
        }

        #[test]
        fn no_more_is_in_flight_than_the_level_and_one(level in FLOOR..OPEN / 4, lens in proptest::collection::vec(512u64..1 << 20, 1..400)) {
            let mut b = WriteBound { levels: vec![vec![Level { value: level, ..Level::default() }]], ..WriteBound::default() };
            let mut now = at_us(1);
            let mut inside = std::collections::VecDeque::new();
            for len in lens {
                let h = head(Op::Write, len);
                loop {
                    match b.may_pass_at(now) {
                        Time::ZERO => break,
                        Time::NEVER => {
                            now += Span::from_micros(300);
                            let h: IoHead = inside.pop_front().expect("something is in flight");
                            b.left(now, &h, Span::from_micros(300));
                        }
                        at => now = at,
                    }
                }
                b.passed(now, &h);
                inside.push_back(h);
                prop_assert!(b.in_flight < level + weight(Op::Write, len));
            }
        }
    }
}
