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
}

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
        }
        self.now = start;
        self.finish[at] = start + u128::from(bytes.max(COST_MIN)) * SCALE / u128::from(weight.max(1));
    }
}
