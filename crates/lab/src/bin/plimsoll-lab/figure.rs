//! `plimsoll lab figure`: results of `plimsoll demo --json` as a plot and a table, medians over rounds.

use anyhow::{Context, Result, bail};
use clap::Args;
use plimsoll_figure::plot::{Curve, Plot};
use plimsoll_lab::experiment::stats::quantile;
use plimsoll_lab::report::figure;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Draw results of `plimsoll demo --json`, and print them as a Markdown table: medians over the rounds.
#[derive(Args)]
#[command(
    after_help = "Example:\n  plimsoll demo --without nbdkit --json round1.json\n  plimsoll lab figure round1.json --out demo.svg"
)]
pub struct Figure {
    /// Rounds: results of runs with the same settings.
    #[arg(value_name = "FILE", required = true)]
    rounds: Vec<PathBuf>,
    /// The plot to write.
    #[arg(long, value_name = "FILE.svg", default_value = "demo.svg")]
    out: PathBuf,
}

#[derive(Deserialize)]
struct Round {
    without: String,
    model: String,
    seconds: u32,
    objective: Objective,
    deadline_ms: f64,
    paused: f64,
    sides: Sides,
}

#[derive(Deserialize)]
struct Objective {
    percentile: u32,
    within_ms: f64,
}

#[derive(Deserialize)]
struct Sides {
    without: Tenants,
    with: Tenants,
}

#[derive(Deserialize)]
struct Tenants {
    database: Numbers,
    web: Numbers,
    neighbour: Numbers,
}

#[derive(Deserialize)]
struct Numbers {
    p50_ms: f64,
    p99_ms: f64,
    late: Option<f64>,
    requests_per_s: f64,
    transactions_per_s: f64,
    mb_per_s: f64,
    busy: u64,
    distribution: Vec<(f64, f64)>,
}

fn read(file: &Path) -> Result<Round> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{}: not a result of `plimsoll demo --json`", file.display()))
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

fn median(values: Vec<f64>) -> f64 {
    quantile(&sorted(values), 0.5)
}

impl Figure {
    /// Draws and prints.
    pub fn run(&self) -> Result<()> {
        let rounds = self.rounds.iter().map(|f| read(f)).collect::<Result<Vec<_>>>()?;
        let settings = |r: &Round| (r.model.clone(), r.seconds);
        if rounds.iter().any(|r| settings(r) != settings(&rounds[0])) {
            bail!("these rounds differ in their length or their drive: draw only runs of one kind together");
        }
        let columns = columns(&rounds);
        std::fs::write(&self.out, plot(&rounds[0], &columns).to_svg())
            .with_context(|| format!("cannot write {}", self.out.display()))?;
        print!("{}", table(&rounds, &columns));
        Ok(())
    }
}

/// One way to serve the load, and its rounds.
struct Column<'a> {
    name: &'a str,
    is_reference: bool,
    rounds: Vec<&'a Tenants>,
}

impl Column<'_> {
    fn median(&self, of: impl Fn(&Tenants) -> f64) -> f64 {
        median(self.rounds.iter().map(|t| of(t)).collect())
    }
}

/// Each server without promises, by name, then the nodes with.
fn columns(rounds: &[Round]) -> Vec<Column<'_>> {
    let names: BTreeSet<&str> = rounds.iter().map(|r| r.without.as_str()).collect();
    let without = |name| {
        let all = rounds.iter().filter(|r| r.without == name).map(|r| &r.sides.without).collect();
        Column { name, is_reference: true, rounds: all }
    };
    let with = rounds.iter().map(|r| &r.sides.with).collect();
    names
        .into_iter()
        .map(without)
        .chain([Column { name: "with promises", is_reference: false, rounds: with }])
        .collect()
}

/// Distributions of the database's and the web's response times: each point the median of the rounds'.
fn plot(first: &Round, columns: &[Column<'_>]) -> Plot {
    let curve = |c: &Column<'_>, tenant: &str, of: fn(&Tenants) -> &Numbers, throughput: String| {
        let count = c.rounds.iter().map(|t| of(t).distribution.len()).min().unwrap_or(0);
        let share = |i: usize| of(c.rounds[0]).distribution[i].1;
        let points = (0..count).map(|i| (c.median(|t| of(t).distribution[i].0), share(i))).collect();
        Curve { name: format!("{tenant}, {}: {throughput}", c.name), points, is_reference: c.is_reference }.thinned()
    };
    let of_column = |c: &Column<'_>| {
        let rate = |of: fn(&Tenants) -> f64| figure(c.median(of).round());
        let (transactions, reads) = (rate(|t| t.database.transactions_per_s), rate(|t| t.web.requests_per_s));
        let neighbour = rate(|t| t.neighbour.mb_per_s);
        [
            curve(c, "database", |t| &t.database, format!("{transactions} transactions/s, neighbour {neighbour} MB/s")),
            curve(c, "web", |t| &t.web, format!("{reads} reads/s")),
        ]
    };
    // Ours first: the first colours are the strongest.
    let curves = columns.iter().rev().flat_map(of_column).collect();
    let Objective { percentile, within_ms } = first.objective;
    let title = format!(
        "Promised: the database's p{percentile} within {within_ms} ms, the web's reads within {} ms",
        first.deadline_ms
    );
    Plot::of_times(&title, curves)
}

/// The same figures and more as a table.
fn table(rounds: &[Round], columns: &[Column<'_>]) -> String {
    let first = &rounds[0];
    let cell = |c: &Column<'_>, of: &dyn Fn(&Tenants) -> f64, unit: &str| {
        let all = sorted(c.rounds.iter().map(|t| of(t)).collect());
        let range = match (all.first(), all.last()) {
            (Some(low), Some(high)) if all.len() > 1 => format!(" ({}..{})", figure(*low), figure(*high)),
            _ => String::new(),
        };
        format!("{}{unit}{range}", figure(quantile(&all, 0.5)))
    };
    let row = |name: &str, unit: &str, of: &dyn Fn(&Tenants) -> f64| {
        let cells: Vec<String> = columns.iter().map(|c| cell(c, of, unit)).collect();
        format!("| {name} | {} |\n", cells.join(" | "))
    };
    let percent = |late: Option<f64>| 100.0 * late.unwrap_or(0.0);
    let objective = &first.objective;
    let rows = [
        row(&format!("database: p{} (objective {} ms)", objective.percentile, objective.within_ms), " ms", &|t| {
            t.database.p99_ms
        }),
        row("database: p50", " ms", &|t| t.database.p50_ms),
        row("database: transactions a second", "", &|t| t.database.transactions_per_s),
        row("web: p99", " ms", &|t| t.web.p99_ms),
        row(&format!("web: reads later than {} ms", first.deadline_ms), " %", &|t| percent(t.web.late)),
        row("web: reads a second", "", &|t| t.web.requests_per_s),
        row("web: answered Busy, asked of the other node", "", &|t| t.web.busy as f64),
        row("neighbour: MB/s", "", &|t| t.neighbour.mb_per_s),
    ];
    let names: Vec<&str> = columns.iter().map(|c| c.name).collect();
    let counts: Vec<String> = columns.iter().map(|c| c.rounds.len().to_string()).collect();
    let paused = sorted(rounds.iter().map(|r| 100.0 * r.paused).collect());
    format!(
        "| | {} |\n|{}\n{}\nMedians (range) of {} rounds of {} s; in each round both sides at once, on drives modelled as {}; the machine \
         paused for {} to {} % of the time.\n",
        names.join(" | "),
        " --- |".repeat(columns.len() + 1),
        rows.concat(),
        counts.join(", "),
        first.seconds,
        first.model,
        figure(paused[0]),
        figure(paused[paused.len() - 1])
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(without: &str, ms: f64) -> Round {
        let numbers = |ms: f64| Numbers {
            p50_ms: ms,
            p99_ms: 4.0 * ms,
            late: Some(0.25),
            requests_per_s: 300.0,
            transactions_per_s: 100.0,
            mb_per_s: 20.0,
            busy: 7,
            distribution: vec![(ms, 0.5), (4.0 * ms, 0.99)],
        };
        let tenants = |ms| Tenants { database: numbers(ms), web: numbers(ms), neighbour: numbers(ms) };
        Round {
            without: without.into(),
            model: "m".into(),
            seconds: 10,
            objective: Objective { percentile: 99, within_ms: 4.0 },
            deadline_ms: 4.0,
            paused: 0.001,
            sides: Sides { without: tenants(10.0 * ms), with: tenants(ms) },
        }
    }

    #[test]
    fn rounds_are_drawn_and_listed_by_their_medians() {
        let rounds = [round("nbdkit", 1.0), round("nbdkit", 3.0), round("nbdkit", 2.0), round("limit", 5.0)];
        let columns = columns(&rounds);
        let plot = plot(&rounds[0], &columns);
        let names: Vec<&str> = plot.curves.iter().map(|c| c.name.as_str()).collect();
        // The picture is as wide as a title of about 80 characters, and cuts longer ones off.
        assert_eq!(plot.title, "Promised: the database's p99 within 4 ms, the web's reads within 4 ms");
        assert_eq!(names[0], "database, with promises: 100 transactions/s, neighbour 20 MB/s");
        assert_eq!(
            names[2..4],
            ["database, nbdkit: 100 transactions/s, neighbour 20 MB/s", "web, nbdkit: 300 reads/s"]
        );
        assert_eq!((plot.curves[0].points[0], plot.curves[2].points[0]), ((2.0, 0.5), (20.0, 0.5)));
        assert!(!plot.curves[0].is_reference && plot.curves[2].is_reference);
        let text = table(&rounds, &columns);
        assert!(text.starts_with("| | limit | nbdkit | with promises |\n| --- | --- | --- | --- |\n"), "{text}");
        let row = "| database: p99 (objective 4 ms) | 200 ms | 80 ms (40..120) | 8 ms (4..20) |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("of 1, 3, 4 rounds of 10 s"), "{text}");
    }
}
