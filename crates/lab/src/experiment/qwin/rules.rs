//! QW-E1 and E2: what is wrong with fixed intervals: Shenango's rule and Cake.

use crate::experiment::qwin::{A, C, CORES, Client, E, Load, ROOMY, Run, common_notes, objective};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::Span;
use plimsoll_cores::config::PolicyConfig;
use plimsoll_figure::plot::{Curve, Plot, Scale, Shares};

/// QW-E1: Shenango's rule at different intervals.
pub struct ShenangoIntervals;

const INTERVALS_US: [u64; 5] = [5, 50, 500, 5_000, 50_000];
const SCENARIOS: [(&str, Load); 2] = [("100 % reads (A)", A), ("90 % reads (C)", C)];

impl Experiment for ShenangoIntervals {
    fn id(&self) -> &'static str {
        "QW-E1"
    }
    fn title(&self) -> &'static str {
        "Shenango's rule: the tail by the adjustment interval"
    }
    fn source(&self) -> &'static str {
        "QWin §2.2, Fig 2"
    }
    fn device(&self) -> &'static str {
        ROOMY.name
    }
    fn notes(&self) -> Vec<String> {
        let mut notes = common_notes(ROOMY);
        notes.push(
            "the paper's intervals aren't in its text; in the paper short intervals raise the tail at 90 % reads, which it puts down to \
             service times: whether a model's drive does that is what the second check asks"
                .into(),
        );
        notes
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for (what, _) in SCENARIOS {
            for us in INTERVALS_US {
                let name = |m| format!("{what}: every {}: {m}", Span::from_micros(us));
                rows.push(RowSpec::new(name("p99.9"), "ms"));
                rows.push(RowSpec::new(name("best-effort bandwidth"), "MB/s"));
            }
        }
        rows.push(
            RowSpec::new("100 % reads: p99.9 at 50 ms over at 5 us", "x")
                .paper_says(Check::AtLeast(1.0), "Fig 2: at 100 % reads a shorter interval has the lower tail"),
        );
        rows.push(
            RowSpec::new("90 % reads: p99.9 at 5 us over the lowest", "x")
                .paper_says(Check::AtLeast(1.05), "Fig 2: at 90 % reads a short interval has a high tail"),
        );
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let until = Span::from_millis(inputs.length(5_000, 2_000, 300));
        let mut sample = Sample::default();
        let mut tails = Vec::new();
        for (_, load) in SCENARIOS {
            let clients = [Client::critical(load, objective(9990, 3.0)), Client::best_effort(E)];
            for us in INTERVALS_US {
                let policy = PolicyConfig::Shenango { interval: Span::from_micros(us) };
                let warm_up = Span::from_secs(1);
                let o =
                    Run { clients: &clients, policy, cores: CORES - 1, drive: ROOMY, warm_up, until, seed }.run()?;
                let tail = o.tail(0, objective(9990, 3.0));
                tails.push(tail);
                sample.values.extend([Some(tail), Some(o.best_effort(&clients))]);
            }
        }
        let (reads, mixed) = tails.split_at(INTERVALS_US.len());
        sample.values.push(Some(reads[4] / reads[0]));
        sample.values.push(Some(mixed[0] / mixed.iter().copied().fold(f64::INFINITY, f64::min)));
        Ok(sample)
    }
}

/// QW-E2: Cake over a long time.
pub struct CakeOverTime;

impl Experiment for CakeOverTime {
    fn id(&self) -> &'static str {
        "QW-E2"
    }
    fn title(&self) -> &'static str {
        "Cake: tails of its intervals, and what it makes of them"
    }
    fn source(&self) -> &'static str {
        "QWin §2.2, Fig 3"
    }
    fn device(&self) -> &'static str {
        ROOMY.name
    }
    fn notes(&self) -> Vec<String> {
        let mut notes = common_notes(ROOMY);
        notes.push("A with p99.9 within 3 ms beside E, intervals of 10 s; 120 s instead of the paper's 600 s".into());
        notes
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        vec![
            RowSpec::new("p99.9 of the whole run", "ms").beside(3.0).paper_says(
                Check::AtLeast(3.0),
                "The erratic historical tail latency leads to a wrong adjustment, making SLO violation happens",
            ),
            RowSpec::new("intervals later than the objective", "%"),
            RowSpec::new("largest over smallest interval's p99.9", "x")
                .paper_says(Check::AtLeast(1.5), "Fig 3: the intervals' tails are erratic")
                .note("taken as 1.5 times"),
            RowSpec::new("best-effort bandwidth", "MB/s"),
        ]
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let until = Span::from_secs(inputs.length(120, 30, 6));
        let clients = [Client::critical(A, objective(9990, 3.0)), Client::best_effort(E)];
        let policy = PolicyConfig::Cake { interval: Span::from_secs(10) };
        let o = Run { clients: &clients, policy, cores: CORES - 1, drive: ROOMY, warm_up: Span::ZERO, until, seed }
            .run()?;
        let tails = &o.tails[0];
        let late = tails.iter().filter(|t| **t > 3.0).count();
        let (low, high) = tails.iter().fold((f64::INFINITY, 0.0f64), |(l, h), t| (l.min(*t), h.max(*t)));
        let plot = Plot {
            title: "p99.9 of intervals of 10 s under Cake".into(),
            x_label: "p99.9, ms".into(),
            y_label: "intervals at most that, %".into(),
            scale: Scale::Linear,
            shares: Shares::Linear,
            curves: vec![Curve::of_values("A", tails.clone())],
        };
        Ok(Sample {
            values: vec![
                Some(o.tail(0, objective(9990, 3.0))),
                Some(100.0 * late as f64 / tails.len().max(1) as f64),
                Some(high / low),
                Some(o.best_effort(&clients)),
            ],
            plots: vec![plot],
            notes: Vec::new(),
        })
    }
}
