//! Report of a replay, for people and for programs. Equal runs give equal reports, to the byte.

use crate::measure::{KINDS, Measured};
use crate::pool::{DeviceChoice, PoolConfig};
use plimsoll_base::{LatencyHistogram, Span};
use plimsoll_figure::micros;
use plimsoll_figure::table::{Table, Values};
use serde::Serialize;
use std::fmt::Write as _;

/// A distribution of times, in microseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Times {
    /// Values.
    pub count: u64,
    /// Exact mean.
    pub mean_us: f64,
    /// Percentiles, to 0.8 %.
    pub p50_us: f64,
    /// 90 %.
    pub p90_us: f64,
    /// 99 %.
    pub p99_us: f64,
    /// 99.9 %.
    pub p99_9_us: f64,
    /// Exact largest.
    pub max_us: f64,
}

impl Times {
    /// Of a histogram.
    pub fn of(h: &LatencyHistogram) -> Times {
        let p = |q| micros(h.percentile(q));
        Times {
            count: h.count(),
            mean_us: micros(h.mean()),
            p50_us: p(50.0),
            p90_us: p(90.0),
            p99_us: p(99.0),
            p99_9_us: p(99.9),
            max_us: micros(h.max()),
        }
    }
}

/// One line of the result: reads, writes, others, or all.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KindReport {
    /// `read`, `write`, `other` or `all`.
    pub kind: &'static str,
    /// Requests done a second.
    pub iops: f64,
    /// Megabytes (10^6) a second.
    pub mb_per_s: f64,
    /// From the trace's arrival to completion.
    pub response: Times,
}

/// Comparison of forecasts at admission with actual ends.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ForecastReport {
    /// Absolute difference between forecast and actual completion.
    pub error: Times,
    /// Mean of actual minus forecast: positive where forecasts are too short.
    pub bias_us: f64,
    /// Reads forecast in time that were late, per judged read; `None` if nothing was judged.
    pub false_negative_share: Option<f64>,
    /// Reads forecast late that were in time, per judged read.
    pub false_positive_share: Option<f64>,
}

/// The whole report.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ReplayReport {
    /// Source of the replayed load.
    pub source: String,
    /// Profile of the modelled device.
    pub device: String,
    /// Always true: a model's figures.
    pub modelled: bool,
    /// Scheduler.
    pub sched: &'static str,
    /// Requests at the device at most.
    pub depth: u32,
    /// Deadline of reads, if any.
    pub deadline_us: Option<f64>,
    /// Seed.
    pub seed: u64,
    /// Spread between profile and device.
    pub mismatch: f64,
    /// Requests that ended, however.
    pub requests: u64,
    /// Virtual time from the first arrival to the last completion.
    pub elapsed_s: f64,
    /// Per kind (those that occurred), then all.
    pub kinds: Vec<KindReport>,
    /// From arrival until at the device.
    pub queue_delay: Times,
    /// At the device.
    pub service: Times,
    /// Forecasts.
    pub forecast: ForecastReport,
    /// Reads refused at once.
    pub busy: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Reads done after their deadline.
    pub missed_deadline: u64,
    /// Requests that found the pool full.
    pub held_back: u64,
    /// Hash of all events.
    pub event_hash: String,
    /// The final clock.
    pub clock_ns: u64,
    /// Limits of these figures that a reader must know.
    pub notes: Vec<String>,
}

impl ReplayReport {
    /// The report of `m`. `notes` are the caller's own; ours follow.
    pub fn new(
        source: String,
        device: &DeviceChoice,
        pool: &PoolConfig,
        deadline: Option<Span>,
        m: &Measured,
        notes: Vec<String>,
    ) -> ReplayReport {
        let mut kinds: Vec<KindReport> = (0..3).filter(|&k| m.done[k] > 0).map(|k| kind_report(m, k)).collect();
        kinds.push(KindReport {
            kind: "all",
            iops: m.iops(),
            mb_per_s: m.megabytes_per_second(&[0, 1]),
            response: Times::of(&m.all_responses()),
        });
        let judged = |n: u64| (m.verdicts.all() > 0).then(|| n as f64 / m.verdicts.all() as f64);
        let forecast = ForecastReport {
            error: Times::of(&m.forecast_error),
            bias_us: m.forecast_bias_ns as f64 / 1e3 / m.forecast_error.count().max(1) as f64,
            false_negative_share: judged(m.verdicts.false_accept),
            false_positive_share: judged(m.verdicts.false_reject),
        };
        ReplayReport {
            source,
            device: device.name.clone(),
            modelled: true,
            sched: pool.sched.name(),
            depth: pool.depth,
            deadline_us: deadline.map(micros),
            seed: pool.seed,
            mismatch: pool.mismatch,
            requests: m.requests(),
            elapsed_s: m.elapsed().as_secs_f64(),
            kinds,
            queue_delay: Times::of(&m.queue_delay),
            service: Times::of(&m.service),
            forecast,
            busy: m.busy + m.revoked,
            failed: m.failed,
            missed_deadline: m.missed,
            held_back: m.held_back,
            event_hash: format!("{:016x}", m.event_hash),
            clock_ns: m.clock.as_nanos(),
            notes: all_notes(m, notes),
        }
    }

    /// As JSON, one object, indented, with a newline at the end.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and texts") + "\n"
    }

    /// The kinds as a table for CSV and Parquet.
    pub fn to_table(&self) -> Table {
        let real = |f: &dyn Fn(&KindReport) -> f64| Values::Real(self.kinds.iter().map(|k| Some(f(k))).collect());
        Table::new()
            .column("kind", Values::Text(self.kinds.iter().map(|k| k.kind.to_string()).collect()))
            .column("count", Values::Whole(self.kinds.iter().map(|k| k.response.count as i64).collect()))
            .column("iops", real(&|k| k.iops))
            .column("mb_per_s", real(&|k| k.mb_per_s))
            .column("mean_us", real(&|k| k.response.mean_us))
            .column("p50_us", real(&|k| k.response.p50_us))
            .column("p90_us", real(&|k| k.response.p90_us))
            .column("p99_us", real(&|k| k.response.p99_us))
            .column("p99_9_us", real(&|k| k.response.p99_9_us))
            .column("max_us", real(&|k| k.response.max_us))
    }

    /// For a terminal.
    pub fn to_text(&self) -> String {
        let mut t = format!(
            "{} on modelled {} ({}, depth {}, seed {}{})\n",
            self.source,
            self.device,
            self.sched,
            self.depth,
            self.seed,
            if self.mismatch > 0.0 { format!(", mismatch ±{:.0} %", self.mismatch * 100.0) } else { String::new() }
        );
        let w = &mut t;
        let mut line = |s: String| writeln!(w, "{s}").expect("strings take text");
        line(format!("{} requests in {:.1} s of virtual time\n", self.requests, self.elapsed_s));
        line(format!(
            "{:<14}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "", "count", "IOPS", "MB/s", "mean", "p50", "p90", "p99", "p99.9", "max"
        ));
        for k in &self.kinds {
            line(format!(
                "{:<14}{:>10}{:>10.1}{:>10.2}{}",
                k.kind,
                k.response.count,
                k.iops,
                k.mb_per_s,
                columns(&k.response)
            ));
        }
        let named =
            [("queue delay", &self.queue_delay), ("service", &self.service), ("forecast err", &self.forecast.error)];
        for (name, times) in named {
            line(format!("{name:<14}{:>10}{:>20}{}", times.count, "", columns(times)));
        }
        line(format!(
            "\nbusy {} · missed deadline {} · failed {} · forecast bias {}{}",
            self.busy,
            self.missed_deadline,
            self.failed,
            if self.forecast.bias_us < 0.0 { "-" } else { "+" },
            Span::from_nanos((self.forecast.bias_us.abs() * 1e3) as u64)
        ));
        for note in &self.notes {
            line(format!("note: {note}"));
        }
        t
    }
}

fn kind_report(m: &Measured, k: usize) -> KindReport {
    let span = m.elapsed().as_secs_f64();
    KindReport {
        kind: KINDS[k],
        iops: if span > 0.0 { m.done[k] as f64 / span } else { 0.0 },
        mb_per_s: m.megabytes_per_second(&[k]),
        response: Times::of(&m.response[k]),
    }
}

fn columns(t: &Times) -> String {
    [t.mean_us, t.p50_us, t.p90_us, t.p99_us, t.p99_9_us, t.max_us]
        .map(|us| format!("{:>10}", Span::from_nanos((us * 1e3) as u64).to_string()))
        .concat()
}

fn all_notes(m: &Measured, mut notes: Vec<String>) -> Vec<String> {
    if m.wrapped > 0 {
        notes.push(format!("{} requests lay beyond the device's end and wrapped around", m.wrapped));
    }
    if m.cut > 0 {
        notes.push(format!("{} requests were cut to the largest that the device takes", m.cut));
    }
    if m.held_back > 0 {
        notes.push(format!(
            "{} requests arrived while the pool was full and waited up to {} outside; it counts in their response time",
            m.held_back, m.held_back_max
        ));
    }
    notes
}

/// Distributions as a table: `metric`, `time_us` (a bucket's upper bound), `count`, `share_at_most`.
pub fn distribution_table(named: &[(&str, &LatencyHistogram)]) -> Table {
    let (mut metric, mut time, mut count, mut share) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (name, h) in named {
        let mut sum = 0;
        for (upper, n) in h.buckets() {
            sum += n;
            metric.push((*name).to_string());
            time.push(Some(micros(upper.min(h.max()))));
            count.push(n as i64);
            share.push(Some(sum as f64 / h.count() as f64));
        }
    }
    Table::new()
        .column("metric", Values::Text(metric))
        .column("time_us", Values::Real(time))
        .column("count", Values::Whole(count))
        .column("share_at_most", Values::Real(share))
}
