//! Measures the layer's own cost per request: a stack of it alone over a device that answers at once, against the same without it.
//!
//! `cargo run --release -p plimsoll-logs --example logs_cost [EXTENTS] [REQUESTS] [read|write] [TOGETHER]`; under `valgrind --tool=callgrind`
//! it gives instructions. Prints ns a request, with and without the layer, alternating.

#![expect(clippy::disallowed_methods, reason = "it measures")]

use plimsoll_base::*;
use plimsoll_logs::*;
use plimsoll_stack::*;
use std::time::Instant;

/// Passes everything on.
struct Nothing;

impl Layer for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, _now: Time, io: Io, out: &mut Actions) {
        out.submit(0, io);
    }
    fn is_idle(&self) -> bool {
        true
    }
}

struct Run {
    stack: Stack,
    now: Time,
    size: u64,
}

impl Run {
    fn new(layer: Box<dyn Layer>, size: u64) -> Run {
        let offer =
            Offer { size_bytes: 1 << 40, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 64 };
        let mut stack = Stack::new(StackConfig::default(), vec![offer]);
        stack.push(layer, vec![Target::Device(0)]);
        stack.start(Time::ZERO);
        Run { stack, now: Time::ZERO, size }
    }

    fn one(&mut self, op: Op, offset: u64) {
        self.burst(op, &[offset]);
    }

    /// Requests that come together, to their ends.
    fn burst(&mut self, op: Op, offsets: &[u64]) {
        self.now += Span::from_micros(300);
        for offset in offsets {
            let offset = offset % self.size;
            let head = IoHead::new(op, VolumeKey { id: 1, generation: 1 }, TenantId(1), offset, 4096, self.now);
            self.stack.offer(self.now, Io::new(head, Data::Absent));
        }
        let mut left = offsets.len();
        while left > 0 {
            while let Some((d, io)) = self.stack.next_device_io() {
                self.stack.device_done(self.now, d, Completion { io, outcome: Outcome::Done, dispatched_at: self.now });
            }
            let before = left;
            while self.stack.next_done().is_some() {
                left -= 1;
            }
            if left == before {
                self.now = self.stack.next_wake().max(self.now);
                self.stack.wake(self.now);
            }
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = |otherwise| args.next().map_or(otherwise, |a| a.parse().expect("a number"));
    let (extents, requests) = (number(100_000u64), number(200_000u64));
    let together = std::env::args().nth(4).map_or(1, |a| a.parse().expect("a number"));
    let op = if std::env::args().nth(3).as_deref() == Some("write") { Op::Write } else { Op::Read };
    let layout = Layout::new(1 << 40, 512, Shape::default(), 1).expect("it fits");
    let config = LogsConfig { adaptive: false, off_below: Span::ZERO, ..LogsConfig::default() };
    let mut with = Run::new(Box::new(Logs::fresh(layout, config)), layout.home_bytes / 2);
    let mut without = Run::new(Box::new(Nothing), layout.home_bytes / 2);
    let mut rng = Rng::new(1, "cost");
    for i in 0..extents {
        with.one(Op::Read, rng.below(1 << 27) * 4096);
        with.one(Op::Write, i * 8192);
    }
    let mut took = [Vec::new(), Vec::new()];
    for _ in 0..10 {
        let offsets: Vec<u64> = (0..requests / 10).map(|_| rng.below(1 << 27) * 4096).collect();
        for (run, took) in [&mut with, &mut without].into_iter().zip(&mut took) {
            let begun = Instant::now();
            offsets.chunks(together).for_each(|burst| run.burst(op, burst));
            took.push(begun.elapsed().as_nanos() as u64 / offsets.len() as u64);
        }
    }
    let median = |v: &mut Vec<u64>| {
        v.sort_unstable();
        v[v.len() / 2]
    };
    let logged = with.stack.layer::<Logs>().expect("it is there").status(with.now).extents;
    let [a, b] = &mut took;
    println!(
        "{op:?}, {together} together, over {logged} extents: {} ns with, {} ns without (medians of 10 alternations)",
        median(a),
        median(b)
    );
}
