//! Cost to the client of a read that a node refuses and that goes on to the next: CPU time of the client's only thread.
//!
//! Two servers on unix sockets, in threads of their own; the first serves, or refuses whatever has a deadline. Rounds of both
//! alternate, and the difference is per read. Prints the median of the rounds' differences and their quartiles.

#[path = "../tests/fake/mod.rs"]
mod fake;

use fake::{Does, Fake};
use plimsoll_client::live::{Options, Volume};
use plimsoll_client::{PolicyKind, PolicySettings, Preference};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

const ROUNDS: usize = 41;
const READS: u64 = 500;

fn cpu_us() -> f64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as f64 * 1e6 + t.tv_nsec as f64 / 1e3
}

async fn round(volume: &Volume) -> f64 {
    let began = cpu_us();
    for i in 0..READS {
        let data = volume.read(i * 512..i * 512 + 512, Some(Duration::from_millis(10))).await.expect("one serves");
        assert_eq!(data.len(), 512);
    }
    (cpu_us() - began) / READS as f64
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let dir = tempfile::tempdir().expect("a folder for sockets");
    let fakes = [Fake::start(dir.path(), "a", 1, Does::Serve), Fake::start(dir.path(), "b", 2, Does::Serve)];
    let settings = PolicySettings { order: Preference::Placement, ..PolicySettings::default() };
    let options = Options { policy: PolicyKind::MittWait, settings, ..Options::default() };
    let addresses = [fakes[0].address(), fakes[1].address()];
    let volume = Volume::open(&addresses, &options).await.expect("both are there");
    round(&volume).await; // warm
    let (mut plain, mut extra) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        fakes[0].set(|s| (s.does, s.deadlines) = (Does::Serve, Vec::new()));
        let served = round(&volume).await;
        fakes[0].set(|s| (s.does, s.deadlines) = (Does::Busy(50_000), Vec::new()));
        fakes[1].set(|s| s.deadlines = Vec::new());
        extra.push(round(&volume).await - served);
        plain.push(served);
    }
    assert_eq!(volume.counts().busy, ROUNDS as u64 * READS, "each read of the second kind was refused once");
    let quartiles = |v: &mut Vec<f64>| {
        v.sort_by(f64::total_cmp);
        [1, 2, 3].map(|q| v[(v.len() - 1) * q / 4])
    };
    let ([_, read, _], [low, middle, high]) = (quartiles(&mut plain), quartiles(&mut extra));
    println!(
        "a read: {read:.1} us of CPU; a failover beside it: {middle:.1} us ({low:.1} to {high:.1}, quartiles of {ROUNDS} rounds of {READS} reads)"
    );
}
