//! MT-E16: choosing the replica that was fast lately, when noise comes and goes (MittOS §7.8.3, Fig. 12).

use super::micro::hogs;
use super::{
    DEVICE, Filled, NOISE_BYTES, NoiseKind, SCHEDULE, Scene, Tail, fill, gets, noise, p95_of_base, reduction, specs,
};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::{Priority, Span, Time};
use plimsoll_client::PolicyKind;
use plimsoll_figure::plot::{Plot, Scale, Shares};

/// See the module's documentation.
pub struct Adaptivity;

/// Figure 12's lines, in its order.
const SCENES: [&str; 4] = ["NoBusy", "Bursty", "1B2F-1sec", "1B2F-5sec"];
const POLICIES: [PolicyKind; 6] =
    [PolicyKind::Base, PolicyKind::Snitch, PolicyKind::C3, PolicyKind::Prequal, PolicyKind::Mitt, PolicyKind::MittWait];
/// Threads that keep one of the disks extremely busy.
const THREADS: u64 = 4;

/// By scene and policy.
struct Results(Vec<Option<Vec<Tail>>>);

impl Results {
    fn at(&self, scene: usize, kind: PolicyKind, percent: f64) -> Option<f64> {
        let p = POLICIES.iter().position(|&k| k == kind).expect("one of ours");
        self.0[scene].as_ref().map(|tails| tails[p].at(percent))
    }
}

fn rows_of(r: Option<&Results>) -> Vec<Filled> {
    use PolicyKind::{C3, Mitt, Snitch};
    let mut rows: Vec<Filled> = Vec::new();
    let mut row = |spec: RowSpec, value: &dyn Fn(&Results) -> Option<f64>| rows.push((spec, r.and_then(value)));
    for (i, scene) in SCENES.iter().enumerate() {
        for kind in POLICIES {
            for percent in [50.0, 90.0, 95.0, 99.0] {
                row(RowSpec::new(format!("{scene}: {kind}, p{percent}"), "ms"), &|r| r.at(i, kind, percent));
            }
        }
    }
    let words = "neither Cassandra nor C3 can react to the bursty noise (the gap between NoBusy and Bursty lines)";
    let half = "the paper's curves have no numbers: taken as 1.5 times";
    let stable = "they only perform well if the busyness is stable (a busy rotation in every 5 seconds)";
    let over =
        |a: (usize, PolicyKind, f64), b: usize| move |r: &Results| Some(r.at(a.0, a.1, a.2)? / r.at(b, a.1, a.2)?);
    for kind in [C3, Snitch] {
        let spec = RowSpec::new(format!("{kind}: Bursty over NoBusy, p99"), "1").paper_says(Check::AtLeast(1.5), words);
        row(spec.note(half), &over((1, kind, 99.0), 0));
        let spec = RowSpec::new(format!("{kind}: 1B2F-1sec over NoBusy, p90"), "1");
        row(spec.paper_says(Check::AtLeast(1.5), words).note(half), &over((2, kind, 90.0), 0));
        let spec = RowSpec::new(format!("{kind}: 1B2F-1sec over 1B2F-5sec, p90"), "1");
        row(spec.paper_says(Check::AtLeast(1.0), stable), &over((2, kind, 90.0), 3));
    }
    let quick = "under sub-second burstiness, unlike MITTOS, neither Cassandra nor C3 can react";
    let unnamed = [
        (2, "the paper: in 1-second rotating manner, their tails become worse; it doesn't name MittOS: not judged"),
        (3, "the paper: there snitching and C3 perform well; it compares nobody: not judged"),
    ];
    for (i, note) in [(1, None)].into_iter().chain(unnamed.map(|(i, note)| (i, Some(note)))) {
        let spec = RowSpec::new(format!("{}: mitt below c3, p95", SCENES[i]), "%");
        let spec = match note {
            None => spec.paper_says(Check::AtLeast(0.0), quick),
            Some(note) => spec.note(note),
        };
        row(spec, &|r| Some(reduction(r.at(i, Mitt, 95.0)?, r.at(i, C3, 95.0)?)));
    }
    rows
}

fn scene(i: usize, seed: u64, inputs: &Inputs) -> Result<Option<Scene>, LabError> {
    let length = Span::from_secs(if inputs.quick { 20 } else { 120 });
    let mut scene = Scene::new(3, 3, seed);
    scene.switches = inputs.switches.clone();
    scene.warm = Time::ZERO + Span::from_secs(2);
    scene.gets = gets(&scene, 1, Span::from_millis(15), length);
    match i {
        0 => {}
        1 => match noise(NoiseKind::Published, &scene, length, inputs)? {
            Some(noise) => scene.noise = noise,
            None => return Ok(None),
        },
        _ => {
            let period = Span::from_secs(if i == 2 { 1 } else { 5 });
            scene.hogs = hogs(THREADS, &[0, 1, 2], period, NOISE_BYTES, Priority::DEFAULT, seed);
        }
    }
    Ok(Some(scene))
}

impl Experiment for Adaptivity {
    fn id(&self) -> &'static str {
        "MT-E16"
    }
    fn title(&self) -> &'static str {
        "Snitching, C3 and Prequal against bursts and a busy replica that moves on"
    }
    fn source(&self) -> &'static str {
        "MittOS §7.8.3, Fig. 12"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn files(&self) -> Vec<&'static str> {
        vec![SCHEDULE]
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "three nodes, three clients, a get every 45 ms of each; Bursty is the authors' schedule; the extremely busy disk has four \
             threads that read 512 KiB at random all the time; the deadline is base's p95 in NoBusy"
                .into(),
            "every policy measures and asks over the same hops; C3 has its ranking without its rate control".into(),
        ]
    }
    fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
        specs(rows_of(None))
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let (mut sample, mut results, mut limit) = (Sample::default(), Results(Vec::new()), Span::ZERO);
        for (i, name) in SCENES.iter().enumerate() {
            let Some(scene) = scene(i, seed, inputs)? else {
                sample.notes.push(format!("{name}: ran without {SCHEDULE}"));
                results.0.push(None);
                continue;
            };
            if i == 0 {
                limit = p95_of_base(&scene)?.0;
            }
            let tail = |kind| Ok(scene.tail(&scene.play(kind, limit)?.each, 1));
            let tails: Vec<Tail> = POLICIES.into_iter().map(tail).collect::<Result<_, LabError>>()?;
            sample.plots.push(Plot {
                title: format!("Gets on three disks, {name} (Fig. 12)"),
                x_label: "response, ms".into(),
                y_label: "gets at most that long, %".into(),
                scale: Scale::Log,
                shares: Shares::Linear,
                curves: POLICIES.iter().zip(&tails).map(|(kind, t)| t.curve(kind.name())).collect(),
            });
            results.0.push(Some(tails));
        }
        fill(&mut sample, rows_of(Some(&results)));
        Ok(sample)
    }
}
