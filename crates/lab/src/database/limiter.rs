//! Adaptive limits that others use, over one queue for all: what the gate is compared with.

use plimsoll_base::Span;

/// Law by which the limit moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limiter {
    /// A pool of this size (also what PgBouncer's transaction pooling does).
    Fixed(u32),
    /// One transaction for each core: MariaDB's pool of threads without its additional threads at a stall.
    ThreadPool,
    /// One more while latency is below twice the lowest seen, a tenth less otherwise.
    Aimd,
    /// TCP Vegas' queue estimate from the lowest latency seen (Netflix' concurrency-limits, v1 defaults).
    Vegas,
    /// Gradient of a long average over the present (the same, Gradient2).
    Gradient2,
}

/// A limit that follows latencies, window by window.
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

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE_MS: f64 = 5.0;
    const CAPACITY: f64 = 40.0;

    /// Windows of a server that serves 40 at a time in 5 ms, and more in turns; the limit after each.
    fn against_a_server(law: Limiter, windows: usize) -> Vec<u32> {
        let mut l = Limit::new(law, 16, 512);
        (0..windows)
            .map(|_| {
                let ms = ALONE_MS * (f64::from(l.limit()) / CAPACITY).max(1.0);
                l.window(Span::from_millis_f64(ms));
                l.limit()
            })
            .collect()
    }

    #[test]
    fn pools_never_move() {
        assert!(against_a_server(Limiter::Fixed(33), 100).iter().all(|l| *l == 33));
        assert!(against_a_server(Limiter::ThreadPool, 100).iter().all(|l| *l == 16));
    }

    #[test]
    fn aimd_swings_around_twice_the_lowest_latency() {
        let late = against_a_server(Limiter::Aimd, 600).split_off(300);
        assert!(late.iter().all(|l| (70..=82).contains(l)), "{late:?}");
        assert!(late.iter().max() > late.iter().min(), "it saws");
    }

    #[test]
    fn vegas_keeps_a_short_queue_over_what_is_served_at_once() {
        let late = against_a_server(Limiter::Vegas, 600).split_off(300);
        // Its queue is the logarithm of the limit times three to six.
        assert!(late.iter().all(|l| (42..=52).contains(l)), "{late:?}");
    }

    #[test]
    fn gradient2_follows_its_long_average_upwards() {
        // A lasting overload becomes the average: the known weakness that its users report. It stays within the bound.
        let late = against_a_server(Limiter::Gradient2, 2000);
        assert!(late[..20].windows(2).all(|w| w[1] >= w[0]), "it grows while latency is level");
        assert!(late.iter().all(|l| (20..=512).contains(l)));
        let mut l = Limit::new(Limiter::Gradient2, 16, 512);
        (0..50).for_each(|_| l.window(Span::from_millis(5)));
        let before = l.limit();
        (0..5).for_each(|_| l.window(Span::from_millis(50)));
        assert!(l.limit() < before, "a sudden rise lowers it");
    }

    #[test]
    fn no_law_leaves_its_bounds() {
        for law in [Limiter::Aimd, Limiter::Vegas, Limiter::Gradient2] {
            let mut l = Limit::new(law, 16, 8);
            for ms in [1, 1, 1, 1000, 1, 60_000, 0, 1].repeat(40) {
                l.window(Span::from_millis(ms));
                assert!((2..=8).contains(&l.limit()), "{law:?}: {}", l.limit());
            }
        }
    }
}
