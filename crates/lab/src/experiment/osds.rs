//! OSD-SCALE: reads of an image on clusters of 3 to 3,000 OSDs, of which few are slow, through a gateway that steers by what it sees.

mod cluster;
mod gateway;

use crate::experiment::stats::quantile;
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use cluster::{Cluster, Fault, Shape};
use gateway::{Choice, Read, Scene, play};
use plimsoll_figure::plot::{Curve, Plot, Scale, Shares};

/// See the module's documentation.
pub struct Clusters;

/// Of 248,000 drives 304 were found slow in ten months (Perseus, FAST 2023). Here the number that turns slow in a year is slow at once, and one at least.
const SHAPES: [Shape; 4] = [
    Shape { osds: 3, of_host: 1, groups: 128, slow: 1 },
    Shape { osds: 30, of_host: 3, groups: 1024, slow: 1 },
    Shape { osds: 300, of_host: 10, groups: 8192, slow: 1 },
    Shape { osds: 3000, of_host: 12, groups: 65_536, slow: 4 },
];
/// Reads per second of the gateway that is measured.
const RATE: f64 = 3000.0;
/// Reads per second and OSD, for the view of a gateway that sees less or more.
/// 100 is what [`RATE`] gives the second of the shapes.
const VIEWS: [f64; 4] = [0.1, 1.0, 10.0, 1000.0];
const VIEWED: Shape = SHAPES[1];
const FAULTS: [(Fault, &str); 2] = [(Fault::Stops, "stops 30 of 100 ms"), (Fault::Worn, "takes twice as long")];
/// A read is late beyond this: about twenty times the time of a read in the middle.
const LATE_MS: f64 = 10.0;

/// Results of one policy.
struct Tail {
    sorted: Vec<f64>,
    /// Of the reads whose primary is slow, in percent: late ones. `None` if there is no such read.
    late: Option<f64>,
    /// Tries for a hundred reads beyond the first.
    more: f64,
}

impl Tail {
    fn of(scene: &Scene, choice: Choice) -> Tail {
        let played = play(scene, choice);
        // The views are empty at the beginning.
        let judged: &[Read] = &played.reads[played.reads.len() / 5..];
        let of_slow: Vec<&Read> = judged.iter().filter(|r| r.is_of_slow).collect();
        let late = of_slow.iter().filter(|r| r.took.as_millis_f64() > LATE_MS).count();
        let mut sorted: Vec<f64> = judged.iter().map(|r| r.took.as_millis_f64()).collect();
        sorted.sort_by(f64::total_cmp);
        Tail {
            sorted,
            late: (!of_slow.is_empty()).then(|| 100.0 * late as f64 / of_slow.len() as f64),
            more: 100.0 * (played.tries as f64 / played.reads.len() as f64 - 1.0),
        }
    }

    fn at(&self, percent: f64) -> f64 {
        quantile(&self.sorted, percent / 100.0)
    }
}

const CHOICES: [Choice; 6] = Choice::ALL;

/// Rows of a scene. Goals are those of the product, where OSDs stop: p99.9 at most twice the healthy one, if the slow ones' reads are
/// more than a thousandth, and late reads at most a fifth of the default's. A worn OSD's reads are rarely late.
fn rows_of(scene: &SceneOf, tails: Option<(&Tail, &[Tail])>) -> Vec<(RowSpec, Option<f64>)> {
    let name = &scene.name;
    let stops = scene.fault == Fault::Stops;
    let shows = stops && 1000 * u32::from(scene.shape.slow) > u32::from(scene.shape.osds);
    let mut rows: Vec<(RowSpec, Option<f64>)> = Vec::new();
    let mut row = |spec: RowSpec, value: Option<f64>| {
        let spec = RowSpec { name: format!("{name}: {}", spec.name), ..spec };
        rows.push((spec, value));
    };
    for percent in [50.0, 99.0, 99.9] {
        row(RowSpec::new(format!("all well, default, p{percent}"), "ms"), tails.map(|(well, _)| well.at(percent)));
    }
    let default = tails.map(|(_, all)| &all[0]);
    for (at, choice) in CHOICES.into_iter().enumerate() {
        let tail = tails.map(|(_, all)| &all[at]);
        let of = |what: &str, unit| RowSpec::new(format!("{}, {what}", choice.name()), unit);
        for percent in [99.0, 99.9, 99.99] {
            row(of(&format!("p{percent}"), "ms"), tail.map(|t| t.at(percent)));
        }
        row(of("late reads of slow OSDs", "%"), tail.and_then(|t| t.late));
        row(of("second tries", "%"), tail.map(|t| t.more));
        if matches!(choice, Choice::ByHosts | Choice::Steered) {
            let well = tails.map(|(well, _)| well);
            let over_well = tail.zip(well).map(|(t, w)| t.at(99.9) / w.at(99.9));
            let judged = choice == Choice::Steered;
            let goal = |spec: RowSpec, is_goal, most| if is_goal { spec.goal(Check::AtMost(most)) } else { spec };
            let spec = of("p99.9 over that of a cluster that is well", "x").derived();
            row(goal(spec, judged && shows, 2.0), over_well);
            let less = tail.and_then(|t| t.late).zip(default.and_then(|d| d.late));
            let less = less.filter(|(_, default)| *default > 0.0).map(|(ours, default)| ours / default);
            row(goal(of("late reads over the default's", "x").derived(), judged && stops, 0.2), less);
        }
    }
    rows
}

/// A cluster and the reads of its gateway.
struct SceneOf {
    name: String,
    shape: Shape,
    /// Reads per second.
    rate: f64,
    fault: Fault,
}

fn scenes() -> Vec<SceneOf> {
    let mut all = Vec::new();
    for (fault, name) in FAULTS {
        let of = |shape: Shape| SceneOf {
            name: format!("{} OSDs, {} {name}", shape.osds, shape.slow),
            shape,
            rate: RATE,
            fault,
        };
        all.extend(SHAPES.into_iter().map(of));
    }
    let (fault, name) = FAULTS[0];
    let seen = |view: f64| {
        let rate = view * f64::from(VIEWED.osds);
        SceneOf { name: format!("{} OSDs, 1 {name}, {view} reads/s for each", VIEWED.osds), shape: VIEWED, rate, fault }
    };
    all.extend(VIEWS.into_iter().map(seen));
    all
}

impl Experiment for Clusters {
    fn id(&self) -> &'static str {
        "OSD-SCALE"
    }
    fn title(&self) -> &'static str {
        "Reads steered past slow OSDs on clusters of 3 to 3,000"
    }
    fn source(&self) -> &'static str {
        "beyond the papers"
    }
    fn device(&self) -> &'static str {
        "none: OSDs are queues of four servers"
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "a read takes 0.3 ms on its way and 0.25 ms in the mean at an OSD (log-normal), which serves four at once; other gateways take 40 % of each OSD and go to primaries"
                .into(),
            "others' reads are played for the last 10 ms before each look, at slow OSDs for the last 400 ms: the queues have forgotten all before".into(),
            "the gateway runs the product's layer `osds`, reads only, without deadlines; steered: 8 handles, as librbd's cost allows, of the hosts or racks that the product chooses; steered by hosts: the same without racks"
                .into(),
            "second tries: for a hundred reads of all, beyond the first".into(),
            "hedged: a second try at a random replica after the p95 of a cluster that is well; the best: the copy where the read will end first, by true queues".into(),
            format!("late: beyond {LATE_MS} ms; the first fifth of the reads isn't judged"),
        ]
    }
    fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
        scenes().iter().flat_map(|scene| rows_of(scene, None)).map(|(spec, _)| spec).collect()
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let reads = inputs.length(300_000, 30_000, 6_000);
        let mut sample = Sample::default();
        for of in scenes() {
            let shape = of.shape;
            let scene = |fault| Scene::new(shape, Cluster::new(shape, fault, seed), of.rate, reads, seed);
            let mut well = scene(None);
            let tail = Tail::of(&well, Choice::Default);
            let mut slow = scene(Some(of.fault));
            well.hedge_after_ms = tail.at(95.0);
            slow.hedge_after_ms = well.hedge_after_ms;
            let tails: Vec<Tail> = CHOICES.into_iter().map(|choice| Tail::of(&slow, choice)).collect();
            let rows = rows_of(&of, Some((&tail, &tails)));
            sample.values.extend(rows.into_iter().map(|(_, value)| value));
            let mut curves = vec![Curve::of_values("all well, default", tail.sorted.clone())];
            let curve = |(choice, t): (Choice, Tail)| Curve::of_values(choice.name(), t.sorted);
            curves.extend(CHOICES.into_iter().zip(tails).map(curve));
            sample.plots.push(Plot {
                title: of.name,
                x_label: "response, ms".into(),
                y_label: "reads at most that long, %".into(),
                scale: Scale::Log,
                shares: Shares::Nines,
                curves,
            });
        }
        Ok(sample)
    }
}
