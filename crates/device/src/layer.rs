//! A model as the lowest layer of a stack.
//!
//! The model decides the time at which a request is done. The layer or file behind the port moves the bytes, if there are any.
//! A request ends when both are done. In the simulator there is usually nothing behind the port. Live there is a file, so real
//! clients feel a real disk's delays. One histogram of the layer has the lateness of all completions: the time from a completion's due
//! time to the engine's call.

use crate::model::{self, Done, Model};
use plimsoll_base::{Completion, Data, Io, IoError, IoFlags, IoId, LatencyHistogram, Op, Outcome, Time};
use plimsoll_stack::inside::{FlashPredictor, Knowledge};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};
use slab::Slab;

/// See the module's documentation.
pub struct ModelLayer<M> {
    model: M,
    backed: bool,
    slots: Slab<Slot>,
    done: Vec<Done>,
    lateness: LatencyHistogram,
    data_late: u64,
    predictor: Option<Box<dyn FlashPredictor>>,
}

struct Slot {
    holds: Holds,
    model_done: bool,
    /// The tag that the request came with; at the backing device it has the slot's number.
    tag: u64,
    submitted_at: Time,
}

enum Holds {
    /// The request itself: nothing is behind the model.
    Request(Io),
    /// The backing device has it.
    Nothing,
    /// Answer of the backing device.
    Answer(Completion),
}

impl<M: Model> ModelLayer<M> {
    /// A layer over `model`. It may have one port, to where the bytes are, or none.
    pub fn new(model: M) -> ModelLayer<M> {
        ModelLayer {
            model,
            backed: false,
            slots: Slab::new(),
            done: Vec::new(),
            lateness: LatencyHistogram::new(),
            data_late: 0,
            predictor: None,
        }
    }

    /// With a predictor of what requests wait in it; it needs a model that shows its inside.
    #[must_use]
    pub fn with_predictor(mut self, predictor: Box<dyn FlashPredictor>) -> ModelLayer<M> {
        self.predictor = Some(predictor);
        self
    }

    /// Returns the knowledge that its predictor rests on, if it has a predictor.
    pub fn knowledge(&self) -> Option<Knowledge> {
        self.predictor.as_ref().map(|p| p.knowledge())
    }

    /// The model, to inspect.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// Returns the delays from completions' due times until the engine handled them. Zero in virtual time.
    pub fn lateness(&self) -> &LatencyHistogram {
        &self.lateness
    }

    /// Completions that were due by the model while the real bytes were still on their way: there the real device is
    /// slower than the modelled one.
    pub fn data_late(&self) -> u64 {
        self.data_late
    }

    fn finish(&mut self, at: usize, out: &mut Actions) {
        let slot = self.slots.remove(at);
        let (mut io, outcome) = match slot.holds {
            Holds::Request(io) => (io, Outcome::Done),
            Holds::Answer(c) => (c.io, c.outcome),
            Holds::Nothing => unreachable!("a request ends only when its bytes are there"),
        };
        io.head.tag = slot.tag;
        out.complete(Completion { io, outcome, dispatched_at: slot.submitted_at });
    }

    fn arm(&self, out: &mut Actions) {
        // Only a predictor looks at the model between two completions.
        let next = if self.predictor.is_some() { self.model.next_event() } else { self.model.next_completion() };
        if next.is_set() {
            out.wake_at(next);
        }
    }
}

fn model_op(io: &Io) -> Option<model::Op> {
    Some(match io.op {
        Op::Read => model::Op::Read,
        Op::Write => model::Op::Write { fua: io.flags.has(IoFlags::FUA) },
        Op::Flush => model::Op::Flush,
        Op::Trim => model::Op::Trim,
        Op::WriteZeroes => model::Op::WriteZeroes,
        Op::Cache | Op::BlockStatus => return None,
    })
}

impl<M: Model + Send + 'static> Layer for ModelLayer<M> {
    fn name(&self) -> &'static str {
        "model"
    }

    fn serves(&self) -> bool {
        true
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        let own = Offer {
            size_bytes: self.model.size_bytes(),
            block_bytes: self.model.block_bytes(),
            io_bytes_max: 64 << 20,
            atomic_bytes: self.model.block_bytes(),
            queue_max: self.model.queue_max() as u32,
        };
        below.first().map_or(own, |b| Offer {
            size_bytes: own.size_bytes.min(b.size_bytes),
            block_bytes: own.block_bytes.max(b.block_bytes),
            atomic_bytes: own.atomic_bytes.min(b.atomic_bytes),
            ..own
        })
    }

    fn start(&mut self, _now: Time, below: &[Offer], _out: &mut Actions) {
        self.backed = !below.is_empty();
    }

    fn forecast(&self, at: Time, head: &plimsoll_base::IoHead, below: Ports<'_>) -> Forecast {
        match (&self.predictor, self.model.flash()) {
            (Some(p), Some(inside)) => {
                let p = p.predict(inside, at, head);
                below.serve(p.wait, p.service, p.confidence)
            }
            _ => Forecast::NONE, // what it takes is for the scheduler above to predict, from outside
        }
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        let at = self.slots.vacant_key();
        let Some(op) = model_op(&io) else {
            // No mechanics in it: the backing answers alone.
            self.hold(now, io, true, out);
            if !self.backed {
                self.finish(at, out);
            }
            return;
        };
        if op != model::Op::Flush && (io.len == 0 || io.end() > self.model.size_bytes()) {
            return out.end(io, Outcome::Failed(IoError::Invalid));
        }
        let request = model::Request { tag: at as u64, op, offset: io.offset, len: io.len };
        if !self.model.accepts(&request) {
            return out.end(io, Outcome::Failed(IoError::Invalid));
        }
        if let (Some(p), Some(inside)) = (&mut self.predictor, self.model.flash()) {
            p.submitted(inside, now, &io, at as u64);
        }
        self.model.submit(now, request);
        self.hold(now, io, false, out);
        self.arm(out);
    }

    fn completed(&mut self, _now: Time, c: Completion, out: &mut Actions) {
        let at = c.io.tag as usize;
        let slot = &mut self.slots[at];
        slot.holds = Holds::Answer(c);
        if slot.model_done {
            self.finish(at, out);
        }
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        let mut done = std::mem::take(&mut self.done);
        self.model.advance(now, &mut done);
        for d in done.drain(..) {
            self.lateness.record(now.since(d.at));
            let at = d.tag as usize;
            if let Some(p) = &mut self.predictor {
                p.ended(d.at, d.tag);
            }
            let slot = &mut self.slots[at];
            slot.model_done = true;
            if matches!(slot.holds, Holds::Nothing) {
                self.data_late += 1;
            } else {
                self.finish(at, out);
            }
        }
        self.done = done;
        self.arm(out);
    }

    fn cancel(&mut self, _now: Time, _id: IoId, _out: &mut Actions) {} // what a device has, it finishes

    fn is_idle(&self) -> bool {
        self.slots.is_empty()
    }
}

impl<M> ModelLayer<M> {
    /// Takes a request in: with bytes behind the model it goes on to them at once.
    fn hold(&mut self, now: Time, mut io: Io, model_done: bool, out: &mut Actions) {
        let tag = io.tag;
        let at = self.slots.vacant_key();
        let holds = if self.backed {
            io.head.tag = at as u64;
            out.submit(0, io);
            Holds::Nothing
        } else {
            io.data = Data::Absent;
            Holds::Request(io)
        };
        self.slots.insert(Slot { holds, model_done, tag, submitted_at: now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, DiskOptions};
    use crate::profile;
    use plimsoll_base::{IoHead, Span, TenantId, VolumeKey};
    use plimsoll_stack::{Stack, StackConfig, Target};

    fn read(offset: u64, now: Time) -> Io {
        Io::new(IoHead::new(Op::Read, VolumeKey::POOL, TenantId(0), offset, 4096, now), Data::Absent)
    }

    fn disk() -> Box<ModelLayer<Disk>> {
        let spec = profile::by_name("hdd-160g-7200").unwrap();
        Box::new(ModelLayer::new(Disk::new(&spec, DiskOptions::default()).unwrap()))
    }

    #[test]
    fn a_request_ends_when_both_the_model_and_the_bytes_have() {
        let offer =
            Offer { size_bytes: 1 << 40, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 64 };
        let mut s = Stack::new(StackConfig::default(), vec![offer]);
        s.push(disk(), vec![Target::Device(0)]);
        s.start(Time::ZERO);
        for bytes_first in [true, false] {
            let start = Time::ZERO + Span::from_secs(if bytes_first { 0 } else { 10 });
            s.wake(start); // whatever the drive did of its own between the two
            s.offer(start, read(1 << 30, start));
            let (d, io) = s.next_device_io().expect("the bytes are asked for at once");
            let mut answer = Some(Completion { io, outcome: Outcome::Done, dispatched_at: start });
            if bytes_first {
                s.device_done(start, d, answer.take().unwrap());
            }
            assert!(s.next_done().is_none());
            let mut now = start;
            while s.next_wake() < start + Span::from_millis(60) {
                now = s.next_wake();
                s.wake(now);
            }
            if let Some(c) = answer {
                assert!(s.next_done().is_none(), "the bytes are missing");
                s.device_done(now, d, c);
            }
            assert!(s.next_done().expect("both are there").outcome.is_done());
            assert!(now.since(start) > Span::from_micros(100), "a disk takes its time: {:?}", now.since(start));
        }
        assert_eq!(s.layer::<ModelLayer<Disk>>().unwrap().data_late(), 1);
    }

    #[test]
    fn without_a_port_it_serves_alone() {
        let mut s = Stack::new(StackConfig::default(), vec![]);
        s.push(disk(), vec![]);
        s.start(Time::ZERO);
        s.offer(Time::ZERO, read(1 << 30, Time::ZERO));
        while s.next_done().is_none() {
            let t = s.next_wake();
            s.wake(t);
        }
        assert!(s.is_idle());
        assert_eq!(s.layer::<ModelLayer<Disk>>().unwrap().lateness().max(), Span::ZERO);
    }
}
