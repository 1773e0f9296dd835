//! MT-E17: an engine under a replicated store, and one of its nodes over time (MittOS §7.8.4, Fig. 13).

use super::strategies::scene;
use super::{DEVICE, Filled, NoiseKind, Tail, fill, p95_of_base, reduction, specs};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample, Switch};
use plimsoll_base::Span;
use plimsoll_client::PolicyKind;
use plimsoll_figure::plot::{Curve, Plot, Scale, Shares};
use plimsoll_replay::cluster::Asking;

/// See the module's documentation.
pub struct TwoLevels;

/// Node whose tries are examined one by one.
const WATCHED: u16 = 0;

struct Results {
    limit: Span,
    base: Tail,
    mitt: Tail,
    /// The watched node's tries under `mitt`.
    asked: Vec<Asking>,
    /// Under each of [`OTHERWISE`]: base, mitt, and the watched node's tries.
    otherwise: Vec<(Tail, Tail, Vec<Asking>)>,
}

/// Assumptions that could be the cause of what the paper doesn't see, each by itself and together.
const OTHERWISE: [(&str, &[Switch]); 4] = [
    ("noise all over the disk", &[Switch::NoiseWholeDisk]),
    ("gets and noise all over the disk", &[Switch::AllWholeDisk]),
    ("refused for the wait alone", &[Switch::WaitOnly]),
    ("refused for the wait alone, all over the disk", &[Switch::AllWholeDisk, Switch::WaitOnly]),
];

/// Of the tries that were refused, those that found nothing outstanding, %.
fn with_nothing_outstanding(asked: &[Asking]) -> f64 {
    let refused = asked.iter().filter(|a| a.busy);
    100.0 * refused.clone().filter(|a| a.others == 0).count() as f64 / refused.count().max(1) as f64
}

impl Results {
    /// Requests that tries found at the node, of those refused or of the others.
    fn others(&self, busy: bool) -> Vec<f64> {
        self.asked.iter().filter(|a| a.busy == busy).map(|a| f64::from(a.others)).collect()
    }
}

fn mean(v: &[f64]) -> f64 {
    v.iter().sum::<f64>() / v.len().max(1) as f64
}

fn rows_of(r: Option<&Results>) -> Vec<Filled> {
    let mut rows: Vec<Filled> = Vec::new();
    let mut row = |spec: RowSpec, value: &dyn Fn(&Results) -> f64| rows.push((spec, r.map(value)));
    row(RowSpec::new("deadline: base's p95", "ms"), &|r| r.limit.as_millis_f64());
    for percent in [50.0, 95.0, 98.0, 99.0, 99.9] {
        row(RowSpec::new(format!("base, p{percent}"), "ms"), &|r| r.base.at(percent));
        row(RowSpec::new(format!("mitt, p{percent}"), "ms"), &|r| r.mitt.at(percent));
        let spec = RowSpec::new(format!("mitt below base, p{percent}"), "%");
        let cut = "MITTCFQ can also help LevelDB+Riak to cut the latency tail";
        let spec = if percent > 95.0 { spec.paper_says(Check::AtLeast(0.0), cut) } else { spec };
        row(spec, &|r| reduction(r.mitt.at(percent), r.base.at(percent)));
    }
    row(RowSpec::new("one node: tries refused", "%"), &|r| {
        100.0 * r.others(true).len() as f64 / r.asked.len().max(1) as f64
    });
    row(RowSpec::new("one node: requests that a refused try found there, mean", "1"), &|r| mean(&r.others(true)));
    row(RowSpec::new("one node: requests that any other try found there, mean", "1"), &|r| mean(&r.others(false)));
    let alone = "Fig. 13b: EBUSY only where outstanding IOs make the deadline impossible";
    row(
        RowSpec::new("one node: refused though nothing was outstanding", "%").paper_says(Check::AtMost(0.0), alone),
        &|r| with_nothing_outstanding(&r.asked),
    );
    row(RowSpec::new("one node: taken, and answered after the deadline", "%"), &|r| {
        let late = r.asked.iter().filter(|a| !a.busy && a.took > r.limit).count();
        100.0 * late as f64 / r.others(false).len().max(1) as f64
    });
    for (i, (name, _)) in OTHERWISE.iter().enumerate() {
        let row_of = |what: &str| RowSpec::new(format!("{name}: {what}"), "%");
        row(row_of("refused though nothing was outstanding"), &|r| with_nothing_outstanding(&r.otherwise[i].2));
        for percent in [95.0, 99.0] {
            row(row_of(&format!("mitt below base, p{percent}")), &|r| {
                let (base, mitt, _) = &r.otherwise[i];
                reduction(mitt.at(percent), base.at(percent))
            });
        }
    }
    rows
}

impl Experiment for TwoLevels {
    fn id(&self) -> &'static str {
        "MT-E17"
    }
    fn title(&self) -> &'static str {
        "Refusals of one node of a replicated store, by what is outstanding there"
    }
    fn source(&self) -> &'static str {
        "MittOS §7.8.4, Fig. 13"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "MT-E9's cluster under §6's noise. What is refused though nothing is outstanding would break its promise by its own seek (noise \
             has left the arm at its own data, 600 GB away): the paper refuses by the wait alone in §4.1. Rows after that change where noise \
             and gets lie, and the rule"
                .into(),
            "A get of the engine (LevelDB there) is one read of 4 KiB, its index in memory; that the engine \
             hands a refusal up to the store (Riak there) costs nothing here. Fig. 13b's view over time is told as what tries found \
             outstanding when they were refused, and when not"
                .into(),
        ]
    }
    fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
        specs(rows_of(None))
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let play = |inputs: &Inputs| {
            let mut scene = scene(seed, NoiseKind::Generated, 1, inputs)?.expect("generated noise needs no data");
            scene.watched = Some(WATCHED);
            let (limit, base) = p95_of_base(&scene)?;
            let mitt = scene.play(PolicyKind::Mitt, limit)?;
            Ok::<_, LabError>((limit, scene.tail(&base.each, 1), scene.tail(&mitt.each, 1), mitt.m.watched))
        };
        let (limit, base, mitt, asked) = play(inputs)?;
        let mut results = Results { limit, base, mitt, asked, otherwise: Vec::new() };
        for (_, switches) in OTHERWISE {
            let (_, base, mitt, asked) = play(&Inputs { switches: switches.to_vec(), ..inputs.clone() })?;
            results.otherwise.push((base, mitt, asked));
        }
        let mut sample = Sample::default();
        sample.plots.push(Plot {
            title: "An engine under a replicated store (Fig. 13a)".into(),
            x_label: "response, ms".into(),
            y_label: "gets at most that long, %".into(),
            scale: Scale::Log,
            shares: Shares::Nines,
            curves: vec![results.base.curve("base"), results.mitt.curve("mitt")],
        });
        sample.plots.push(Plot {
            title: "What tries found outstanding at one node (Fig. 13b)".into(),
            x_label: "requests at the node".into(),
            y_label: "tries that found at most N, %".into(),
            scale: Scale::Linear,
            shares: Shares::Linear,
            curves: vec![
                Curve::of_values("refused", results.others(true)).thinned(),
                Curve::of_values("taken", results.others(false)).thinned(),
            ],
        });
        fill(&mut sample, rows_of(Some(&results)));
        Ok(sample)
    }
}
