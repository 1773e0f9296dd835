//! `plimsoll trace`.

use crate::output::may_be_replaced;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use plimsoll_base::{LatencyHistogram, Span, Time};
use plimsoll_replay::workload::named::parse_bytes;
use plimsoll_trace::tools::convert;
use plimsoll_trace::tools::cut::{Cut, Piece};
use plimsoll_trace::tools::info::{TraceInfo, info};
use plimsoll_trace::tools::mix::{Mix, MixInput, Placement};
use plimsoll_trace::tools::rerate::{Rerate, Speed};
use plimsoll_trace::tools::window::{Busy, busiest};
use plimsoll_trace::{Format, Op, OutputFormat, ReadOptions, RecordStream, TraceReader, TraceWriter};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Describe and change block traces: all formats in, CSV, Parquet or oracleGeneral out.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll trace info web.csv.gz")]
pub struct Trace {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Subcommand)]
enum TraceCommand {
    /// Describe a trace: rates, mix, footprint, sizes, sequentiality, busiest window
    Info(Info),
    /// Write a trace in another format (.csv, .csv.gz, .csv.zst, .parquet, .oracleGeneral)
    Convert(Convert),
    /// Cut a piece out of a trace
    Cut(CutArgs),
    /// Mix several traces into one, as if they shared the hardware
    Mix(MixArgs),
    /// Change a trace's pace
    Rerate(RerateArgs),
}

/// Describe a trace.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll trace info web.csv.gz")]
struct Info {
    /// The trace.
    file: PathBuf,
    /// Name the format instead of telling it from the content.
    #[arg(long)]
    format: Option<Format>,
    /// Length of the busiest window to find.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = window)]
    window: Span,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

/// Write a trace in another format.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll trace convert hm_1.csv.gz hm_1.parquet")]
struct Convert {
    /// The trace.
    from: PathBuf,
    /// The file to write; its name says the format.
    to: PathBuf,
    /// Name the input's format instead of telling it from the content.
    #[arg(long)]
    format: Option<Format>,
}

/// Cut a piece out of a trace; times count from the piece's start.
#[derive(Args)]
#[command(after_help = "Examples:\n  plimsoll trace cut web.csv.gz piece.csv --from 10m --to 15m\n  \
                        plimsoll trace cut web.csv.gz busy.csv --busiest reads --window 5m")]
struct CutArgs {
    /// The trace.
    input: PathBuf,
    /// The file to write; its name says the format.
    output: PathBuf,
    /// First arrival in it.
    #[arg(long, value_name = "TIME")]
    from: Option<Span>,
    /// First arrival behind it.
    #[arg(long, value_name = "TIME")]
    to: Option<Span>,
    /// Leave out this many requests first.
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: u64,
    /// Take this many requests at most.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// The busiest window instead.
    #[arg(long, value_enum, conflicts_with_all = ["from", "to"])]
    busiest: Option<BusyBy>,
    /// Length of that window.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = window)]
    window: Span,
}

#[derive(Clone, Copy, ValueEnum)]
enum BusyBy {
    Requests,
    Bytes,
    Reads,
    Writes,
}

/// Mix several traces into one.
#[derive(Args)]
#[command(after_help = "Examples:\n  plimsoll trace mix a.csv b.csv --out mix.parquet\n  \
                        plimsoll trace mix a.csv b.csv --rate 1/2 --rate 4 --onto 40GiB --out mix.csv")]
struct MixArgs {
    /// The traces.
    #[arg(required = true, num_args = 1..)]
    inputs: Vec<PathBuf>,
    /// The file to write; its name says the format.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Factor of the pace: one for all traces, or one for each in their order.
    #[arg(long, value_name = "X", value_parser = speed)]
    rate: Vec<Speed>,
    /// Put all onto one device, each trace in a region of this many bytes; else each keeps devices of its own.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    onto: Option<u64>,
}

/// Change a trace's pace.
#[derive(Args)]
#[command(after_help = "Examples:\n  plimsoll trace rerate web.csv.gz slow.csv --rate 1/2\n  \
                        plimsoll trace rerate week.csv dense.csv --gap-max 1s --iops 100")]
struct RerateArgs {
    /// The trace.
    input: PathBuf,
    /// The file to write; its name says the format.
    output: PathBuf,
    /// Factor of the pace: 2, 0.5, 1/8.
    #[arg(long, value_name = "X", value_parser = speed)]
    rate: Option<Speed>,
    /// The mean rate to reach, requests a second (reads the trace twice).
    #[arg(long, value_name = "N", conflicts_with = "rate", value_parser = clap::value_parser!(u64).range(1..))]
    iops: Option<u64>,
    /// Shorten idle gaps to this long (in the original's time), before the pace changes.
    #[arg(long, value_name = "TIME")]
    gap_max: Option<Span>,
}

fn window(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|e: plimsoll_base::time::BadSpan| e.to_string())?;
    if span < Span::from_micros(1) { Err("at least 1us".into()) } else { Ok(span) }
}

fn speed(text: &str) -> Result<Speed, String> {
    Speed::parse(text).ok_or_else(|| "write a number such as 2, 0.5 or 1/8, not zero".into())
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).filter(|&b| b > 0 && b < 1 << 60).ok_or_else(|| "write a size such as 40GiB".into())
}

fn open(file: &Path, format: Option<Format>) -> Result<TraceReader> {
    Ok(TraceReader::open(file, &ReadOptions { format, ..ReadOptions::default() })?)
}

/// Writes what is read `from` these files to another, whose name says the format, and says how much it was.
fn write(stream: &mut impl RecordStream, from: &[&Path], to: &Path) -> Result<()> {
    let identity = |file: &Path| std::fs::metadata(file).ok().map(|m| (m.dev(), m.ino()));
    if let Some(same) = from.iter().find(|f| identity(f).is_some() && identity(f) == identity(to)) {
        bail!("{}: is read here, and would be emptied before: name another file to write to", same.display());
    }
    may_be_replaced(to)?;
    let Some(format) = OutputFormat::from_name(to) else {
        bail!("{}: name it .csv, .csv.gz, .csv.zst, .parquet or .oracleGeneral", to.display());
    };
    let written = convert(stream, TraceWriter::create(to, format)?)?;
    println!("{}: {} requests", to.display(), written.records);
    if written.left_out > 0 {
        println!("{} trims and flushes left out: the format can't say them", written.left_out);
    }
    Ok(())
}

impl Trace {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.command {
            TraceCommand::Info(c) => c.run(),
            TraceCommand::Convert(c) => write(&mut open(&c.from, c.format)?, &[&c.from], &c.to),
            TraceCommand::Cut(c) => c.run(),
            TraceCommand::Mix(c) => c.run(),
            TraceCommand::Rerate(c) => c.run(),
        }
    }
}

impl Info {
    fn run(&self) -> Result<()> {
        let mut reader = open(&self.file, self.format)?;
        let i = info(&mut reader, self.window)?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&as_json(&reader, &i))?);
        } else {
            print_info(&reader, &i);
        }
        Ok(())
    }
}

fn as_json(reader: &TraceReader, i: &TraceInfo) -> serde_json::Value {
    let times = |h: &LatencyHistogram| {
        (h.count() > 0).then(|| serde_json::to_value(plimsoll_replay::report::Times::of(h)).expect("numbers"))
    };
    let op = |op| serde_json::json!({ "requests": i.op(op).requests, "bytes": i.op(op).bytes });
    serde_json::json!({
        "format": reader.format().name(),
        "requests": i.requests(),
        "skipped": reader.skipped(),
        "devices": i.devices,
        "duration_s": i.duration.as_secs_f64(),
        "iops_mean": i.iops_mean(),
        "read": op(Op::Read), "write": op(Op::Write), "trim": op(Op::Trim), "flush": op(Op::Flush),
        "read_share": i.read_share(),
        "footprint_bytes": i.footprint_bytes,
        "footprint_exact": i.is_footprint_exact,
        "address_end_bytes": i.end_max,
        "size_bytes_p50": i.sizes.percentile(50.0),
        "size_bytes_p90": i.sizes.percentile(90.0),
        "size_bytes_max": i.sizes.percentile(100.0),
        "sequential": i.sequential,
        "sequential_in_streams": i.sequential_of_8,
        "peak_per_second": i.peak_per_second,
        "busiest_from_s": i.busiest.from.as_secs_f64(),
        "busiest_len_s": i.busiest.len.as_secs_f64(),
        "busiest_requests": i.busiest.amount,
        "gap": times(&i.gaps),
        "idle_gaps": i.idle.0, "idle_s": i.idle.1.as_secs_f64(),
        "queue": times(&i.queue),
        "service": times(&i.service),
        "fingerprints": i.fingerprints,
    })
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

fn print_info(reader: &TraceReader, i: &TraceInfo) {
    let line = |name: &str, value: String| println!("{name:<18}{value}");
    let share = |n: u64| 100.0 * n as f64 / i.requests().max(1) as f64;
    println!("{} ({})", reader.name(), reader.format());
    line("requests", format!("{} in {}, {} device(s)", i.requests(), i.duration, i.devices));
    line("rate", format!("{:.1}/s on average, {} in the busiest second", i.iops_mean(), i.peak_per_second));
    for (op, name) in [(Op::Read, "reads"), (Op::Write, "writes"), (Op::Trim, "trims"), (Op::Flush, "flushes")] {
        let t = i.op(op);
        if t.requests > 0 {
            line(name, format!("{} ({:.1} %), {}", t.requests, share(t.requests), size(t.bytes)));
        }
    }
    let exact = if i.is_footprint_exact { "" } else { " (estimated, ±0.8 %)" };
    line("footprint", format!("{}{exact}; addresses up to {}", size(i.footprint_bytes), size(i.end_max)));
    let at = |p| size(i.sizes.percentile(p));
    line("sizes", format!("p50 {}, p90 {}, p99 {}, largest {}", at(50.0), at(90.0), at(99.0), at(100.0)));
    line(
        "sequential",
        format!("{:.1} %; {:.1} % counting interleaved streams", share(i.sequential), share(i.sequential_of_8)),
    );
    let b = &i.busiest;
    line("busiest window", format!("{} from {}: {} requests", b.len, b.from.since(Time::ZERO), b.amount));
    let times = |h: &LatencyHistogram| {
        format!("mean {}, p50 {}, p99 {}, largest {}", h.mean(), h.percentile(50.0), h.percentile(99.0), h.max())
    };
    line("gaps", times(&i.gaps));
    if i.idle.0 > 0 {
        line("idle", format!("{} gaps of more than a minute, {} in all", i.idle.0, i.idle.1));
    }
    if i.queue.count() > 0 {
        line("measured queue", times(&i.queue));
    }
    if i.service.count() > 0 {
        line("measured service", times(&i.service));
    }
    if i.fingerprints > 0 {
        line("fingerprints", format!("{}", i.fingerprints));
    }
    if reader.skipped() > 0 {
        line("skipped", format!("{} lines or records that are no requests", reader.skipped()));
    }
}

impl CutArgs {
    fn run(&self) -> Result<()> {
        let at = |s: Span| Time::ZERO + s;
        let mut piece = Piece {
            from: self.from.map_or(Time::ZERO, at),
            to: self.to.map_or(Time::NEVER, at),
            skip: self.skip,
            count_max: self.count.unwrap_or(u64::MAX),
        };
        if let Some(by) = self.busiest {
            let by = match by {
                BusyBy::Requests => Busy::Requests,
                BusyBy::Bytes => Busy::Bytes,
                BusyBy::Reads => Busy::Reads,
                BusyBy::Writes => Busy::Writes,
            };
            let found = busiest(&mut open(&self.input, None)?, self.window, by)?;
            (piece.from, piece.to) = (found.from, found.from + found.len);
        }
        write(&mut Cut::new(open(&self.input, None)?, piece), &[&self.input], &self.output)
    }
}

impl MixArgs {
    fn run(&self) -> Result<()> {
        let n = self.inputs.len();
        if self.rate.len() > 1 && self.rate.len() != n {
            bail!("{} rates for {n} traces: give one for all, or one per trace", self.rate.len());
        }
        let input = |(i, file): (usize, &PathBuf)| {
            let label = file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
            let placement = match self.onto {
                Some(bytes) => Placement::Onto {
                    device: "mix".into(),
                    start: bytes
                        .checked_mul(i as u64)
                        .filter(|s| *s < 1 << 62)
                        .context("the regions end beyond 2^62")?,
                    bytes,
                },
                None => Placement::Apart { label: format!("{i}-{label}") },
            };
            let speed = self.rate.get(i).or(self.rate.first()).copied().unwrap_or(Speed::RECORDED);
            Ok(MixInput { stream: open(file, None)?, speed, starts_at: Time::ZERO, placement })
        };
        let inputs = self.inputs.iter().enumerate().map(input).collect::<Result<Vec<_>>>()?;
        let from: Vec<&Path> = self.inputs.iter().map(PathBuf::as_path).collect();
        write(&mut Mix::new(inputs), &from, &self.out)
    }
}

impl RerateArgs {
    fn run(&self) -> Result<()> {
        let gap_max = self.gap_max.unwrap_or(Span::MAX);
        let speed = match (self.rate, self.iops) {
            (Some(speed), _) => speed,
            (None, Some(iops)) => {
                let mut whole = Rerate::new(open(&self.input, None)?, Speed::RECORDED, gap_max);
                let (mut n, mut last) = (0, Time::ZERO);
                while let Some(r) = whole.next_record() {
                    (n, last) = (n + 1, r?.arrived_at);
                }
                Speed::to_rate(n, last.since(Time::ZERO), iops)
                    .with_context(|| format!("{}: too short to have a rate", self.input.display()))?
            }
            (None, None) => Speed::RECORDED,
        };
        write(&mut Rerate::new(open(&self.input, None)?, speed, gap_max), &[&self.input], &self.output)
    }
}
