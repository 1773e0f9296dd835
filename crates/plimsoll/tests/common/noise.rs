//! Reads of another client that are always inside, so that the disk has a queue.

use super::Server;
use super::client::Client;
use plimsoll_nbd::wire::{Command, CommandFlags};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Each read that ends is followed by another until this is dropped; what is inside then is still served.
pub struct Noise {
    stop: Arc<AtomicBool>,
}

impl Drop for Noise {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Noise {
    /// Returns when at least half of the `outstanding` reads are inside.
    pub fn start(node: &Server, outstanding: u64) -> Noise {
        let mut client = Client::connect(&node.socket(), "vol").unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        std::thread::spawn(move || {
            let (mut sent, mut ended) = (0, 0);
            while ended < sent || !stopped.load(Ordering::Relaxed) {
                while sent - ended < outstanding && !stopped.load(Ordering::Relaxed) {
                    let at = (sent * 7919 % 11000) << 20;
                    if client.send(Command::Read, CommandFlags::EMPTY, at, 4096, &[]).is_err() {
                        return; // the node has ended
                    }
                    sent += 1;
                }
                if client.receive().is_err() {
                    return;
                }
                ended += 1;
            }
        });
        let inside = || {
            let shown = node.cli(&["volume", "show", "vol", "--json"]);
            serde_json::from_str::<serde_json::Value>(&shown).unwrap()["traffic"]["inside"].as_u64().unwrap()
        };
        let began = Instant::now();
        while inside() < outstanding / 2 {
            assert!(began.elapsed() < Duration::from_secs(60), "the noise didn't come in");
            std::thread::sleep(Duration::from_millis(5));
        }
        Noise { stop }
    }
}
