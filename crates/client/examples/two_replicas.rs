//! The p99 of reads over two replicas, one of them slow: without a deadline, and with one that is refused and goes to the other.
//!
//! usage: two_replicas ADDRESS ADDRESS

use plimsoll_client::PolicyKind;
use plimsoll_client::live::{Address, Options, Volume};
use std::time::{Duration, Instant};

/// Returns the second longest of 200 reads.
pub async fn p99(replicas: &[Address], policy: PolicyKind) -> Result<Duration, Box<dyn std::error::Error>> {
    let volume = Volume::open(replicas, &Options { policy, ..Options::default() }).await?;
    let mut times = Vec::new();
    for i in 0..200 {
        let (began, at) = (Instant::now(), i * 7919 % 1024 * 4096);
        volume.read(at..at + 4096, Some(Duration::from_millis(20))).await?;
        times.push(began.elapsed());
    }
    times.sort();
    Ok(times[198])
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let replicas: Vec<Address> = std::env::args().skip(1).map(|a| a.parse()).collect::<Result<_, _>>()?;
    for policy in [PolicyKind::Base, PolicyKind::MittWait] {
        println!("{policy}: p99 {:?}", p99(&replicas, policy).await?);
    }
    Ok(())
}
