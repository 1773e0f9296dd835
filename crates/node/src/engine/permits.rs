//! Permits: how many requests and bytes a tenant may have inside at once.
//!
//! Admission is permits first: a connection without one isn't read from, so the client feels backpressure on its
//! socket instead of filling a queue here. Whoever waits is let in in the order of coming, per tenant.

/// A tenant's bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PermitLimits {
    /// Requests inside at once, at least 1.
    pub jobs_max: u32,
    /// Bytes inside at once. A single larger request is let in alone.
    pub bytes_max: u64,
}

impl Default for PermitLimits {
    /// Four connections of depth 256, and four of the largest NBD requests.
    fn default() -> PermitLimits {
        PermitLimits { jobs_max: 1024, bytes_max: 128 << 20 }
    }
}

/// What one tenant has inside.
#[derive(Clone, Copy, Debug, Default)]
pub struct Permits {
    limits: PermitLimits,
    jobs: u32,
    bytes: u64,
}

impl Permits {
    /// None taken.
    pub fn new(limits: PermitLimits) -> Permits {
        Permits { limits, jobs: 0, bytes: 0 }
    }

    /// Changes the bound; what is inside stays.
    pub fn set_limits(&mut self, limits: PermitLimits) {
        self.limits = limits;
    }

    /// Takes a permit for a request of `bytes`, if there is one.
    pub fn take(&mut self, bytes: u64) -> bool {
        let fits = self.jobs < self.limits.jobs_max && (self.bytes == 0 || self.bytes + bytes <= self.limits.bytes_max);
        if fits {
            self.jobs += 1;
            self.bytes += bytes;
        }
        fits
    }

    /// Gives a request's permit back.
    ///
    /// # Panics
    /// If none is out: a request ended twice.
    pub fn give(&mut self, bytes: u64) {
        self.jobs = self.jobs.checked_sub(1).expect("a permit was given back twice");
        self.bytes = self.bytes.checked_sub(bytes).expect("a permit was given back twice");
    }

    /// Requests and bytes inside.
    pub fn inside(&self) -> (u32, u64) {
        (self.jobs, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_and_bytes_are_both_bounds() {
        let mut p = Permits::new(PermitLimits { jobs_max: 3, bytes_max: 100 });
        assert!(p.take(60) && p.take(40) && !p.take(1), "bytes");
        p.give(60);
        assert!(p.take(0) && p.take(0) && !p.take(0), "jobs");
        (0..2).for_each(|_| p.give(0));
        p.give(40);
        assert!(p.take(1000), "a request larger than the bound passes alone");
        assert!(!p.take(1));
        p.give(1000);
        assert_eq!(p.inside(), (0, 0));
    }
}
