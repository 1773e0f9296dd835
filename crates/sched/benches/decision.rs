//! Cost of a decision on a real thread (MT-E20): `cargo bench -p plimsoll-sched`.
#![allow(missing_docs)]

use criterion::{Criterion, criterion_group, criterion_main};
use plimsoll_sched::{SchedulerKind, decision as setup};
use std::hint::black_box;

fn decisions(c: &mut Criterion) {
    let noop = setup::scheduler(SchedulerKind::Noop, 8, 16);
    c.bench_function("noop", |b| b.iter(|| noop.forecast(setup::NOW, black_box(&setup::read(77 << 20, 1)))));
    let cfq = setup::scheduler(SchedulerKind::Cfq, 128, 4);
    c.bench_function("cfq, 128 busy processes", |b| {
        b.iter(|| cfq.forecast(setup::NOW, black_box(&setup::read((64 << 30) + 12_345, 64))));
    });
    let tenants = setup::tenants(128, 4);
    c.bench_function("cfq, 128 busy tenants, with a profile", |b| {
        b.iter(|| tenants.forecast(setup::NOW, black_box(&setup::read_of(64, (64 << 30) + 12_345))));
    });
    let ssd = setup::ssd();
    c.bench_function("ssd", |b| b.iter(|| setup::ask_ssd(&ssd, black_box(77 << 20))));
    let hidden = setup::black_box();
    c.bench_function("black box", |b| b.iter(|| setup::ask_black_box(&hidden, black_box(77 << 20))));
    let mut auto = setup::auto();
    c.bench_function("auto", |b| b.iter(|| setup::ask_auto(&auto, black_box(77 << 20))));
    c.bench_function("auto, a read noted and learned", |b| {
        b.iter(|| setup::serve_auto(&mut auto, black_box(77 << 20)))
    });
}

criterion_group!(benches, decisions);
criterion_main!(benches);
