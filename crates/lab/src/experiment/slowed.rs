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

    /// The model's own time. Both ways round up, so that what is due outside is due inside: or a wake-up would find nothing
    /// to do, for ever.
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
        self.from + Span::from_nanos(at.since(self.from).as_nanos().saturating_mul(self.permille).div_ceil(1000))
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

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_device::{DeviceOptions, DeviceSpec, Op};

    /// At every wake-up something happens, however the times round.
    #[test]
    fn it_always_comes_to_an_end() {
        for permille in [800, 1000, 1200, 1213] {
            let model = DeviceSpec::named("cheetah-15k5").unwrap().build(DeviceOptions::default()).unwrap();
            let from = Time::from_nanos(1_000_000_007);
            let mut slowed = Slowed::new(model, from, permille);
            let (mut now, mut done, mut took) = (Time::ZERO, Vec::new(), [(0u32, 0.0); 2]);
            for i in 0..400u64 {
                let asked = now;
                let offset = i * 7_919_000_000 % slowed.size_bytes() / 4096 * 4096;
                slowed.submit(now, Request { tag: i, op: Op::Read, offset, len: 4096 });
                for wakes in 0.. {
                    assert!(wakes < 100, "{permille}: nothing comes of waking at {now:?}");
                    now = slowed.next_event().max(now);
                    slowed.advance(now, &mut done);
                    if !done.is_empty() {
                        break;
                    }
                }
                done.clear();
                let (n, ms) = &mut took[usize::from(asked > from)];
                (*n, *ms) = (*n + 1, *ms + now.since(asked).as_millis_f64());
            }
            let [before, after] = took.map(|(n, ms)| ms / f64::from(n));
            let ratio = 1000.0 * after / before / permille as f64;
            assert!((0.93..1.07).contains(&ratio), "{permille}: {before} ms, then {after} ms");
        }
    }
}
