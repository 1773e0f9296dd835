//! MT-E8 and MT-E11: reads from the page cache, some of whose pages are gone (MittOS §7.1, Fig. 4d; §7.4, Fig. 7).

use super::{DEVICE, Filled, MEMORY_BYTES, Scene, Storage, Tail, fill, gets, reduction, specs};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::{Span, Time};
use plimsoll_client::{PolicyKind, Preference};
use plimsoll_figure::plot::{Plot, Scale, Shares};

/// Less than any disk takes, more than memory does.
const DEADLINE: Span = Span::from_micros(100);
/// Of the noisy node's pages, as the paper drops them with posix_fadvise.
const DROPPED_PERMILLE: u32 = 200;
/// Of every node's pages: MT-E2 has one access in a hundred swapped out on a busy node.
const SWAPPED_PERMILLE: u32 = 10;

fn scene(nodes: u16, clients: u16, dropped: Vec<u32>, seed: u64) -> Scene {
    let mut scene = Scene::new(nodes, clients, seed);
    scene.storage = Storage::Memory;
    scene.dropped = dropped;
    scene.warm = Time::ZERO + Span::from_millis(200);
    scene
}

/// MT-E8.
pub struct DroppedPages;

/// One of the lines.
type TailOf = fn(&Dropped) -> &Tail;

struct Dropped {
    quiet: Tail,
    base: Tail,
    mitt: Tail,
}

fn dropped_rows(r: Option<&Dropped>) -> Vec<Filled> {
    let mut rows: Vec<Filled> = Vec::new();
    let mut row = |spec: RowSpec, value: &dyn Fn(&Dropped) -> f64| rows.push((spec, r.map(value)));
    let of: [(&str, TailOf); 3] = [("no noise", |r| &r.quiet), ("base", |r| &r.base), ("mitt", |r| &r.mitt)];
    for (name, tail) in of {
        for percent in [50.0, 75.0, 85.0, 99.0] {
            row(RowSpec::new(format!("{name}, p{percent}"), "ms"), &|r| tail(r).at(percent));
        }
    }
    row(RowSpec::new("base: gets above 2 ms", "%").beside(20.0).given(Check::Within(18.0, 22.0)), &|r| {
        r.base.above(2.0)
    });
    row(
        RowSpec::new("mitt: gets above 2 ms", "%")
            .beside(0.0)
            .paper_says(Check::AtMost(0.5), "removing the 20% long tail"),
        &|r| r.mitt.above(2.0),
    );
    let two = "a get has one hop more each way: 0.6 ms; the paper's words: the hop dominates";
    row(RowSpec::new("mitt less no noise, p99", "ms").given(Check::Within(0.4, 1.0)).note(two), &|r| {
        r.mitt.at(99.0) - r.quiet.at(99.0)
    });
    rows
}

impl Experiment for DroppedPages {
    fn id(&self) -> &'static str {
        "MT-E8"
    }
    fn title(&self) -> &'static str {
        "A fifth of the first replica's pages is gone"
    }
    fn source(&self) -> &'static str {
        "MittOS §7.1, Fig. 4d"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "three nodes with all of 1 GiB in memory, of which the first has lost a fifth; gets of 4 KiB, one every 20 ms, all to the \
             first node first; deadline 0.1 ms; a hop takes 0.3 ms"
                .into(),
        ]
    }
    fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
        specs(dropped_rows(None))
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let length = Span::from_secs(inputs.length(20, 4, 4));
        let play = |dropped: Vec<u32>, kind| {
            let mut scene = scene(3, 1, dropped, seed);
            scene.order = Preference::Placement;
            // Slower than the disk serves what is gone: it is the pages that are missing, not a queue.
            scene.gets = gets(&scene, 1, Span::from_millis(20), length * 10);
            scene.gets.iter_mut().for_each(|g| g.replicas = [0, 1, 2].into());
            Ok::<_, LabError>(scene.tail(&scene.play(kind, DEADLINE)?.each, 1))
        };
        let results = Dropped {
            quiet: play(vec![0; 3], PolicyKind::Base)?,
            base: play(vec![DROPPED_PERMILLE, 0, 0], PolicyKind::Base)?,
            mitt: play(vec![DROPPED_PERMILLE, 0, 0], PolicyKind::Mitt)?,
        };
        let mut sample = Sample::default();
        sample.plots.push(Plot {
            title: "A fifth of the pages dropped (Fig. 4d)".into(),
            x_label: "response, ms".into(),
            y_label: "gets at most that long, %".into(),
            scale: Scale::Log,
            shares: Shares::Linear,
            curves: vec![results.quiet.curve("no noise"), results.base.curve("base"), results.mitt.curve("mitt")],
        });
        fill(&mut sample, dropped_rows(Some(&results)));
        Ok(sample)
    }
}

/// MT-E11.
pub struct MemoryScale;

const FACTORS: [u16; 4] = [1, 2, 5, 10];
const POLICIES: [PolicyKind; 4] = [PolicyKind::Base, PolicyKind::Hedged, PolicyKind::Mitt, PolicyKind::MittWait];
const TOLD: [f64; 5] = [75.0, 90.0, 95.0, 98.0, 99.0];

/// By factor and policy.
type Tails = Vec<Vec<Tail>>;

fn scale_rows(r: Option<&Tails>) -> Vec<Filled> {
    let mut rows: Vec<Filled> = Vec::new();
    let mut row = |spec: RowSpec, value: &dyn Fn(&Tails) -> f64| rows.push((spec, r.map(value)));
    for (f, sf) in FACTORS.iter().enumerate() {
        for (p, kind) in POLICIES.iter().enumerate() {
            for percent in [90.0, 99.0] {
                row(RowSpec::new(format!("SF {sf}: {kind}, p{percent}"), "ms"), &|r| r[f][p].at(percent));
            }
        }
        for percent in TOLD {
            let spec = RowSpec::new(format!("SF {sf}: mitt below hedged, p{percent}"), "%");
            let spec = match (sf, percent) {
                (1, 90.0) => spec.note("the paper: may be negative, a failover costs a hop"),
                (5 | 10, 95.0..) => spec.paper_says(Check::AtLeast(0.0), "Fig. 7b: reductions are positive"),
                _ => spec,
            };
            row(spec, &|r| reduction(r[f][2].at(percent), r[f][1].at(percent)));
        }
    }
    rows
}

impl Experiment for MemoryScale {
    fn id(&self) -> &'static str {
        "MT-E11"
    }
    fn title(&self) -> &'static str {
        "Page caches of 20 nodes with pages swapped out"
    }
    fn source(&self) -> &'static str {
        "MittOS §7.4, Fig. 7"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "20 nodes, each with 1 % of its pages gone (MT-E2's share; the paper's Fig. 3c varies it over time, ours doesn't); users' \
             requests of 1, 2, 5 and 10 gets; deadline 0.1 ms; hedged's delay is base's p95"
                .into(),
        ]
    }
    fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
        specs(scale_rows(None))
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let length = Span::from_secs(inputs.length(30, 6, 1));
        let (mut all, mut sample) = (Tails::new(), Sample::default());
        for sf in FACTORS {
            let mut scene = scene(20, 20, vec![SWAPPED_PERMILLE; 20], seed);
            scene.order = Preference::Placement;
            scene.gets = gets(&scene, sf, Span::from_micros(2_250), length);
            let base = scene.tail(&scene.play(PolicyKind::Base, DEADLINE)?.each, 1);
            let delay = Span::from_millis_f64(base.at(95.0));
            let tail = |kind| {
                let limit = if kind == PolicyKind::Hedged { delay } else { DEADLINE };
                Ok(scene.tail(&scene.play(kind, limit)?.each, usize::from(sf)))
            };
            let tails: Vec<Tail> = POLICIES.into_iter().map(tail).collect::<Result<_, LabError>>()?;
            sample.plots.push(Plot {
                title: format!("Requests of {sf} gets from memory (Fig. 7)"),
                x_label: "response, ms".into(),
                y_label: "requests at most that long, %".into(),
                scale: Scale::Log,
                shares: Shares::Nines,
                curves: POLICIES.iter().zip(&tails).map(|(kind, t)| t.curve(kind.name())).collect(),
            });
            all.push(tails);
        }
        debug_assert_eq!(scene(1, 1, vec![0], seed).span_bytes(), MEMORY_BYTES);
        fill(&mut sample, scale_rows(Some(&all)));
        Ok(sample)
    }
}
