//! One self-contained HTML page of results: tables and plots, with how they were measured.

use crate::experiment::{ExperimentReport, Kind, RowReport, Verdict};
use plimsoll_figure::plot::escaped;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Machine on which the page's results were obtained.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Processor.
    pub cpu: String,
    /// Threads used.
    pub cores: usize,
    /// Operating system and kernel.
    pub system: String,
}

impl Machine {
    /// Returns this machine, from `/proc`; an unreadable property is `unknown`.
    pub fn this() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let unknown = || "unknown".to_string();
        let cpu = read("/proc/cpuinfo");
        let model =
            cpu.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':').map(|p| p.1.trim().to_string()));
        let kernel = read("/proc/sys/kernel/osrelease").trim().to_string();
        Machine {
            cpu: model.unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            system: if kernel.is_empty() { unknown() } else { format!("Linux {kernel}") },
        }
    }
}

/// Formats a figure with its significant digits only.
pub fn figure(v: f64) -> String {
    let digits = match v.abs() {
        a if a == 0.0 || a >= 1_000.0 => 0,
        a if a >= 100.0 => 1,
        a if a >= 1.0 => 2,
        a if a >= 0.01 => 3,
        _ => 5,
    };
    let text = format!("{v:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

const STYLE: &str = "
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; max-width: 1080px; margin: 0 auto; padding: 24px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 20px; margin: 44px 0 2px; border-top: 2px solid #1b1b1b; padding-top: 12px; }
p.sub { margin: 0 0 10px; color: #555; } table { border-collapse: collapse; width: 100%; font-size: 14px; margin: 10px 0; }
th { text-align: left; border-bottom: 1px solid #888; font-weight: 600; } td, th { padding: 3px 10px 3px 0; vertical-align: top; }
tr + tr td { border-top: 1px solid #eee; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.note { color: #555; font-size: 13px; } .pass, .fail { white-space: nowrap; } .pass { color: #00694a; font-weight: 600; } .fail { color: #b00020; font-weight: 600; }
.none { color: #767676; } ul { margin: 6px 0; padding-left: 20px; color: #444; font-size: 14px; }
svg { max-width: 100%; height: auto; } figure { margin: 14px 0; }
a { color: #0057a8; }
";

/// A verdict; rows of kinds that aren't judged have it in grey.
fn verdict(verdict: Option<Verdict>, is_judged: bool) -> &'static str {
    match verdict {
        Some(Verdict::Met) if is_judged => "<span class=\"pass\">✓ met</span>",
        Some(Verdict::Missed) if is_judged => "<span class=\"fail\">✗ missed</span>",
        Some(Verdict::Met) => "<span class=\"none\">as given</span>",
        Some(Verdict::Missed) => "<span class=\"none\">not as given</span>",
        Some(Verdict::Undecided) => "<span class=\"none\">? undecided</span>",
        None if is_judged => "<span class=\"none\">no value</span>",
        None => "<span class=\"none\">–</span>",
    }
}

/// The verdict on a whole experiment: the worst of its rows'. A judged row without a value is open.
fn overall(report: &ExperimentReport) -> Option<Verdict> {
    let of = |v| report.rows.iter().any(|r| r.judged() == Some(v)).then_some(v);
    let open = report.rows.iter().any(RowReport::is_without_value).then_some(Verdict::Undecided);
    of(Verdict::Missed).or(of(Verdict::Undecided)).or(open).or(of(Verdict::Met))
}

/// The paper's words and the note.
pub fn remarks(r: &RowReport) -> String {
    let words = if r.quote.is_empty() { String::new() } else { format!("the paper: {}", r.quote) };
    let parts: Vec<&str> = [words.as_str(), r.note.as_str()].into_iter().filter(|p| !p.is_empty()).collect();
    parts.join("; ")
}

fn cell(v: Option<f64>) -> String {
    v.map_or("<span class=\"none\">–</span>".into(), figure)
}

fn table_row(r: &RowReport) -> String {
    let interval = match (r.lo, r.hi) {
        (Some(lo), Some(hi)) if r.n > 1 => format!("{} … {}", figure(lo), figure(hi)),
        _ => "<span class=\"none\">–</span>".into(),
    };
    let unit = if r.unit == "1" { "" } else { r.unit.as_str() };
    format!(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{interval}</td>\
         <td class=\"n\">{}</td><td>{}</td><td class=\"note\">{}</td><td class=\"note\">{}</td></tr>\n",
        escaped(&r.name),
        r.kind.name(),
        escaped(unit),
        cell(r.paper),
        cell(r.ours),
        r.n,
        verdict(r.verdict, r.kind.is_judged()),
        if r.kind == Kind::Information { "–".into() } else { escaped(&r.check) },
        escaped(&remarks(r))
    )
}

fn section(report: &ExperimentReport, html: &mut String) {
    let mut add = |s: String| html.push_str(&s);
    let count = |v| report.rows.iter().filter(|r| r.judged() == Some(v)).count();
    let [met, missed, open] = [Verdict::Met, Verdict::Missed, Verdict::Undecided].map(count);
    let without = report.rows.iter().filter(|r| r.is_without_value()).count();
    add(format!(
        "<h2 id=\"{0}\">{0}: {1}</h2>\n<p class=\"sub\">{2} · modelled device: {3} · seeds 1 to {4}{5} · {met} rows met, {missed} missed, \
         {open} undecided, {without} without a value</p>\n",
        escaped(&report.id),
        escaped(&report.title),
        escaped(&report.source),
        escaped(&report.device),
        report.seeds,
        if report.quick { ", <b>quick run</b>" } else { "" }
    ));
    add("<table><thead><tr><th>Row</th><th>Kind</th><th>Unit</th><th class=\"n\">Paper</th><th class=\"n\">Ours</th>\
         <th class=\"n\">95 % interval</th><th class=\"n\">n</th><th>Verdict</th><th>Bound</th><th>Note</th></tr></thead><tbody>\n"
        .into());
    report.rows.iter().for_each(|r| add(table_row(r)));
    add("</tbody></table>\n".into());
    if !report.notes.is_empty() {
        let items: String = report.notes.iter().map(|n| format!("<li>{}</li>\n", escaped(n))).collect();
        add(format!("<ul>{items}</ul>\n"));
    }
    for plot in &report.plots {
        add(format!("<figure>{}</figure>\n", plot.to_svg()));
    }
}

fn overview(reports: &[ExperimentReport], html: &mut String) {
    html.push_str(
        "<table><thead><tr><th>Experiment</th><th>Shows</th><th>Published in</th><th>Result</th></tr></thead><tbody>\n",
    );
    for r in reports {
        let result = verdict(overall(r), true);
        writeln!(
            html,
            "<tr><td><a href=\"#{0}\">{0}</a></td><td>{1}</td><td>{2}</td><td>{result}</td></tr>",
            escaped(&r.id),
            escaped(&r.title),
            escaped(&r.source)
        )
        .expect("strings take text");
    }
    html.push_str("</tbody></table>\n");
}

/// The page. It refers to nothing outside itself.
pub fn html(reports: &[ExperimentReport], machine: &Machine) -> String {
    let first = reports.first();
    let (commit, program) = first.map_or(("unknown", "unknown"), |r| (r.commit.as_str(), r.program.as_str()));
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Plimsoll lab report</title><style>{STYLE}</style></head><body>\n<h1>Plimsoll lab report</h1>\n\
         <p class=\"sub\">commit {} · program {} · {}, {} threads · {}</p>\n\
         <p>All figures are a model's: simulated devices in virtual time, not measurements of hardware. “Ours” is the mean over the \
         seeds with a 95 % interval (percentile bootstrap; Student's with fewer than ten seeds), which is judged: a row is met or missed \
         where all of it is on one side of the bound, else undecided. A seed varies the platters’ angle, the device’s deviation from its profile, the noise \
         and where a trace begins. Policies that are compared run under the same seeds. Where a row is marked n = 1 nothing varies. \
         Plots show the first seed.</p>\n",
        escaped(commit),
        escaped(program),
        escaped(&machine.cpu),
        machine.cores,
        escaped(&machine.system)
    );
    overview(reports, &mut html);
    for r in reports {
        section(r, &mut html);
    }
    html + "</body></html>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_as_many_digits_as_say_something() {
        for (v, text) in
            [(0.0, "0"), (25.0, "25"), (0.1666, "0.167"), (1234.5, "1234"), (-3.25, "-3.25"), (153.44, "153.4")]
        {
            assert_eq!(figure(v), text);
        }
    }
}
