//! AP-E12: ten users with a tail objective among many without one, by a controller that slows the others (PSLO alone) and by weights at the
//! gate.

use super::{Runs, YCSB, more, row, shaped, some};
use crate::database::{Front, Measured, Sensitive, Setting, run};
use crate::experiment::{Check, RowSpec};
use plimsoll_base::Span;

const BEST_EFFORT: [usize; 3] = [90, 140, MOST];
const MOST: usize = 190;
/// The objective as a part of what the gate promises to all alike; AP-E12's own is 1.1.
const TIGHTNESS: [f64; 4] = [0.5, 0.7, 0.9, 1.4];

fn with(r: &Runs, users: usize, front: Front, p999: Span, controlled: bool) -> Measured {
    let s = Sensitive { users: 10, p999, controlled };
    let base = r.setting(YCSB, users, front);
    // Both controllers need thousands of LS transactions for a step.
    let warm = if r.quick { base.warm } else { Span::from_secs(50) };
    run(&Setting { sensitive: Some(s), warm, ..base }, r.seed)
}

/// The paper's 60 ms are its machine's. Here the objective is what the gate can promise to all 200 users alike, and a tenth.
fn promise_to_all_ms(r: &Runs) -> f64 {
    with(r, 200, Front::Auto { zeta: 1, bounds: None }, Span::from_secs(1), false).sensitive_p999_ms
}

/// p99.9 over the objective, shaped and by PSLO alone; LS throughput against that in percent, BE throughput and LS CV over that.
fn against(r: &Runs, be: usize, objective: Span) -> [f64; 5] {
    let alone = with(r, 10 + be, Front::Throttle, objective, false);
    let both = with(r, 10 + be, shaped(10), objective, true);
    let be_rate = |m: &Measured| (m.rate - m.sensitive_rate).max(1e-9);
    [
        both.sensitive_p999_ms / objective.as_millis_f64(),
        alone.sensitive_p999_ms / objective.as_millis_f64(),
        more(both.sensitive_rate, alone.sensitive_rate),
        be_rate(&both) / be_rate(&alone),
        both.sensitive_variability / alone.sensitive_variability.max(1e-9),
    ]
}

const STEADIER: &str = "AppleS can effectively reduce request-latency variability for the LS users";
/// PSLO alone keeps the objective there without slowing anybody, so nothing is to be cut.
const UNTHROTTLED: &str = "with as few users PSLO alone slows nobody, so the difference is noise: not judged";
const CUTS: &str = "AppleS can successfully help PSLO to reduce I/O provisioning by cutting down the throughput allocated to the LS users \
                    (up to 53.1% reduction) and improve the throughput of the BE users (up to 7.6x improvement)";

pub(super) fn e12_rows() -> Vec<RowSpec> {
    let mut rows = vec![row("objective: p99.9 of 200 equal users under the gate, and a tenth", "ms")];
    for be in BEST_EFFORT {
        rows.push(
            row(format!("{be} BE: LS p99.9 over the objective, shaped"), "1")
                .given(Check::AtMost(1.0))
                .note("the objective is the gate's own p99.9 and a tenth"),
        );
        rows.push(row(format!("{be} BE: LS p99.9 over the objective, PSLO alone"), "1"));
        let judged = |row: RowSpec, check| match be {
            MOST => row.paper_says(check, CUTS),
            _ => row.note(UNTHROTTLED),
        };
        rows.push(judged(row(format!("{be} BE: LS throughput against PSLO alone"), "%"), Check::AtMost(0.0)));
        rows.push(judged(row(format!("{be} BE: BE throughput over that"), "1"), Check::AtLeast(1.0)));
        rows.push(row(format!("{be} BE: LS CV over that"), "1").paper_says(Check::AtMost(1.0), STEADIER));
    }
    rows.push(row("largest cut of LS throughput", "%").reproduces(-53.1));
    rows.push(row("largest gain of BE throughput", "1").reproduces(7.6));
    rows
}

pub(super) fn e12(r: &Runs) -> Vec<Option<f64>> {
    let objective = Span::from_millis_f64(promise_to_all_ms(r) * 1.1);
    let all = BEST_EFFORT.map(|be| against(r, be, objective));
    let cut = all.iter().map(|x| x[2]).fold(f64::INFINITY, f64::min);
    let gain = all.iter().map(|x| x[3]).fold(0.0, f64::max);
    some([objective.as_millis_f64()].into_iter().chain(all.into_iter().flatten()).chain([cut, gain]).collect())
}

pub(super) fn tight_rows() -> Vec<RowSpec> {
    let of = |part: f64| {
        vec![
            row(format!("objective {part} of the promise to all: LS p99.9 over it, shaped"), "1"),
            row(format!("{part}: the same, PSLO alone"), "1"),
            row(format!("{part}: LS throughput against PSLO alone"), "%"),
            row(format!("{part}: BE throughput over that"), "1"),
            row(format!("{part}: LS CV over that"), "1"),
        ]
    };
    TIGHTNESS.into_iter().flat_map(of).collect()
}

/// 190 BE: how the cut depends on the objective.
pub(super) fn tight(r: &Runs) -> Vec<Option<f64>> {
    let promise = promise_to_all_ms(r);
    some(TIGHTNESS.into_iter().flat_map(|part| against(r, MOST, Span::from_millis_f64(promise * part))).collect())
}
