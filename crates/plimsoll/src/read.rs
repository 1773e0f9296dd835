//! `plimsoll read`: reads within a deadline, and what became of each.

use crate::client::print_json;
use crate::table::micros;
use anyhow::{Context, Result, bail};
use clap::Args;
use plimsoll_base::{Rng, Span};
use plimsoll_client::live::{Address, Promised, Session};
use plimsoll_node::config::ByteSize;
use serde::Serialize;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::Instant;

/// A node that says nothing for this long is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Read at random within a deadline, and print each time or Busy.
///
/// Reads begin at the given rate, whether or not those before have ended. Each line is an answer, in the order of their coming.
///
/// A Busy has the predicted wait in front of the read, and the time that it would have taken in all.
#[derive(Args)]
#[command(
    after_help = "Example:\n  plimsoll read 'nbd+unix:///archive?socket=nbd.sock' --deadline 20ms --count 50 --rate 150"
)]
pub struct Read {
    /// A volume, as an NBD address.
    #[arg(value_name = "URI")]
    volume: Address,
    /// Deadline of each read [default: the volume's, tenant's or export name's].
    #[arg(long, value_name = "TIME")]
    deadline: Option<Span>,
    /// Number of reads.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// Reads that begin in a second.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Connections: the most reads in flight.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    connections: u32,
    /// Bytes of a read.
    #[arg(long, default_value = "4KiB")]
    size: ByteSize,
    /// Seed of the addresses.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A read that ended.
#[derive(Clone, Debug, Serialize)]
struct Answer {
    number: u32,
    offset: u64,
    took_us: u64,
    /// Absent: it was served.
    #[serde(flatten)]
    busy: Option<Busy>,
    /// Of the whole read, when it was accepted or refused.
    forecast_us: Option<u64>,
    late: bool,
}

#[derive(Clone, Debug, Serialize)]
struct Busy {
    predicted_wait_us: u64,
    confidence: Option<f64>,
}

impl Read {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let answers = runtime.block_on(self.read())?;
        if self.json {
            return print_json(&answers);
        }
        let busy = answers.iter().filter(|a| a.busy.is_some()).count();
        let late = answers.iter().filter(|a| a.late).count();
        let deadline = self.deadline.map_or(String::new(), |d| format!(" with a deadline of {d}"));
        println!(
            "{} reads of {} bytes{deadline}: {} in time, {late} late, {busy} busy",
            answers.len(),
            self.size.0,
            answers.len() - busy - late
        );
        Ok(())
    }

    async fn read(&self) -> Result<Vec<Answer>> {
        let at = || self.volume.to_string();
        let mut sessions = Vec::new();
        for _ in 0..self.connections.min(self.count) {
            let opened = Session::open(&self.volume, self.volume.export.clone(), PATIENCE).await;
            sessions.push(opened.with_context(at)?);
        }
        let (size, length) = (sessions[0].size_bytes(), u32::try_from(self.size.0).unwrap_or(u32::MAX));
        if length == 0 || u64::from(length) > size || length > 32 << 20 {
            bail!("{}: a read of {} bytes: 1 to {} make sense", at(), self.size.0, size.min(32 << 20));
        }
        let mut rng = Rng::new(self.seed, "read");
        let pieces = size / u64::from(length);
        let (send, mut ended) = unbounded_channel();
        let begun = Instant::now();
        let mut answers = Vec::new();
        for number in 0..self.count {
            let due = begun + Duration::from_secs(1) * number / self.rate;
            loop {
                // Answers are shown while it's waited for the next read's time, or for a connection.
                tokio::select! {
                    () = tokio::time::sleep_until(due), if !sessions.is_empty() => break,
                    Some(one) = ended.recv() => self.take(one, &mut sessions, &mut answers).with_context(at)?,
                }
            }
            let session = sessions.pop().expect("one is free");
            let offset = rng.below(pieces) * u64::from(length);
            tokio::spawn(one(session, number, offset, length, self.deadline, send.clone()));
        }
        while answers.len() < self.count as usize {
            let one = ended.recv().await.expect("a sender is here");
            self.take(one, &mut sessions, &mut answers).with_context(at)?;
        }
        Ok(answers)
    }

    fn take(&self, (session, ended): Ended, free: &mut Vec<Session>, answers: &mut Vec<Answer>) -> std::io::Result<()> {
        let answer = ended?;
        free.push(session);
        if !self.json {
            println!("{}", line(&answer));
        }
        answers.push(answer);
        Ok(())
    }
}

/// A connection that is free again, and how its read ended.
type Ended = (Session, std::io::Result<Answer>);

async fn one(
    mut session: Session,
    number: u32,
    offset: u64,
    length: u32,
    deadline: Option<Span>,
    to: UnboundedSender<Ended>,
) {
    let begun = Instant::now();
    let ended = session.read_within(offset, length, deadline.map(Duration::from)).await;
    let took = Span::from(begun.elapsed());
    let answer = ended.map(|promised| {
        let us = |d: Duration| d.as_micros() as u64;
        let (busy, forecast) = match promised {
            Promised::Done { forecast, .. } => (None, forecast),
            Promised::Busy { wait, forecast, confidence } => {
                (Some(Busy { predicted_wait_us: us(wait), confidence }), forecast)
            }
        };
        let forecast_us = forecast.map(us);
        let late = busy.is_none() && deadline.is_some_and(|d| took > d);
        Answer { number, offset, took_us: took.as_micros(), busy, forecast_us, late }
    });
    let _ = to.send((session, answer)); // who waited for it may have failed
}

fn line(a: &Answer) -> String {
    match &a.busy {
        Some(Busy { predicted_wait_us, confidence }) => {
            let sure = confidence.map_or(String::new(), |c| format!(" (confidence {:.0} %)", c * 100.0));
            let in_all = a.forecast_us.map_or(String::new(), |us| format!(", {} in all", micros(us)));
            format!("{:>5}  busy, wait about {}{in_all}{sure}", a.number, micros(*predicted_wait_us))
        }
        None => {
            let forecast = a.forecast_us.map_or(String::new(), |us| format!(" (forecast {})", micros(us)));
            let late = if a.late { ", LATE" } else { "" };
            format!("{:>5}  read in {}{forecast}{late}", a.number, micros(a.took_us))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_a_line_each() {
        let mut a = Answer { number: 7, offset: 0, took_us: 9_000, busy: None, forecast_us: Some(10_000), late: false };
        assert_eq!(line(&a), "    7  read in 9.00ms (forecast 10.0ms)");
        a.late = true;
        assert!(line(&a).ends_with(", LATE"));
        a.busy = Some(Busy { predicted_wait_us: 18_000, confidence: Some(0.8) });
        a.forecast_us = Some(25_000);
        assert_eq!(line(&a), "    7  busy, wait about 18.0ms, 25.0ms in all (confidence 80 %)");
        a.forecast_us = None;
        assert_eq!(line(&a), "    7  busy, wait about 18.0ms (confidence 80 %)", "of a node that says only the wait");
    }
}
