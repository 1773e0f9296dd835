//! `plimsoll replay`.

use crate::output::{may_be_replaced, write_over};
use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_base::{LatencyHistogram, Span, Time};
use plimsoll_figure::plot::{Curve, Plot};
use plimsoll_replay::report::distribution_table;
use plimsoll_replay::workload::named::{NAMES, NamedWorkload, Workload};
use plimsoll_replay::workload::open::Until;
use plimsoll_replay::{DeviceChoice, Limits, Measured, Pool, ReplayReport, ReplaySettings, closed_loop, open_loop};
use plimsoll_sched::SchedulerKind;
use plimsoll_trace::tools::rerate::{Rerate, Speed};
use plimsoll_trace::{Format, ReadOptions, TraceReader};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Replay a trace or a workload on a modelled device and report what it would be like.
#[derive(Args)]
#[command(after_help = after_help())]
pub struct Replay {
    /// The trace to replay; any format that `plimsoll trace info` reads, gzip and zstd included.
    #[arg(long, value_name = "FILE", required_unless_present = "workload")]
    trace: Option<PathBuf>,
    /// Name the trace's format instead of telling it from its content.
    #[arg(long, requires = "trace")]
    format: Option<Format>,
    /// A generated workload: NAME or NAME:key=value,… (see below).
    #[arg(long, value_name = "W", conflicts_with = "trace")]
    workload: Option<NamedWorkload>,
    /// The modelled device: a profile's name, a profile file (*.toml), or a composition of them (see below).
    #[arg(long, value_name = "PROFILE", required_unless_present = "config", value_parser = device_name)]
    device: Option<String>,
    /// The scheduler: noop, auto, deadline or cfq.
    #[arg(long)]
    sched: Option<SchedulerKind>,
    /// Requests that the device has at once.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    depth: Option<u32>,
    /// Deadline of every read, from its arrival: a read that would miss it is refused at once.
    #[arg(long, value_name = "TIME")]
    deadline: Option<Span>,
    /// Judge forecasts against this deadline, but refuse nothing for it.
    #[arg(long, value_name = "TIME", conflicts_with = "deadline")]
    judge: Option<Span>,
    /// Settings from a TOML file (device, sched, depth, deadline, hop, mismatch, seed); flags win.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Varies what differs between two runs: the platters' angle, the mismatch, generated requests.
    #[arg(long)]
    seed: Option<u64>,
    /// Let the device differ from its profile by up to this share per component, 0 to 0.5.
    #[arg(long, value_parser = mismatch)]
    mismatch: Option<f64>,
    /// Replay the trace this many times as fast: 2, 0.5, 1/8.
    #[arg(long, value_name = "X", value_parser = speed, requires = "trace")]
    rate: Option<Speed>,
    /// Shorten idle gaps of the trace to this long.
    #[arg(long, value_name = "TIME", requires = "trace")]
    gap_max: Option<Span>,
    /// Deal out the threads of a workload to this many tenants: what fair schedulers are fair to.
    #[arg(long, value_name = "N", requires = "workload", value_parser = clap::value_parser!(u16).range(1..=1024))]
    tenants: Option<u16>,
    /// Stop after this many requests (a workload without an end: 100,000 unless --time is given).
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Stop after this much virtual time.
    #[arg(long, value_name = "TIME")]
    time: Option<Span>,
    /// Print the result as JSON; equal runs print equal bytes.
    #[arg(long)]
    json: bool,
    /// Write the distributions of response times as an SVG plot.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Write the result's lines as a table: Parquet if the name ends so, else CSV.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write all distributions as a table: Parquet if the name ends so, else CSV.
    #[arg(long, value_name = "FILE")]
    distributions: Option<PathBuf>,
}

fn after_help() -> String {
    let devices: Vec<&str> = plimsoll_replay::device_names().collect();
    format!(
        "Workloads: {NAMES}.\n  fio keys: bs, depth, jobs, rate, think, mix, span, zipf; with iops=N they arrive in \
         an open loop (arrivals=poisson|constant).\n  ycsb keys: records, threads, target. filebench keys: files, \
         threads, ops.\nDevices: {}.\n  raid0:MEMBERS:CHUNK:DEVICE, zoned:ZONE:DISK, \
         cached:MEMORY:DEVICE; of flash drives sized:BYTES:DRIVE (16G unless said), aged:DRIVE, fresh:DRIVE, used:PERCENT:DRIVE.\n\nExamples:\n  \
         plimsoll replay --trace web.csv.gz --device cheetah-15k5\n  \
         plimsoll replay --workload randread:depth=8 --device hdd-160g-7200 --count 10000 --json\n  \
         plimsoll replay --workload randrw:depth=32 --device raid0:4:64K:aged:nvme-modern --depth 32\n  \
         plimsoll replay --trace web.csv.gz --rate 2 --device cheetah-15k5 --sched deadline --deadline 20ms --plot cdf.svg",
        devices.join(", ")
    )
}

fn device_name(text: &str) -> Result<String, String> {
    // A file is read when it is used: not being able to is a failure, not a misuse.
    if text.ends_with(".toml") {
        return Ok(text.to_string());
    }
    DeviceChoice::named(text).map(|d| d.name).map_err(|e| e.to_string())
}

fn speed(text: &str) -> Result<Speed, String> {
    Speed::parse(text).ok_or_else(|| "write a number such as 2, 0.5 or 1/8, not zero".into())
}

fn mismatch(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|m| (0.0..=0.5).contains(m)).ok_or_else(|| "a share between 0 and 0.5".into())
}

/// Result of a run.
struct Run {
    source: String,
    measured: Measured,
    labels: Vec<(String, LatencyHistogram)>,
    notes: Vec<String>,
}

impl Replay {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let settings = self.settings()?;
        let Some(device) = &settings.device else {
            bail!("no device: name one with --device, or `device` in the configuration");
        };
        let device = DeviceChoice::named(device)?;
        let started = Instant::now();
        let run = self.replay(&device, &settings)?;
        report_speed(&run.measured, started);
        let Run { source, measured, labels, notes } = run;
        let report = ReplayReport::new(source, &device, &settings.pool, settings.deadline, &measured, notes);
        if self.json {
            print!("{}", report.to_json());
        } else {
            print!("{}", report.to_text());
        }
        self.write_files(&report, &measured, &labels)
    }

    fn settings(&self) -> Result<ReplaySettings> {
        let mut s = match &self.config {
            Some(file) => {
                let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
                ReplaySettings::parse(&text).map_err(|e| e.at(&file.display().to_string()))?
            }
            None => ReplaySettings::default(),
        };
        s.device = self.device.clone().or(s.device);
        s.deadline = self.deadline.or(s.deadline);
        s.pool.sched = self.sched.unwrap_or(s.pool.sched);
        s.pool.depth = self.depth.unwrap_or(s.pool.depth);
        s.pool.seed = self.seed.unwrap_or(s.pool.seed);
        s.pool.mismatch = self.mismatch.unwrap_or(s.pool.mismatch);
        Ok(s)
    }

    fn limits(&self, settings: &ReplaySettings, count_default: u64) -> Limits {
        Limits {
            deadline: settings.deadline,
            judge: self.judge.or(settings.deadline),
            count_max: self.count.unwrap_or(if self.time.is_some() { u64::MAX } else { count_default }),
            until: self.time.map_or(Time::NEVER, |t| Time::ZERO + t),
            tenants: self.tenants.unwrap_or(1),
            processes: false,
            volumes: false,
        }
    }

    fn replay(&self, device: &DeviceChoice, settings: &ReplaySettings) -> Result<Run> {
        let mut pool = Pool::new(device, &settings.pool)?;
        match (&self.trace, &self.workload) {
            (Some(file), _) => self.replay_trace(file, &mut pool, settings),
            (None, Some(w)) => self.replay_workload(w, &mut pool, settings),
            (None, None) => unreachable!("clap asks for one of them"),
        }
    }

    fn replay_trace(&self, file: &Path, pool: &mut Pool, settings: &ReplaySettings) -> Result<Run> {
        let reader = TraceReader::open(file, &ReadOptions { format: self.format, ..ReadOptions::default() })?;
        let speed = self.rate.unwrap_or(Speed::RECORDED);
        let mut source = Rerate::new(reader, speed, self.gap_max.unwrap_or(Span::MAX));
        let bar = progress_bar();
        let limits = self.limits(settings, u64::MAX);
        let measured = open_loop(pool, &mut source, &limits, &mut |n, at| show(&bar, n, at))?;
        bar.finish_and_clear();
        let mut notes = Vec::new();
        if self.rate.is_some() {
            notes.push(format!("replayed {} times as fast as recorded", speed.factor()));
        }
        if source.removed() > Span::ZERO {
            notes.push(format!("{} of idle time left out", source.removed()));
        }
        let devices = plimsoll_trace::RecordStream::tables(&source).devices.len();
        if devices > 1 {
            notes.push(format!("{devices} devices of the trace share the one modelled device, apart"));
        }
        let source = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        Ok(Run { source, measured, labels: Vec::new(), notes })
    }

    fn replay_workload(&self, w: &NamedWorkload, pool: &mut Pool, settings: &ReplaySettings) -> Result<Run> {
        let limits = self.limits(settings, 100_000);
        let until = Until { count: limits.count_max, time: limits.until };
        let bar = progress_bar();
        let mut progress = |n, at| show(&bar, n, at);
        let notes = vec!["generated requests".to_string()];
        let (measured, labels) = match w.build(pool.offer().size_bytes, settings.pool.seed, until)? {
            Workload::Open(mut source) => (open_loop(pool, &mut source, &limits, &mut progress)?, Vec::new()),
            Workload::Closed(mut threads) => {
                let (m, labels) = closed_loop(pool, &mut threads, &limits, &mut progress)?;
                (m, labels.into_iter().map(|l| (l.label, l.response)).collect())
            }
        };
        bar.finish_and_clear();
        Ok(Run { source: w.to_string(), measured, labels, notes })
    }

    fn write_files(&self, report: &ReplayReport, m: &Measured, labels: &[(String, LatencyHistogram)]) -> Result<()> {
        if let Some(file) = &self.out {
            may_be_replaced(file)?;
            report.to_table().write(file)?;
        }
        let all = m.all_responses();
        let mut named = vec![("all", &all)];
        let kinds = plimsoll_replay::measure::KINDS;
        named.extend(kinds.iter().copied().zip(&m.response).filter(|(_, h)| h.count() > 0));
        if labels.len() > 1 {
            named.extend(labels.iter().filter(|l| l.1.count() > 0).map(|l| (l.0.as_str(), &l.1)));
        }
        if let Some(file) = &self.plot {
            let curves = named.iter().map(|(n, h)| Curve::of_histogram(n, h).thinned()).collect();
            let title = format!("{} on modelled {} ({})", report.source, report.device, report.sched);
            let svg = Plot::of_times(&title, curves).to_svg();
            write_over(file, &svg)?;
        }
        if let Some(file) = &self.distributions {
            named.extend([
                ("queue_delay", &m.queue_delay),
                ("service", &m.service),
                ("forecast_error", &m.forecast_error),
            ]);
            may_be_replaced(file)?;
            distribution_table(&named).write(file)?;
        }
        Ok(())
    }
}

/// A spinner with a count on a terminal; nothing anywhere else.
fn progress_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {pos} requests, {per_sec}, {msg} of virtual time")
        .expect("a constant template");
    ProgressBar::new_spinner().with_style(style)
}

fn show(bar: &ProgressBar, requests: u64, at: Time) {
    bar.set_position(requests);
    bar.set_message(at.since(Time::ZERO).to_string());
}

/// Prints to standard error what varies between equal runs; it never enters the result.
fn report_speed(m: &Measured, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    eprintln!(
        "{} requests simulated in {seconds:.2} s: {:.2} million a second",
        m.requests(),
        m.requests() as f64 / seconds.max(1e-9) / 1e6
    );
}
