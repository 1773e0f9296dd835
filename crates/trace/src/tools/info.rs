//! Summary of a trace.

use crate::error::TraceError;
use crate::record::{Op, TraceRecord};
use crate::stream::RecordStream;
use crate::tools::footprint::{BLOCK_BYTES, Footprint};
use crate::tools::window::{Busy, Window, WindowFinder};
use plimsoll_base::{LatencyHistogram, Span, Time};
use std::collections::{BTreeMap, VecDeque};

/// Counts and bytes of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpTotals {
    /// Requests.
    pub requests: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A trace described.
#[derive(Clone, Debug)]
pub struct TraceInfo {
    /// Totals per operation, in the order of [`Op::ALL`].
    pub ops: [OpTotals; 4],
    /// Devices seen.
    pub devices: usize,
    /// First to last arrival.
    pub duration: Span,
    /// Distinct 4 KiB blocks that reads and writes touch, over all devices, in bytes.
    pub footprint_bytes: u64,
    /// If true, the footprint is exact; else it is an estimate with a standard error of 0.8 %.
    pub is_footprint_exact: bool,
    /// Highest byte after any request: what a device must hold at least.
    pub end_max: u64,
    /// Sizes of reads and writes.
    pub sizes: SizeTable,
    /// Reads and writes that start where the one before on the same device ended.
    pub sequential: u64,
    /// Reads and writes that start where one of the last 8 on the same device ended: interleaved streams count.
    pub sequential_of_8: u64,
    /// The busiest window by requests.
    pub busiest: Window,
    /// Most requests in a whole second since the start.
    pub peak_per_second: u64,
    /// From each arrival to the next.
    pub gaps: LatencyHistogram,
    /// Gaps longer than a minute: how many, and their sum. A replay may want to cap them.
    pub idle: (u64, Span),
    /// Measured queue times, where there are any.
    pub queue: LatencyHistogram,
    /// Measured service times, where there are any.
    pub service: LatencyHistogram,
    /// Requests with a content fingerprint.
    pub fingerprints: u64,
}

impl TraceInfo {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.ops.iter().map(|o| o.requests).sum()
    }

    /// The totals of one operation.
    pub fn op(&self, op: Op) -> OpTotals {
        self.ops[op as usize]
    }

    /// Reads per request, 0 to 1; 0 for an empty trace.
    pub fn read_share(&self) -> f64 {
        self.op(Op::Read).requests as f64 / self.requests().max(1) as f64
    }

    /// Requests per second over the duration; 0 if there is none.
    pub fn iops_mean(&self) -> f64 {
        let s = self.duration.as_secs_f64();
        if s > 0.0 { self.requests() as f64 / s } else { 0.0 }
    }
}

/// Number of occurrences of each size: exactly for the first 65,536 distinct sizes; one that is new after that counts as the
/// next larger size known (or the largest).
#[derive(Clone, Debug, Default)]
pub struct SizeTable {
    counts: BTreeMap<u64, u64>,
    total: u64,
}

/// Distinct sizes kept.
const SIZES_MAX: usize = 1 << 16;

impl SizeTable {
    fn record(&mut self, size: u64) {
        self.total += 1;
        if self.counts.len() < SIZES_MAX || self.counts.contains_key(&size) {
            *self.counts.entry(size).or_default() += 1;
            return;
        }
        let next = self.counts.range(size..).next().or_else(|| self.counts.last_key_value()).map(|(&k, _)| k);
        if let Some(n) = next.and_then(|k| self.counts.get_mut(&k)) {
            *n += 1;
        }
    }

    /// The smallest size that at least `percent` % of the requests don't exceed; 0 if there are none.
    pub fn percentile(&self, percent: f64) -> u64 {
        let rank = ((percent.clamp(0.0, 100.0) / 100.0 * self.total as f64).ceil() as u64).max(1);
        let mut seen = 0;
        self.counts
            .iter()
            .find(|(_, n)| {
                seen += **n;
                seen >= rank
            })
            .map_or(0, |(&size, _)| size)
    }

    /// Sizes and how often each occurs, ascending.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts.iter().map(|(&s, &n)| (s, n))
    }
}

/// Ends of requests remembered per device.
const ENDS: usize = 8;
/// A gap longer than this is called idle.
const IDLE: Span = Span::from_secs(60);

/// The description, growing.
struct Builder {
    info: TraceInfo,
    footprint: Footprint,
    finder: WindowFinder,
    ends: BTreeMap<u32, VecDeque<u64>>,
    first: Option<Time>,
    last: Time,
    second: u64,
    in_second: u64,
}

/// Describes all of `stream`; `window` is the length of the busiest window to find (at least 60 ns).
///
/// # Errors
/// The stream's.
pub fn info(stream: &mut impl RecordStream, window: Span) -> Result<TraceInfo, TraceError> {
    let mut b = Builder::new(window);
    for r in stream.records() {
        b.record(&r?);
    }
    let mut info = b.finish();
    info.devices = stream.tables().devices.len();
    Ok(info)
}

impl Builder {
    fn new(window: Span) -> Builder {
        let finder = WindowFinder::new(window, Busy::Requests);
        Builder {
            info: TraceInfo {
                ops: [OpTotals::default(); 4],
                devices: 0,
                duration: Span::ZERO,
                footprint_bytes: 0,
                is_footprint_exact: true,
                end_max: 0,
                sizes: SizeTable::default(),
                sequential: 0,
                sequential_of_8: 0,
                busiest: finder.found(),
                peak_per_second: 0,
                gaps: LatencyHistogram::new(),
                idle: (0, Span::ZERO),
                queue: LatencyHistogram::new(),
                service: LatencyHistogram::new(),
                fingerprints: 0,
            },
            footprint: Footprint::new(),
            finder,
            ends: BTreeMap::new(),
            first: None,
            last: Time::ZERO,
            second: 0,
            in_second: 0,
        }
    }

    fn record(&mut self, r: &TraceRecord) {
        self.arrival(r.arrived_at);
        self.finder.record(r);
        let i = &mut self.info;
        let totals = &mut i.ops[r.op as usize];
        totals.requests += 1;
        totals.bytes = totals.bytes.saturating_add(r.len);
        i.end_max = i.end_max.max(r.end());
        i.fingerprints += u64::from(r.content.is_some());
        if let Some(q) = r.queue {
            i.queue.record(q);
        }
        if let Some(s) = r.service {
            i.service.record(s);
        }
        // A trim may span the whole device and moves no data.
        if matches!(r.op, Op::Read | Op::Write) {
            i.sizes.record(r.len);
            self.footprint.touch(r.device, r.offset, r.len);
            self.place(r);
        }
    }

    fn arrival(&mut self, at: Time) {
        let i = &mut self.info;
        if self.first.is_some() {
            let gap = at.since(self.last);
            i.gaps.record(gap);
            if gap > IDLE {
                i.idle = (i.idle.0 + 1, i.idle.1 + gap);
            }
        }
        self.first.get_or_insert(at);
        self.last = at;
        let second = at.as_nanos() / 1_000_000_000;
        if second != self.second {
            self.second = second;
            self.in_second = 0;
        }
        self.in_second += 1;
        i.peak_per_second = i.peak_per_second.max(self.in_second);
    }

    fn place(&mut self, r: &TraceRecord) {
        let ends = self.ends.entry(r.device).or_default();
        self.info.sequential += u64::from(ends.back() == Some(&r.offset));
        self.info.sequential_of_8 += u64::from(ends.contains(&r.offset));
        if ends.len() == ENDS {
            ends.pop_front();
        }
        ends.push_back(r.end());
    }

    fn finish(mut self) -> TraceInfo {
        let (blocks, is_exact) = self.footprint.blocks();
        self.info.footprint_bytes = blocks * BLOCK_BYTES;
        self.info.is_footprint_exact = is_exact;
        self.info.duration = self.last.since(self.first.unwrap_or(self.last));
        self.info.busiest = self.finder.found();
        self.info
    }
}
