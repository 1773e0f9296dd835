//! `plimsoll tune load`: a trace as the load of a live volume.

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use plimsoll_base::{Span, Time};
use plimsoll_client::PolicyKind;
use plimsoll_client::live::{Address, Options, Session, Volume};
use plimsoll_replay::Placer;
use plimsoll_trace::record::TraceRecord;
use plimsoll_trace::tools::rerate::Speed;
use plimsoll_trace::{Op, ReadOptions, RecordStream, TraceReader};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Replay a trace on live volumes in real time, and print times (`measure`)
#[derive(Args)]
#[command(
    after_help = "Prints `request,node,value` lines: `request` the whole time, `op` 0 for a read and 1 for a write, and the time again as \
    `read` or `write`. A request's time begins when the trace says. Reads go to the replicas, each refused at once if it would be \
    later than --deadline, and then to the next; writes go to all of them.\n\nWhat lies on the volumes is written over.\n\nExamples:\n  \
    plimsoll tune load nbd://127.0.0.1/web --trace web.csv.gz --seconds 30\n  \
    plimsoll tune load 'nbd+unix:///web?socket=/run/peers/node-1.sock' 'nbd+unix:///web?socket=/run/peers/node-2.sock' --trace web.csv.gz --rate 1/4 --seconds 30 --deadline 20ms"
)]
pub struct Load {
    /// The volume's replicas, as NBD addresses.
    #[arg(required = true, value_name = "URI")]
    replicas: Vec<Address>,
    /// The trace; any format that `plimsoll trace info` reads.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Length to replay, in seconds of real time [default: all of it].
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Begin, in the trace's own time.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    from: Span,
    /// Factor of the pace: 2, 0.5, 1/8.
    #[arg(long, value_name = "X", default_value = "1", value_parser = speed)]
    rate: Speed,
    /// Reads that would take longer are refused at once, and go to the next replica.
    #[arg(long, value_name = "TIME")]
    deadline: Option<Span>,
    /// Writes under way at once; further ones wait, which is part of their time.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    writers: u16,
    /// Distinct contents of written 4 KiB blocks [default: each its own].
    #[arg(long, value_name = "N")]
    contents: Option<u64>,
}

/// Time within which each request must be answered.
const PATIENCE: Duration = Duration::from_secs(60);
/// Reads under way at most; further ones wait.
const READS_MAX: usize = 1024;
/// The largest request; the trace's larger ones are cut.
const REQUEST_BYTES_MAX: u64 = 4 << 20;
/// Requests that are held in memory.
const REQUESTS_MAX: usize = 10_000_000;
/// Contents are made in blocks of this.
const BLOCK: usize = 4096;

fn speed(text: &str) -> Result<Speed, String> {
    Speed::parse(text).ok_or_else(|| "write a number such as 2, 0.5 or 1/8, not zero".into())
}

/// State that requests share.
struct Shared {
    volume: Volume,
    deadline: Option<Duration>,
    reads: Semaphore,
    writers: Semaphore,
    /// Connections to all replicas, for each writer that has no work.
    idle: Mutex<Vec<Vec<Session>>>,
    contents: Option<u64>,
}

impl Load {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let records = self.records()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let times = runtime.block_on(self.replay(&records))?;
        let mut out = String::from("request,node,value\n");
        for (n, (is_write, ms)) in times.iter().enumerate() {
            let name = if *is_write { "write" } else { "read" };
            out += &format!("{n},request,{ms:.6}\n{n},op,{}\n{n},{name},{ms:.6}\n", u8::from(*is_write));
        }
        print!("{out}");
        Ok(())
    }

    /// The window of the trace, from time zero on, at the rate asked for.
    fn records(&self) -> Result<Vec<TraceRecord>> {
        if self.seconds.is_some_and(|s| !(s > 0.0 && s < 1e7)) {
            bail!("--seconds must be above zero");
        }
        let until = self.seconds.map_or(Span::MAX, Span::from_secs_f64);
        let mut reader = TraceReader::open(&self.trace, &ReadOptions::default())?;
        let mut records: Vec<TraceRecord> = Vec::new();
        for record in reader.records() {
            let mut r = record?;
            if r.arrived_at.since(Time::ZERO) < self.from || !matches!(r.op, Op::Read | Op::Write) {
                continue;
            }
            let at = self.rate.apply(Time::ZERO + r.arrived_at.since(Time::ZERO + self.from));
            if at.since(Time::ZERO) >= until {
                break;
            }
            r.arrived_at = at;
            records.push(r);
            if records.len() > REQUESTS_MAX {
                bail!("{}: more than {REQUESTS_MAX} requests: say --seconds", self.trace.display());
            }
        }
        if records.is_empty() {
            bail!("{}: no reads or writes within what is asked for", self.trace.display());
        }
        Ok(records)
    }

    async fn open(&self) -> Result<Arc<Shared>> {
        // Without a deadline nobody refuses: the first replica is read. Writes are under way to the replicas all the time, one
        // after the other: which of two answers is newer says nothing.
        let policy = if self.deadline.is_some() { PolicyKind::MittWait } else { PolicyKind::Base };
        let options = Options { policy, limit: PATIENCE, monotonic: false, ..Options::default() };
        let volume = Volume::open(&self.replicas, &options).await?;
        let mut idle = Vec::new();
        for _ in 0..self.writers {
            let mut all = Vec::new();
            for address in &self.replicas {
                // As anybody who writes: a load is no writer whose end would say that a replica lacks something.
                let session = Session::open(address, address.export.clone(), PATIENCE).await;
                all.push(session.with_context(|| address.to_string())?);
            }
            idle.push(all);
        }
        Ok(Arc::new(Shared {
            volume,
            deadline: self.deadline.map(|d| Duration::from_nanos(d.as_nanos())),
            reads: Semaphore::new(READS_MAX),
            writers: Semaphore::new(usize::from(self.writers)),
            idle: Mutex::new(idle),
            contents: self.contents,
        }))
    }

    /// Operation (true: a write) and milliseconds of each request.
    async fn replay(&self, records: &[TraceRecord]) -> Result<Vec<(bool, f64)>> {
        let shared = self.open().await?;
        let mut placer = Placer::new(shared.volume.size_bytes(), BLOCK as u32, REQUEST_BYTES_MAX);
        let (began, mut under_way, mut times) = (Instant::now(), JoinSet::new(), Vec::with_capacity(records.len()));
        for r in records {
            let (offset, len) = placer.place(r.device, r.offset, r.len.max(1));
            let due = began + Duration::from_nanos(r.arrived_at.as_nanos());
            tokio::time::sleep_until(due.into()).await;
            while let Some(ended) = under_way.try_join_next() {
                times.push(ended??);
            }
            let (shared, is_write) = (shared.clone(), r.op == Op::Write);
            under_way.spawn(async move {
                if is_write {
                    shared.write(offset, len).await?
                } else {
                    shared.read(offset, len).await?
                }
                Ok::<_, anyhow::Error>((is_write, due.elapsed().as_secs_f64() * 1e3))
            });
        }
        while let Some(ended) = under_way.join_next().await {
            times.push(ended??);
        }
        Ok(times)
    }
}

impl Shared {
    async fn read(&self, offset: u64, len: u64) -> Result<()> {
        let _one = self.reads.acquire().await?;
        let read = self.volume.read(offset..offset + len, self.deadline).await;
        read.map(drop).map_err(|e| anyhow!("reading {len} bytes at {offset}: {e}"))
    }

    /// To all replicas, one after the other: they are written by one connection each.
    async fn write(&self, offset: u64, len: u64) -> Result<()> {
        let _one = self.writers.acquire().await?;
        let mut sessions = self.idle.lock().expect("no panic while held").pop().expect("one for each permit");
        let data = content(offset, len, self.contents);
        for s in &mut sessions {
            s.write(offset, &data).await.with_context(|| format!("writing {len} bytes at {offset}"))?;
        }
        self.idle.lock().expect("no panic while held").push(sessions);
        Ok(())
    }
}

/// Blocks that are equal where their numbers are, modulo `contents`.
fn content(offset: u64, len: u64, contents: Option<u64>) -> Vec<u8> {
    let mut data = Vec::with_capacity(len as usize);
    for block in offset / BLOCK as u64..(offset + len) / BLOCK as u64 {
        let which = contents.map_or(block, |n| block.wrapping_mul(0x9e37_79b9_7f4a_7c15) % n.max(1));
        let mut rng = plimsoll_base::Rng::new(which, "content");
        data.extend((0..BLOCK / 8).flat_map(|_| rng.next_u64().to_le_bytes()));
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_repeat_as_often_as_asked() {
        let blocks = |contents| -> std::collections::BTreeSet<Vec<u8>> {
            content(0, 64 * 4096, contents).chunks(BLOCK).map(<[u8]>::to_vec).collect()
        };
        assert_eq!((blocks(None).len(), blocks(Some(1)).len()), (64, 1));
        assert!(blocks(Some(8)).len() <= 8);
        assert_eq!(content(4096, 8192, Some(5)), content(0, 12_288, Some(5))[4096..]);
    }
}
