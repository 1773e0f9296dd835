//! Time until a node answers Busy while its modelled disk's queue is seconds long: `make busy`.

#[path = "../tests/common/mod.rs"]
mod common;

use common::busy::{BYTES, Noise, await_inside, busy_wait_us, noisy_disk};
use common::client::Client;
use std::time::{Duration, Instant};

const NOISE_EACH: u64 = 120;
const NOISES: u64 = 4;
const READS: u64 = 2000;
/// Between two of them: a client that thinks.
const PAUSE: Duration = Duration::from_millis(5);
/// Without a deadline, to see what would have been.
const PATIENT: u64 = 4;

/// The value that `share` of all are at most.
fn at(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}

fn main() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let server = noisy_disk(dir.path());
    let noise: Vec<Noise> = (1..=NOISES).map(|i| Noise::start(&server, "vol?tenant=noise", NOISE_EACH, i)).collect();
    await_inside(&server, (NOISES * NOISE_EACH) as f64 * 0.95);
    let mut web = Client::connect(&server.socket(), "vol?deadline=20ms&busy=error").expect("it's there");
    let (mut took, mut waits, mut served) = (Vec::new(), Vec::new(), 0);
    for n in 0..READS {
        // A reader's thought: the noise fills the queue again meanwhile.
        std::thread::sleep(PAUSE);
        let began = Instant::now();
        let ended = web.read(n * 7_919_000_000 % BYTES / 4096 * 4096, 4096).expect("an answer");
        match busy_wait_us(&ended) {
            Some(wait) => {
                took.push(began.elapsed().as_secs_f64() * 1e6);
                waits.push(wait as f64 / 1e3);
            }
            None => served += 1,
        }
    }
    let mut slow = Vec::new();
    let mut base = Client::connect(&server.socket(), "vol").expect("it's there");
    for n in 0..PATIENT {
        let began = Instant::now();
        base.read(n << 30, 4096).expect("an answer").expect("data");
        slow.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let inside = NOISES * NOISE_EACH;
    println!(
        "{READS} reads with a deadline of 20 ms beside {inside} outstanding random reads of a modelled hdd-160g-7200:"
    );
    println!("  refused {}, served {served}", took.len());
    assert!(!took.is_empty(), "nothing was refused: the queue isn't seconds long");
    let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|p| at(&mut took, p));
    println!("  busy after p50 {p50:.0} us, p95 {p95:.0} us, p99 {p99:.0} us (goal: p95 within 1000 us)");
    println!("  predicted waits p5 {:.0} ms, p50 {:.0} ms", at(&mut waits, 0.05), at(&mut waits, 0.5));
    println!("  reads without a deadline took p50 {:.0} ms (n = {PATIENT})", at(&mut slow, 0.5));
    drop(noise);
    if p95 > 1000.0 {
        eprintln!("the goal was missed");
        std::process::exit(1);
    }
}
