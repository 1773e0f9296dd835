//! MT-E19: writes under disk noise, where something buffers them and where nothing does (MittOS §7.8.6).

use super::nodes::known_disk;
use super::{DEVICE, Filled, GET_BYTES, NoiseKind, Scene, TENANT_BYTES, Tail, fill, noise, specs};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::{Op, Rng, Span, Time};
use plimsoll_device::DeviceSpec;
use plimsoll_figure::plot::{Plot, Scale, Shares};
use plimsoll_replay::{DeviceChoice, Limits, Pool, PoolConfig, open_loop_watched};
use plimsoll_trace::record::{Op as TraceOp, Tables, TraceRecord};
use plimsoll_trace::stream::Held;

/// See the module's documentation.
pub struct Writes;

/// Nodes whose writes are looked at, of the twenty that the noise is for.
const NODES: u16 = 5;

struct Results {
    /// Drive's write cache on: no noise, noise; off: no noise, noise.
    tails: [Tail; 4],
}

const NAMES: [&str; 4] = ["buffered, no noise", "buffered, base", "unbuffered, no noise", "unbuffered, base"];

fn rows_of(r: Option<&Results>) -> Vec<Filled> {
    let mut rows: Vec<Filled> = Vec::new();
    let mut row = |spec: RowSpec, value: &dyn Fn(&Results) -> f64| rows.push((spec, r.map(value)));
    for (i, name) in NAMES.into_iter().enumerate() {
        for percent in [50.0, 95.0, 99.0] {
            row(RowSpec::new(format!("{name}: p{percent}"), "ms"), &|r| r.tails[i].at(percent));
        }
    }
    for percent in [50.0, 95.0, 99.0] {
        let spec = RowSpec::new(format!("buffered: base over no noise, p{percent}"), "1");
        let words = "the write latencies of NoNoise and Base are very close to each other (§7.8.6)";
        row(spec.paper_says(Check::AtMost(1.1), words).note("taken as a tenth more"), &|r| {
            r.tails[1].at(percent) / r.tails[0].at(percent)
        });
    }
    row(RowSpec::new("unbuffered: base over no noise, p99", "1"), &|r| r.tails[3].at(99.0) / r.tails[2].at(99.0));
    rows
}

/// The writes of one node, with its noise.
fn play(scene: &Scene, node: u16, is_buffered: bool, is_noisy: bool, length: Span) -> Result<Vec<f64>, LabError> {
    let mut spec = DeviceChoice::named(DEVICE)?.disk()?.clone();
    spec.buffer.write_cache_level = if is_buffered { 2 } else { 0 };
    let device = DeviceChoice { name: DEVICE.into(), spec: DeviceSpec::Disk(Box::new(spec)) };
    let config = PoolConfig { seed: scene.seed * 1_000 + u64::from(node), ..scene.pool };
    let mut pool = Pool::with_costs(&device, &config, known_disk()?)?;
    let mut rng = Rng::new(scene.seed, &format!("writes {node}"));
    let (mut at, mut records) = (Time::ZERO, Vec::new());
    while at < Time::ZERO + length {
        at += Span::from_nanos((rng.exp1() * 45e6) as u64);
        let offset = rng.below(TENANT_BYTES / GET_BYTES) * GET_BYTES;
        records.push(TraceRecord::new(at, 0, TraceOp::Write, offset, GET_BYTES));
    }
    if is_noisy {
        let noise = scene.noise.iter().filter(|n| n.node == node);
        records.extend(noise.map(|n| TraceRecord::new(n.at, 1, TraceOp::Read, n.offset, n.len)));
        records.sort_by_key(|r| r.arrived_at);
    }
    let mut responses = Vec::new();
    let mut source = Held::new(records, Tables::new());
    open_loop_watched(&mut pool, &mut source, &Limits::default(), &mut |_, _| {}, &mut |now, c| {
        if c.io.op == Op::Write && c.io.arrived_at >= scene.warm {
            responses.push(now.since(c.io.arrived_at).as_millis_f64());
        }
    })?;
    Ok(responses)
}

impl Experiment for Writes {
    fn id(&self) -> &'static str {
        "MT-E19"
    }
    fn title(&self) -> &'static str {
        "Writes under disk noise"
    }
    fn source(&self) -> &'static str {
        "MittOS §7.8.6"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "the paper's databases buffer writes in memory; here the drive's own write cache stands for whatever buffers (it \
             acknowledges when it has the data, and destages when idle); unbuffered writes are the contrast; no policy is involved, as \
             writes are never refused"
                .into(),
            "writes of 4 KiB, one every 45 ms a node; §6's noise".into(),
        ]
    }
    fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
        specs(rows_of(None))
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let length = Span::from_secs(if inputs.quick { 30 } else { 240 });
        let mut scene = Scene::new(20, 1, seed);
        scene.warm = Time::ZERO + Span::from_secs(2);
        scene.noise = noise(NoiseKind::Generated, &scene, length, inputs)?.expect("generated noise needs no data");
        let tail = |is_buffered, is_noisy| {
            let mut sorted = Vec::new();
            for node in 0..NODES {
                sorted.extend(play(&scene, node, is_buffered, is_noisy, length)?);
            }
            sorted.sort_by(f64::total_cmp);
            Ok::<_, LabError>(Tail { sorted, failed: 0 })
        };
        let tails = [tail(true, false)?, tail(true, true)?, tail(false, false)?, tail(false, true)?];
        let results = Results { tails };
        let mut sample = Sample::default();
        sample.plots.push(Plot {
            title: "Writes of 4 KiB under disk noise".into(),
            x_label: "response, ms".into(),
            y_label: "writes at most that long, %".into(),
            scale: Scale::Log,
            shares: Shares::Nines,
            curves: NAMES.iter().zip(&results.tails).map(|(name, t)| t.curve(name)).collect(),
        });
        fill(&mut sample, rows_of(Some(&results)));
        Ok(sample)
    }
}
