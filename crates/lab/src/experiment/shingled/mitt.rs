//! Reads that would meet the cleaning of bands are refused, and go to a replica (MittOS over MLSMR).

use super::stalls::{BUFFER, ENTRIES, bursts, cleaned};
use super::{BAND_MIB, many_plan};
use crate::experiment::manylogs::{DEVICE, pool_of};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_bands::{Bands, BandsConfig};
use plimsoll_base::{Data, Io, IoHead, LatencyHistogram, Op, Outcome, Span, TenantId, Time, VolumeKey};
use plimsoll_device::profile;
use plimsoll_figure::plot::{Curve, Plot};
use plimsoll_logs::CleanConfig;
use plimsoll_pool::Costs;
use plimsoll_profile::profile_of;
use plimsoll_replay::Pool;
use plimsoll_stack::Offered;
use plimsoll_trace::record::{Op as TraceOp, TraceRecord};
use std::collections::VecDeque;

/// See the module's documentation.
pub struct CleaningRefused;

/// The clients' volume.
const VOLUME: VolumeKey = VolumeKey { id: 1 << 20, generation: 1 };
/// From a refusal to the other replica.
const HOP: Span = Span::from_micros(300);
/// Deadline of reads: this percentile of reads without cleaning (MittOS §7.2).
const DEADLINE_PERCENTILE: f64 = 95.0;
/// Idle shares of the load.
const IDLE: [u64; 2] = [25, 50];
/// The replicas' idle times before they clean: so the second begins when the first one's pause has come.
const IDLE_AFTER: [Span; 2] = [Span::from_millis(100), Span::from_millis(2_600)];

/// Two replicas: each has all writes, and every other read first.
struct Pair {
    pools: [Pool; 2],
    reads: LatencyHistogram,
    refused: u64,
}

impl Pair {
    fn new(is_cleaned: bool, seed: u64) -> Result<Pair, LabError> {
        let disk = profile::by_name(DEVICE).map_err(|e| LabError(e.to_string()))?;
        let costs = profile_of(&disk, 1, 10).map_err(|e| LabError(e.to_string()))?;
        let pool = |n: usize| {
            let mut logs = cleaned();
            logs.clean = CleanConfig { idle_after: is_cleaned.then_some(IDLE_AFTER[n]), ..logs.clean };
            // Without cleaning everything fits.
            let entries = if is_cleaned { ENTRIES } else { 100 * ENTRIES };
            let bands = BandsConfig { buffer_bytes: BUFFER, ..BandsConfig::default() };
            let seed = seed * 2 + n as u64;
            let mut plan = many_plan(BAND_MIB, entries, logs, bands, seed)?;
            plan.scheduler.costs = Costs::Profile(Box::new(costs.clone()));
            let mut pool = pool_of(&plan, seed)?;
            pool.add_volume(VOLUME);
            Ok::<_, LabError>(pool)
        };
        Ok(Pair { pools: [pool(0)?, pool(1)?], reads: LatencyHistogram::new(), refused: 0 })
    }

    /// Plays `records`; reads have `deadline` at their first replica.
    fn play(&mut self, records: &[TraceRecord], deadline: Option<Span>) {
        let mut again: VecDeque<(Time, usize, usize)> = VecDeque::new();
        let mut next = 0;
        loop {
            let arrival = records.get(next).map_or(Time::NEVER, |r| r.arrived_at);
            let hop = again.front().map_or(Time::NEVER, |a| a.0);
            let events = [0, 1].map(|p: usize| self.pools[p].next_event());
            let event = events[0].min(events[1]);
            let inside = self.pools.iter().any(|p| p.stack.inflight() > 0);
            if !arrival.is_set() && !hop.is_set() && !inside {
                return;
            }
            if event <= arrival.min(hop) {
                let p = usize::from(events[1] < events[0]);
                self.pools[p].advance(event);
                self.hear(p, event, records, &mut again);
            } else if hop <= arrival {
                let (now, p, n) = again.pop_front().expect("just seen");
                self.send(p, now, n, &records[n], None, &mut again);
                self.hear(p, now, records, &mut again);
            } else {
                let (n, r) = (next, &records[next]);
                next += 1;
                let replicas = if r.op == TraceOp::Read { n % 2..n % 2 + 1 } else { 0..2 };
                for p in replicas {
                    self.send(p, arrival, n, r, deadline, &mut again);
                    self.hear(p, arrival, records, &mut again);
                }
            }
        }
    }

    fn send(
        &mut self,
        p: usize,
        now: Time,
        n: usize,
        r: &TraceRecord,
        deadline: Option<Span>,
        again: &mut VecDeque<(Time, usize, usize)>,
    ) {
        let op = if r.op == TraceOp::Read { Op::Read } else { Op::Write };
        let mut head = IoHead::new(op, VOLUME, TenantId(1), r.offset, r.len, now);
        head.tag = n as u64;
        if let Some(within) = deadline.filter(|_| op == Op::Read) {
            head.deadline = now + within;
        }
        if let Offered::Busy(_) = self.pools[p].stack.offer(now, Io::new(head, Data::Absent)) {
            self.refused += 1;
            again.push_back((now + HOP, 1 - p, n));
        }
        self.pools[p].collect(now);
    }

    fn hear(&mut self, p: usize, now: Time, records: &[TraceRecord], again: &mut VecDeque<(Time, usize, usize)>) {
        while let Some(c) = self.pools[p].stack.next_done() {
            if c.io.op != Op::Read {
                continue;
            }
            let n = c.io.tag as usize;
            if matches!(c.outcome, Outcome::Busy { .. }) {
                self.refused += 1;
                again.push_back((now + HOP, 1 - p, n));
            } else {
                assert!(c.outcome.is_done(), "a read ended {:?}", c.outcome);
                self.reads.record(now.since(records[n].arrived_at));
            }
        }
    }

    fn copied(&self) -> u64 {
        self.pools.iter().map(|p| p.stack.layer::<Bands>().expect("it is there").counters().copied).sum()
    }
}

impl Experiment for CleaningRefused {
    fn id(&self) -> &'static str {
        "ML-SMR-MITT"
    }
    fn title(&self) -> &'static str {
        "Shingled disks: reads that would meet cleaning go to a replica"
    }
    fn source(&self) -> &'static str {
        "beyond both: MittOS §8.2 names band cleaning"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "two replicas, each MLSMR as in ML-STALLS with its load: writes go to both, reads to one in turn; a read that is forecast later than the p95 \
             of reads without cleaning is refused, and goes to the other one 300 us later, without a deadline"
                .into(),
            "without cleaning: the tables hold everything, and the deadline is the same".into(),
            "the replicas begin to clean after 100 ms and 2.6 s of idle time; nothing else keeps them apart".into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for idle in IDLE {
            let row = |what: &str, unit| RowSpec::new(format!("{idle} % idle: {what}"), unit);
            rows.extend([
                row("p99.9 of reads, without cleaning", "ms"),
                row("p99.9 of reads, cleaning, nothing refused", "ms"),
                row("p99.9 of reads, cleaning, refused", "ms"),
                row("p99.9 with cleaning more than without, refused", "%").goal(Check::AtMost(5.0)),
                row("longest read, cleaning, nothing refused", "ms"),
                row("longest read, cleaning, refused", "ms"),
                row("reads refused, cleaning", "%"),
                row("reads refused, without cleaning", "%"),
                row("bands copied, both replicas", "1"),
            ]);
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let time = Span::from_secs(inputs.length(1200, 300, 120));
        let mut sample = Sample::default();
        for idle in IDLE {
            let records = bursts(seed, idle, time);
            let run = |is_cleaned, deadline| {
                let mut pair = Pair::new(is_cleaned, seed)?;
                pair.play(&records, deadline);
                Ok::<_, LabError>(pair)
            };
            let deadline = Some(run(false, None)?.reads.percentile(DEADLINE_PERCENTILE));
            let (off, open, on) = (run(false, deadline)?, run(true, None)?, run(true, deadline)?);
            let p = |pair: &Pair| pair.reads.percentile(99.9).as_millis_f64();
            let refused = |pair: &Pair| 100.0 * pair.refused as f64 / pair.reads.count().max(1) as f64;
            let values = [
                p(&off),
                p(&open),
                p(&on),
                100.0 * (p(&on) / p(&off) - 1.0),
                open.reads.max().as_millis_f64(),
                on.reads.max().as_millis_f64(),
                refused(&on),
                refused(&off),
                on.copied() as f64,
            ];
            sample.values.extend(values.map(Some));
            let named = [("without cleaning", &off), ("nothing refused", &open), ("refused", &on)];
            let curves = named.map(|(n, pair)| Curve::of_histogram(n, &pair.reads).thinned());
            sample.plots.push(Plot::of_times(&format!("{idle} % idle: reads"), curves.into()));
        }
        Ok(sample)
    }
}
