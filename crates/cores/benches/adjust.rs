//! Cost of examining a queue and adjusting its cores on a real thread: `cargo bench -p plimsoll-cores`.
#![allow(missing_docs)]

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use std::hint::black_box;

#[path = "adjust/setup.rs"]
mod setup;

fn adjustments(c: &mut Criterion) {
    for (name, waiting) in [("demand of 16 that wait", 16), ("demand of 128", 128), ("demand of 4,096", 4096)] {
        let queue = setup::arrivals(waiting);
        c.bench_function(name, |b| b.iter(|| setup::demand(black_box(&queue))));
    }
    c.bench_function("a request through the layer, a look after each", |b| {
        let mut m = setup::Loop::new();
        b.iter(|| m.turn());
    });
    c.bench_function("a new window of 128, three queues, too few cores", |b| {
        b.iter_batched(setup::crowded, |mut c| c.begin(), BatchSize::SmallInput);
    });
}

criterion_group!(benches, adjustments);
criterion_main!(benches);
