//! `plimsoll fence …`

use crate::client::{Client, Control, print_json};
use crate::output::write_over;
use crate::part;
use crate::table::table;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use plimsoll_base::Span;
use plimsoll_fence::plan::{Wanted, deviation_percent, far, plan};
use plimsoll_fence::{DiskPredictor, Predictor, SLOTS_MAX};
use plimsoll_node::parts::fence::{Baseline, Fence as Layer, FenceVolumeView};
use plimsoll_node::parts::settings::SettingView;
use plimsoll_sched::Profile;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Show, plan and change time slots
#[derive(Args)]
#[command(
    after_help = "Examples:\n  plimsoll fence status main\n  plimsoll fence plan --tenants 4 --best 19ms --worst 98ms"
)]
pub struct Fence {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(visible_alias = "show")]
    Status(Show),
    Set(Set),
    Plan(Plan),
    Baseline(Alone),
}

/// Show owners and use of slots, and volumes' deviation from baselines
#[derive(Args)]
#[command(
    after_help = "Example:\n  plimsoll fence status main\n  plimsoll fence status main --baseline web.json --seconds 30"
)]
struct Show {
    /// Pool [default: the only one with a fence].
    pool: Option<String>,
    /// Baseline file of `plimsoll fence baseline`; measures the volume again and compares. May be repeated.
    #[arg(long, value_name = "FILE")]
    baseline: Vec<PathBuf>,
    /// Seconds to measure.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    #[command(flatten)]
    control: Control,
}

/// Change a pool's slots, from the end of the current slot
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll fence set main --slots 8 --slot 20ms")]
struct Set {
    /// The pool.
    pool: String,
    /// Number of slots.
    #[arg(long, required_unless_present = "slot")]
    slots: Option<u32>,
    /// Length of each slot.
    #[arg(long)]
    slot: Option<Span>,
    #[command(flatten)]
    control: Control,
}

/// Suggest slots for a number of tenants, with the response time to expect
#[derive(Args)]
#[command(
    after_help = "Example:\n  plimsoll fence plan --tenants 4 --best 19ms --worst 98ms --profile disk.profile.toml"
)]
struct Plan {
    /// Tenants, each with one slot.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(SLOTS_MAX)))]
    tenants: u32,
    /// Mean response time of a tenant alone on the device, without fences.
    #[arg(long)]
    best: Span,
    /// Mean response time of a tenant beside all others, without fences: a fence that is slower isn't worth it.
    #[arg(long)]
    worst: Span,
    /// Profile of the disk, from `plimsoll profile` [default: a typical disk].
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Reads that the cache answers, %.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(0..=100))]
    hit_percent: u64,
    /// Requests that are writes to a cache in write-back mode, %: they wait for no slot.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100))]
    write_back_percent: u64,
    /// By how much the response time may change when the neighbours do, %.
    #[arg(long, default_value_t = 15.0)]
    deviation: f64,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

/// Measure a volume's response time and rate while it is alone
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll fence baseline web --seconds 30 --out web.json")]
struct Alone {
    /// The volume; clients must be using it, and no other volume of its pool.
    volume: String,
    /// Pool [default: the only one with a fence].
    #[arg(long)]
    pool: Option<String>,
    /// Seconds to measure.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// File to write [default: standard output].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    control: Control,
}

impl Fence {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::Status(s) => s.run(),
            Command::Set(s) => s.run(),
            Command::Plan(p) => p.run(),
            Command::Baseline(b) => b.run(),
        }
    }
}

/// Measures response time and rate of every volume for some seconds.
fn measure(client: &Client, pool: &str, seconds: u64) -> Result<Vec<Baseline>> {
    let before = part::view::<Layer>(client, pool)?;
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(seconds));
    let after = part::view::<Layer>(client, pool)?;
    let seconds = began.elapsed().as_secs_f64();
    let of = |v: &FenceVolumeView| {
        let old = before.volumes.iter().find(|o| o.volume == v.volume);
        let since = |f: fn(&FenceVolumeView) -> u64| f(v).saturating_sub(old.map_or(0, f));
        let requests = since(|v| v.served);
        let response_ms = since(|v| v.served_us) as f64 / 1000.0 / requests.max(1) as f64;
        let (volume, per_second) = (v.volume.clone(), requests as f64 / seconds);
        let (slots, slot_us, own_slots) = (after.slots.len() as u32, after.slot_us, v.slots);
        Baseline { volume, response_ms, per_second, requests, seconds, slots, slot_us, own_slots }
    };
    Ok(after.volumes.iter().map(of).collect())
}

/// Requests that a figure rests on at least.
const REQUESTS_MIN: u64 = 20;

impl Alone {
    fn run(self) -> Result<()> {
        let client = Client::new(&self.control)?;
        let pool = part::pool_with::<Layer>(&client, self.pool)?;
        let all = measure(&client, &pool, self.seconds)?;
        let Some(mine) = all.iter().find(|m| m.volume == self.volume) else {
            bail!("pool `{pool}` has no volume `{}`", self.volume);
        };
        if let Some(other) = all.iter().find(|m| m.volume != self.volume && m.requests > 0) {
            bail!("`{}` wasn't alone: `{}` had {} requests meanwhile", self.volume, other.volume, other.requests);
        }
        if mine.requests < REQUESTS_MIN {
            bail!(
                "{} requests in {:.0} s are too few to rest on: use the volume meanwhile, or measure longer",
                mine.requests,
                mine.seconds
            );
        }
        match &self.out {
            None => print_json(mine),
            Some(path) => {
                let text = serde_json::to_string_pretty(mine).context("a measurement is JSON")?;
                write_over(path, &(text + "\n"))?;
                eprintln!("{}: {:.2} ms, {:.1} requests a second", path.display(), mine.response_ms, mine.per_second);
                Ok(())
            }
        }
    }
}

impl Set {
    fn run(self) -> Result<()> {
        let client = Client::new(&self.control)?;
        let slots = self.slots.map(|slots| ("slots".to_string(), slots.into()));
        let slot = self.slot.map(|slot| ("slot_us".to_string(), slot.as_micros()));
        let _: Vec<SettingView> = part::change(&client, &self.pool, &slots.into_iter().chain(slot).collect())?;
        if self.control.json {
            return print_json(&part::view::<Layer>(&client, &self.pool)?);
        }
        println!("pool {}: changes when the running slot has ended", self.pool);
        Ok(())
    }
}

impl Show {
    fn run(self) -> Result<()> {
        let client = Client::new(&self.control)?;
        let pool = part::pool_with::<Layer>(&client, self.pool.clone())?;
        if !self.baseline.is_empty() {
            return self.compare(&client, &pool);
        }
        let v = part::view::<Layer>(&client, &pool)?;
        part::show::<Layer>(&pool, &v, &self.control)
    }

    fn compare(&self, client: &Client, pool: &str) -> Result<()> {
        let read = |path: &PathBuf| Baseline::read(path).map_err(anyhow::Error::msg);
        let baselines = self.baseline.iter().map(read).collect::<Result<Vec<_>>>()?;
        let view = part::view::<Layer>(client, pool)?;
        if let Some(what) = baselines.iter().find_map(|b| b.differs(&view)) {
            bail!("{what}");
        }
        let now = measure(client, pool, self.seconds)?;
        let mut rows = Vec::new();
        let mut json = Vec::new();
        for b in &baselines {
            let Some(n) = now.iter().find(|m| m.volume == b.volume) else {
                bail!("pool `{pool}` has no volume `{}`", b.volume)
            };
            if n.requests < REQUESTS_MIN {
                bail!("`{}`: {} requests in {:.0} s are too few to rest on", b.volume, n.requests, n.seconds);
            }
            let response = deviation_percent(b.response_ms, n.response_ms);
            let throughput = deviation_percent(b.per_second, n.per_second);
            json.push(serde_json::json!({
                "volume": b.volume, "response_deviation_percent": response, "throughput_deviation_percent": throughput,
                "alone": b, "now": n,
            }));
            rows.push(vec![
                b.volume.clone(),
                format!("{:.2} ms, {:.1}/s", b.response_ms, b.per_second),
                format!("{:.2} ms, {:.1}/s", n.response_ms, n.per_second),
                format!("{response:.1} %"),
                format!("{throughput:.1} %"),
            ]);
        }
        if self.control.json {
            return print_json(&json);
        }
        print!("{}", table(&["VOLUME", "ALONE", "NOW", "RESPONSE DEVIATES", "THROUGHPUT DEVIATES"], &rows));
        Ok(())
    }
}

impl Plan {
    /// The disk by its profile, or a typical one.
    fn disk(&self) -> Result<(DiskPredictor, u64)> {
        let Some(path) = &self.profile else {
            const SIZE: u64 = 1_000_000_000_000;
            return Ok((DiskPredictor::typical(SIZE), SIZE));
        };
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| format!("{file}: cannot be read"))?;
        let profile = Profile::parse(&file, &text)?;
        let missing = || format!("{file}: has no batches of a disk: measure it again with `plimsoll profile`");
        let d = profile.batches.and_then(|b| b.disk).with_context(missing)?;
        let p = DiskPredictor::new(d.knots_ns(), d.transfer_ns_per_kib.into())
            .and_then(|p| p.with_first(d.first_knots_ns()));
        Ok((p.map_err(|e| anyhow::anyhow!("{file}: {e}"))?, profile.device.size_bytes))
    }

    fn run(self) -> Result<()> {
        if self.worst < self.best {
            bail!("--worst {} is less than --best {}: beside others nobody is faster", self.worst, self.best);
        }
        let (disk, size) = self.disk()?;
        let wanted = Wanted {
            tenants: self.tenants,
            best: self.best,
            worst: self.worst,
            far: far(&disk, size, self.tenants.into()),
            miss_permille: 1000 - 10 * self.hit_percent,
            held_permille: 1000 - 10 * self.write_back_percent,
            deviation_percent: self.deviation,
            shortest: Predictor::Disk(disk.clone()).least(true),
        };
        let choices = plan(&wanted);
        let best = choices.iter().find(|c| c.fits);
        if self.json {
            let of = |c: &plimsoll_fence::plan::Choice| {
                serde_json::json!({
                    "slots": c.slots, "slot_ms": c.slot.as_millis_f64(), "response_ms": c.response.as_millis_f64(),
                    "deviation_percent": c.deviation_percent, "fits": c.fits,
                })
            };
            print_json(&serde_json::json!({
                "suggested": best.map(of), "choices": choices.iter().map(of).collect::<Vec<_>>(),
            }))?;
        } else {
            let row = |c: &plimsoll_fence::plan::Choice| {
                let (slot, response) = (c.slot.to_string(), format!("{:.1} ms", c.response.as_millis_f64()));
                let deviation = format!("{:.1} %", c.deviation_percent);
                vec![c.slots.to_string(), slot, response, deviation, if c.fits { "yes" } else { "no" }.into()]
            };
            let rows: Vec<_> = choices.iter().map(row).collect();
            print!("{}", table(&["SLOTS", "LENGTH", "RESPONSE", "DEVIATION", "FITS"], &rows));
            if let Some(c) = best {
                println!("suggested, by the model above: [pool.fence] slots = {}, slot = \"{}\"", c.slots, c.slot);
            }
        }
        if best.is_none() {
            bail!(
                "no length fits: fewer tenants, a larger cache (--hit-percent), or a deviation of more than {} %",
                self.deviation
            );
        }
        Ok(())
    }
}
