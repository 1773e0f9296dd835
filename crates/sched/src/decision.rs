//! Predictors in the state in which a decision is measured (MT-E20): what the benchmark, the instruction count and the
//! experiment share.

use crate::auto::AutoPredictor;
use crate::blackbox::BlackBoxPredictor;
use crate::disk::OpCosts;
use crate::ssd::MittSsd;
use crate::{DiskModel, SchedulerKind, SchedulerOptions};
use plimsoll_base::{Data, Io, IoHead, IoId, Op, Span, TenantId, Time, VolumeKey};
use plimsoll_stack::inside::{FlashInside, FlashPredictor, UnitWork};
use plimsoll_stack::{Offer, Stack, StackConfig, Target};
use std::collections::VecDeque;

/// Time of all events.
pub const NOW: Time = Time::from_nanos(1_000_000_000);

/// A read with a distant deadline.
pub fn read(offset: u64, volume: u32) -> IoHead {
    let mut head = IoHead::new(Op::Read, VolumeKey { id: volume, generation: 0 }, TenantId(1), offset, 4096, NOW);
    head.deadline = NOW + Span::from_secs(60);
    head
}

/// The same of another tenant.
pub fn read_of(tenant: u16, offset: u64) -> IoHead {
    IoHead { tenant: TenantId(tenant), ..read(offset, 1) }
}

/// Builds a `kind` with `processes` processes that have `each` requests waiting.
pub fn scheduler(kind: SchedulerKind, processes: u32, each: u64) -> Stack {
    filled(kind, DiskModel::unknown(1 << 40), waiting(processes, each))
}

/// Builds CFQ over a measured disk, with `count` tenants that have `each` requests waiting: a node's real shape.
pub fn tenants(count: u16, each: u64) -> Stack {
    let of = |tenant: u16| (0..each).map(move |i| read_of(tenant, (u64::from(tenant) << 30) + (i << 20)));
    filled(SchedulerKind::Cfq, measured_disk(), (1..=count).flat_map(of).collect())
}

/// Up to 12 ms, by distance.
fn measured_disk() -> DiskModel {
    let points: Vec<(u64, Span)> = (12..41).map(|bits| (1 << bits, Span::from_micros(400 * (bits - 10)))).collect();
    let sequential = Span::from_micros(100);
    let costs = OpCosts { sequential, distances: [points.clone(), points], transfer_ns_per_kib: [8_000; 8] };
    DiskModel::from_costs(1 << 40, &[costs.clone(), costs], 512 << 10)
}

fn filled(kind: SchedulerKind, model: DiskModel, waiting: Vec<IoHead>) -> Stack {
    let offer =
        Offer { size_bytes: 1 << 40, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 64 };
    let mut stack = Stack::new(StackConfig::default(), vec![offer]);
    stack.push(kind.layer(&SchedulerOptions::default(), model), vec![Target::Device(0)]);
    stack.start(NOW);
    for head in waiting {
        stack.offer(NOW, Io::new(head, Data::Absent));
    }
    stack
}

/// Computes the cost of the paper's naive O(N) decision, which walks over all waiting requests: each request's cost from the
/// end of the one before.
pub fn walk(model: &DiskModel, waiting: &[IoHead]) -> Span {
    let mut arm = 0;
    let mut sum = Span::ZERO;
    for head in waiting {
        sum += model.cost(NOW, arm, head);
        arm = head.end();
    }
    sum
}

/// Returns the same number of waiting requests as [`scheduler`] has.
pub fn waiting(processes: u32, each: u64) -> Vec<IoHead> {
    let of = |volume: u32| (0..each).map(move |i| read((u64::from(volume) << 30) + (i << 20), volume));
    (1..=processes).flat_map(of).collect()
}

/// 16 channels of 8 chips, each with something to do.
pub struct Chips;

impl FlashInside for Chips {
    fn page_bytes(&self) -> u32 {
        16_384
    }
    fn units(&self) -> u32 {
        128
    }
    fn place(&self, offset: u64) -> (u32, u32) {
        let unit = (offset / 16_384 % 128) as u32;
        (unit % 16, unit)
    }
    fn unit_work(&self, unit: u32) -> UnitWork {
        UnitWork { reads: unit % 3, erases: unit % 2, ..UnitWork::default() }
    }
    fn channel_reads(&self, channel: u32) -> u32 {
        channel % 5
    }
}

/// The flash predictor, having learned enough to speak.
pub fn ssd() -> MittSsd {
    let mut m = MittSsd::unprofiled();
    for i in 0..100 {
        m.submitted(&Chips, NOW, &read(i << 14, 1), i);
        m.ended(NOW + Span::from_micros(300), i);
    }
    m
}

/// The wait that the flash predictor says, so that nothing is optimised away.
pub fn ask_ssd(m: &MittSsd, offset: u64) -> u64 {
    m.predict(&Chips, NOW, &read(offset, 1)).wait.as_nanos()
}

/// Returns the prediction of a hidden device's predictor, so that nothing is optimised away.
pub fn ask_black_box(p: &BlackBoxPredictor, offset: u64) -> u64 {
    p.predict(NOW, &read(offset, 1)).0.as_nanos()
}

/// The forecast of the predictor that chooses itself, so that nothing is optimised away.
pub fn ask_auto(p: &AutoPredictor, offset: u64) -> u64 {
    p.predict(NOW, &read(offset, 1), Span::from_micros(100)).map_or(0, Span::as_nanos)
}

/// A read comes and ends: what accepted reads cost beside their forecast.
pub fn serve_auto(p: &mut AutoPredictor, offset: u64) {
    let key = p.sent(NOW, &read(offset, 1), Span::from_micros(100));
    p.ended(NOW + Span::from_micros(90), key);
}

/// The same having seen ten thousand reads, eight of them in flight.
pub fn auto() -> AutoPredictor {
    let mut p = AutoPredictor::new(10, true);
    let (mut now, mut keys) = (Time::ZERO, VecDeque::new());
    for i in 0..10_000u64 {
        keys.push_back(p.sent(now, &read(i << 12, 1), Span::from_micros(100)));
        now += Span::from_micros(20 + i % 7);
        if keys.len() > 8
            && let Some(key) = keys.pop_front()
        {
            p.ended(now, key);
        }
    }
    p
}

/// A predictor that has seen ten thousand reads, eight of them in flight.
pub fn black_box() -> BlackBoxPredictor {
    let mut p = BlackBoxPredictor::new(10);
    let mut now = Time::ZERO;
    for i in 0..10_000u64 {
        let mut head = read(i << 12, 1);
        head.id = IoId(i);
        p.sent(now, &head);
        now += Span::from_micros(20 + i % 7);
        if i >= 8 {
            p.ended(now, IoId(i - 8));
        }
    }
    p
}
