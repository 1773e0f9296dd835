//! Wrong answers on purpose, to see what prediction errors cost (MittOS §7.7; MT-M29). For experiments only.

use plimsoll_base::{Confidence, Io, IoHead, Span, Time};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};

/// The topmost layer of a pool that answers wrongly at set rates. The affected reads are drawn from the request, so that they are
/// the same in every run.
pub struct Inject {
    /// Of reads that would be refused, this share is accepted.
    pub false_negative_percent: u64,
    /// Of reads that would be accepted, this share is refused.
    pub false_positive_percent: u64,
    /// Draws which.
    pub seed: u64,
    /// The pool's.
    pub failover_hop: Span,
}

impl Inject {
    fn draws(&self, at: Time, head: &IoHead, percent: u64) -> bool {
        let mut x = self.seed ^ at.as_nanos().rotate_left(17) ^ head.offset.rotate_left(41);
        for _ in 0..2 {
            x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        (x >> 33) % 100 < percent
    }
}

impl Layer for Inject {
    fn name(&self) -> &'static str {
        "inject"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let f = below.ask(0, at, head);
        if !head.may_be_refused() || f.never_refused {
            return f;
        }
        let late = at + f.total() > head.deadline + self.failover_hop;
        if late && self.draws(at, head, self.false_negative_percent) {
            return Forecast::NONE;
        }
        if !late && self.draws(at, head, self.false_positive_percent) {
            let beyond = (head.deadline + self.failover_hop).since(at) + Span::from_nanos(1);
            return below.serve(beyond, Span::ZERO, Confidence::NONE);
        }
        f
    }

    fn submit(&mut self, _now: Time, io: Io, out: &mut Actions) {
        out.submit(0, io);
    }

    fn is_idle(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ms;
    use plimsoll_base::{Data, Op, TenantId, VolumeKey};
    use plimsoll_stack::{Offered, Stack, StackConfig, Target};

    /// Wait of every request below.
    const WAIT: Span = Span::from_millis(10);

    struct Waits;

    impl Layer for Waits {
        fn name(&self) -> &'static str {
            "waits"
        }
        fn offer(&self, below: &[Offer]) -> Offer {
            below[0]
        }
        fn forecast(&self, _at: Time, _head: &IoHead, below: Ports<'_>) -> Forecast {
            below.serve(WAIT, Span::ZERO, Confidence::NONE)
        }
        fn submit(&mut self, _now: Time, io: Io, out: &mut Actions) {
            out.submit(0, io);
        }
        fn is_idle(&self) -> bool {
            true
        }
    }

    /// True if the request at `offset` is refused, with a deadline `deadline_ms` from now.
    fn is_refused(wrong: Inject, op: Op, deadline_ms: Option<u64>, offset: u64) -> bool {
        let offer =
            Offer { size_bytes: 1 << 40, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 64 };
        let config = StackConfig { failover_hop: wrong.failover_hop, ..StackConfig::default() };
        let mut stack = Stack::new(config, vec![offer]);
        stack.push(Box::new(wrong), vec![Target::Node(1)]);
        stack.push(Box::new(Waits), vec![Target::Device(0)]);
        stack.start(ms(0));
        let mut head = IoHead::new(op, VolumeKey::POOL, TenantId(1), offset, 4096, ms(0));
        head.deadline = deadline_ms.map_or(Time::NEVER, ms);
        !matches!(stack.offer(ms(0), Io::new(head, Data::Absent)), Offered::Accepted(_))
    }

    /// Returns the number of refused requests among a thousand.
    fn refused(op: Op, deadline_ms: Option<u64>, negative: u64, positive: u64) -> usize {
        let wrong = || Inject {
            false_negative_percent: negative,
            false_positive_percent: positive,
            seed: 1,
            failover_hop: Span::ZERO,
        };
        (0..1000u64).filter(|i| is_refused(wrong(), op, deadline_ms, i << 20)).count()
    }

    /// MT-M29.
    #[test]
    fn so_many_answers_are_wrong_each_way() {
        assert_eq!(refused(Op::Read, Some(5), 0, 100), 1000, "right: all of them are late");
        assert_eq!(refused(Op::Read, Some(15), 100, 0), 0, "right: none is");
        assert!((150..250).contains(&refused(Op::Read, Some(15), 0, 20)));
        assert!((750..850).contains(&refused(Op::Read, Some(5), 20, 0)));
        assert_eq!(refused(Op::Read, Some(5), 100, 0), 0);
        assert_eq!(refused(Op::Read, Some(15), 0, 100), 1000);
        assert_eq!(refused(Op::Read, None, 100, 100), 0, "without a deadline there is nothing to be wrong about");
        assert_eq!(refused(Op::Write, Some(5), 0, 100), 0, "changes aren't refused");
    }
}
