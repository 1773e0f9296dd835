//! A device that becomes slower or faster at an instant: what ages, or is shared with somebody unseen.

use plimsoll_base::{Span, Time};
use plimsoll_device::{Done, Model, Request};

/// `model`, each of whose times takes `permille` of what it did from `from` on.
pub(crate) struct Slowed<M> {
    model: M,
    from: Time,
    permille: u64,
}

impl<M> Slowed<M> {
    pub(crate) fn new(model: M, from: Time, permille: u64) -> Slowed<M> {
        Slowed { model, from, permille }
    }

    /// The model's own time; rounded up, so that what is due outside is due inside.
    fn inside(&self, at: Time) -> Time {
        if at <= self.from || !at.is_set() {
            return at;
        }
        self.from + Span::from_nanos(at.since(self.from).as_nanos().saturating_mul(1000).div_ceil(self.permille))
    }

    fn outside(&self, at: Time) -> Time {
        if at <= self.from || !at.is_set() {
            return at;
        }
        self.from + at.since(self.from).scale(self.permille, 1000)
    }
}

impl<M: Model> Model for Slowed<M> {
    fn size_bytes(&self) -> u64 {
        self.model.size_bytes()
    }
    fn block_bytes(&self) -> u32 {
        self.model.block_bytes()
    }
    fn submit(&mut self, now: Time, req: Request) {
        let now = self.inside(now);
        self.model.submit(now, req);
    }
    fn next_event(&self) -> Time {
        self.outside(self.model.next_event())
    }
    fn advance(&mut self, now: Time, done: &mut Vec<Done>) {
        let first = done.len();
        let now = self.inside(now);
        self.model.advance(now, done);
        for d in &mut done[first..] {
            (d.at, d.started_at) = (self.outside(d.at), self.outside(d.started_at));
        }
    }
    fn outstanding(&self) -> usize {
        self.model.outstanding()
    }
    fn queue_max(&self) -> usize {
        self.model.queue_max()
    }
}
