//! The candidates and their judge, without a queue.

use super::judge::Judge;
use super::rate::Rate;
use super::scene::{self, Past, Scene};
use super::spread::{CERTAIN_BITS, LEVELS, Spread};
use super::tables::{Rows, Tables};
use crate::blackbox::loads::{Load, Loads};
use crate::blackbox::log::{OCTAVE, log_of, ns_of};
use crate::blackbox::stripes::{Classes, Stripes};
use crate::device::PROBE_AFTER;
use plimsoll_base::{Confidence, IoHead, Op, Span, Time};
use slab::Slab;

/// A throttle of requests counts as one what is no longer than this.
const COUNTED_BYTES: u64 = 256 << 10;
/// The mean of the last few reads follows by 1/2 to the power of this.
const RECENT_SHIFT: u32 = 2;
/// The time that reads are judged by is a logarithm in this fixed point: it follows deadlines by 1/2 to the power of
/// [`LIMIT_SHIFT`], and without any it settles where one read of [`SLOW_ONE_OF`] takes longer.
const LIMIT_BITS: u32 = 8;
const LIMIT_SHIFT: u32 = 6;
const SLOW_ONE_OF: i32 = 20;
const LIMIT_STEP: i32 = 128;
/// Reads before which nothing is forecast but by the costs.
const ENOUGH: u64 = 64;
/// A device of which no read is seen any more is asked again no less often than this.
const PROBE_AFTER_MOST: Span = Span::from_secs(64);

/// A candidate. Their order is that of preference where they are as good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Candidate {
    /// The costs of requests, from the profile if there is one, and the queue.
    Costs,
    /// The rate of a throttle.
    Rate,
    /// Forecast of time from reads that looked alike.
    Time,
    /// Chance to be late of reads that looked alike.
    Chance,
}

const CANDIDATES: [Candidate; 4] = [Candidate::Costs, Candidate::Rate, Candidate::Time, Candidate::Chance];
const N: usize = CANDIDATES.len();

impl Candidate {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Candidate::Costs => "costs",
            Candidate::Rate => "rate",
            Candidate::Time => "time",
            Candidate::Chance => "chance",
        }
    }
}

/// An index of a read: its level, and the time that its spread is relative to, as a logarithm.
#[derive(Clone, Copy, Default)]
struct Index {
    level: u8,
    anchor: i32,
}

impl Index {
    fn of_time(log: i32) -> Index {
        Index { level: (log / (OCTAVE / 4)).clamp(0, LEVELS as i32 - 1) as u8, anchor: log }
    }

    /// Log-odds in 1/4096 from -8 to 8.
    fn of_odds(odds: i32, anchor: i32) -> Index {
        Index { level: ((odds + (8 << 12)) >> 9).clamp(0, LEVELS as i32 - 1) as u8, anchor }
    }
}

/// A read as the candidates see it.
#[derive(Clone, Copy)]
struct Look {
    rows: Rows,
    indexes: [Index; N],
}

/// Memory of a read until it ends.
#[derive(Clone, Copy)]
struct Seen {
    look: Look,
    classes: Classes,
    /// Forecast for it, and the chance that it takes longer; none before enough was seen.
    forecast: Option<(u64, u32)>,
    /// It was to be late, and went because no read had been seen for long.
    asked_again: Option<Span>,
    /// The reads outstanding next to it, by when they were sent.
    older: Option<usize>,
    newer: Option<usize>,
}

#[derive(Clone, Copy)]
struct InFlight {
    head: IoHead,
    sent_at: Time,
    load: Load,
    /// Requests that were outstanding when it came.
    in_front: u64,
    read: Option<Seen>,
}

/// See the module's documentation.
pub struct AutoPredictor {
    stripes: Stripes,
    /// By requests and by bytes.
    rates: [Rate; 2],
    tables: Tables,
    spreads: [Spread; N],
    judge: Judge<N>,
    past: Past,
    in_flight: Slab<InFlight>,
    oldest: Option<usize>,
    newest: Option<usize>,
    reads_outstanding: u64,
    loads: Loads,
    write_bytes: u64,
    flushes: u64,
    /// Logarithm of the time by which reads are judged that have no deadline of their own.
    limit: i32,
    probe_after: Span,
    /// Share of reads that took no longer than was forecast, and the share that was promised, in 65536ths, fading.
    held: u32,
    promised: u32,
    reads: u64,
}

/// Bytes that a request writes.
fn written_bytes(head: &IoHead, load: &Load) -> u64 {
    if head.op == Op::Read { 0 } else { load.bytes }
}

/// In requests as a throttle counts them, and in bytes.
fn units_of(load: &Load) -> [u64; 2] {
    [load.bytes.div_ceil(COUNTED_BYTES).max(1), load.bytes]
}

impl AutoPredictor {
    /// Knows nothing. Of a thousand reads that would be in time, `needless_permille` may be refused. With `has_room` no forecast is below a
    /// read's median time.
    pub fn new(needless_permille: u32, has_room: bool) -> AutoPredictor {
        AutoPredictor {
            stripes: Stripes::new(),
            rates: [Rate::new(), Rate::new()],
            tables: Tables::new(),
            spreads: [Spread::new(2), Spread::new(2), Spread::new(2), Spread::new(4)],
            judge: Judge::new(needless_permille, has_room),
            past: Past::default(),
            in_flight: Slab::new(),
            oldest: None,
            newest: None,
            reads_outstanding: 0,
            loads: Loads::default(),
            write_bytes: 0,
            flushes: 0,
            limit: 0,
            probe_after: PROBE_AFTER,
            held: 1 << 15,
            promised: 1 << 15,
            reads: 0,
        }
    }

    fn limit_log(&self) -> i32 {
        self.limit >> LIMIT_BITS
    }

    fn look(&self, at: Time, head: &IoHead, costs: Span) -> Look {
        let (part, work_ns) = self.stripes.slowest(at, head);
        let load = self.loads.of(head);
        let [requests, bytes] = units_of(&load);
        let rate_ns = self.rates[0].forecast_ns(at, requests).max(self.rates[1].forecast_ns(at, bytes));
        let limit_log = self.limit_log();
        let scene = Scene {
            limit_log,
            costs_ns: costs.as_nanos(),
            rate_ns,
            work_ns,
            oldest_ns: self.oldest.map_or(0, |key| at.since(self.in_flight[key].sent_at).as_nanos()),
            reads: self.reads_outstanding,
            pieces: load.pieces,
            pieces_outstanding: self.loads.pieces(),
            write_bytes: self.write_bytes,
            flushes: self.flushes,
            offset: head.offset,
        };
        let rows = scene::rows(at, &scene, &self.past, part);
        let (time, odds) = self.tables.of(&rows);
        let indexes = [
            Index::of_time(log_of(costs.as_nanos())),
            Index::of_time(log_of(rate_ns)),
            Index::of_time(time),
            Index::of_odds(odds, limit_log),
        ];
        Look { rows, indexes }
    }

    /// The chances that a read which looks so takes longer than this, a logarithm.
    fn chances(&self, look: &Look, log: i32) -> [u32; N] {
        std::array::from_fn(|i| {
            let Index { level, anchor } = look.indexes[i];
            self.spreads[i].beyond(usize::from(level), log - anchor)
        })
    }

    /// True if at least `ENOUGH` reads were seen, so that a forecast is possible.
    fn knows(&self) -> bool {
        self.reads >= ENOUGH
    }

    /// Zeroes of which nothing is known may keep the device as long as data would.
    fn forecast_ns(&self, look: &Look) -> u64 {
        self.learned_ns(look).max(self.loads.unknown_ns())
    }

    /// The same by what reads took that looked so.
    fn learned_ns(&self, look: &Look) -> u64 {
        let chosen = self.judge.chosen();
        let Index { level, anchor } = look.indexes[chosen];
        ns_of(anchor + self.spreads[chosen].quantile(usize::from(level), self.judge.threshold()))
    }

    /// Time that a read would take that comes at `at`, if the costs of what is in front of it and its own are `costs`; `None` before enough was seen.
    pub fn predict(&self, at: Time, head: &IoHead, costs: Span) -> Option<Span> {
        self.knows().then(|| Span::from_nanos(self.forecast_ns(&self.look(at, head, costs))))
    }

    /// True if no read was seen for `probe_after`. The next read is then sent whatever its forecast: a wrong forecast could refuse
    /// every read, and would never be corrected.
    pub fn is_forgotten(&self, at: Time) -> bool {
        self.oldest.is_none() && at.since(self.past.read_at) > self.probe_after
    }

    /// Its confidence: greatest when reads end in time as often as promised. `None` before enough was seen.
    pub fn confidence(&self) -> Option<Confidence> {
        let off = (u64::from(self.held.abs_diff(self.promised)) * 1000) >> 16;
        self.knows().then(|| Confidence(1000 - off.min(1000) as u16))
    }

    /// Reads that it has learned from.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// The candidate that forecasts now.
    pub fn chosen(&self) -> Candidate {
        CANDIDATES[self.judge.chosen()]
    }

    /// A read was refused.
    pub fn refused(&mut self, now: Time, head: &IoHead, costs: Span) {
        if head.op == Op::Read && head.deadline.is_set() && self.knows() {
            let look = self.look(now, head, costs);
            let chances = self.chances(&look, log_of(head.deadline.since(now).as_nanos()));
            self.judge.judged(&chances, chances[self.judge.chosen()]);
        }
    }

    /// A request comes: from now on it is among what others wait for. Returns its key.
    pub fn sent(&mut self, now: Time, head: &IoHead, costs: Span) -> usize {
        let read = (head.op == Op::Read).then(|| {
            let look = self.look(now, head, costs);
            let forecast = self.knows().then(|| (self.forecast_ns(&look), self.judge.threshold()));
            let left = head.deadline.since(now);
            // What zeroes of which nothing is known may take was not learned: in time or late, it says nothing of what was.
            let learned_ns = if self.knows() { self.learned_ns(&look) } else { 0 };
            let is_late = head.deadline.is_set() && learned_ns > left.as_nanos();
            let asked_again = (is_late && self.is_forgotten(now)).then_some(left);
            let classes = self.stripes.classes(now, head);
            Seen { look, classes, forecast, asked_again, older: self.newest, newer: None }
        });
        let is_read = read.is_some();
        let in_front = self.in_flight.len() as u64;
        let load = self.loads.of(head);
        let key = self.in_flight.insert(InFlight { head: *head, sent_at: now, load, in_front, read });
        if is_read {
            match self.newest.replace(key) {
                Some(before) => self.neighbours(before).1.replace(key),
                None => self.oldest.replace(key),
            };
            self.reads_outstanding += 1;
        }
        self.loads.sent(&load);
        self.write_bytes += written_bytes(head, &load);
        self.flushes += u64::from(head.op == Op::Flush);
        self.stripes.sent(now, head);
        for (rate, units) in self.rates.iter_mut().zip(units_of(&load)) {
            rate.sent(now, units);
        }
        if matches!(head.op, Op::Read | Op::Write) {
            self.past.end = head.end();
        }
        self.past.came_at = now;
        key
    }

    /// A read's links.
    fn neighbours(&mut self, key: usize) -> (&mut Option<usize>, &mut Option<usize>) {
        let read = self.in_flight[key].read.as_mut().expect("only reads are linked");
        (&mut read.older, &mut read.newer)
    }

    /// Takes a request out of what is outstanding.
    fn take(&mut self, key: usize) -> InFlight {
        let taken = self.in_flight.remove(key);
        if let Some(Seen { older, newer, .. }) = taken.read {
            match older {
                Some(older) => *self.neighbours(older).1 = newer,
                None => self.oldest = newer,
            }
            match newer {
                Some(newer) => *self.neighbours(newer).0 = older,
                None => self.newest = older,
            }
            self.reads_outstanding -= 1;
        }
        let head = &taken.head;
        self.write_bytes -= written_bytes(head, &taken.load);
        self.flushes -= u64::from(head.op == Op::Flush);
        taken
    }

    /// A request was withdrawn before it came to the device: it teaches nothing.
    pub fn withdrawn(&mut self, key: usize) {
        let taken = self.take(key);
        self.stripes.withdrawn(&taken.head);
        self.loads.withdrawn(&taken.load);
        for (rate, units) in self.rates.iter_mut().zip(units_of(&taken.load)) {
            rate.withdrawn(units);
        }
    }

    /// The device has answered.
    pub fn ended(&mut self, now: Time, key: usize) {
        let InFlight { head, sent_at, load, in_front, read } = self.take(key);
        self.loads.ended(now, sent_at, &head, &load);
        let took = now.since(sent_at);
        let took_log = log_of(took.as_nanos());
        self.stripes.ended(now, sent_at, &head, took_log);
        for (rate, units) in self.rates.iter_mut().zip(units_of(&load)) {
            rate.ended(now, units, took, read.is_some(), in_front);
        }
        match read {
            Some(seen) => self.read_ended(now, sent_at, &head, &seen),
            None if head.op == Op::Flush => self.past.flushed_at = now,
            None if written_bytes(&head, &load) == 0 => {}
            None => {
                self.past.wrote(now, load.bytes);
                (self.past.wrote_at, self.past.write_ns) = (now, took.as_nanos());
            }
        }
    }

    fn read_ended(&mut self, now: Time, sent_at: Time, head: &IoHead, seen: &Seen) {
        let took_ns = now.since(sent_at).as_nanos();
        let took_log = log_of(took_ns);
        match seen.asked_again {
            // It would not have been late: what was learned is old.
            Some(left) if took_ns <= left.as_nanos() => {
                self.spreads.iter_mut().for_each(Spread::fade);
                self.probe_after = PROBE_AFTER;
            }
            Some(_) => self.probe_after = (self.probe_after * 2).min(PROBE_AFTER_MOST),
            None => {}
        }
        if let Some((forecast_ns, chance)) = seen.forecast {
            let held = if took_ns <= forecast_ns { 1 << 16 } else { 0 };
            self.held = self.held - (self.held >> 8) + (held >> 8);
            self.promised = self.promised - (self.promised >> 8) + (((1 << CERTAIN_BITS) - chance) >> 8);
        }
        let left = head.deadline.is_set().then(|| log_of(head.deadline.since(sent_at).as_nanos()));
        self.follow(took_log, left);
        let limit_log = self.limit_log();
        if self.knows() {
            let judged_by = left.unwrap_or(limit_log);
            let chances = self.chances(&seen.look, judged_by);
            self.judge.judged(&chances, if took_log > judged_by { 1 << CERTAIN_BITS } else { 0 });
        }
        for (spread, index) in self.spreads.iter_mut().zip(seen.look.indexes) {
            spread.learn(usize::from(index.level), took_log - index.anchor);
        }
        let is_slow = took_log > limit_log;
        self.tables.learn(&seen.look.rows, took_log, is_slow);
        self.stripes.learn(&seen.classes, took_log);
        let past = &mut self.past;
        past.before_ns = std::mem::replace(&mut past.last_ns, took_ns);
        past.recent_ns = past.recent_ns - (past.recent_ns >> RECENT_SHIFT) + (took_ns >> RECENT_SHIFT);
        past.read_at = now;
        if is_slow {
            (past.slow_at, past.slow_ns) = (now, took_ns);
        }
        self.reads += 1;
    }

    /// The time by which reads are judged follows their deadlines, or, where they have none, a time that few of them take.
    fn follow(&mut self, took_log: i32, deadline: Option<i32>) {
        let first = self.reads == 0;
        self.limit = match deadline {
            Some(log) if first => log << LIMIT_BITS,
            Some(log) => self.limit + (((log << LIMIT_BITS) - self.limit) >> LIMIT_SHIFT),
            None if first => (took_log + OCTAVE) << LIMIT_BITS,
            None if took_log << LIMIT_BITS > self.limit => self.limit + LIMIT_STEP * (SLOW_ONE_OF - 1),
            None => self.limit - LIMIT_STEP,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{IoId, Rng, TenantId, VolumeKey};

    fn request(op: Op, id: u64, offset: u64, len: u64) -> IoHead {
        let mut h = IoHead::new(op, VolumeKey::POOL, TenantId(0), offset, len, Time::ZERO);
        h.id = IoId(id);
        h
    }

    /// One read of ten is slow for no reason that can be seen: none may be refused for it. One of ten is slow for a reason:
    /// those are found.
    #[test]
    fn the_budget_is_kept_and_what_can_be_told_is_told() {
        let (mut p, mut rng) = (AutoPredictor::new(10, false), Rng::new(5, "budget"));
        let mut now = Time::ZERO;
        let [mut needless, mut in_time, mut found, mut slow] = [0; 4];
        for id in 1..40_000u64 {
            now += Span::from_millis(20);
            let writes = rng.chance(0.1);
            let write = writes.then(|| p.sent(now, &request(Op::Write, 2 * id, 0, 4 << 20), Span::ZERO));
            let head = IoHead { deadline: now + Span::from_millis(1), ..request(Op::Read, 2 * id + 1, 0, 4096) };
            let refused = p.predict(now, &head, Span::ZERO).is_some_and(|f| f > Span::from_millis(1));
            let read = p.sent(now, &head, Span::ZERO);
            let is_slow = writes || rng.chance(0.1);
            now += Span::from_micros(if is_slow { 3_000 } else { 100 });
            p.ended(now, read);
            write.into_iter().for_each(|w| p.ended(now, w));
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

    /// Costs that are right are taken as they are, whatever else is seen.
    #[test]
    fn costs_that_are_right_are_chosen() {
        let (mut p, mut rng) = (AutoPredictor::new(10, false), Rng::new(6, "costs"));
        let (mut now, mut wrong) = (Time::ZERO, 0);
        for id in 0..20_000u64 {
            now += Span::from_millis(50);
            let took = Span::from_micros(1_000 + rng.below(20_000));
            let costs = took + took * rng.below(40) / 1000;
            let head =
                IoHead { deadline: now + Span::from_millis(18), ..request(Op::Read, id, rng.below(1 << 30), 4096) };
            let refused = p.predict(now, &head, costs).is_some_and(|f| f > Span::from_millis(18));
            let key = p.sent(now, &head, costs);
            now += took;
            p.ended(now, key);
            wrong += i32::from(id > 5_000 && refused != (took > Span::from_millis(18)));
        }
        assert_eq!(p.chosen(), Candidate::Costs);
        assert!(wrong < 15_000 * 3 / 100, "{wrong} of 15,000");
    }

    /// A trim that lasts while reads go on: what is kept is what is outstanding, and the oldest read is known.
    #[test]
    fn what_has_ended_is_not_kept_behind_what_lasts() {
        let mut p = AutoPredictor::new(10, false);
        let trim = p.sent(Time::ZERO, &request(Op::Trim, 0, 0, 1 << 30), Span::ZERO);
        let (mut now, mut keys) = (Time::ZERO, std::collections::VecDeque::new());
        let mut rng = Rng::new(7, "order");
        for id in 1..20_000 {
            keys.push_back((now, p.sent(now, &request(Op::Read, id, id % 64 * 16_384, 4096), Span::ZERO)));
            now += Span::from_micros(50);
            if keys.len() > 4 {
                let (_, key) = keys.remove(rng.below(4) as usize).expect("there are four");
                p.ended(now, key);
            }
            assert_eq!(p.oldest.map(|o| p.in_flight[o].sent_at), keys.front().map(|k| k.0));
            assert_eq!((p.in_flight.len(), p.reads_outstanding), (keys.len() + 1, keys.len() as u64));
        }
        keys.into_iter().for_each(|(_, key)| p.withdrawn(key));
        p.ended(now, trim);
        assert!(p.in_flight.is_empty() && p.oldest.is_none() && p.newest.is_none() && p.loads.pieces() == 0);
    }

    /// Zeroes of 64 MiB take as long as data on one device and next to nothing on another. Reads behind them are forecast so, and reads behind
    /// trims of as much, which always take next to nothing, are not.
    #[test]
    fn zeroes_are_forecast_by_what_they_take() {
        for zeroes_ms in [300, 0] {
            let (mut p, mut now) = (AutoPredictor::new(10, false), Time::ZERO + Span::from_secs(1));
            let forecast = |p: &mut AutoPredictor, now: Time, op: Op| {
                let front = p.sent(now, &request(op, 1, 0, 64 << 20), Span::ZERO);
                let forecast = p.predict(now, &request(Op::Read, 2, 0, 4096), Span::ZERO).expect("enough was seen");
                p.withdrawn(front);
                forecast
            };
            for i in 0..6000u64 {
                now += Span::from_millis(100);
                let (op, took_ms) = [(Op::WriteZeroes, zeroes_ms), (Op::Trim, 0), (Op::Write, 4)][i as usize % 3];
                let len = if op == Op::Write { 1 << 20 } else { 64 << 20 };
                let sent_at = now;
                let front = p.sent(sent_at, &request(op, 10 + 2 * i, 0, len), Span::ZERO);
                let read = p.sent(sent_at, &request(Op::Read, 11 + 2 * i, 0, 4096), Span::ZERO);
                now += Span::from_millis(took_ms) + Span::from_micros(100);
                p.ended(now, front);
                now += Span::from_micros(100);
                p.ended(now, read);
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
        let (mut p, mut now) = (AutoPredictor::new(10, false), Time::ZERO + Span::from_secs(1));
        for i in 0..500u64 {
            now += Span::from_millis(100);
            let (op, took_ms, len) = (Op::Write, 4, 1 << 20);
            let sent_at = now;
            let front = p.sent(sent_at, &request(op, 10 + 2 * i, 0, len), Span::ZERO);
            let read = p.sent(sent_at, &request(Op::Read, 11 + 2 * i, 0, 4096), Span::ZERO);
            now += Span::from_millis(took_ms) + Span::from_micros(100);
            p.ended(now, front);
            now += Span::from_micros(100);
            p.ended(now, read);
        }
        let zeroes = request(Op::WriteZeroes, 10_000, 0, 1 << 30);
        let key = p.sent(now, &zeroes, Span::ZERO);
        let behind = p.predict(now, &request(Op::Read, 2, 0, 4096), Span::ZERO).expect("enough was seen");
        p.withdrawn(key);
        let alone = p.predict(now, &request(Op::Read, 2, 0, 4096), Span::ZERO).expect("enough was seen");
        assert!(behind > Span::from_secs(2) && alone < Span::from_millis(20), "{behind} behind a GiB, {alone} alone");
    }

    /// A read that no read was seen before for long is late by its forecast only because of zeroes of which nothing is known: that it is in time
    /// says nothing of what was learned.
    #[test]
    fn unknown_zeroes_make_nothing_forgotten() {
        let (mut p, mut now) = (AutoPredictor::new(10, false), Time::ZERO + Span::from_secs(1));
        let (read, costs) = (|id: u64| request(Op::Read, id, id % 64 * 16_384, 4096), Span::from_micros(200));
        for id in 0..500 {
            now += Span::from_millis(100);
            let key = p.sent(now, &read(id), costs);
            now += Span::from_micros(200);
            p.ended(now, key);
        }
        for is_old in [false, true] {
            now += PROBE_AFTER + Span::from_millis(1);
            let zeroes = request(Op::WriteZeroes, 10_000, 0, 1 << 30);
            let zeroes_key = p.sent(now, &zeroes, costs);
            // Learned was 200 us: what is late by that, and in time, makes it old.
            let left = Span::from_micros(if is_old { 100 } else { 10_000 });
            let late = IoHead { deadline: now + left, ..read(1000) };
            assert!(p.predict(now, &late, costs).expect("enough was seen") > left && p.is_forgotten(now));
            let before = p.spreads[0].seen();
            let key = p.sent(now, &late, costs);
            p.ended(now + Span::from_micros(50), key);
            p.withdrawn(zeroes_key);
            let kept = p.spreads[0].seen();
            assert_eq!(kept < before / 2, is_old, "{kept} of {before} reads are remembered");
        }
    }
}
