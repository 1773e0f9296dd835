//! A device whose inside is hidden: a predictor that learns online from outside observations, and the scheduler that goes with
//! it. LinnOS and Heimdall use queue lengths, recent latencies and sizes; SSDcheck finds how addresses are spread.
//!
//! ```text
//!  read ─► part that it needs (stripes) ─┐
//!          queue, sizes, recent times ───┴─► score ─► level's histogram ─► quantile: the forecast
//! ```
//! A read's score is a sum over small tables. The times of reads with one score form a histogram, and a forecast is its
//! quantile. The quantile follows from a budget: the number of reads, per thousand that would be in time, that may be refused.
//! The expected number of such refusals comes from the same histograms. So it is known even of refused reads, which never ran. All
//! tables fade and follow drift. Arithmetic is in integers, and a decision walks one histogram. The queue in front of the device is part
//! of the hidden inside: times are measured from a request's arrival.

mod levels;
pub(crate) mod loads;
pub(crate) mod log;
mod score;
pub(crate) mod stripes;

use crate::device::PROBE_AFTER;
use crate::fifo::Fifo;
use levels::Levels;
use loads::{Load, Loads};
use log::log_of;
use plimsoll_base::{Completion, Confidence, Io, IoError, IoHead, IoId, Op, Outcome, Span, Time};
use plimsoll_stack::layer::CHECKED_EACH_MAX;
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};
use score::{Rows, Scene, Score};
use std::collections::BTreeMap;
use stripes::{Classes, Stripes};

/// The device's rate and what reads took lately follow by 1/2 to the power of these.
const RATE_SHIFT: u32 = 4;
const RECENT_SHIFT: u32 = 2;
/// Steps by which the quantile rises or falls after every [`QUANTILE_EVERY`] reads with a deadline, within [`QUANTILES`].
const RAISED: u32 = 5;
const LOWERED: u32 = 20;
const QUANTILE_EVERY: u32 = 128;
const QUANTILE_FIRST: u32 = 500;
const QUANTILES: std::ops::RangeInclusive<u32> = 100..=950;
/// Shift of the expected budget's moving average: each sample has the weight 1/2 to the power of this.
const BUDGET_SHIFT: u32 = 13;
/// A device of which no read is seen any more is asked again no less often than this.
const PROBE_AFTER_MOST: Span = Span::from_secs(64);

/// Settings of a predictor for hidden devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlackBoxConfig {
    /// Requests at the device at once, at least 1.
    pub depth: u32,
    /// Number of reads, per thousand that would be in time, that may be refused.
    pub needless_permille: u32,
}

impl Default for BlackBoxConfig {
    fn default() -> BlackBoxConfig {
        BlackBoxConfig { depth: 32, needless_permille: 10 }
    }
}

/// Expected rate of refused reads that would be in time, from the histograms: in thousandths, fading.
struct Budget {
    needless_permille: u32,
    /// Of 2 to the power of [`BUDGET_SHIFT`] times a thousand.
    refused: u64,
    in_time: u64,
    permille: u32,
    until_step: u32,
}

impl Budget {
    fn new(needless_permille: u32) -> Budget {
        Budget { needless_permille, refused: 0, in_time: 0, permille: QUANTILE_FIRST, until_step: QUANTILE_EVERY }
    }

    /// A read that is late with this probability (of a thousand) is refused, or isn't.
    fn judged(&mut self, late_permille: u32, refused: bool) {
        let in_time = u64::from(1000 - late_permille.min(1000));
        self.in_time += in_time;
        self.refused += if refused { in_time } else { 0 };
        self.until_step -= 1;
        if self.until_step > 0 {
            return;
        }
        self.until_step = QUANTILE_EVERY;
        // Expectations err: a quarter is kept back.
        let allowed = self.in_time * u64::from(self.needless_permille) / 1000 * 3 / 4;
        // A higher quantile refuses more.
        let moved = if self.refused <= allowed { self.permille + RAISED } else { self.permille - LOWERED };
        self.permille = moved.clamp(*QUANTILES.start(), *QUANTILES.end());
        if self.in_time >> BUDGET_SHIFT >= 1000 {
            self.in_time /= 2;
            self.refused /= 2;
        }
    }
}

/// Features of a read, kept until it ends.
#[derive(Clone, Copy)]
struct Looked {
    rows: Rows,
    classes: Classes,
    predicted_ns: u64,
    /// It was to be late, and went because no read had been seen for long: what would have been in time.
    asked_again: Option<Span>,
}

#[derive(Clone, Copy)]
struct InFlight {
    head: IoHead,
    sent_at: Time,
    load: Load,
    looked: Option<Looked>,
    /// Its number among all that were sent.
    nth: u64,
}

/// The predictor alone.
pub struct BlackBoxPredictor {
    stripes: Stripes,
    score: Score,
    levels: Levels,
    budget: Budget,
    in_flight: BTreeMap<IoId, InFlight>,
    /// Send time of each read in flight, by its number among all reads sent.
    reads_in_flight: BTreeMap<u64, Time>,
    sent: u64,
    loads: Loads,
    write_bytes: u64,
    /// Service time of a piece while the device had several.
    piece_ns: u64,
    last_done: Time,
    last_read: Time,
    /// With no read seen for so long the device is asked again.
    probe_after: Span,
    /// Times of the last reads, and of the very last.
    recent_ns: u64,
    last_ns: u64,
    /// Rate of reads that took no longer than predicted, and the rate that was promised, in 65536ths, fading.
    held: u32,
    promised: u32,
    reads: u64,
}

/// Bytes that a request writes.
fn written_bytes(head: &IoHead, load: &Load) -> u64 {
    if head.op == Op::Read { 0 } else { load.bytes }
}

impl BlackBoxPredictor {
    /// Knows nothing. Of a thousand reads that would be in time, `needless_permille` may be refused.
    pub fn new(needless_permille: u32) -> BlackBoxPredictor {
        BlackBoxPredictor::with(Stripes::new(), needless_permille)
    }

    /// The same, of a device over which addresses aren't spread. It has less than half the size.
    pub(crate) fn of_one_part(needless_permille: u32) -> BlackBoxPredictor {
        BlackBoxPredictor::with(Stripes::one(), needless_permille)
    }

    fn with(stripes: Stripes, needless_permille: u32) -> BlackBoxPredictor {
        BlackBoxPredictor {
            stripes,
            score: Score::new(),
            levels: Levels::new(),
            budget: Budget::new(needless_permille),
            in_flight: BTreeMap::new(),
            reads_in_flight: BTreeMap::new(),
            sent: 0,
            loads: Loads::default(),
            write_bytes: 0,
            piece_ns: 0,
            last_done: Time::ZERO,
            last_read: Time::ZERO,
            probe_after: PROBE_AFTER,
            recent_ns: 0,
            last_ns: 0,
            held: 1 << 15,
            promised: 1 << 15,
            reads: 0,
        }
    }

    fn rows(&self, now: Time, head: &IoHead) -> Rows {
        // What reads took before a rest says nothing of what comes after it.
        let rested = self.in_flight.is_empty() && now.since(self.last_done).as_nanos() > 2 * self.recent_ns;
        let oldest = self.reads_in_flight.first_key_value();
        let (part, work_ns) = self.stripes.slowest(now, head);
        let scene = Scene {
            work_ns,
            pieces: self.loads.of(head).pieces,
            outstanding: self.loads.pieces(),
            backlog_ns: self.loads.pieces().saturating_mul(self.piece_ns),
            write_bytes: self.write_bytes,
            recent_ns: if rested { 0 } else { self.recent_ns },
            last_ns: if rested { 0 } else { self.last_ns },
            oldest_ns: oldest.map_or(0, |(_, sent_at)| now.since(*sent_at).as_nanos()),
        };
        score::rows(now, &scene, part)
    }

    /// Predicts the time of a read that is sent at `now`, and the confidence.
    pub fn predict(&self, now: Time, head: &IoHead) -> (Span, Confidence) {
        if !self.levels.knows() {
            return (Span::ZERO, Confidence::NONE); // nothing is refused on a guess
        }
        let score = self.score.of(&self.rows(now, head));
        (Span::from_nanos(self.predicted_ns(score)), self.confidence())
    }

    /// Time of a read of this score that is sent now. Zeroes of which nothing is known may keep the device as long as data would.
    fn predicted_ns(&self, score: i32) -> u64 {
        self.learned_ns(score).max(self.loads.unknown_ns())
    }

    /// The same by what reads of this score took.
    fn learned_ns(&self, score: i32) -> u64 {
        self.levels.quantile_ns(score, self.budget.permille)
    }

    /// True if no read was seen for `probe_after`. The next read is then sent whatever its forecast: a wrong forecast could refuse
    /// every read, and would never be corrected.
    pub fn is_forgotten(&self, at: Time) -> bool {
        self.reads_in_flight.is_empty() && at.since(self.last_read) > self.probe_after
    }

    /// Returns the confidence: highest when predictions hold exactly as often as promised.
    pub fn confidence(&self) -> Confidence {
        let off = (u64::from(self.held.abs_diff(self.promised)) * 1000) >> 16;
        Confidence(1000 - off.min(1000) as u16)
    }

    /// Service time of a piece while the device had several.
    #[cfg(test)]
    pub(crate) fn piece_ns(&self) -> u64 {
        self.piece_ns
    }

    /// Reads that it has learned from.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// A read was judged by its deadline: it was refused, or goes to the device.
    pub fn judged(&mut self, now: Time, head: &IoHead) {
        if head.op == Op::Read && head.deadline.is_set() && self.levels.knows() {
            let score = self.score.of(&self.rows(now, head));
            self.count(score, head.deadline.since(now));
        }
    }

    fn count(&mut self, score: i32, left: Span) {
        let late_permille = self.levels.beyond_permille(score, left.as_nanos());
        let refused = self.learned_ns(score) > left.as_nanos();
        self.budget.judged(late_permille, refused);
    }

    /// A request comes: from now on it is among what others wait for.
    pub fn sent(&mut self, now: Time, head: &IoHead) {
        let looked = (head.op == Op::Read).then(|| {
            let rows = self.rows(now, head);
            let score = self.score.of(&rows);
            if head.deadline.is_set() && self.levels.knows() {
                self.count(score, head.deadline.since(now));
            }
            let known = self.levels.knows();
            let predicted_ns = if known { self.predicted_ns(score) } else { 0 };
            let left = head.deadline.since(now);
            // What zeroes of which nothing is known may take was not learned: in time or late, it says nothing of what was.
            let learned_ns = if known { self.learned_ns(score) } else { 0 };
            let is_late = head.deadline.is_set() && learned_ns > left.as_nanos();
            let asked_again = (is_late && self.is_forgotten(now)).then_some(left);
            Looked { rows, classes: self.stripes.classes(now, head), predicted_ns, asked_again }
        });
        let load = self.loads.of(head);
        self.write_bytes += written_bytes(head, &load);
        self.loads.sent(&load);
        self.stripes.sent(now, head);
        self.sent += 1;
        let nth = self.sent;
        if looked.is_some() {
            self.reads_in_flight.insert(nth, now);
        }
        self.in_flight.insert(head.id, InFlight { head: *head, sent_at: now, load, looked, nth });
    }

    /// Takes a request out of what is outstanding.
    fn take(&mut self, id: IoId) -> Option<InFlight> {
        let taken = self.in_flight.remove(&id)?;
        self.reads_in_flight.remove(&taken.nth);
        self.write_bytes -= written_bytes(&taken.head, &taken.load);
        Some(taken)
    }

    /// Asserts that the sums are those of what is in flight.
    pub(crate) fn check(&self) {
        if self.in_flight.len() > CHECKED_EACH_MAX {
            return;
        }
        let all = || self.in_flight.values();
        let written = |f: &InFlight| written_bytes(&f.head, &f.load);
        let pieces = all().map(|f| f.load.pieces).sum::<u64>();
        assert_eq!(self.loads.pieces(), pieces, "the pieces in flight are counted wrongly");
        assert_eq!(self.write_bytes, all().map(written).sum::<u64>(), "the bytes in flight are counted wrongly");
        let reads = all().filter(|f| f.looked.is_some()).count();
        assert_eq!(self.reads_in_flight.len(), reads, "the reads in flight are counted wrongly");
    }

    /// A request was withdrawn before it came to the device: it teaches nothing.
    pub fn withdrawn(&mut self, id: IoId) {
        if let Some(f) = self.take(id) {
            self.stripes.withdrawn(&f.head);
            self.loads.withdrawn(&f.load);
        }
    }

    /// The device has answered.
    pub fn ended(&mut self, now: Time, id: IoId) {
        let Some(InFlight { head, sent_at, load, looked, .. }) = self.take(id) else { return };
        self.loads.ended(now, sent_at, &head, &load);
        let busy = now.since(self.last_done.max(sent_at)).as_nanos() / load.pieces;
        self.piece_ns = self.piece_ns - (self.piece_ns >> RATE_SHIFT) + (busy >> RATE_SHIFT);
        self.last_done = now;
        let took_ns = now.since(sent_at).as_nanos();
        let took_log = log_of(took_ns);
        self.stripes.ended(now, sent_at, &head, took_log);
        let Some(looked) = looked else { return };
        self.last_read = now;
        match looked.asked_again {
            // It would not have been late: what is believed is old.
            Some(left) if took_ns <= left.as_nanos() => {
                self.levels.fade();
                self.probe_after = PROBE_AFTER;
            }
            Some(_) => self.probe_after = (self.probe_after * 2).min(PROBE_AFTER_MOST),
            None => {}
        }
        self.reads += 1;
        self.recent_ns = self.recent_ns - (self.recent_ns >> RECENT_SHIFT) + (took_ns >> RECENT_SHIFT);
        self.last_ns = took_ns;
        if looked.predicted_ns > 0 {
            let held = if took_ns <= looked.predicted_ns { 1 << 16 } else { 0 };
            self.held = self.held - (self.held >> 8) + (held >> 8);
            self.promised = self.promised - (self.promised >> 8) + (((self.budget.permille << 16) / 1000) >> 8);
        }
        // What it scored is worked out anew: tables have moved since.
        self.levels.learn(self.score.of(&looked.rows), took_log);
        self.score.learn(&looked.rows, took_log);
        self.stripes.learn(&looked.classes, took_log);
    }
}

/// First in, first out, over a device whose inside is hidden.
pub struct BlackBox {
    fifo: Fifo,
    predictor: BlackBoxPredictor,
}

impl BlackBox {
    /// An empty queue.
    ///
    /// # Panics
    /// If the depth is zero.
    pub fn new(config: BlackBoxConfig) -> BlackBox {
        BlackBox { fifo: Fifo::new(config.depth), predictor: BlackBoxPredictor::new(config.needless_permille) }
    }

    /// Requests waiting here and at the device.
    pub fn depths(&self) -> (usize, usize) {
        self.fifo.depths()
    }

    /// Returns the predictor with all that it has learned.
    pub fn predictor(&self) -> &BlackBoxPredictor {
        &self.predictor
    }

    fn fill_device(&mut self, now: Time, out: &mut Actions) {
        while let Some(io) = self.fifo.next(now) {
            out.submit(0, io);
        }
    }
}

impl Layer for BlackBox {
    fn name(&self) -> &'static str {
        "blackbox"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        Offer { queue_max: u32::MAX, ..below[0] }
    }

    fn start(&mut self, _now: Time, below: &[Offer], _out: &mut Actions) {
        self.fifo.limit_depth(below[0].queue_max);
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        if head.op != Op::Read {
            return below.serve(self.fifo.wait(), Span::ZERO, Confidence::NONE);
        }
        // Waiting here is part of what was learned, and the read's own service can't be told from it: all of it is a wait to a client that
        // compares replicas.
        let (took, confidence) = self.predictor.predict(at, head);
        if head.deadline.is_set() && at + took > head.deadline && self.predictor.is_forgotten(at) {
            return below.serve(self.fifo.wait(), Span::ZERO, Confidence::NONE);
        }
        below.serve(took, Span::ZERO, confidence)
    }

    fn refused(&mut self, now: Time, head: &IoHead, _forecast: &Forecast, _out: &mut Actions) {
        self.predictor.judged(now, head);
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        self.predictor.sent(now, &io);
        self.fifo.push(io);
        self.fill_device(now, out);
    }

    fn completed(&mut self, now: Time, c: Completion, out: &mut Actions) {
        self.fifo.came_back(now);
        if c.outcome.is_done() {
            self.predictor.ended(now, c.io.id);
        } else {
            // A failure's time says nothing of the device's: a command that isn't served fails at once.
            self.predictor.withdrawn(c.io.id);
        }
        out.complete(c);
        self.fill_device(now, out);
    }

    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        if let Some(io) = self.fifo.withdraw(id) {
            self.predictor.withdrawn(id);
            out.end(io, Outcome::Failed(IoError::Cancelled));
        }
    }

    fn is_idle(&self) -> bool {
        self.fifo.is_idle()
    }

    fn check(&self) {
        self.fifo.check();
        self.predictor.check();
        let (waiting, at_device) = self.fifo.depths();
        assert_eq!(
            self.predictor.in_flight.len(),
            waiting + at_device,
            "the predictor and the queue know other requests"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Rng, TenantId, VolumeKey};
    use plimsoll_stack::{Offered, Stack, StackConfig, Target};

    fn request(op: Op, id: u64, offset: u64, len: u64) -> IoHead {
        let mut h = IoHead::new(op, VolumeKey::POOL, TenantId(0), offset, len, Time::ZERO);
        h.id = IoId(id);
        h
    }

    /// A device that is slow while writes are in flight: learned, then unlearned when it no longer is.
    #[test]
    fn it_learns_what_goes_with_slowness_and_follows_drift() {
        let mut p = BlackBoxPredictor::new(10);
        let read = |id: u64| request(Op::Read, id, id % 64 * 16_384, 4096);
        let (mut now, mut id) = (Time::ZERO, 0);
        assert_eq!(p.predict(now, &read(1)), (Span::ZERO, Confidence::NONE));
        for slow_us in [4_000, 200] {
            for i in 0..4_000 {
                let writes = i % 4 == 0;
                id += 2;
                if writes {
                    p.sent(now, &request(Op::Write, id, 0, 1 << 20));
                }
                p.sent(now, &read(id + 1));
                now += Span::from_micros(if writes { slow_us } else { 100 });
                p.ended(now, IoId(id + 1));
                p.ended(now, IoId(id));
                now += Span::from_micros(10_000);
            }
            assert!(p.predict(now, &read(1)).0 < Span::from_micros(170), "{:?}", p.predict(now, &read(1)));
            p.sent(now, &request(Op::Write, 1, 0, 1 << 20));
            let (with_write, confidence) = p.predict(now, &read(1));
            p.ended(now, IoId(1));
            let want = Span::from_micros(slow_us);
            assert!(with_write >= want / 2 && with_write <= want * 2, "{with_write} for {want}");
            assert!(confidence > Confidence(300), "{confidence:?}");
        }
    }

    /// One read of ten is slow for no reason that can be seen: none may be refused for it. One of ten is slow for a reason:
    /// those are found.
    #[test]
    fn the_budget_is_kept_and_what_can_be_told_is_told() {
        let (mut p, mut rng) = (BlackBoxPredictor::new(10), Rng::new(5, "budget"));
        let mut now = Time::ZERO;
        let [mut needless, mut in_time, mut found, mut slow] = [0; 4];
        for id in 1..40_000u64 {
            now += Span::from_millis(20);
            let writes = rng.chance(0.1);
            if writes {
                p.sent(now, &request(Op::Write, 2 * id, 0, 4 << 20));
            }
            let head = IoHead { deadline: now + Span::from_millis(1), ..request(Op::Read, 2 * id + 1, 0, 4096) };
            let refused = p.predict(now, &head).0 > Span::from_millis(1);
            p.sent(now, &head);
            let is_slow = writes || rng.chance(0.1);
            now += Span::from_micros(if is_slow { 3_000 } else { 100 });
            p.ended(now, head.id);
            p.ended(now, IoId(2 * id));
            if id > 10_000 {
                needless += i32::from(refused && !is_slow);
                in_time += i32::from(!is_slow);
                found += i32::from(refused && writes);
                slow += i32::from(writes);
            }
        }
        assert!(needless * 100 <= in_time, "{needless} of {in_time}");
        assert!(found * 100 >= slow * 99, "{found} of {slow}");
    }

    /// A trim that lasts while reads go on: what is kept is what is outstanding.
    #[test]
    fn what_has_ended_is_not_kept_behind_what_lasts() {
        let mut p = BlackBoxPredictor::new(10);
        p.sent(Time::ZERO, &request(Op::Trim, 0, 0, 1 << 30));
        let mut now = Time::ZERO;
        for id in 1..50_000 {
            p.sent(now, &request(Op::Read, id, id % 64 * 16_384, 4096));
            now += Span::from_micros(50);
            if id > 4 {
                p.ended(now, IoId(id - 4));
            }
            assert!(p.in_flight.len() <= 6 && p.reads_in_flight.len() <= 5, "after {id}: {}", p.in_flight.len());
        }
        assert_eq!(p.reads_in_flight.first_key_value().map(|(nth, _)| *nth), Some(49_997), "the oldest read");
        p.ended(now, IoId(0));
        (49_996..50_000).for_each(|id| p.ended(now, IoId(id)));
        assert!(p.in_flight.is_empty() && p.reads_in_flight.is_empty() && p.loads.pieces() == 0);
    }

    /// Zeroes of 64 MiB take as long as data on one device and next to nothing on another. Reads behind them are forecast so, and reads behind
    /// trims of as much, which always take next to nothing, are not.
    #[test]
    fn zeroes_are_forecast_by_what_they_take() {
        for zeroes_ms in [300, 0] {
            let (mut p, mut now) = (BlackBoxPredictor::new(10), Time::ZERO + Span::from_secs(1));
            let forecast = |p: &mut BlackBoxPredictor, now: Time, op: Op| {
                p.sent(now, &request(op, 1, 0, 64 << 20));
                let forecast = p.predict(now, &request(Op::Read, 2, 0, 4096)).0;
                p.withdrawn(IoId(1));
                forecast
            };
            for i in 0..6000u64 {
                now += Span::from_millis(100);
                let (op, took_ms) = [(Op::WriteZeroes, zeroes_ms), (Op::Trim, 0), (Op::Write, 4)][i as usize % 3];
                let len = if op == Op::Write { 1 << 20 } else { 64 << 20 };
                let sent_at = now;
                p.sent(sent_at, &request(op, 10 + 2 * i, 0, len));
                p.sent(sent_at, &request(Op::Read, 11 + 2 * i, 0, 4096));
                now += Span::from_millis(took_ms) + Span::from_micros(100);
                p.ended(now, IoId(10 + 2 * i));
                now += Span::from_micros(100);
                p.ended(now, IoId(11 + 2 * i));
            }
            let [zeroes, trim] =
                [Op::WriteZeroes, Op::Trim].map(|op| forecast(&mut p, now + Span::from_millis(100), op));
            assert!(trim < Span::from_millis(20), "{trim} behind a trim");
            let is_long = zeroes > Span::from_millis(100);
            assert_eq!(is_long, zeroes_ms > 0, "{zeroes} behind zeroes of {zeroes_ms} ms");
        }
    }

    /// Until zeroes were seen, a read behind them is forecast as if they were written.
    #[test]
    fn unknown_zeroes_may_be_data() {
        let (mut p, mut now) = (BlackBoxPredictor::new(10), Time::ZERO + Span::from_secs(1));
        for i in 0..500u64 {
            now += Span::from_millis(100);
            let (op, took_ms, len) = (Op::Write, 4, 1 << 20);
            let sent_at = now;
            p.sent(sent_at, &request(op, 10 + 2 * i, 0, len));
            p.sent(sent_at, &request(Op::Read, 11 + 2 * i, 0, 4096));
            now += Span::from_millis(took_ms) + Span::from_micros(100);
            p.ended(now, IoId(10 + 2 * i));
            now += Span::from_micros(100);
            p.ended(now, IoId(11 + 2 * i));
        }
        let zeroes = request(Op::WriteZeroes, 10_000, 0, 1 << 30);
        p.sent(now, &zeroes);
        let behind = p.predict(now, &request(Op::Read, 2, 0, 4096)).0;
        p.withdrawn(zeroes.id);
        let alone = p.predict(now, &request(Op::Read, 2, 0, 4096)).0;
        assert!(behind > Span::from_secs(2) && alone < Span::from_millis(20), "{behind} behind a GiB, {alone} alone");
    }

    /// A read that no read was seen before for long is late by its forecast only because of zeroes of which nothing is known: that it is in time
    /// says nothing of what was learned.
    #[test]
    fn unknown_zeroes_make_nothing_forgotten() {
        let (mut p, mut now) = (BlackBoxPredictor::new(10), Time::ZERO + Span::from_secs(1));
        let read = |id: u64| request(Op::Read, id, id % 64 * 16_384, 4096);
        for id in 0..500 {
            now += Span::from_millis(100);
            p.sent(now, &read(id));
            now += Span::from_micros(200);
            p.ended(now, IoId(id));
        }
        for is_old in [false, true] {
            now += PROBE_AFTER + Span::from_millis(1);
            let zeroes = request(Op::WriteZeroes, 10_000, 0, 1 << 30);
            p.sent(now, &zeroes);
            // Learned was 200 us: what is late by that, and in time, makes it old.
            let left = Span::from_micros(if is_old { 100 } else { 10_000 });
            let late = IoHead { deadline: now + left, ..read(1000) };
            assert!(p.predict(now, &late).0 > left && p.is_forgotten(now));
            let before = p.levels.seen();
            p.sent(now, &late);
            p.ended(now + Span::from_micros(50), IoId(1000));
            p.withdrawn(zeroes.id);
            let kept = p.levels.seen();
            assert_eq!(kept < before / 2, is_old, "{kept} of {before} reads are remembered");
        }
    }

    /// The time that a read waits in the queue in front of the device is part of its time. A withdrawn request isn't waited for.
    #[test]
    fn the_queue_in_front_is_learned() {
        let offer =
            Offer { size_bytes: 1 << 40, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 64 };
        let mut s = Stack::new(StackConfig::default(), vec![offer]);
        s.push(
            Box::new(BlackBox::new(BlackBoxConfig { depth: 1, ..BlackBoxConfig::default() })),
            vec![Target::Device(0)],
        );
        s.start(Time::ZERO);
        let read = |i: u64| IoHead::new(Op::Read, VolumeKey::POOL, TenantId(0), i % 1000 * 16_384, 4096, Time::ZERO);
        let (mut now, mut rng) = (Time::ZERO, Rng::new(6, "queue"));
        let drain = |s: &mut Stack, now: &mut Time| {
            while let Some((d, io)) = s.next_device_io() {
                *now += Span::from_millis(1);
                s.device_done(*now, d, Completion { io, outcome: Outcome::Done, dispatched_at: *now });
                while s.next_done().is_some() {}
            }
        };
        for round in 0..2000 {
            now += Span::from_millis(100);
            (0..1 + rng.below(16)).for_each(|i| assert!(offered(&mut s, now, read(round * 16 + i)).is_some()));
            drain(&mut s, &mut now);
        }
        now += Span::from_millis(100);
        let alone = s.forecast(now, &read(1)).total();
        let all: Vec<IoId> = (0..12).filter_map(|i| offered(&mut s, now, read(2 + i))).collect();
        let behind = s.forecast(now, &read(1)).total();
        assert_eq!(s.forecast(now, &read(1)).wait, behind, "a client that is refused hears of the wait");
        assert!(alone < Span::from_millis(2), "{alone}");
        assert!(
            (Span::from_millis(9)..Span::from_millis(18)).contains(&behind),
            "{behind} behind twelve of a millisecond"
        );
        all[1..].iter().for_each(|id| s.cancel(now, *id));
        while s.next_done().is_some() {}
        let after = s.forecast(now, &read(1)).total();
        assert!(after < Span::from_millis(3), "{after} behind one");
        drain(&mut s, &mut now);
        assert!(s.is_idle());
    }

    fn offered(s: &mut Stack, now: Time, head: IoHead) -> Option<IoId> {
        match s.offer(now, Io::new(head, plimsoll_base::Data::Absent)) {
            Offered::Accepted(id) => Some(id),
            _ => None,
        }
    }
}
