//! MT-E10: a user's request of several gets waits for the slowest (MittOS §7.3, Fig. 6).

use super::strategies::{GAP, scene};
use super::{DEVICE, Filled, NoiseKind, SCHEDULE, Tail, fill, p95_of_base, reduction, specs};
use crate::experiment::{Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::Span;
use plimsoll_client::{PolicyKind, Preference};
use plimsoll_figure::plot::{Plot, Scale, Shares};

/// See the module's documentation.
pub struct ScaleFactors;

const FACTORS: [u16; 4] = [1, 2, 5, 10];
const POLICIES: [PolicyKind; 5] =
    [PolicyKind::Base, PolicyKind::Hedged, PolicyKind::Mitt, PolicyKind::MittWait, PolicyKind::MittBudget];

/// Noise, name, and whether the limit is base's p95 under that noise (as §7.2 has it) or without any.
const CASES: [(NoiseKind, &str, bool); 2] =
    [(NoiseKind::Generated, "§6's noise", true), (NoiseKind::Published, "published noise, limit without noise", false)];

/// Results of one seed under one noise: the deadline, and by factor and policy the requests.
struct Results {
    limit: Span,
    tails: Vec<Vec<Tail>>,
    /// Single gets without any noise: base, and mitt with the same deadline.
    quiet: Vec<Tail>,
}

impl Results {
    fn of(&self, sf: u16, kind: PolicyKind) -> &Tail {
        let f = FACTORS.iter().position(|&x| x == sf).expect("one of ours");
        let p = POLICIES.iter().position(|&x| x == kind).expect("one of ours");
        &self.tails[f][p]
    }
}

fn rows_of(name: &str, is_of_paper: bool, r: Option<&Results>) -> Vec<Filled> {
    use PolicyKind::{Hedged, Mitt, MittBudget, MittWait};
    let mut rows: Vec<Filled> = Vec::new();
    let mut row = |spec: RowSpec, value: &dyn Fn(&Results) -> f64| {
        let spec = RowSpec { name: format!("{name}: {}", spec.name), ..spec };
        rows.push((spec, r.map(value)));
    };
    row(RowSpec::new("deadline and delay: base's p95 of single gets", "ms").beside(13.0), &|r| r.limit.as_millis_f64());
    // By the paper's own formula 1 - (1 - 0.05)^SF would be 5, 10, 23 and 40 %.
    for (sf, hedged, mitt) in [(1, 5.0, Some(1.0)), (2, 10.0, None), (5, 25.0, Some(5.0)), (10, 40.0, Some(10.0))] {
        let spec = RowSpec::new(format!("SF {sf}: requests above the deadline, hedged"), "%");
        let spec = if is_of_paper { spec.reproduces(hedged) } else { spec };
        row(spec, &|r| r.of(sf, Hedged).above(r.limit.as_millis_f64()));
        for kind in [Mitt, MittBudget] {
            let spec = RowSpec::new(format!("SF {sf}: requests above the deadline, {kind}"), "%");
            let spec = match mitt {
                Some(paper) if kind == Mitt && is_of_paper => spec.reproduces(paper),
                _ => spec,
            };
            row(spec, &|r| r.of(sf, kind).above(r.limit.as_millis_f64()));
        }
    }
    let why = "what no choice of replicas can take away: the drive's own spread, which its host doesn't see";
    for (i, kind) in [PolicyKind::Base, Mitt].into_iter().enumerate() {
        let spec = RowSpec::new(format!("SF 1 without noise: requests above that deadline, {kind}"), "%").note(why);
        row(spec, &|r| r.quiet[i].above(r.limit.as_millis_f64()));
    }
    for sf in FACTORS {
        for kind in POLICIES {
            for percent in [75.0, 95.0, 99.0] {
                row(RowSpec::new(format!("SF {sf}: {kind}, p{percent}"), "ms"), &|r| r.of(sf, kind).at(percent));
            }
            row(RowSpec::new(format!("SF {sf}: {kind}, mean"), "ms"), &|r| r.of(sf, kind).mean());
        }
    }
    // Fig. 6d's bar for SF 2 isn't in the text.
    let less: [(u16, Option<f64>, f64); 4] =
        [(2, Some(95.0), 23.0), (5, Some(95.0), 35.0), (10, Some(75.0), 36.0), (10, None, 23.0)];
    for (sf, percent, paper) in less {
        for kind in [Mitt, MittWait, MittBudget] {
            let what = percent.map_or("mean".to_string(), |p| format!("p{p}"));
            let spec = RowSpec::new(format!("SF {sf}: {kind} below hedged, {what}"), "%");
            let spec = match (kind, sf) {
                (Mitt, 2) => spec.beside(paper),
                (Mitt, _) => spec.reproduces(paper),
                _ => spec,
            };
            row(spec, &|r| {
                let of = |kind| percent.map_or(r.of(sf, kind).mean(), |p| r.of(sf, kind).at(p));
                reduction(of(kind), of(Hedged))
            });
        }
    }
    rows
}

impl Experiment for ScaleFactors {
    fn id(&self) -> &'static str {
        "MT-E10"
    }
    fn title(&self) -> &'static str {
        "Requests of 1, 2, 5 and 10 gets at once"
    }
    fn source(&self) -> &'static str {
        "MittOS §7.3, Fig. 6"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn files(&self) -> Vec<&'static str> {
        vec![SCHEDULE]
    }
    fn notes(&self) -> Vec<String> {
        vec![
            format!(
                "as MT-E9 with §6's noise, and with its third case; requests come {GAP} times their factor apart, so that the disks have the same load under all \
                 factors (the paper's load grows with the factor)"
            ),
            "the paper's figures differ between its introduction, its text and Fig. 6; the text's are taken (MT-A6)"
                .into(),
        ]
    }
    fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
        CASES.iter().flat_map(|&(_, name, is_of_paper)| specs(rows_of(name, is_of_paper, None))).collect()
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut sample = Sample::default();
        for (kind, name, is_of_paper) in CASES {
            let results = results(seed, kind, is_of_paper, inputs)?;
            sample.plots.extend(results.iter().flat_map(|r| FACTORS.into_iter().map(|sf| plot(name, sf, r))));
            if results.is_none() {
                sample.notes.push(format!("{name}: ran without {SCHEDULE}"));
            }
            fill(&mut sample, rows_of(name, is_of_paper, results.as_ref()));
        }
        Ok(sample)
    }
}

/// Plays all factors under all policies; `None`: the noise's data aren't there.
fn results(seed: u64, kind: NoiseKind, limit_is_of_noise: bool, inputs: &Inputs) -> Result<Option<Results>, LabError> {
    let mut results = Results { limit: Span::ZERO, tails: Vec::new(), quiet: Vec::new() };
    for sf in FACTORS {
        let Some(mut scene) = scene(seed, kind, sf, inputs)? else { return Ok(None) };
        // The first replicas of a request's gets are on different nodes, as the paper has it.
        scene.order = Preference::Placement;
        if sf == 1 {
            let with = p95_of_base(&scene)?.0;
            let noise = std::mem::take(&mut scene.noise);
            results.limit = if limit_is_of_noise { with } else { p95_of_base(&scene)?.0 };
            for kind in [PolicyKind::Base, PolicyKind::Mitt] {
                results.quiet.push(scene.tail(&scene.play(kind, results.limit)?.each, 1));
            }
            scene.noise = noise;
        }
        let tail = |kind| Ok(scene.tail(&scene.play(kind, results.limit)?.each, usize::from(sf)));
        results.tails.push(POLICIES.into_iter().map(tail).collect::<Result<_, LabError>>()?);
    }
    Ok(Some(results))
}

fn plot(name: &str, sf: u16, r: &Results) -> Plot {
    Plot {
        title: format!("Requests of {sf} gets, {name} (Fig. 6)"),
        x_label: "response, ms".into(),
        y_label: "requests at most that long, %".into(),
        scale: Scale::Log,
        shares: Shares::Nines,
        curves: POLICIES.into_iter().map(|kind| r.of(sf, kind).curve(kind.name())).collect(),
    }
}
