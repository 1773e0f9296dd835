//! Wrong answers on purpose, to see what prediction errors cost (MittOS §7.7; MT-M29). For experiments only.

use plimsoll_base::{Confidence, Io, IoHead, Op, Span, Time};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};

/// The topmost layer of a pool that answers wrongly at set rates. Which reads is drawn from the request, so that it's
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
        if head.op != Op::Read || !head.deadline.is_set() {
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
