//! Adaptive limits that others use, over one queue for all: what the gate is compared with.

use plimsoll_base::Span;

/// How the limit moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limiter {
    /// A pool of this size (also what PgBouncer's transaction pooling does).
    Fixed(u32),
    /// MariaDB's pool of threads: as many as cores, statements of open transactions first, one more at a stall of 500 ms.
    ThreadPool,
    /// One more while latency is below twice the lowest seen, a tenth less otherwise.
    Aimd,
    /// TCP Vegas' queue estimate from the lowest latency seen (Netflix' concurrency-limits, v1 defaults).
    Vegas,
    /// Gradient of a long average over the present (the same, Gradient2).
    Gradient2,
}

/// A limit that is told latencies, window by window.
#[derive(Clone, Debug)]
pub struct Limit {
    law: Limiter,
    limit: f64,
    lowest_ms: f64,
    long_ms: f64,
    max: f64,
}

impl Limit {
    /// Begins at 20, as the library does.
    pub fn new(law: Limiter, cores: usize, users: usize) -> Limit {
        let limit = match law {
            Limiter::Fixed(n) => f64::from(n),
            Limiter::ThreadPool => cores as f64,
            _ => 20.0,
        };
        Limit { law, limit, lowest_ms: f64::INFINITY, long_ms: 0.0, max: users as f64 }
    }

    /// The limit.
    pub fn limit(&self) -> u32 {
        self.limit as u32
    }

    /// A window's mean time inside.
    pub fn window(&mut self, inside: Span) {
        let ms = inside.as_millis_f64().max(1e-6);
        self.lowest_ms = self.lowest_ms.min(ms);
        self.long_ms = if self.long_ms == 0.0 { ms } else { self.long_ms + (ms - self.long_ms) * 2.0 / 601.0 };
        let old = self.limit;
        let new = match self.law {
            Limiter::Fixed(_) | Limiter::ThreadPool => return,
            Limiter::Aimd if ms > 2.0 * self.lowest_ms => old * 0.9,
            Limiter::Aimd => old + 1.0,
            Limiter::Vegas => {
                let queue = old * (1.0 - self.lowest_ms / ms);
                let step = old.log10().max(1.0);
                match queue {
                    q if q <= step => old + step * 6.0,
                    q if q < 3.0 * step => old + step,
                    q if q > 6.0 * step => old - step,
                    _ => old,
                }
            }
            Limiter::Gradient2 => {
                // The long average is let down when latency fell far below.
                if self.long_ms / ms > 2.0 {
                    self.long_ms *= 0.95;
                }
                let gradient = (1.5 * self.long_ms / ms).clamp(0.5, 1.0);
                old * 0.8 + (old * gradient + 4.0) * 0.2
            }
        };
        self.limit = new.clamp(2.0, self.max);
    }
}
