//! A node whose disk has a queue of others' reads, and what it says to who has a deadline.

use super::client::{Client, Ended};
use super::{Server, exposition, write_profile};
use plimsoll_nbd::wire::{Command, CommandFlags};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A node with one pool and one volume of 48 GiB, or as much as the pool's file has.
pub fn config(pool: &str, tenants: &str, volume: &str) -> String {
    format!(
        r#"
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
{pool}
[[tenant]]
name = "web"
class = "best-effort"
{tenants}
[[volume]]
name = "vol"
pool = "p"
size = "{volume}"
tenant = "web"
[[grant]]
peer = "local"
volumes = ["*"]
tenants = ["*"]
"#
    )
}

pub const NOISE: &str = "[[tenant]]\nname = \"noise\"\nclass = \"best-effort\"\nweight = 100\n";
/// A disk of the papers' kind; the file behind it is sparse.
pub const DISK: &str = r#"device = { file = "disk.img", size = "64GiB", model = "hdd-160g-7200" }"#;
pub const BYTES: u64 = 48 << 30;

/// Keeps `outstanding` random reads of 4 KiB inside the node until it's dropped.
pub struct Noise {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Noise {
    pub fn start(server: &Server, export: &str, outstanding: u64, seed: u64) -> Noise {
        Noise::within(BYTES, server, export, outstanding, seed)
    }

    /// The same in a volume of `bytes`.
    pub fn within(bytes: u64, server: &Server, export: &str, outstanding: u64, seed: u64) -> Noise {
        let mut client = Client::connect(&server.socket(), export).unwrap();
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut state = seed;
        let mut send = move |client: &mut Client| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let offset = (state >> 16) % (bytes / 4096) * 4096;
            client.send(Command::Read, CommandFlags::EMPTY, offset, 4096, &[]).unwrap();
        };
        // All are sent before anybody looks: the queue is there from the start.
        (0..outstanding).for_each(|_| send(&mut client));
        let (ends, counts) = (stop.clone(), done.clone());
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                client.receive().unwrap().1.unwrap();
                counts.fetch_add(1, Ordering::Relaxed);
                send(&mut client);
            }
        });
        Noise { stop, done, thread: Some(thread) }
    }

    /// Reads that have ended.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().expect("it runs").join();
        assert!(ended.is_ok() || std::thread::panicking(), "the noise was answered with an error");
    }
}

/// The predicted wait that a busy answer carries, in microseconds.
pub fn busy_wait_us(ended: &Ended) -> Option<u64> {
    let why = ended.as_ref().err()?;
    let rest = why.split_once("busy: predicted wait ")?.1;
    rest.split_once(" us, confidence ")?.0.parse().ok()
}

pub struct Metrics(std::collections::BTreeMap<String, exposition::Family>);

impl Metrics {
    pub fn of(server: &Server) -> Metrics {
        Metrics(exposition::parse(&server.control("GET", "/metrics").body))
    }

    pub fn value(&self, name: &str) -> f64 {
        self.0[name].samples.iter().map(|s| s.2).sum()
    }

    /// The sum of a tenant's samples that have a label of such a value.
    pub fn of_tenant(&self, name: &str, tenant: &str, (label, value): (&str, &str)) -> f64 {
        let has = |labels: &[(String, String)], k: &str, v: &str| labels.iter().any(|l| l.0 == k && l.1 == v);
        let of = self.0[name].samples.iter().filter(|s| has(&s.1, "tenant", tenant) && has(&s.1, label, value));
        of.map(|s| s.2).sum()
    }

    pub fn label(&self, name: &str, label: &str) -> String {
        let labels = &self.0[name].samples[0].1;
        labels.iter().find(|l| l.0 == label).expect(label).1.clone()
    }
}

/// Waits until so many requests are inside the node: what is sent hasn't arrived yet.
pub fn await_inside(server: &Server, wanted: f64) {
    let end = Instant::now() + Duration::from_secs(20);
    while Metrics::of(server).value("plimsoll_queue_depth") < wanted {
        assert!(Instant::now() < end, "{wanted} requests never were inside");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn noisy_disk(dir: &Path) -> Server {
    write_profile(dir, "hdd-160g-7200", "disk.profile");
    let pool = format!("{DISK}\ndepth = 4\nprofile = \"disk.profile\"");
    Server::start(dir, &config(&pool, NOISE, "48GiB"))
}
