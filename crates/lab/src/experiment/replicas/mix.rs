//! MT-E15: other people's workloads as noise (MittOS §7.8.1, Fig. 11).

use super::strategies::GAP;
use super::{DEVICE, Filled, NOISE_BYTES, Scene, TENANT_BYTES, Tail, fill, gets, p95_of_base, reduction, specs};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use flate2::read::GzDecoder;
use plimsoll_base::{Priority, Rng, Span, TenantId, Time};
use plimsoll_client::PolicyKind;
use plimsoll_figure::plot::{Plot, Scale, Shares};
use plimsoll_replay::cluster::{Hog, Noise};
use plimsoll_trace::record::Op;
use std::fs::File;
use std::io::{BufRead, BufReader};

/// See the module's documentation.
pub struct WorkloadMix;

const JOBS: &str = "mapreduce/FB-2010_samples_24_times_1hr_0.tsv.gz";
/// Number of jobs, as in the paper.
const JOB_COUNT: usize = 50;
/// Nodes of the cluster that the jobs were traced on: a node of ours reads what one of these did.
const TRACED_NODES: u64 = 3_000;
/// A task reads its pieces one after another, about as fast as the disk gives them.
const PIECE_GAP: Span = Span::from_millis(6);
const POLICIES: [PolicyKind; 5] =
    [PolicyKind::Base, PolicyKind::Hedged, PolicyKind::Mitt, PolicyKind::MittWait, PolicyKind::MittBudget];

/// filebench's personalities as threads that always have a request under way: what, of how many bytes, how many.
/// fileserver reads and writes whole files (128 KiB), varmail small mails (16 KiB) with an fsync each, webserver reads pages
/// and appends to a log.
const PERSONALITIES: [&[(Op, u64, u64)]; 3] = [
    &[(Op::Read, 128 << 10, 2), (Op::Write, 128 << 10, 1)],
    &[(Op::Read, 16 << 10, 1), (Op::Write, 16 << 10, 1)],
    &[(Op::Read, 64 << 10, 2)],
];

fn hogs(scene: &Scene) -> Vec<Hog> {
    let mut all = Vec::new();
    for (i, threads) in PERSONALITIES.iter().enumerate() {
        for &(op, len, count) in *threads {
            for thread in 0..count {
                all.push(Hog {
                    // On one of its nodes at a time, two seconds each.
                    nodes: (0..scene.nodes).filter(|n| usize::from(*n) % 3 == i).collect(),
                    period: Span::from_secs(2),
                    op,
                    len,
                    span_bytes: TENANT_BYTES,
                    tenant: TenantId(0),
                    priority: Priority::DEFAULT,
                    rng: Rng::new(scene.seed, &format!("personality {i} {len} {thread}")),
                });
            }
        }
    }
    all
}

/// Arrivals of jobs (seconds from the first) and the bytes that they read; `None`: the data are missing.
fn jobs(inputs: &Inputs) -> Result<Option<Vec<(u64, u64)>>, LabError> {
    let Some(path) = inputs.file(JOBS) else { return Ok(None) };
    let bad = |what: String| LabError(format!("{}: {what}", path.display()));
    let file = File::open(&path).map_err(|e| bad(e.to_string()))?;
    let mut all = Vec::new();
    for (n, line) in BufReader::new(GzDecoder::new(file)).lines().take(JOB_COUNT).enumerate() {
        let line = line.map_err(|e| bad(e.to_string()))?;
        let field = |i: usize| line.split('\t').nth(i).and_then(|f| f.parse::<u64>().ok());
        match (field(1), field(3)) {
            (Some(at), Some(bytes)) => all.push((at, bytes)),
            _ => return Err(bad(format!("line {}: not a job: name, time, gap, bytes read, …", n + 1))),
        }
    }
    Ok(Some(all))
}

/// The jobs' reads. Their times are squeezed into `length`, and their bytes with them, so that they take the same share of it.
fn hadoop(scene: &Scene, jobs: &[(u64, u64)], length: Span) -> Vec<Noise> {
    let mut rng = Rng::new(scene.seed, "jobs' tasks");
    let (first, last) = (jobs.first().map_or(0, |j| j.0), jobs.last().map_or(1, |j| j.0));
    let mut all = Vec::new();
    for &(at, bytes) in jobs {
        let begin = Time::ZERO + length.scale(at - first, (last - first).max(1));
        let per_node = u128::from(bytes / TRACED_NODES) * u128::from(length.as_nanos())
            / (u128::from(last - first).max(1) * 1_000_000_000);
        let pieces = (per_node as u64).div_ceil(NOISE_BYTES).min(TENANT_BYTES / NOISE_BYTES - 1);
        for node in 0..scene.nodes {
            let start = rng.below(TENANT_BYTES / NOISE_BYTES - pieces) * NOISE_BYTES;
            for piece in 0..pieces {
                let mut read = Noise::read(begin + PIECE_GAP * piece, node, start + piece * NOISE_BYTES, NOISE_BYTES);
                read.tenant = TenantId(0);
                all.push(read);
            }
        }
    }
    all.retain(|n| n.at < Time::ZERO + length);
    all.sort_by_key(|n| (n.at, n.node, n.offset));
    all
}

struct Results {
    limit: Span,
    tails: Vec<Tail>,
}

impl Results {
    fn at(&self, kind: PolicyKind, percent: f64) -> f64 {
        self.tails[POLICIES.iter().position(|&k| k == kind).expect("one of ours")].at(percent)
    }
}

fn rows_of(r: Option<&Results>) -> Vec<Filled> {
    use PolicyKind::{Hedged, Mitt, MittBudget, MittWait};
    let mut rows: Vec<Filled> = Vec::new();
    let mut row = |spec: RowSpec, value: &dyn Fn(&Results) -> f64| rows.push((spec, r.map(value)));
    row(RowSpec::new("deadline and delay: base's p95", "ms"), &|r| r.limit.as_millis_f64());
    row(
        RowSpec::new("base: gets above 40 ms", "%")
            .beside(15.0)
            .given(Check::Within(10.0, 20.0))
            .note("the noise's rate was fitted to it"),
        &|r| r.tails[0].above(40.0),
    );
    for kind in POLICIES {
        for percent in [50.0, 85.0, 90.0, 95.0, 99.0, 99.9] {
            row(RowSpec::new(format!("{kind}, p{percent}"), "ms"), &|r| r.at(kind, percent));
        }
    }
    for kind in [Mitt, MittWait, MittBudget] {
        for percent in [90.0, 95.0, 99.0, 99.9] {
            let spec = RowSpec::new(format!("{kind} below hedged, p{percent}"), "%");
            let spec = match (kind, percent) {
                (Mitt, 95.0) => spec.beside(41.0).note("the paper: up to 41 % somewhere below p99"),
                (Mitt, 99.9) => spec.paper_says(Check::AtMost(0.0), "above p99, Hedged is faster"),
                (MittBudget, _) => spec.goal(Check::AtLeast(0.0)).note("never worse"),
                _ => spec,
            };
            row(spec, &|r| reduction(r.at(kind, percent), r.at(Hedged, percent)));
        }
    }
    rows
}

impl Experiment for WorkloadMix {
    fn id(&self) -> &'static str {
        "MT-E15"
    }
    fn title(&self) -> &'static str {
        "File servers, mail, web and Hadoop jobs as noise"
    }
    fn source(&self) -> &'static str {
        "MittOS §7.8.1, Fig. 11"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn files(&self) -> Vec<&'static str> {
        vec![JOBS]
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "as MT-E9; the noise: threads with the request sizes and the mix of filebench's fileserver, varmail and webserver, each on \
             another node every two seconds, and the first 50 jobs of SWIM's Facebook trace of 2010: each node reads what one of \
             the 3,000 traced ones did, times and bytes squeezed alike (how the paper scaled them it doesn't say)"
                .into(),
        ]
    }
    fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
        specs(rows_of(None))
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let length = Span::from_secs(if inputs.quick { 12 } else { 60 });
        let mut sample = Sample::default();
        let mut scene = Scene::new(20, 20, seed);
        scene.warm = Time::ZERO + Span::from_secs(2);
        scene.gets = gets(&scene, 1, GAP, length);
        scene.hogs = hogs(&scene);
        match jobs(inputs)? {
            Some(jobs) => scene.noise = hadoop(&scene, &jobs, length),
            None => sample.notes.push(format!("without Hadoop's jobs: {JOBS} isn't there")),
        }
        let (limit, base) = p95_of_base(&scene)?;
        let mut tails = vec![scene.tail(&base.each, 1)];
        for kind in &POLICIES[1..] {
            tails.push(scene.tail(&scene.play(*kind, limit)?.each, 1));
        }
        let results = Results { limit, tails };
        sample.plots.push(Plot {
            title: "Gets beside other workloads (Fig. 11a)".into(),
            x_label: "response, ms".into(),
            y_label: "gets at most that long, %".into(),
            scale: Scale::Log,
            shares: Shares::Nines,
            curves: POLICIES.iter().zip(&results.tails).map(|(kind, t)| t.curve(kind.name())).collect(),
        });
        fill(&mut sample, rows_of(Some(&results)));
        Ok(sample)
    }
}
