//! MT-E5 and MT-E6: one noisy replica of three, asked first (MittOS §7.1, Fig. 4a and 4b).

use super::{DEVICE, Filled, Scene, TENANT_BYTES, Tail, fill, gets, specs};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample, Switch};
use plimsoll_base::{Priority, PriorityClass, Rng, Span, TenantId, Time};
use plimsoll_client::{PolicyKind, Preference};
use plimsoll_figure::plot::{Plot, Scale, Shares};
use plimsoll_replay::cluster::{Hog, gap_closed};
use plimsoll_trace::record::Op;

/// Fig. 4a or 4b: the noise's priority is below or above that of gets, which have best effort 4. The paper says lower and higher only,
/// so each is tried by level and by class.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OneNoisyReplica {
    /// MT-E5: best effort 7.
    LowerLevel,
    /// MT-E5-IDLE: the idle class.
    Idle,
    /// MT-E6: best effort 0.
    HigherLevel,
    /// MT-E6-RT: the real-time class.
    RealTime,
}

/// Deadline that MittOS uses for both.
const DEADLINE: Span = Span::from_millis(20);
const THREADS: u64 = 4;

/// `threads` threads of another process that read `len` bytes at random all the time, on `nodes` in turn.
pub(super) fn hogs(threads: u64, nodes: &[u16], period: Span, len: u64, priority: Priority, seed: u64) -> Vec<Hog> {
    let hog = |i| Hog {
        nodes: nodes.to_vec(),
        period,
        op: Op::Read,
        len,
        span_bytes: TENANT_BYTES,
        tenant: TenantId(0),
        priority,
        rng: Rng::new(seed, &format!("hog {i}")),
    };
    (0..threads).map(hog).collect()
}

/// One of the lines.
type TailOf = fn(&Results) -> &Tail;

struct Results {
    quiet: Tail,
    base: Tail,
    mitt: Tail,
    wait: Tail,
    busy_percent: f64,
    /// Tries that were accepted and refused later, for a hundred gets.
    cancelled_percent: f64,
}

impl OneNoisyReplica {
    fn goes_first(self) -> bool {
        matches!(self, OneNoisyReplica::HigherLevel | OneNoisyReplica::RealTime)
    }

    fn priority(self) -> Priority {
        let (class, level) = match self {
            OneNoisyReplica::LowerLevel => (PriorityClass::BestEffort, 7),
            OneNoisyReplica::Idle => (PriorityClass::Idle, 7),
            OneNoisyReplica::HigherLevel => (PriorityClass::BestEffort, 0),
            OneNoisyReplica::RealTime => (PriorityClass::RealTime, 0),
        };
        Priority { class, level }
    }

    fn rows_of(&self, r: Option<&Results>) -> Vec<Filled> {
        let mut rows: Vec<Filled> = Vec::new();
        let mut row = |spec: RowSpec, value: &dyn Fn(&Results) -> Option<f64>| rows.push((spec, r.and_then(value)));
        row(
            RowSpec::new("no noise: gets within 20 ms", "%").paper_says(
                Check::AtLeast(97.0),
                "without contention (NoNoise), almost all get() requests can finish in <20ms",
            ),
            &|r| Some(100.0 - r.quiet.above(20.0)),
        );
        let of: [(&str, TailOf); 4] =
            [("no noise", |r| &r.quiet), ("base", |r| &r.base), ("mitt", |r| &r.mitt), ("mitt+wait", |r| &r.wait)];
        for (name, tail) in of {
            for percent in [10.0, 50.0, 80.0, 95.0, 99.0] {
                row(RowSpec::new(format!("{name}, p{percent}"), "ms"), &|r| Some(tail(r).at(percent)));
            }
        }
        let (percent, words) = if self.goes_first() {
            (10.0, "Base is severely impacted (a deviation starting at p0)")
        } else {
            (90.0, "Base experiences the noise impacts (tail latencies starting at p80)")
        };
        row(
            RowSpec::new(format!("base over no noise, p{percent}"), "1")
                .paper_says(Check::AtLeast(1.5), words)
                .note("taken as 1.5 times"),
            &|r| Some(r.base.at(percent) / r.quiet.at(percent)),
        );
        if !self.goes_first() {
            let words = "tail latencies starting at p80";
            let spec = RowSpec::new("base over no noise, p50", "1").paper_says(Check::AtMost(1.25), words);
            row(spec.note("so none below; taken as a quarter more at most"), &|r| {
                Some(r.base.at(50.0) / r.quiet.at(50.0))
            });
        }
        for (name, tail, judged) in [("mitt", of[2].1, true), ("mitt+wait", of[3].1, false)] {
            for percent in [95.0, 99.0] {
                let spec = RowSpec::new(format!("{name}: gap between base and no noise closed at p{percent}"), "%");
                let near = "cutting tail latencies towards the NoNoise line";
                let spec = if judged && percent < 99.0 { spec.paper_says(Check::AtLeast(90.0), near) } else { spec };
                row(spec, &|r| {
                    gap_closed(r.base.at(percent), tail(r).at(percent), r.quiet.at(percent)).map(|g| 100.0 * g)
                });
            }
        }
        row(RowSpec::new("mitt: refusals for a hundred gets", "1"), &|r| Some(r.busy_percent));
        let spec = RowSpec::new("mitt: late cancellations for a hundred gets", "1").derived();
        let picked = "MITTCFQ detects that the in-queue IOs are often less picked than the new high-priority IOs";
        let spec = if self.goes_first() { spec.paper_says(Check::AtLeast(1.0), picked) } else { spec };
        row(spec, &|r| Some(r.cancelled_percent));
        rows
    }
}

impl Experiment for OneNoisyReplica {
    fn id(&self) -> &'static str {
        match self {
            OneNoisyReplica::LowerLevel => "MT-E5",
            OneNoisyReplica::Idle => "MT-E5-IDLE",
            OneNoisyReplica::HigherLevel => "MT-E6",
            OneNoisyReplica::RealTime => "MT-E6-RT",
        }
    }
    fn title(&self) -> &'static str {
        match self {
            OneNoisyReplica::LowerLevel => "A noisy first replica, the noise of lower priority",
            OneNoisyReplica::Idle => "A noisy first replica, the noise of the idle class",
            OneNoisyReplica::HigherLevel => "A noisy first replica, the noise of higher priority",
            OneNoisyReplica::RealTime => "A noisy first replica, the noise of the real-time class",
        }
    }
    fn source(&self) -> &'static str {
        if self.goes_first() { "MittOS §7.1, Fig. 4b" } else { "MittOS §7.1, Fig. 4a" }
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "three nodes under CFQ, one client, a get every 40 ms on average, all to the noisy node first; the noise: four threads, each \
             with a random 4 KiB read under way at all times; gets have best effort 4, the noise 7 or the idle class (Fig. 4a), 0 or the \
             real-time class (Fig. 4b): the paper says lower and higher only"
                .into(),
        ]
    }
    fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
        specs(self.rows_of(None))
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let length = Span::from_secs(if inputs.quick { 30 } else { 240 });
        let mut scene = Scene::new(3, 1, seed);
        let drawn = inputs.has(Switch::GetsAnywhere);
        scene.order = if drawn { Preference::Drawn } else { Preference::Placement };
        scene.switches = inputs.switches.clone();
        scene.warm = Time::ZERO + Span::from_secs(2);
        scene.gets = gets(&scene, 1, Span::from_millis(40), length);
        scene.gets.iter_mut().for_each(|g| g.replicas = [0, 1, 2].into());
        let tail = |scene: &Scene, kind| Ok::<_, LabError>(scene.tail(&scene.play(kind, DEADLINE)?.each, 1));
        let quiet = tail(&scene, PolicyKind::Base)?;
        scene.hogs = hogs(THREADS, &[0], Span::from_secs(3600), 4096, self.priority(), seed);
        scene.watched = Some(0);
        let mitt = scene.play(PolicyKind::Mitt, DEADLINE)?;
        let results = Results {
            quiet,
            base: tail(&scene, PolicyKind::Base)?,
            cancelled_percent: 100.0 * mitt.m.watched.iter().filter(|a| a.busy && a.took > Span::ZERO).count() as f64
                / scene.gets.len() as f64,
            busy_percent: 100.0 * mitt.m.busy as f64 / scene.gets.len() as f64,
            mitt: scene.tail(&mitt.each, 1),
            wait: tail(&scene, PolicyKind::MittWait)?,
        };
        let mut sample = Sample::default();
        sample.plots.push(Plot {
            title: format!("Gets with a noisy first replica ({})", self.source()),
            x_label: "response, ms".into(),
            y_label: "gets at most that long, %".into(),
            scale: Scale::Log,
            shares: Shares::Linear,
            curves: vec![
                results.quiet.curve("no noise"),
                results.base.curve("base"),
                results.mitt.curve("mitt"),
                results.wait.curve("mitt+wait"),
            ],
        });
        fill(&mut sample, self.rows_of(Some(&results)));
        Ok(sample)
    }
}
