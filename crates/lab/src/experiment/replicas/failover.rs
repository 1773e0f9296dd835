//! MT-E1: what six databases' time-outs do for a replica that is busy for a second (MittOS §2, Table 1).

use super::micro::hogs;
use super::{DEVICE, Filled, NOISE_BYTES, Played, Scene, Tail, fill, gets, specs};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::{Priority, Span, Time};
use plimsoll_client::PolicyKind;
use plimsoll_client::timeout::Timeout;

/// See the module's documentation.
pub struct TimeOuts;

/// Table 1: name, default time-out in seconds, whether it asks another replica after one.
const DATABASES: [(&str, u64, bool); 6] = [
    ("Cassandra", 12, true),
    ("Couchbase", 75, false),
    ("HBase", 60, true),
    ("MongoDB", 30, false),
    ("Riak", 10, false),
    ("Voldemort", 5, true),
];
/// The time-out that they were set to.
const SHORT: Span = Span::from_millis(100);
const THREADS: u64 = 16;

/// One run: its responses, and gets for which another replica was asked.
struct Run {
    tail: Tail,
    elsewhere: u64,
}

struct Results {
    quiet: Tail,
    /// By database, with the default and the short time-out.
    runs: Vec<[Run; 2]>,
    mitt: Tail,
}

fn rows_of(r: Option<&Results>) -> Vec<Filled> {
    let mut rows: Vec<Filled> = Vec::new();
    let mut row = |spec: RowSpec, value: &dyn Fn(&Results) -> f64| rows.push((spec, r.map(value)));
    row(RowSpec::new("no contention, p99", "ms"), &|r| r.quiet.at(99.0));
    for (i, (name, seconds, fails_over)) in DATABASES.into_iter().enumerate() {
        row(
            RowSpec::new(format!("{name}, {seconds} s: gets asked of another replica"), "1")
                .given(Check::AtMost(0.0))
                .note("the paper's Table 1, which the emulated policies were given"),
            &|r| r.runs[i][0].elsewhere as f64,
        );
        row(RowSpec::new(format!("{name}, {seconds} s: p99"), "ms"), &|r| r.runs[i][0].tail.at(99.0));
        let spec = RowSpec::new(format!("{name}, 100 ms: users' read errors"), "1");
        let check = if fails_over { Check::AtMost(0.0) } else { Check::AtLeast(1.0) };
        row(spec.given(check), &|r| r.runs[i][1].tail.failed as f64);
        row(RowSpec::new(format!("{name}, 100 ms: p99 of what was answered"), "ms"), &|r| r.runs[i][1].tail.at(99.0));
    }
    row(RowSpec::new("mitt, 20 ms: p99", "ms").goal(Check::AtMost(100.0)).note("below the short time-out"), &|r| {
        r.mitt.at(99.0)
    });
    rows
}

impl Experiment for TimeOuts {
    fn id(&self) -> &'static str {
        "MT-E1"
    }
    fn title(&self) -> &'static str {
        "Six databases' time-outs and a replica that is busy for a second"
    }
    fn source(&self) -> &'static str {
        "MittOS §2, Table 1"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "the databases are emulated by the table's own figures (time-out, failover or not), so that they behave as the table says \
             is no finding; what is: how long a get takes meanwhile"
                .into(),
            "sixteen threads read 512 KiB at random all the time, a second on each replica in turn; one client, a get every 40 ms".into(),
        ]
    }
    fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
        specs(rows_of(None))
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let length = Span::from_secs(if inputs.quick { 20 } else { 120 });
        let mut scene = Scene::new(3, 1, seed);
        scene.warm = Time::ZERO + Span::from_secs(2);
        scene.gets = gets(&scene, 1, Span::from_millis(40), length);
        let quiet = scene.tail(&scene.play(PolicyKind::Base, SHORT)?.each, 1);
        let every = Span::from_secs(1);
        scene.hogs = hogs(THREADS, &[0, 1, 2], every, NOISE_BYTES, Priority::DEFAULT, seed);
        let run = |after, fails_over| {
            let order = scene.order;
            let played: Played = scene.play_with(vec![Timeout { after, fails_over, order }], false)?;
            Ok::<_, LabError>(Run {
                tail: scene.tail(&played.each, 1),
                elsewhere: played.m.tries - scene.gets.len() as u64,
            })
        };
        let both = |(_, seconds, fails_over): (&str, u64, bool)| {
            Ok::<_, LabError>([run(Span::from_secs(seconds), fails_over)?, run(SHORT, fails_over)?])
        };
        let runs = DATABASES.into_iter().map(both).collect::<Result<_, _>>()?;
        let mitt = scene.tail(&scene.play(PolicyKind::Mitt, Span::from_millis(20))?.each, 1);
        let mut sample = Sample::default();
        fill(&mut sample, rows_of(Some(&Results { quiet, runs, mitt })));
        Ok(sample)
    }
}
