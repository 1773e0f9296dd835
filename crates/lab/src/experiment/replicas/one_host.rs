//! MT-E12: six servers of one machine, each on a part of a flash drive (MittOS §7.5, Fig. 8).

use super::nodes::flash_spec;
use super::{Filled, GET_BYTES, Scene, Storage, Tail, fill, reduction, specs};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::{Rng, Span, TenantId, Time};
use plimsoll_client::PolicyKind;
use plimsoll_figure::plot::{Plot, Scale, Shares};
use plimsoll_replay::cluster::{GetsConfig, HostCpu, Noise, Users};
use plimsoll_replay::workload::noise::{NoiseProfile, SlowPeriods};
use plimsoll_trace::record::Op;

/// See the module's documentation.
pub struct OneHost;

const NODES: u16 = 6;
/// Users, one of each server; each asks again as soon as it is answered.
const USERS: u32 = 6;
/// The machine's hardware threads.
const THREADS: u16 = 8;
/// A database's work for a get, which the paper doesn't give: what its 0.2 ms without noise leave of the drive's 0.1.
const CPU_EACH: Span = Span::from_micros(100);
/// Between two processes of one machine.
const HOP_US: f64 = 10.0;
/// Nodes of §6 that six are taken from.
const NODES_OF_NOISE: u32 = 20;
/// As MT-E7's writer.
const WRITE_BYTES: u64 = 64 << 10;

const POLICIES: [PolicyKind; 4] = [PolicyKind::Base, PolicyKind::Hedged, PolicyKind::Mitt, PolicyKind::MittWait];
const TOLD: [f64; 4] = [50.0, 90.0, 95.0, 99.0];

struct Results {
    limit: Span,
    tails: Vec<Tail>,
    /// By policy: what a try waited for the processor on average.
    waited_us: Vec<f64>,
    /// Base and hedged where half of the threads are another's.
    half: [Tail; 2],
}

impl Results {
    fn of(&self, kind: PolicyKind) -> &Tail {
        &self.tails[POLICIES.iter().position(|&k| k == kind).expect("one of ours")]
    }
}

fn rows_of(r: Option<&Results>) -> Vec<Filled> {
    use PolicyKind::{Base, Hedged, Mitt};
    let mut rows: Vec<Filled> = Vec::new();
    let mut row = |spec: RowSpec, value: &dyn Fn(&Results) -> f64| rows.push((spec, r.map(value)));
    row(RowSpec::new("deadline and delay: base's p95", "ms").beside(0.3), &|r| r.limit.as_millis_f64());
    for (i, kind) in POLICIES.into_iter().enumerate() {
        for percent in TOLD {
            row(RowSpec::new(format!("{kind}, p{percent}"), "ms"), &|r| r.tails[i].at(percent));
        }
        row(RowSpec::new(format!("{kind}: a try waits for the processor, mean"), "us"), &|r| r.waited_us[i]);
    }
    for percent in [90.0, 95.0, 99.0] {
        let spec = RowSpec::new(format!("mitt below base, p{percent}"), "%");
        let better = "latency is improved with MITTOS (the gap between MITTSSD and Base in Figure 8a)";
        let spec = if percent > 95.0 { spec.paper_says(Check::AtLeast(0.0), better) } else { spec };
        row(spec, &|r| reduction(r.of(Mitt).at(percent), r.of(Base).at(percent)));
        row(RowSpec::new(format!("mitt below hedged, p{percent}"), "%"), &|r| {
            reduction(r.of(Mitt).at(percent), r.of(Hedged).at(percent))
        });
    }
    let worse = "hedge (Hedged line) is worse than the baseline (12 threads on a 8-thread machine)";
    for percent in [95.0, 99.0] {
        row(RowSpec::new(format!("hedged above base, p{percent}"), "%").paper_says(Check::AtLeast(0.0), worse), &|r| {
            -reduction(r.of(Hedged).at(percent), r.of(Base).at(percent))
        });
        let what = format!("hedged above base on half of the hardware threads, p{percent}");
        row(RowSpec::new(what, "%"), &|r| -reduction(r.half[1].at(percent), r.half[0].at(percent)));
    }
    rows
}

/// Returns noise that keeps every chip of the node's part busy for the time that a slow period adds: writes from its beginning
/// on.
fn noise(scene: &Scene, length: Span) -> Result<Vec<Noise>, LabError> {
    let spec = flash_spec(scene.storage)?;
    let chips = u64::from(spec.geometry.channels * spec.geometry.chips_per_channel);
    let programs = &spec.timing.program_us;
    let program_us = programs.iter().sum::<f64>() / programs.len() as f64;
    let round_bytes = chips * u64::from(spec.geometry.page_bytes);
    let profile = NoiseProfile::flash();
    let mut rng = Rng::new(scene.seed, "noise addresses");
    let mut all = Vec::new();
    for p in SlowPeriods::new(&profile, NODES_OF_NOISE, scene.seed)? {
        let at = Time::ZERO + profile.slot * p.slot;
        if at >= Time::ZERO + length {
            break;
        }
        let rounds = (p.added.as_nanos() as f64 / 1e3 / program_us).ceil() as u64;
        let writes = if p.node < u32::from(NODES) { (rounds * round_bytes).div_ceil(WRITE_BYTES) } else { 0 };
        for _ in 0..writes {
            let offset = rng.below(scene.span_bytes() / WRITE_BYTES) * WRITE_BYTES;
            let noise = Noise::read(at, p.node as u16, offset, WRITE_BYTES);
            all.push(Noise { op: Op::Write, tenant: TenantId(0), ..noise });
        }
    }
    Ok(all)
}

impl Experiment for OneHost {
    fn id(&self) -> &'static str {
        "MT-E12"
    }
    fn title(&self) -> &'static str {
        "Six servers of one machine on parts of a flash drive"
    }
    fn source(&self) -> &'static str {
        "MittOS §7.5, Fig. 8"
    }
    fn device(&self) -> &'static str {
        super::FLASH
    }
    fn notes(&self) -> Vec<String> {
        vec![
            format!(
                "six parts of two channels each (aged, ±15 % off the profile of their predictor), six users that ask again at once, a hop \
                 of {HOP_US} us; §6's noise of 6 of 20 nodes by our generator, each slow period as writes that keep every chip busy for \
                 as long"
            ),
            format!(
                "eight hardware threads, {} us of them for each try: our assumption; tries get one in the order of their coming, so threads \
                 that no try needs disturb nobody (the paper's switch between more threads than can run)",
                CPU_EACH.as_nanos() / 1000
            ),
        ]
    }
    fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
        specs(rows_of(None))
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let gets = if inputs.quick { 60_000 } else { 600_000 };
        let mut scene = Scene::new(NODES, NODES, seed);
        scene.storage = Storage::FlashPart;
        scene.hop_us = HOP_US;
        scene.warm = Time::ZERO + Span::from_millis(200);
        // More than the gets can take.
        scene.noise = noise(&scene, Span::from_micros(100) * gets)?;
        let config = GetsConfig {
            nodes: NODES,
            clients: NODES,
            replicas: super::REPLICAS,
            objects: scene.span_bytes() / GET_BYTES,
            object_bytes: GET_BYTES,
            gap: Span::from_nanos(1),
            count: gets,
        };
        let mut play = |threads, kind, limit| {
            scene.cpu = Some(HostCpu { threads, each: CPU_EACH });
            scene.play_users(&mut Users::new(config, USERS, seed), kind, limit)
        };
        let (base, _) = play(THREADS, PolicyKind::Base, Span::from_secs(1))?;
        let limit = Span::from_millis_f64(base.at(95.0));
        let (mut tails, mut waited_us) = (Vec::new(), Vec::new());
        for kind in POLICIES {
            let (tail, m) = play(THREADS, kind, limit)?;
            waited_us.push(m.cpu_waited.as_nanos() as f64 / 1e3 / m.tries.max(1) as f64);
            tails.push(tail);
        }
        let mut half = |kind| Ok::<_, LabError>(play(THREADS / 2, kind, limit)?.0);
        let results = Results { limit, half: [half(PolicyKind::Base)?, half(PolicyKind::Hedged)?], tails, waited_us };
        let mut sample = Sample::default();
        sample.plots.push(Plot {
            title: "Six servers on one machine's flash (Fig. 8a)".into(),
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
