//! MT-E5 and MT-E6: one noisy replica of three, asked first (MittOS §7.1, Fig. 4a and 4b).

use super::{DEVICE, Filled, Scene, TENANT_BYTES, Tail, fill, gets, specs};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::{Priority, PriorityClass, Rng, Span, TenantId, Time};
use plimsoll_client::{PolicyKind, Preference};
use plimsoll_figure::plot::{Plot, Scale, Shares};
use plimsoll_replay::cluster::{Hog, gap_closed};
use plimsoll_trace::record::Op;

/// Fig. 4a or 4b: the noise's priority is below or above that of gets.
pub struct OneNoisyReplica {
    /// Above?
    pub noise_goes_first: bool,
}

/// What MittOS takes for both.
const DEADLINE: Span = Span::from_millis(20);
const THREADS: u64 = 4;

/// `threads` threads of another process that read `len` bytes at random all the time, on `nodes` in turn.
pub(super) fn hogs(threads: u64, nodes: &[u16], period: Span, len: u64, level: u8, seed: u64) -> Vec<Hog> {
    let hog = |i| Hog {
        nodes: nodes.to_vec(),
        period,
        op: Op::Read,
        len,
        span_bytes: TENANT_BYTES,
        tenant: TenantId(0),
        priority: Priority { class: PriorityClass::BestEffort, level },
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
}

impl OneNoisyReplica {
    fn rows_of(&self, r: Option<&Results>) -> Vec<Filled> {
        let mut rows: Vec<Filled> = Vec::new();
        let mut row = |spec: RowSpec, value: &dyn Fn(&Results) -> Option<f64>| rows.push((spec, r.and_then(value)));
        row(
            RowSpec::new("no noise: gets within 20 ms", "%").check(Check::AtLeast(97.0)).note("the paper: almost all"),
            &|r| Some(100.0 - r.quiet.above(20.0)),
        );
        let of: [(&str, TailOf); 4] =
            [("no noise", |r| &r.quiet), ("base", |r| &r.base), ("mitt", |r| &r.mitt), ("mitt+wait", |r| &r.wait)];
        for (name, tail) in of {
            for percent in [10.0, 50.0, 80.0, 95.0, 99.0] {
                row(RowSpec::new(format!("{name}, p{percent}"), "ms"), &|r| Some(tail(r).at(percent)));
            }
        }
        let (percent, words) = if self.noise_goes_first {
            (10.0, "the paper: deviates from p0 on; taken as half as much again")
        } else {
            (90.0, "the paper: a tail from p80 on; taken as half as much again")
        };
        row(
            RowSpec::new(format!("base over no noise, p{percent}"), "1").check(Check::AtLeast(1.5)).note(words),
            &|r| Some(r.base.at(percent) / r.quiet.at(percent)),
        );
        if !self.noise_goes_first {
            let words = "the paper: no tail below p80; taken as a quarter more at most";
            row(RowSpec::new("base over no noise, p50", "1").check(Check::AtMost(1.25)).note(words), &|r| {
                Some(r.base.at(50.0) / r.quiet.at(50.0))
            });
        }
        for (name, tail, judged) in [("mitt", of[2].1, true), ("mitt+wait", of[3].1, false)] {
            for percent in [95.0, 99.0] {
                let spec = RowSpec::new(format!("{name}: gap between base and no noise closed at p{percent}"), "%");
                let near = "the paper: cut towards, or near, no noise; taken as nine tenths";
                let spec = if judged && percent < 99.0 { spec.check(Check::AtLeast(90.0)).note(near) } else { spec };
                row(spec, &|r| {
                    gap_closed(r.base.at(percent), tail(r).at(percent), r.quiet.at(percent)).map(|g| 100.0 * g)
                });
            }
        }
        row(RowSpec::new("mitt: refusals for a hundred gets", "1"), &|r| Some(r.busy_percent));
        rows
    }
}

impl Experiment for OneNoisyReplica {
    fn id(&self) -> &'static str {
        if self.noise_goes_first { "MT-E6" } else { "MT-E5" }
    }
    fn title(&self) -> &'static str {
        if self.noise_goes_first {
            "A noisy first replica, the noise of higher priority"
        } else {
            "A noisy first replica, the noise of lower priority"
        }
    }
    fn source(&self) -> &'static str {
        if self.noise_goes_first { "MittOS §7.1, Fig. 4b" } else { "MittOS §7.1, Fig. 4a" }
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "three nodes under CFQ, one client, a get every 40 ms on average, all to the noisy node first; the noise: four threads, each \
             with a random 4 KiB read under way at all times; gets have best effort 4, the noise 7 (Fig. 4a) or 0 (Fig. 4b): the paper \
             says lower and higher only"
                .into(),
        ]
    }
    fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
        specs(self.rows_of(None))
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let length = Span::from_secs(if inputs.quick { 30 } else { 240 });
        let mut scene = Scene::new(3, 1, seed);
        scene.order = Preference::Placement;
        scene.warm = Time::ZERO + Span::from_secs(2);
        scene.gets = gets(&scene, 1, Span::from_millis(40), length);
        scene.gets.iter_mut().for_each(|g| g.replicas = [0, 1, 2].into());
        let tail = |scene: &Scene, kind| Ok::<_, LabError>(scene.tail(&scene.play(kind, DEADLINE)?.each, 1));
        let quiet = tail(&scene, PolicyKind::Base)?;
        let level = if self.noise_goes_first { 0 } else { 7 };
        scene.hogs = hogs(THREADS, &[0], Span::from_secs(3600), 4096, level, seed);
        let mitt = scene.play(PolicyKind::Mitt, DEADLINE)?;
        let results = Results {
            quiet,
            base: tail(&scene, PolicyKind::Base)?,
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
