//! OT-SCREEN: what screening finds on a system whose effects are known, and what it finds that isn't there.

use super::{told, web};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::system::web::{EXPONENTS, WebConfig, WebServer, graph, space};
use plimsoll_base::Span;
use plimsoll_tune::adapter::{Adapter, Run};
use plimsoll_tune::screen::{ScreenConfig, design, screen};
use plimsoll_tune::space::{Parameter, Setting, Space};

/// See the module's documentation.
pub struct Screening;

/// True effects: the scheduler's idling moves file reads; the cached set moves the hits' share and its files.
const THERE: [(&str, &str); 3] = [("idle_time", "disk"), ("size_exponent", "get"), ("size_exponent", "cache")];
/// Parameters that nothing listens to.
const IDLE: usize = 3;
/// Up to 24 ms, as OpTune tunes it, what it does to a file read is below the least effect that a screen looks for (OT-E2). 100 ms is CFQ's slice.
const IDLE_MS: [u64; 2] = [0, 100];

fn screened() -> Result<Space, LabError> {
    let two = |p: &Parameter| Parameter {
        values: vec![p.values[0].clone(), p.values[p.values.len() - 1].clone()],
        ..p.clone()
    };
    let mut all: Vec<Parameter> = space(&IDLE_MS, &EXPONENTS).parameters().iter().map(two).collect();
    let nothing = |i| Parameter { name: format!("nothing{i}"), values: vec!["0".into(), "1".into()], moves: vec![] };
    all.extend((0..IDLE).map(nothing));
    Space::new(all).map_err(told)
}

/// One run: a server of its own with its own requests, so that runs differ by chance as real ones do.
fn run(setting: &Setting, n: usize, seed: u64, inputs: &Inputs) -> Result<Run, LabError> {
    let config = WebConfig { stream: 10 + n as u64, ..web::config(seed) };
    let mut s = WebServer::new(config, space(&IDLE_MS, &EXPONENTS))?;
    let exponent = if setting.0[1] == 0 { 0 } else { EXPONENTS.len() as u16 - 1 };
    s.apply(&Setting(vec![setting.0[0], exponent])).map_err(told)?;
    let (warm, time) = if inputs.quick { (300, 600) } else { (1_200, 1_800) };
    s.serve(Span::from_secs(warm));
    Ok(s.serve(Span::from_secs(time)))
}

impl Experiment for Screening {
    fn id(&self) -> &'static str {
        "OT-SCREEN"
    }
    fn title(&self) -> &'static str {
        "Screening: what is found, and what isn't there"
    }
    fn source(&self) -> &'static str {
        "no paper's figure: OpTune §5.2.4 leaves it to future work"
    }
    fn device(&self) -> &'static str {
        "hdd-160g-7200"
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "the web server with idle_time 0 and 100 ms, Size(f) = |f|^0.1 and |f|^2, and three parameters that nothing listens to; a \
             design of 12 runs for each seed. 5 % of what is found may be false, and 5 % is the least that matters"
                .into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let there = |(p, node): &(&str, &str)| {
            RowSpec::new(format!("{p} moves {node}: found"), "%")
                .goal(Check::AtLeast(90.0))
                .note("that it does is declared, as in the paper")
        };
        let mut rows: Vec<RowSpec> = THERE.iter().map(there).collect();
        for (p, node) in THERE {
            let size = RowSpec::new(format!("{p} moves {node}: by"), "%");
            rows.push(size.note("as the screen sees it; it looks for 5 % at least"));
        }
        rows.push(RowSpec::new("size_exponent moves disk: found", "%").note("the paper: small enough to be neglected"));
        rows.push(RowSpec::new("pairs with a parameter that nothing listens to: found", "%").goal(Check::AtMost(5.0)));
        rows.push(RowSpec::new("of what is found, pairs with such a parameter", "%").goal(Check::AtMost(10.0)));
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let (space, graph) = (screened()?, graph());
        let settings = design(&space).map_err(LabError)?;
        let one = |(n, s): (usize, &Setting)| run(s, n, seed, inputs);
        let runs: Vec<Run> = settings.iter().enumerate().map(one).collect::<Result<_, _>>()?;
        let effects = screen(&space, &graph, &settings, &runs, &ScreenConfig::default()).map_err(LabError)?;
        let moves = |p: &str, node: &str| effects.iter().any(|e| e.moves && e.parameter == p && e.node == node);
        let percent = |is: bool| Some(if is { 100.0 } else { 0.0 });
        let mut values: Vec<Option<f64>> = THERE.iter().map(|(p, node)| percent(moves(p, node))).collect();
        values.extend(THERE.map(|(p, node)| {
            let seen = effects.iter().find(|e| e.parameter == p && e.node == node);
            seen.map(|e| 100.0 * e.size)
        }));
        values.push(percent(moves("size_exponent", "disk")));
        let of_nothing = || effects.iter().filter(|e| e.parameter.starts_with("nothing"));
        let false_ones = of_nothing().filter(|e| e.moves).count() as f64;
        let found = effects.iter().filter(|e| e.moves).count();
        values.push(Some(100.0 * false_ones / of_nothing().count() as f64));
        values.push((found > 0).then(|| 100.0 * false_ones / found as f64));
        let shown =
            effects.iter().filter(|e| e.moves).map(|e| format!("{} {} {:.0} %", e.parameter, e.node, 100.0 * e.size));
        let notes = vec![format!("found, in one seed: {}", shown.collect::<Vec<_>>().join(", "))];
        Ok(Sample { values, notes, ..Sample::default() })
    }
}
