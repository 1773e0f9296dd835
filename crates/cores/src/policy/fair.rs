//! Start-time fair queueing among queues with weights: each gets bytes in proportion while it has something waiting.

use crate::queue::Queues;

/// Least cost of a request, bytes: small ones aren't free.
const COST_MIN: u64 = 4096;
/// Virtual time counts in this fraction of a byte, so that weights of thousands divide well.
const SCALE: u128 = 1 << 16;

/// Virtual times.
#[derive(Clone, Debug, Default)]
pub struct Fair {
    now: u128,
    finish: Vec<u128>,
    /// Mean bytes of the requests that a queue was charged for.
    bytes: Vec<u64>,
}

/// Shift of that mean.
const BYTES_SHIFT: u32 = 3;

impl Fair {
    fn start(&self, at: usize) -> u128 {
        self.now.max(self.finish.get(at).copied().unwrap_or(0))
    }

    /// The queue among the candidates whose turn it is; only queues in which something waits.
    pub fn pick(&self, queues: &Queues, is_candidate: impl Fn(usize) -> bool) -> Option<usize> {
        let waits = |&i: &usize| !queues.get(i).waiting().is_empty() && is_candidate(i);
        (0..queues.len()).filter(waits).min_by_key(|&i| (self.start(i), i))
    }

    /// The queue's oldest request is served, `bytes_max` of it at most, and paid for by its weight.
    pub fn charge(&mut self, at: usize, queues: &Queues, weight: u64, bytes_max: u64) {
        let bytes = queues.get(at).waiting().front().map_or(0, |w| w.io.len.min(bytes_max));
        let start = self.start(at);
        if self.finish.len() <= at {
            self.finish.resize(at + 1, 0);
            self.bytes.resize(at + 1, 0);
        }
        let mean = &mut self.bytes[at];
        *mean = if *mean == 0 { bytes } else { *mean - (*mean >> BYTES_SHIFT) + (bytes >> BYTES_SHIFT) };
        self.now = start;
        self.finish[at] = start + u128::from(bytes.max(COST_MIN)) * SCALE / u128::from(weight.max(1));
    }

    /// Virtual time that a request of the queue takes at this weight, as its last ones were.
    fn spacing(&self, at: usize, weight: u64) -> u128 {
        let bytes = self.bytes.get(at).copied().unwrap_or(0);
        u128::from(bytes.max(COST_MIN)) * SCALE / u128::from(weight.max(1))
    }

    /// The virtual time at which a request of queue `at` would be served that has `waiting` before it there.
    pub fn turn(&self, at: usize, weight: u64, waiting: usize) -> u128 {
        self.start(at) + self.spacing(at, weight) * waiting as u128
    }

    /// Requests of queue `at` whose turn is before the virtual time `turn` of one of queue `of`, if it has such requests.
    pub fn before(&self, at: usize, weight: u64, (of, turn): (usize, u128)) -> f64 {
        // Of two with one time the lower number goes first.
        let ahead = (turn + u128::from(at < of)).saturating_sub(self.start(at));
        ahead.div_ceil(self.spacing(at, weight).max(1)) as f64
    }
}
