//! MT-E14: what wrong answers cost. A cluster whose nodes refuse reads by forecast, and answer wrongly on purpose at set rates
//! (MittOS §7.7).

use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::{Rng, Span, Time};
use plimsoll_client::{PolicyKind, PolicySettings};
use plimsoll_device::DeviceSpec;
use plimsoll_figure::plot::{Curve, Plot};
use plimsoll_pool::{Costs, ModelPlan};
use plimsoll_profile::profile_of;
use plimsoll_replay::cluster::{Cluster, ClusterConfig, ClusterMeasured, Gets, GetsConfig, Noise};
use plimsoll_replay::pool::composed;
use plimsoll_replay::{DeviceChoice, Pool, PoolConfig};
use plimsoll_sched::inject::Inject;
use plimsoll_sched::{Late, Profile, SchedulerKind};

/// See the module's documentation.
pub struct InjectedErrors;

const DEVICE: &str = "hdd-160g-7200";
const SPREAD: f64 = 0.15;
const NODES: u16 = 9;
const CLIENTS: u16 = 9;
const REPLICAS: u16 = 3;
/// The mean time between two gets of the cluster: a disk is busy with them about a tenth of its time.
const GAP: Span = Span::from_millis(8);
/// Interval of another node's bursts of concurrent large reads: each keeps it busy for some 150 ms (§6's bursts).
const BURST_EVERY: Span = Span::from_millis(400);
const BURST: usize = 8;
const BURST_BYTES: u64 = 256 << 10;
/// Shares of wrong answers that are tried, in percent; 0 for none.
const RATES: [u64; 5] = [20, 40, 60, 80, 100];

/// Wrong answers, in percent: refusals that are turned into acceptances, and acceptances that are turned into refusals.
#[derive(Clone, Copy)]
struct Wrong {
    negative: u64,
    positive: u64,
}

fn node(profile: &Profile, wrong: Wrong, seed: u64) -> Result<Pool, LabError> {
    // Refused at the top only: that is where errors are injected.
    let plan = PoolConfig {
        sched: SchedulerKind::Cfq,
        depth: 1,
        late: Late::Keep,
        seed,
        mismatch: SPREAD,
        ..PoolConfig::default()
    };
    let config = PoolConfig { seed, mismatch: SPREAD, ..PoolConfig::default() };
    let spec = DeviceSpec::named(DEVICE).map_err(|e| LabError(e.to_string()))?;
    let inject = Inject {
        false_negative_percent: wrong.negative,
        false_positive_percent: wrong.positive,
        seed,
        failover_hop: config.failover_hop,
    };
    let wiring = composed(&plan.plan(&spec, Costs::Profile(Box::new(profile.clone()))), &mut ModelPlan::before)?;
    let stack = wiring.above("scheduler", "inject", Box::new(inject)).stack();
    Ok(Pool::of_stack(stack, Vec::new(), &config)?)
}

/// Every so often another node has several large reads at once.
fn noise(seed: u64) -> impl Iterator<Item = Noise> {
    let mut rng = Rng::new(seed, "injected noise");
    (0..u64::MAX).flat_map(move |burst| {
        let node = rng.below(u64::from(NODES)) as u16;
        let offsets: Vec<u64> = (0..BURST).map(|_| rng.below(1 << 18) * BURST_BYTES).collect();
        let at = Time::ZERO + BURST_EVERY * burst + Span::from_nanos(rng.below(BURST_EVERY.as_nanos()));
        offsets.into_iter().map(move |offset| Noise::read(at, node, offset, BURST_BYTES))
    })
}

struct Run<'a> {
    profile: &'a Profile,
    seed: u64,
    count: u64,
}

impl Run<'_> {
    fn cluster(&self, deadline: Option<Span>, wrong: Wrong) -> Result<ClusterMeasured, LabError> {
        let nodes = (0..u64::from(NODES)).map(|i| node(self.profile, wrong, self.seed * 1000 + i));
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let (kind, limit) = deadline.map_or((PolicyKind::Base, Span::ZERO), |d| (PolicyKind::Mitt, d));
        let settings = PolicySettings { limit, ..PolicySettings::default() };
        let policies = (0..CLIENTS).map(|_| kind.build(&settings)).collect::<Result<_, _>>();
        let policies: Vec<_> = policies.map_err(|e| LabError(e.to_string()))?;
        let config = ClusterConfig { seed: self.seed, ..ClusterConfig::default() };
        let gets = GetsConfig {
            nodes: NODES,
            clients: CLIENTS,
            replicas: REPLICAS,
            objects: 1 << 22,
            object_bytes: 4096,
            gap: GAP,
            count: self.count,
        };
        let noise = in_order(noise(self.seed));
        Ok(Cluster::new(config, nodes, policies)?.run(Gets::new(gets, self.seed), noise, &mut |_, _| {}))
    }
}

/// Bursts are drawn within their periods, so they come in order, all of one at the same time.
fn in_order(noise: impl Iterator<Item = Noise>) -> impl Iterator<Item = Noise> {
    let mut last = Time::ZERO;
    noise.inspect(move |n| {
        assert!(n.at >= last, "a burst before the last one");
        last = n.at;
    })
}

fn rows() -> Vec<RowSpec> {
    let mut rows = vec![
        RowSpec::new("deadline: Base's p95", "ms").beside(13.0),
        RowSpec::new("Base: p99", "ms"),
        RowSpec::new("no error: p95", "ms"),
        RowSpec::new("no error: p99", "ms"),
        RowSpec::new("no error: p99 below Base's by", "%")
            .property(Check::AtLeast(10.0))
            .note("or there is nothing to lose"),
    ];
    for kind in ["false negatives", "false positives"] {
        for rate in RATES {
            rows.push(RowSpec::new(format!("{rate} % {kind}: p95"), "ms"));
            rows.push(RowSpec::new(format!("{rate} % {kind}: p99"), "ms"));
        }
    }
    rows.push(
        RowSpec::new("100 % false negatives: p99 by Base's", "1")
            .beside(1.0)
            .property(Check::Within(0.98, 1.02))
            .note("the paper: similar to Base"),
    );
    rows.push(
        RowSpec::new("20 % false positives: p99 by that without error", "1")
            .beside(1.0)
            .paper_says(Check::AtMost(1.25), "false-positive errors matter less at 20% rates")
            .note("the paper: they matter less at 20 %"),
    );
    rows.push(
        RowSpec::new("100 % false positives: p99 by Base's", "1")
            .paper_says(
                Check::AtLeast(1.05),
                "with 100% false-positive rate, all IOs are retried, creating much worse latency tail than Base",
            )
            .note("the paper: a much worse tail than Base's, without a figure"),
    );
    rows
}

impl Experiment for InjectedErrors {
    fn id(&self) -> &'static str {
        "MT-E14"
    }
    fn title(&self) -> &'static str {
        "What wrong forecasts cost: errors injected on purpose"
    }
    fn source(&self) -> &'static str {
        "MittOS §7.7, Fig 10"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "9 nodes, 9 clients, 3 replicas, 4 KiB gets 8 ms apart on average; every 400 ms one node gets 8 reads of 256 KiB at once; \
             0.3 ms a hop each way. The paper: 20 nodes with EC2's noise"
                .into(),
            "MittCFQ with the profile of another drive of the kind (±15 % per component, drawn by the seed); refused at admission only, \
             where errors are injected; the client's `mitt`: two tries with a deadline, the third without; Base is its `base`"
                .into(),
            "every run under one seed sees the same gets, noise, drives and hops".into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        rows()
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let choice = DeviceChoice::named(DEVICE)?;
        let profile = profile_of(choice.disk()?, 1, 10).map_err(|e| LabError(e.to_string()))?;
        let run = Run { profile: &profile, seed, count: if inputs.quick { 3_000 } else { 20_000 } };
        let p = |m: &ClusterMeasured, percent| m.response.percentile(percent).as_millis_f64();
        let none = Wrong { negative: 0, positive: 0 };
        let base = run.cluster(None, none)?;
        let deadline = base.response.percentile(95.0);
        let right = run.cluster(Some(deadline), none)?;
        let mut values = vec![
            p(&base, 95.0),
            p(&base, 99.0),
            p(&right, 95.0),
            p(&right, 99.0),
            100.0 * (1.0 - p(&right, 99.0) / p(&base, 99.0)),
        ];
        let mut tails = Vec::new();
        for negative in [true, false] {
            let mut tail = vec![(0.0, p(&right, 99.0))];
            for rate in RATES {
                let wrong = if negative { Wrong { negative: rate, ..none } } else { Wrong { positive: rate, ..none } };
                let m = run.cluster(Some(deadline), wrong)?;
                values.extend([p(&m, 95.0), p(&m, 99.0)]);
                tail.push((rate as f64, p(&m, 99.0)));
            }
            tails.push(tail);
        }
        let at = |kind: usize, rate: usize| tails[kind][rate].1;
        values.push(at(0, RATES.len()) / p(&base, 99.0));
        values.push(at(1, 1) / p(&right, 99.0));
        values.push(at(1, RATES.len()) / p(&base, 99.0));
        let curves = [("Base", &base.response), ("no error", &right.response)]
            .map(|(name, h)| Curve::of_histogram(name, h).thinned());
        let plot = Plot::of_times("Response times of gets", curves.into());
        Ok(Sample { values: values.into_iter().map(Some).collect(), plots: vec![plot], notes: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shape of Fig 10 on a short run: refusing helps, never refusing is Base, and the same seed gives the same.
    #[test]
    fn refusing_helps_and_never_refusing_is_base() {
        let choice = DeviceChoice::named(DEVICE).unwrap();
        let profile = profile_of(choice.disk().unwrap(), 1, 4).unwrap();
        let run = Run { profile: &profile, seed: 3, count: 1_500 };
        let none = Wrong { negative: 0, positive: 0 };
        let base = run.cluster(None, none).unwrap();
        let deadline = Some(base.response.percentile(95.0));
        let right = run.cluster(deadline, none).unwrap();
        let blind = run.cluster(deadline, Wrong { negative: 100, positive: 0 }).unwrap();
        let shy = run.cluster(deadline, Wrong { negative: 0, positive: 100 }).unwrap();
        assert!(right.busy > 20, "{} refused", right.busy);
        assert!(right.response.percentile(99.0) < base.response.percentile(99.0));
        assert_eq!((blind.busy, blind.event_hash == base.event_hash), (0, true), "as if nobody had a deadline");
        assert_eq!(shy.busy, 2 * 1_500, "each get is refused twice, and served by the third");
        assert!(shy.response.percentile(50.0) > base.response.percentile(50.0), "two hops more");
        assert_eq!(right.event_hash, run.cluster(deadline, none).unwrap().event_hash);
    }
}
