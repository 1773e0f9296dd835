//! A verified write load whose node is killed.
//!
//! Two connections write sectors that carry their own number and a version. After the kill and a restart each sector
//! must hold a version no older than the last one that a FLUSH (on either connection) or FUA made durable, and no newer
//! than the last one sent.

use super::Server;
use super::client::Client;
use plimsoll_base::Rng;
use plimsoll_nbd::wire::{Command, CommandFlags};
use std::collections::BTreeMap;
use std::path::Path;

const SECTOR: u64 = 512;
const SECTORS: u64 = 512;

/// A sector's content: its number and version, over and over, so that a torn sector can't pass for a whole one.
fn content(sector: u64, version: u64) -> Vec<u8> {
    [sector.to_le_bytes(), version.to_le_bytes()].concat().repeat(SECTOR as usize / 16)
}

fn version_of(sector: u64, bytes: &[u8]) -> Result<u64, String> {
    let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    let zeroes = bytes.iter().all(|&b| b == 0);
    if zeroes || bytes == content(sector, version) { Ok(version) } else { Err(format!("sector {sector} is torn")) }
}

#[derive(Default, Clone)]
pub struct Known {
    /// The last version sent.
    pub sent: u64,
    /// The last version acknowledged.
    pub acknowledged: u64,
    /// The last version known durable.
    pub durable: u64,
}

struct Inflight {
    sectors: Vec<u64>,
    version: u64,
    fua: bool,
    /// A flush: what was acknowledged when it was sent.
    covers: Option<Vec<(u64, u64)>>,
}

/// Writes until the node is killed after `requests` answers; what is known then.
pub fn load(server: Server, seed: u64, requests: u64) -> BTreeMap<u64, Known> {
    load_then(server, seed, requests, |_| ())
}

/// The same; `last` looks at the node just before it is killed, while requests are in flight.
pub fn load_then(server: Server, seed: u64, requests: u64, last: impl FnOnce(&Server)) -> BTreeMap<u64, Known> {
    let mut rng = Rng::new(seed, "crash load");
    let mut clients: Vec<Client> = (0..2).map(|_| Client::connect(&server.socket(), "vol").unwrap()).collect();
    let mut known: BTreeMap<u64, Known> = (0..SECTORS).map(|s| (s, Known::default())).collect();
    let mut inflight: BTreeMap<(usize, u64), Inflight> = BTreeMap::new();
    let mut version = 0;
    let mut answered = 0;
    while answered < requests {
        let c = rng.below(2) as usize;
        if inflight.len() < 24 {
            version += 1;
            let first = rng.below(SECTORS - 8);
            let sectors: Vec<u64> = (first..first + 1 + rng.below(8)).collect();
            let free = !inflight.values().any(|i| i.sectors.iter().any(|s| sectors.contains(s)));
            if rng.chance(0.1) {
                let covers = known.iter().map(|(s, k)| (*s, k.acknowledged)).collect();
                let cookie = clients[c].send(Command::Flush, CommandFlags::EMPTY, 0, 0, &[]).unwrap();
                inflight.insert((c, cookie), Inflight { sectors: vec![], version, fua: false, covers: Some(covers) });
            } else if free {
                let fua = rng.chance(0.2);
                let flags = if fua { CommandFlags::FUA } else { CommandFlags::EMPTY };
                let data: Vec<u8> = sectors.iter().flat_map(|s| content(*s, version)).collect();
                let cookie = clients[c].send(Command::Write, flags, first * SECTOR, data.len() as u32, &data).unwrap();
                for s in &sectors {
                    known.get_mut(s).unwrap().sent = version;
                }
                inflight.insert((c, cookie), Inflight { sectors, version, fua, covers: None });
            }
        }
        let busy: Vec<usize> = (0..2).filter(|c| inflight.keys().any(|k| k.0 == *c)).collect();
        if inflight.len() >= 24 || (!busy.is_empty() && rng.chance(0.5)) {
            let c = busy[rng.below(busy.len() as u64) as usize];
            let (cookie, ended) = clients[c].receive().unwrap();
            ended.unwrap();
            answered += 1;
            let done = inflight.remove(&(c, cookie)).unwrap();
            for s in done.sectors {
                let k = known.get_mut(&s).unwrap();
                k.acknowledged = k.acknowledged.max(done.version);
                if done.fua {
                    k.durable = k.durable.max(done.version);
                }
            }
            for (s, acknowledged) in done.covers.unwrap_or_default() {
                let k = known.get_mut(&s).unwrap();
                k.durable = k.durable.max(acknowledged);
            }
        }
    }
    last(&server);
    server.kill();
    known
}

/// Checks the volume after a restart: each sector must have a version that it may have.
pub fn verify(dir: &Path, config: &str, known: &BTreeMap<u64, Known>) -> Result<(), String> {
    let server = Server::start(dir, config);
    // A recovery that finds something missing serves nothing.
    let mut client = Client::connect(&server.socket(), "vol").map_err(|e| e.to_string())?;
    let all =
        client.read(0, (SECTORS * SECTOR) as u32).unwrap().map_err(|e| format!("the volume can't be read: {e:?}"))?;
    drop(client);
    assert!(server.stop(), "the node ends well on SIGTERM");
    for (s, k) in known {
        let version = version_of(*s, &all[(s * SECTOR) as usize..][..SECTOR as usize])?;
        if version < k.durable || version > k.sent {
            return Err(format!("sector {s} has version {version}; durable {}, sent {}", k.durable, k.sent));
        }
    }
    Ok(())
}
