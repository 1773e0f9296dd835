//! `plimsoll lab run mittos-live`: three nodes on modelled disks in real time, noisy tenants, and clients that choose replicas.
//!
//! Only the disks are modelled. The nodes are processes of `plimsoll`, and the noise comes from tenants over NBD. Each policy has a live
//! client of its own. A turn has one read of every policy, in a random order, so all policies meet the same noise.
//!
//! Two policies are compared by the difference of their quantiles. The interval of the difference comes from resampling whole blocks of
//! turns, because turns that are close in time meet the same burst.

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_base::{Rng, Span};
use plimsoll_client::live::{Address, Counts, Options, Volume};
use plimsoll_client::{PolicyKind, PolicySettings};
use plimsoll_lab::experiment::stats::quantile;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};

/// Name on the command line.
pub const ID: &str = "mittos-live";
const MODEL: &str = "hdd-160g-7200";
/// Bytes of the volume; the files behind it are sparse.
const VOLUME_BYTES: u64 = 48 << 30;
const READ_BYTES: u64 = 4096;
/// One of the noise's reads, which keeps the disk busy for some ten milliseconds.
const NOISE_BYTES: u64 = 512 << 10;
/// Load of a run: reads of each policy, and noise.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    name: &'static str,
    /// A turn, a read of each policy, begins this long after the one before.
    turn: Duration,
    /// Mean length of a burst of noise on a node, and of the time between two.
    burst_s: f64,
    quiet_s: f64,
}

/// Both are judged. The first is this program's first load: two or three busy nodes at a time are common. The second has noise as the
/// authors' published one of three nodes has it: one of them is noisy 16 % of the time, two 1.7 %, all 0.17 %; and a disk is asked about once
/// in 48 ms, a quarter of what it can do, as in MT-E9.
pub const LOADS: [Load; 2] = [
    Load { name: "a node is noisy a quarter of the time", turn: Duration::from_millis(40), burst_s: 0.7, quiet_s: 2.0 },
    Load { name: "a node is noisy 6.6 % of the time", turn: Duration::from_millis(80), burst_s: 0.35, quiet_s: 5.0 },
];

/// Turns are resampled together that are within two seconds.
const BLOCK: Duration = Duration::from_secs(2);
const RESAMPLES: usize = 2_000;
const POLICIES: [PolicyKind; 5] =
    [PolicyKind::Base, PolicyKind::Hedged, PolicyKind::Mitt, PolicyKind::MittWait, PolicyKind::MittBudget];
/// Places of hedged and mitt among them.
const HEDGED: usize = 1;
const MITT: usize = 2;

/// Length and seeds of a live run.
pub struct Live {
    /// Turns measured.
    pub turns: usize,
    /// Of noise and addresses.
    pub seed: u64,
    /// Load.
    pub load: Load,
}

struct Node {
    child: Child,
    dir: tempfile::TempDir,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended already
        let _ = self.child.wait();
    }
}

const CONFIG: &str = r#"
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
[[pool]]
name = "p"
device = { file = "disk.img", size = "64GiB", model = "MODEL" }
sched = "cfq"
depth = 4
profile = "disk.profile"
[[tenant]]
name = "web"
class = "best-effort"
[[tenant]]
name = "noise"
class = "best-effort"
[[volume]]
name = "vol"
pool = "p"
size = "48GiB"
tenant = "web"
[[grant]]
peer = "local"
volumes = ["*"]
tenants = ["*"]
"#;

/// The server's program: beside this one, else in PATH.
fn plimsoll() -> PathBuf {
    let beside = std::env::current_exe().ok().map(|p| p.with_file_name("plimsoll")).filter(|p| p.is_file());
    beside.unwrap_or_else(|| PathBuf::from("plimsoll"))
}

fn start_node(profile: &Path) -> Result<Node> {
    let dir = tempfile::tempdir()?;
    std::fs::copy(profile, dir.path().join("disk.profile"))?;
    let file = dir.path().join("node.toml");
    std::fs::write(&file, CONFIG.replace("MODEL", MODEL))?;
    let mut child = Command::new(plimsoll())
        .args(["serve", "--config"])
        .arg(&file)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start plimsoll; build it with `cargo build --release -p plimsoll`")?;
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    out.read_line(&mut line)?;
    let node = Node { child, dir };
    if !line.contains("serves") {
        bail!("a node didn't start: {line}");
    }
    std::thread::spawn(move || out.lines().for_each(drop)); // what it says later must not fill the pipe
    Ok(node)
}

impl Node {
    fn address(&self, terms: &str) -> Address {
        let path = self.dir.path().join("nbd.sock");
        format!("nbd+unix:///vol{terms}?socket={}", path.display()).parse().expect("an address")
    }
}

/// Bursts on one node: one to five reads always inside, then nothing for a while.
async fn noise(address: Address, load: Load, seed: u64, stop: Arc<AtomicBool>) {
    let options = Options { policy: PolicyKind::Base, foreign: true, ..Options::default() };
    let Ok(volume) = Volume::open(&[address], &options).await else { return };
    let mut rng = Rng::new(seed, "live noise");
    while !stop.load(Ordering::Relaxed) {
        let quiet = Duration::from_secs_f64(load.quiet_s * rng.exp1());
        // Noise comes and goes at random: this is the load itself.
        tokio::time::sleep(quiet.min(Duration::from_secs_f64(4.0 * load.quiet_s))).await;
        let until = Instant::now() + Duration::from_secs_f64((load.burst_s * rng.exp1()).min(3.0));
        let streams = 1 + rng.below(5);
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..streams {
            let (volume, mut rng) = (volume.clone(), Rng::new(rng.next_u64(), "stream"));
            all.spawn(async move {
                while Instant::now() < until {
                    let at = rng.below(VOLUME_BYTES / NOISE_BYTES) * NOISE_BYTES;
                    let _ = volume.read(at..at + NOISE_BYTES, None).await; // a node that ends takes its noise with it
                }
            });
        }
        while all.join_next().await.is_some() {}
    }
}

async fn timed(volume: Volume, at: u64) -> Result<f64> {
    let began = Instant::now();
    volume.read(at..at + READ_BYTES, None).await?;
    Ok(began.elapsed().as_secs_f64() * 1e3)
}

async fn open(nodes: &[Node], kind: PolicyKind, limit: Span) -> Result<Volume> {
    let addresses: Vec<Address> = nodes.iter().map(|n| n.address("")).collect();
    let settings = PolicySettings { limit, ..PolicySettings::default() };
    Ok(Volume::open(&addresses, &Options { policy: kind, settings, ..Options::default() }).await?)
}

/// Every turn's response of every policy, in milliseconds.
async fn turns(
    volumes: &[Volume],
    each: Duration,
    n: usize,
    rng: &mut Rng,
    bar: &ProgressBar,
) -> Result<Vec<Vec<f64>>> {
    let mut ticks = tokio::time::interval(each);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut order: Vec<usize> = (0..volumes.len()).collect();
    let mut running = Vec::new();
    for _ in 0..n {
        ticks.tick().await;
        rng.shuffle(&mut order);
        let mut turn: Vec<_> = (0..volumes.len()).map(|_| None).collect();
        for (i, &which) in order.iter().enumerate() {
            let at = rng.below(VOLUME_BYTES / READ_BYTES) * READ_BYTES;
            let volume = volumes[which].clone();
            let later = each * i as u32 / order.len() as u32;
            turn[which] = Some(tokio::spawn(async move {
                // Policies take turns within a turn, so that each meets the same noise.
                tokio::time::sleep(later).await;
                timed(volume, at).await
            }));
        }
        running.push(turn);
        bar.inc(1);
    }
    let mut all = Vec::new();
    for turn in running {
        let mut values = Vec::new();
        for read in turn.into_iter().flatten() {
            values.push(read.await.context("a read's task")??);
        }
        all.push(values);
    }
    Ok(all)
}

fn sorted(turns: &[Vec<f64>], which: usize) -> Vec<f64> {
    let mut v: Vec<f64> = turns.iter().map(|t| t[which]).collect();
    v.sort_by(f64::total_cmp);
    v
}

/// By how many percent policy `ours` is below `other` at `share`, with a 95 % interval from resampled blocks of `block` turns.
fn reduction(
    turns: &[Vec<f64>],
    block: usize,
    (ours, other): (usize, usize),
    share: f64,
    seed: u64,
) -> (f64, f64, f64) {
    let of = |turns: &[Vec<f64>]| {
        let at = |which| quantile(&sorted(turns, which), share);
        100.0 * (at(other) - at(ours)) / at(other)
    };
    let blocks: Vec<&[Vec<f64>]> = turns.chunks(block).collect();
    let mut rng = Rng::new(seed, "live bootstrap");
    let mut all: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let drawn: Vec<Vec<f64>> =
                (0..blocks.len()).flat_map(|_| blocks[rng.below(blocks.len() as u64) as usize].to_vec()).collect();
            of(&drawn)
        })
        .collect();
    all.sort_by(f64::total_cmp);
    (of(turns), quantile(&all, 0.025), quantile(&all, 0.975))
}

fn bar(turns: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}").expect("a constant template");
    let bar = ProgressBar::new(turns as u64).with_style(style);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    bar
}

/// A line of a distribution: from 1 ms to 1 s, a character for a twentieth of a decade, as dense as it is dark.
fn strip(sorted: &[f64]) -> String {
    const SHADES: [char; 5] = [' ', '░', '▒', '▓', '█'];
    let mut counts = [0usize; 60];
    for v in sorted {
        counts[((v.max(1.0).log10() * 20.0) as usize).min(59)] += 1;
    }
    let most = counts.iter().max().copied().unwrap_or(1).max(1) as f64;
    // Logarithmic: the tail is what matters.
    let shade = |n: usize| if n == 0 { 0 } else { 1 + (3.0 * (n as f64).ln() / most.ln().max(1.0)) as usize };
    counts.iter().map(|&n| SHADES[shade(n).min(4)]).collect()
}

impl Live {
    /// Runs it; whether mitt's p95 is below hedged's beyond doubt.
    pub fn run(&self) -> Result<bool> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.measure())
    }

    async fn measure(&self) -> Result<bool> {
        let made = tempfile::tempdir()?;
        let profile = made.path().join("disk.profile");
        let status = Command::new(plimsoll())
            .args(["profile", MODEL, "--out"])
            .arg(&profile)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .context("cannot start plimsoll; build it with `cargo build --release -p plimsoll`")?;
        if !status.success() {
            bail!("the disk's profile wasn't measured: see `plimsoll profile {MODEL}`");
        }
        let nodes = [start_node(&profile)?, start_node(&profile)?, start_node(&profile)?];
        let mut rng = Rng::new(self.seed, "live turns");
        let shown = bar(self.turns + self.turns / 5);
        // The limit of all policies: the p95 of base without noise, under the load that will be.
        shown.set_message("without noise");
        let mut base = Vec::new();
        for _ in POLICIES {
            base.push(open(&nodes, PolicyKind::Base, Span::from_millis(100)).await?);
        }
        let quiet = sorted(&turns(&base, self.load.turn, self.turns / 5, &mut rng, &shown).await?, 0);
        drop(base);
        let limit = Span::from_millis_f64(quantile(&quiet, 0.95));
        let stop = Arc::new(AtomicBool::new(false));
        for (i, node) in nodes.iter().enumerate() {
            // A noisy tenant of each node, with its own bursts, from its own thread: it must not wait for ours.
            let (address, stop) = (node.address("%3Ftenant=noise"), stop.clone());
            let (load, seed) = (self.load, self.seed * 10 + i as u64);
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                if let Ok(runtime) = runtime {
                    runtime.block_on(noise(address, load, seed, stop));
                }
            });
        }
        shown.set_message("with noise");
        let mut volumes = Vec::new();
        for kind in POLICIES {
            volumes.push(open(&nodes, kind, limit).await?);
        }
        let measured = turns(&volumes, self.load.turn, self.turns, &mut rng, &shown).await?;
        stop.store(true, Ordering::Relaxed);
        shown.finish_and_clear();
        let counts: Vec<Counts> = volumes.iter().map(Volume::counts).collect();
        Ok(self.report(&measured, &counts, limit))
    }

    fn report(&self, turns: &[Vec<f64>], counts: &[Counts], limit: Span) -> bool {
        println!(
            "three nodes on modelled {MODEL} under CFQ, in real time; {}; seed {}, {} reads of each policy, interleaved; limit {limit}\n",
            self.load.name,
            self.seed,
            turns.len()
        );
        println!("{:<12} {:>8} {:>8} {:>8} {:>8}  {:>6} {:>6}", "ms", "p50", "p90", "p95", "p99", "tries", "busy");
        for (i, kind) in POLICIES.iter().enumerate() {
            let s = sorted(turns, i);
            let at = |share| quantile(&s, share);
            let c = counts[i];
            println!(
                "{:<12} {:>8.1} {:>8.1} {:>8.1} {:>8.1}  {:>6} {:>6}",
                kind.name(),
                at(0.5),
                at(0.9),
                at(0.95),
                at(0.99),
                c.tries,
                c.busy
            );
        }
        println!("\n{:<12} 1 ms                10 ms               100 ms              1 s", "");
        for (i, kind) in POLICIES.iter().enumerate() {
            println!("{:<12} {}", kind.name(), strip(&sorted(turns, i)));
        }
        println!();
        let block = (BLOCK.as_millis() / self.load.turn.as_millis()).max(1) as usize;
        let mut passes = true;
        for (ours, share) in
            [(MITT, 0.95), (3, 0.95), (4, 0.95), (MITT, 0.5), (3, 0.5), (MITT, 0.99), (3, 0.99), (4, 0.99)]
        {
            let (reduced, low, high) = reduction(turns, block, (ours, HEDGED), share, self.seed);
            println!(
                "{} below hedged at p{}: {reduced:.1} % (95 % interval {low:.1} to {high:.1})",
                POLICIES[ours],
                share * 100.0
            );
            if (ours, share) == (MITT, 0.95) {
                passes = low > 0.0;
            }
        }
        println!(
            "{}",
            if passes { "passes: the first interval excludes 0" } else { "FAILS: the first interval has 0" }
        );
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_beyond_the_noise_is_told_from_one_within_it() {
        let mut rng = Rng::new(1, "t");
        let turns: Vec<Vec<f64>> = (0..2000)
            .map(|_| vec![0.0, 10.0 + rng.exp1() * 10.0, 10.0 + rng.exp1() * 5.0, 10.0 + rng.exp1() * 10.0])
            .collect();
        let (reduced, low, high) = reduction(&turns, 25, (2, 1), 0.95, 1);
        assert!(low > 10.0 && low < reduced && reduced < high && high < 60.0, "{low} {reduced} {high}");
        let (_, low, high) = reduction(&turns, 25, (3, 1), 0.95, 1);
        assert!(low < 0.0 && high > 0.0, "{low} {high}");
        assert_eq!(strip(&[1.0, 10.0, 10.0, 1e9]).chars().filter(|c| *c != ' ').count(), 3);
    }
}
