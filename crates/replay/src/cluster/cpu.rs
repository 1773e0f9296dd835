//! The processor that servers of one machine share.

use plimsoll_base::{Span, Time};

/// Processor of a machine, and the time that a try needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostCpu {
    /// Hardware threads; each has one try at a time.
    pub threads: u16,
    /// A server's work for a try, all of it before it asks the storage.
    pub each: Span,
}

/// Times at which the hardware threads are free again: tries get one in order of arrival.
#[derive(Debug)]
pub(super) struct Threads {
    each: Span,
    free_at: Vec<Time>,
    /// Sum of all tries' waits for one so far.
    pub waited: Span,
}

impl Threads {
    /// # Panics
    /// If there is none.
    pub fn new(cpu: HostCpu) -> Threads {
        assert!(cpu.threads > 0, "a machine without a hardware thread serves nobody");
        Threads { each: cpu.each, free_at: vec![Time::ZERO; usize::from(cpu.threads)], waited: Span::ZERO }
    }

    /// Returns the time at which the work for a try that arrives now is done.
    pub fn run(&mut self, now: Time) -> Time {
        let first = self.free_at.iter_mut().min().expect("there is one");
        let begins = now.max(*first);
        self.waited += begins.since(now);
        *first = begins + self.each;
        *first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_of_two_threads_waits_for_the_first_to_end() {
        let us = |n| Time::ZERO + Span::from_micros(n);
        let mut t = Threads::new(HostCpu { threads: 2, each: Span::from_micros(10) });
        assert_eq!((t.run(us(0)), t.run(us(4)), t.run(us(5))), (us(10), us(14), us(20)));
        assert_eq!(t.waited, Span::from_micros(5));
        assert_eq!(t.run(us(100)), us(110));
    }
}
