//! Percentiles of reads of 4 KiB at random places, in a closed loop over one replica or several, with a deadline: the client sends a read that a
//! replica refuses to the next one, and has the last one serve it however late.
//!
//! usage: tails SECONDS READERS MIB DEADLINE_MS ADDRESS...

use plimsoll_client::PolicyKind;
use plimsoll_client::live::{Address, Options, Volume};
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;

/// Each reader's next place: a linear congruence (Knuth's MMIX) gives the same places each time.
fn next(state: &mut u64, blocks: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % blocks * BLOCK
}

async fn reader(volume: Rc<Volume>, seed: u64, blocks: u64, deadline: Duration, length: Duration) -> Vec<Duration> {
    let (start, mut state, mut took) = (Instant::now(), seed, Vec::new());
    while start.elapsed() < length {
        let (began, at) = (Instant::now(), next(&mut state, blocks));
        volume.read(at..at + BLOCK, Some(deadline)).await.expect("a replica serves it");
        took.push(began.elapsed());
    }
    took
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [seconds, readers, mib, deadline_ms, addresses @ ..] = &words[..] else {
        return Err("usage: tails SECONDS READERS MIB DEADLINE_MS ADDRESS...".into());
    };
    let addresses: Vec<Address> = addresses.iter().map(|a| a.parse()).collect::<Result<_, _>>()?;
    let (seconds, readers): (u64, u64) = (seconds.parse()?, readers.parse()?);
    let (blocks, deadline) = (mib.parse::<u64>()? * (1 << 20) / BLOCK, Duration::from_millis(deadline_ms.parse()?));
    let options = Options { policy: PolicyKind::MittWait, ..Options::default() };
    let volume = Rc::new(Volume::open(&addresses, &options).await?);
    let local = tokio::task::LocalSet::new();
    let length = Duration::from_secs(seconds);
    let tasks: Vec<_> =
        (1..=readers).map(|n| local.spawn_local(reader(volume.clone(), n, blocks, deadline, length))).collect();
    let mut took: Vec<Duration> = Vec::new();
    for task in tasks {
        took.extend(local.run_until(task).await?);
    }
    took.sort_unstable();
    let at = |permille: usize| took[(took.len() - 1) * permille / 1000].as_micros();
    println!(
        "ops {} P50: {} P95: {} P99: {} P99.9: {}",
        took.len() as u64 / seconds,
        at(500),
        at(950),
        at(990),
        at(999)
    );
    Ok(())
}
