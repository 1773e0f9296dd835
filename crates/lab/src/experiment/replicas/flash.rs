//! MT-E7: reads behind writes on visible flash (MittOS §7.1, Fig. 4c).

use super::{Filled, Scene, Storage, Tail, fill, gets, specs};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::{Priority, Rng, Span, TenantId, Time};
use plimsoll_client::{PolicyKind, Preference};
use plimsoll_figure::plot::{Plot, Scale, Shares};
use plimsoll_replay::cluster::{Hog, gap_closed};
use plimsoll_trace::record::Op;

/// See the module's documentation.
pub struct ReadsBehindWrites;

const DEADLINE: Span = Span::from_millis(2);
/// A local client: two processes of one machine.
const HOP_US: f64 = 10.0;
const WRITE_BYTES: u64 = 64 << 10;

/// One of the lines.
type TailOf = fn(&Results) -> &Tail;

struct Results {
    quiet: Tail,
    base: Tail,
    mitt: Tail,
}

fn rows_of(r: Option<&Results>) -> Vec<Filled> {
    let mut rows: Vec<Filled> = Vec::new();
    let mut row = |spec: RowSpec, value: &dyn Fn(&Results) -> Option<f64>| rows.push((spec, r.and_then(value)));
    row(
        RowSpec::new("no noise: gets within 0.2 ms", "%")
            .paper_says(Check::AtLeast(99.0), "SSD can serve the requests in <0.2ms (NoNoise)"),
        &|r| Some(100.0 - r.quiet.above(0.2)),
    );
    let of: [(&str, TailOf); 3] = [("no noise", |r| &r.quiet), ("base", |r| &r.base), ("mitt", |r| &r.mitt)];
    for (name, tail) in of {
        for percent in [50.0, 95.0, 99.0] {
            row(RowSpec::new(format!("{name}, p{percent}"), "ms"), &|r| Some(tail(r).at(percent)));
        }
    }
    row(RowSpec::new("base: gets above the deadline", "%"), &|r| Some(r.base.above(DEADLINE.as_millis_f64())));
    row(RowSpec::new("mitt: gets above the deadline", "%"), &|r| Some(r.mitt.above(DEADLINE.as_millis_f64())));
    row(
        RowSpec::new("mitt: gap between base and no noise closed at p99", "%")
            .goal(Check::AtLeast(50.0))
            .note("a read may wait as long as its deadline allows: the gap can't close wholly"),
        &|r| gap_closed(r.base.at(99.0), r.mitt.at(99.0), r.quiet.at(99.0)).map(|g| 100.0 * g),
    );
    rows
}

impl Experiment for ReadsBehindWrites {
    fn id(&self) -> &'static str {
        "MT-E7"
    }
    fn title(&self) -> &'static str {
        "A flash drive that writes as the first replica"
    }
    fn source(&self) -> &'static str {
        "MittOS §7.1, Fig. 4c"
    }
    fn device(&self) -> &'static str {
        super::FLASH
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "three modelled open-channel drives (shrunk to 2 GiB each, aged), each ±15 % off the profile of its predictor; one local \
             client, a read of 4 KiB every 2 ms on average, all to the noisy drive first; the noise: one thread that writes 64 KiB at \
             random all the time"
                .into(),
        ]
    }
    fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
        specs(rows_of(None))
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let length = Span::from_secs(inputs.length(20, 3, 2));
        let mut scene = Scene::new(3, 1, seed);
        scene.storage = Storage::Flash;
        scene.hop_us = HOP_US;
        scene.order = Preference::Placement;
        scene.warm = Time::ZERO + Span::from_millis(500);
        scene.gets = gets(&scene, 1, Span::from_millis(2), length);
        scene.gets.iter_mut().for_each(|g| g.replicas = [0, 1, 2].into());
        let tail = |scene: &Scene, kind| Ok::<_, LabError>(scene.tail(&scene.play(kind, DEADLINE)?.each, 1));
        let quiet = tail(&scene, PolicyKind::Base)?;
        scene.hogs = vec![Hog {
            nodes: vec![0],
            period: Span::from_secs(3600),
            op: Op::Write,
            len: WRITE_BYTES,
            span_bytes: scene.span_bytes(),
            tenant: TenantId(1),
            priority: Priority::DEFAULT,
            rng: Rng::new(seed, "writer"),
        }];
        let results = Results { quiet, base: tail(&scene, PolicyKind::Base)?, mitt: tail(&scene, PolicyKind::Mitt)? };
        let mut sample = Sample::default();
        sample.plots.push(Plot {
            title: "Reads behind writes on flash (Fig. 4c)".into(),
            x_label: "response, ms".into(),
            y_label: "gets at most that long, %".into(),
            scale: Scale::Log,
            shares: Shares::Linear,
            curves: vec![results.quiet.curve("no noise"), results.base.curve("base"), results.mitt.curve("mitt")],
        });
        fill(&mut sample, rows_of(Some(&results)));
        Ok(sample)
    }
}
