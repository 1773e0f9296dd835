//! A device whose inside is hidden: a predictor that learns from what it sees, online (what LinnOS and Heimdall look at:
//! queue lengths, recent latencies, sizes), and the scheduler that goes with it.
//!
//! What can be seen at a read's arrival is put into a few coarse classes: what is in flight, by the rate at which the device
//! got done lately; what the last reads took; how old the oldest in flight is; how much is being written. Each combination has
//! a small histogram of what reads then took, which fades, so that it follows drift; a rarely seen one leans on a coarser
//! one. A forecast is the histogram's quantile, and its confidence is how often such quantiles have held. Integers only; a
//! decision walks one histogram.

use crate::fifo::Fifo;
use plimsoll_base::{Completion, Confidence, Io, IoError, IoHead, IoId, Op, Outcome, Span, Time};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};

/// Bins of a histogram: two an octave from a microsecond on.
const BINS: usize = 48;
/// A histogram that holds so much is halved: older reads weigh less and less.
const FADE_AT: u32 = 512;
/// A histogram with fewer reads leans on the coarser one.
const ENOUGH: u32 = 24;
/// Levels of each feature: what is in flight and what the last reads took by octaves, the oldest's age and what is being
/// written by two.
const BACKLOG: usize = 12;
const RECENT: usize = 12;
const OLDEST: usize = 6;
const WRITES: usize = 4;
/// Work is counted in pieces of this.
const PIECE_BYTES: u64 = 16 << 10;
/// The device's rate and what reads took lately follow by 1/2 to the power of these.
const RATE_SHIFT: u32 = 4;
const RECENT_SHIFT: u32 = 2;

/// How a predictor for hidden devices behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlackBoxConfig {
    /// Requests at the device at once, at least 1.
    pub depth: u32,
    /// A forecast is the time that this share of such reads took less than, in thousandths: the lower, the surer a
    /// refusal.
    pub quantile_permille: u32,
}

impl Default for BlackBoxConfig {
    fn default() -> BlackBoxConfig {
        BlackBoxConfig { depth: 32, quantile_permille: 500 }
    }
}

#[derive(Clone, Copy)]
struct Histogram {
    bins: [u16; BINS],
    sum: u32,
}

const EMPTY: Histogram = Histogram { bins: [0; BINS], sum: 0 };

fn bin_of(us: u64) -> usize {
    let us = us.max(1);
    let exponent = us.ilog2();
    let half = if exponent > 0 { (us >> (exponent - 1)) & 1 } else { 0 };
    ((2 * exponent) as usize + half as usize).min(BINS - 1)
}

/// The bin's lower end, in nanoseconds.
fn bin_start_ns(bin: usize) -> u64 {
    ((2 + (bin as u64 & 1)) << (bin / 2)) * 500
}

impl Histogram {
    fn add(&mut self, bin: usize) {
        if self.sum >= FADE_AT {
            self.bins.iter_mut().for_each(|b| *b /= 2);
            self.sum = self.bins.iter().map(|b| u32::from(*b)).sum();
        }
        self.bins[bin] += 1;
        self.sum += 1;
    }

    /// The time that `permille` of what is in it took at most: within a bin in proportion.
    fn quantile_ns(&self, permille: u32) -> u64 {
        let wanted = self.sum * permille / 1000;
        let mut before = 0;
        for (i, &n) in self.bins.iter().enumerate() {
            let n = u32::from(n);
            if before + n > wanted {
                let (from, to) = (bin_start_ns(i), bin_start_ns(i + 1));
                return from + (to - from) * u64::from(wanted - before) / u64::from(n);
            }
            before += n;
        }
        bin_start_ns(BINS - 1)
    }
}

struct InFlight {
    id: IoId,
    sent_at: Time,
    pieces: u64,
    write_bytes: u64,
    /// A read's class, to learn under, and what was predicted for it.
    class: Option<(usize, u64)>,
}

/// The predictor alone.
pub struct BlackBoxPredictor {
    fine: Box<[Histogram]>,
    coarse: Box<[Histogram]>,
    all: Histogram,
    in_flight: Vec<InFlight>,
    pieces: u64,
    write_bytes: u64,
    /// What a piece took the device while it had several.
    piece_ns: u64,
    last_done: Time,
    /// What the last reads took.
    recent_ns: u64,
    /// How often a read took no longer than was predicted, in 65536ths, fading.
    held: u32,
    reads: u64,
    quantile_permille: u32,
}

impl BlackBoxPredictor {
    /// Knows nothing.
    pub fn new(quantile_permille: u32) -> BlackBoxPredictor {
        BlackBoxPredictor {
            fine: vec![EMPTY; BACKLOG * RECENT * OLDEST * WRITES].into(),
            coarse: vec![EMPTY; BACKLOG * RECENT].into(),
            all: EMPTY,
            in_flight: Vec::new(),
            pieces: 0,
            write_bytes: 0,
            piece_ns: 0,
            last_done: Time::ZERO,
            recent_ns: 0,
            held: 1 << 15,
            reads: 0,
            quantile_permille,
        }
    }

    fn class(&self, now: Time) -> usize {
        let bits = |n: u64| (64 - n.leading_zeros()) as usize;
        // From 64 us on.
        let octave = |ns: u64| bits(ns >> 16);
        let backlog = octave(self.pieces.saturating_mul(self.piece_ns)).min(BACKLOG - 1);
        // What reads took before a rest says nothing of what comes after it.
        let rested = self.in_flight.is_empty() && now.since(self.last_done).as_nanos() > 2 * self.recent_ns;
        let recent = if rested { 0 } else { octave(self.recent_ns) }.min(RECENT - 1);
        let ages = self.in_flight.iter().filter(|f| f.class.is_some()).map(|f| now.since(f.sent_at).as_nanos());
        let oldest = ages.max().map_or(0, |ns| 1 + octave(ns).div_ceil(2)).min(OLDEST - 1);
        let writes = bits(self.write_bytes >> 15).div_ceil(2).min(WRITES - 1);
        ((backlog * RECENT + recent) * OLDEST + oldest) * WRITES + writes
    }

    fn histogram(&self, class: usize) -> &Histogram {
        let coarse = &self.coarse[class / (OLDEST * WRITES)];
        match &self.fine[class] {
            h if h.sum >= ENOUGH => h,
            _ if coarse.sum >= ENOUGH => coarse,
            _ => &self.all,
        }
    }

    /// What a read that is sent at `now` would take, and how sure that is.
    pub fn predict(&self, now: Time) -> (Span, Confidence) {
        let h = self.histogram(self.class(now));
        if h.sum < ENOUGH {
            return (Span::ZERO, Confidence::NONE); // nothing is refused on a guess
        }
        (Span::from_nanos(h.quantile_ns(self.quantile_permille)), self.confidence())
    }

    /// How sure it is: as often as promised is as sure as it gets.
    pub fn confidence(&self) -> Confidence {
        let held = (u64::from(self.held) * 1000) >> 16;
        let off = held.abs_diff(u64::from(self.quantile_permille));
        Confidence(1000 - off.min(1000) as u16)
    }

    /// Reads that it has learned from.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// A request goes to the device.
    pub fn sent(&mut self, now: Time, head: &IoHead) {
        let class = (head.op == Op::Read).then(|| (self.class(now), self.predict(now).0.as_nanos()));
        let write_bytes = if head.op.is_change() { head.len } else { 0 };
        let pieces = head.len.div_ceil(PIECE_BYTES).max(1);
        self.write_bytes += write_bytes;
        self.pieces += pieces;
        self.in_flight.push(InFlight { id: head.id, sent_at: now, pieces, write_bytes, class });
    }

    /// The device has answered.
    pub fn ended(&mut self, now: Time, id: IoId) {
        let Some(at) = self.in_flight.iter().position(|f| f.id == id) else { return };
        let f = self.in_flight.swap_remove(at);
        self.write_bytes -= f.write_bytes;
        self.pieces -= f.pieces;
        let busy = now.since(self.last_done.max(f.sent_at)).as_nanos() / f.pieces;
        self.piece_ns = self.piece_ns - (self.piece_ns >> RATE_SHIFT) + (busy >> RATE_SHIFT);
        self.last_done = now;
        let Some((class, predicted_ns)) = f.class else { return };
        self.reads += 1;
        let took = now.since(f.sent_at);
        self.recent_ns = self.recent_ns - (self.recent_ns >> RECENT_SHIFT) + (took.as_nanos() >> RECENT_SHIFT);
        let bin = bin_of(took.as_micros());
        if predicted_ns > 0 {
            let held = if took.as_nanos() <= predicted_ns { 1 << 16 } else { 0 };
            self.held = self.held - (self.held >> 8) + (held >> 8);
        }
        self.fine[class].add(bin);
        self.coarse[class / (OLDEST * WRITES)].add(bin);
        self.all.add(bin);
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
        BlackBox { fifo: Fifo::new(config.depth), predictor: BlackBoxPredictor::new(config.quantile_permille) }
    }

    /// Requests waiting here and at the device.
    pub fn depths(&self) -> (usize, usize) {
        self.fifo.depths()
    }

    /// What it has learned.
    pub fn predictor(&self) -> &BlackBoxPredictor {
        &self.predictor
    }

    fn fill_device(&mut self, now: Time, out: &mut Actions) {
        while let Some(io) = self.fifo.next() {
            self.predictor.sent(now, &io);
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
        let (took, confidence) = self.predictor.predict(at);
        below.serve(self.fifo.wait(), took, confidence)
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        self.fifo.push(io);
        self.fill_device(now, out);
    }

    fn completed(&mut self, now: Time, c: Completion, out: &mut Actions) {
        self.fifo.came_back(now);
        self.predictor.ended(now, c.io.id);
        out.complete(c);
        self.fill_device(now, out);
    }

    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        if let Some(io) = self.fifo.withdraw(id) {
            out.end(io, Outcome::Failed(IoError::Cancelled));
        }
    }

    fn is_idle(&self) -> bool {
        self.fifo.is_idle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{TenantId, VolumeKey};

    fn request(op: Op, id: u64, len: u64) -> IoHead {
        let mut h = IoHead::new(op, VolumeKey::POOL, TenantId(0), 0, len, Time::ZERO);
        h.id = IoId(id);
        h
    }

    /// A device that is slow while writes are in flight: learned, then unlearned when it no longer is.
    #[test]
    fn it_learns_what_goes_with_slowness_and_follows_drift() {
        let mut p = BlackBoxPredictor::new(500);
        let (mut now, mut id) = (Time::ZERO, 0);
        assert_eq!(p.predict(now), (Span::ZERO, Confidence::NONE));
        for slow_us in [4_000, 200] {
            for i in 0..4_000 {
                let writes = i % 4 == 0;
                id += 2;
                if writes {
                    p.sent(now, &request(Op::Write, id, 1 << 20));
                }
                p.sent(now, &request(Op::Read, id + 1, 4096));
                now += Span::from_micros(if writes { slow_us } else { 100 });
                p.ended(now, IoId(id + 1));
                p.ended(now, IoId(id));
                now += Span::from_micros(10_000);
            }
            assert!(p.predict(now).0 < Span::from_micros(160), "{:?}", p.predict(now));
            p.sent(now, &request(Op::Write, 1, 1 << 20));
            let (with_write, confidence) = p.predict(now);
            p.ended(now, IoId(1));
            let want = Span::from_micros(slow_us);
            assert!(with_write >= want / 2 && with_write <= want * 2, "{with_write} for {want}");
            assert!(confidence > Confidence(300), "{confidence:?}");
        }
    }

    #[test]
    fn quantiles_lie_in_their_bins() {
        let mut h = EMPTY;
        (0..100).for_each(|i| h.add(bin_of(if i < 80 { 100 } else { 5000 })));
        assert!((90_000..=130_000).contains(&h.quantile_ns(500)), "{}", h.quantile_ns(500));
        assert!((3_000_000..=7_000_000).contains(&h.quantile_ns(900)), "{}", h.quantile_ns(900));
        for us in [1, 2, 3, 5, 100, 99_999] {
            let b = bin_of(us);
            assert!(bin_start_ns(b) <= us * 1000 && us * 1000 < bin_start_ns(b + 1), "{us}");
        }
    }
}
