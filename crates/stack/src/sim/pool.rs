//! A pool in virtual time: a stack over simulated devices, advanced event by event.

use crate::layer::{Actions, Layer, LayerState, Offer};
use crate::sim::disk::{SECTOR_BYTES, SimDisk};
use crate::sim::events::EventQueue;
use crate::sim::workers::SimWorkers;
use crate::stack::{Offered, Stack, StackConfig, Target};
use plimsoll_base::{Completion, Io, Time};

/// One event of a simulated pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolEvent {
    /// A layer was woken.
    Wake,
    /// A device answered.
    Device,
    /// A worker has done something.
    Worker,
}

/// Cores that do layers' work.
const WORKERS: usize = 2;

/// A stack over simulated devices.
pub struct SimPool {
    stack: Stack,
    disks: Vec<SimDisk>,
    at_device: EventQueue<(usize, Completion)>,
    workers: SimWorkers,
    now: Time,
    events: u64,
}

impl SimPool {
    /// A pool of `layers` (top first), each over the next, the last over disk 0; further disks are for layers with
    /// several ports, which [`SimPool::with_stack`] builds.
    pub fn chain(config: StackConfig, layers: Vec<Box<dyn Layer>>, disks: Vec<SimDisk>) -> SimPool {
        let n = layers.len();
        SimPool::with_stack(disks, |offers| {
            let mut stack = Stack::new(config, offers);
            for (i, layer) in layers.into_iter().enumerate() {
                stack.push(layer, vec![if i + 1 < n { Target::Node(i + 1) } else { Target::Device(0) }]);
            }
            stack
        })
    }

    /// A pool whose stack `build` makes from what the disks offer.
    pub fn with_stack(disks: Vec<SimDisk>, build: impl FnOnce(Vec<Offer>) -> Stack) -> SimPool {
        let offer = |d: &SimDisk| Offer {
            size_bytes: d.size_bytes(),
            block_bytes: d.block_bytes() as u32,
            io_bytes_max: 64 << 20,
            atomic_bytes: SECTOR_BYTES as u32,
            queue_max: 1 << 16,
        };
        let stack = build(disks.iter().map(offer).collect()).checking_overlaps(true).hashing_decisions();
        SimPool {
            stack,
            disks,
            at_device: EventQueue::new(),
            workers: SimWorkers::new(WORKERS),
            now: Time::ZERO,
            events: 0,
        }
    }

    /// The same without the check of overlaps: for a stack with a modelled system in it that writes one place twice at once.
    #[must_use]
    pub fn unchecked(self) -> SimPool {
        SimPool { stack: self.stack.checking_overlaps(false), ..self }
    }

    /// Starts the layers and runs until they serve or have failed.
    pub fn start(&mut self) -> LayerState {
        loop {
            self.stack.start(self.now);
            self.collect();
            let state = self.stack.state();
            if state != LayerState::Recovering || self.step().is_none() {
                return state;
            }
        }
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The stack, to inspect or configure.
    pub fn stack(&mut self) -> &mut Stack {
        &mut self.stack
    }

    /// Calls `f` on the first layer of type `L`, as [`Stack::with_layer`], and sends what it orders to the disks.
    pub fn with_layer<L: Layer, R>(&mut self, f: impl FnOnce(&mut L, &mut Actions) -> R) -> Option<R> {
        let r = self.stack.with_layer(self.now, f);
        self.collect();
        r
    }

    /// A disk, to look behind the stack's back.
    pub fn disk(&mut self, n: usize) -> &mut SimDisk {
        &mut self.disks[n]
    }

    /// Returns the number of events so far: the name of an instant at which a run can be cut.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Offers a client request at `at`, which is not before anything that has happened.
    pub fn offer(&mut self, at: Time, io: Io) -> Offered {
        assert!(at >= self.now && at <= self.next_event_at(), "an event before {at:?} hasn't happened yet");
        self.now = at;
        let offered = self.stack.offer(at, io);
        self.collect();
        offered
    }

    /// Returns the time of the next event that occurs without outside input.
    pub fn next_event_at(&self) -> Time {
        self.stack.next_wake().min(self.at_device.next_at()).min(self.workers.next_at()).max(self.now)
    }

    /// Lets the next thing happen; `None` if nothing is left to.
    pub fn step(&mut self) -> Option<PoolEvent> {
        let (wake, device, worker) = (self.stack.next_wake(), self.at_device.next_at(), self.workers.next_at());
        if !wake.is_set() && !device.is_set() && !worker.is_set() {
            return None;
        }
        self.events += 1;
        let event = if worker < device && worker <= wake {
            let (at, (node, done)) = self.workers.pop().expect("just seen");
            self.now = self.now.max(at);
            self.stack.worked(self.now, node, done);
            PoolEvent::Worker
        } else if device <= wake {
            let (at, (d, c)) = self.at_device.pop().expect("just seen");
            self.now = self.now.max(at);
            self.disks[d].answered(c.io.id);
            self.stack.device_done(self.now, d, c);
            PoolEvent::Device
        } else {
            self.now = self.now.max(wake);
            self.stack.wake(self.now);
            PoolEvent::Wake
        };
        self.collect();
        Some(event)
    }

    /// Lets everything happen that is due up to `until`, then sets the clock to it.
    pub fn run_until(&mut self, until: Time) {
        while self.next_event_at() <= until && self.step().is_some() {}
        self.now = self.now.max(until);
    }

    /// Lets everything happen.
    pub fn run(&mut self) {
        while self.step().is_some() {}
    }

    /// The next request that ended.
    pub fn next_done(&mut self) -> Option<Completion> {
        self.stack.next_done()
    }

    /// Power is lost now: what is in flight is gone, and the disks keep what they keep.
    pub fn lose_power(mut self) -> Vec<SimDisk> {
        self.disks.iter_mut().for_each(SimDisk::lose_power);
        self.disks
    }

    fn collect(&mut self) {
        while let Some((node, work)) = self.stack.next_work() {
            self.workers.begin(self.now, node, work);
        }
        while let Some((d, io)) = self.stack.next_device_io() {
            let done_at = self.now + self.disks[d].draw_latency();
            let c = self.disks[d].apply(io, self.now);
            self.at_device.add(done_at, (d, c));
        }
    }
}
