//! The clients: the same load for both sides, from the same seeds.

use super::DEADLINE;
use super::nodes::{DATABASE_BYTES, NEIGHBOUR_BYTES, NODES, Nodes, WEB_BYTES};
use super::record::{Record, Recorder, Tenant};
use anyhow::{Context, Result, anyhow};
use plimsoll_base::{Rng, Span};
use plimsoll_client::PolicyKind;
use plimsoll_client::live::{Address, Counts, Options, Session, Volume};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

/// The database: connections, reads of a transaction before its durable write, and the mean time between two transactions of a connection.
const CONNECTIONS: usize = 8;
const READS: usize = 3;
const THINK: Duration = Duration::from_millis(40);
/// Bytes of a page of the database and the web.
const PAGE: u64 = 4096;
/// The web's reads of a second, which come whether or not those before have ended; and those that wait for an answer at most.
const WEB_PER_S: f64 = 300.0;
const WEB_INSIDE_MAX: usize = 2048;
/// The neighbour: requests in flight in a burst, half of them writes; bytes of each; a burst's and a pause's length.
const DEEP: usize = 16;
const LARGE: u64 = 64 << 10;
const BURST: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(500);
/// A server that is silent for this long is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval between two looks at the web's counters.
const LOOK: Duration = Duration::from_millis(200);

/// State that all clients share.
#[derive(Clone)]
pub struct Load {
    /// Of addresses, arrivals and bursts.
    pub seed: u64,
    /// Begin and end.
    pub began: Instant,
    pub ends: Instant,
    /// Ends it earlier.
    pub stop: watch::Receiver<bool>,
}

impl Load {
    /// Starts a thread for the database and the web of both sides, and one for the neighbours: the one's large copies don't delay
    /// the other's clocks.
    pub fn start(&self, nodes: &Nodes, record: &Record) -> Result<Vec<JoinHandle<Result<()>>>> {
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for with in [false, true] {
            let foreign = nodes.is_foreign(with);
            let at = |volume| nodes.addresses(with, volume);
            let record = record.of(with);
            small.push(Client::Database(at("database").swap_remove(0), foreign, record.clone()));
            small.push(Client::Web(at("web"), with, foreign, record.clone()));
            large.push(Client::Neighbour(at("neighbour"), foreign, record.clone()));
        }
        [small, large].into_iter().map(|clients| self.clone().thread(clients)).collect()
    }

    fn thread(self, clients: Vec<Client>) -> Result<JoinHandle<Result<()>>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = async move {
            let mut all = JoinSet::new();
            for client in clients {
                all.spawn(client.run(self.clone()));
            }
            let mut stop = self.stop.clone();
            let ended = async {
                // None ends by itself unless it fails.
                all.join_next()
                    .await
                    .map_or(Ok(()), |ended| ended.unwrap_or_else(|e| Err(anyhow!("a client failed: {e}"))))
            };
            tokio::select! {
                failed = ended => failed,
                () = sleep_until(self.ends.into()) => Ok(()),
                _ = stop.wait_for(|stopped| *stopped) => Ok(()),
            }
        };
        Ok(std::thread::Builder::new().name("clients".into()).spawn(move || runtime.block_on(run))?)
    }

    fn rng(&self, actor: &str) -> Rng {
        Rng::new(self.seed, actor)
    }
}

/// One side's tenant.
enum Client {
    Database(Address, bool, Arc<Recorder>),
    Web(Vec<Address>, bool, bool, Arc<Recorder>),
    Neighbour(Vec<Address>, bool, Arc<Recorder>),
}

impl Client {
    async fn run(self, load: Load) -> Result<()> {
        match self {
            Client::Database(at, foreign, record) => {
                database(&load, &at, foreign, &record).await.context("the database's client")
            }
            Client::Web(at, with, foreign, record) => {
                web(&load, &at, with, foreign, &record).await.context("the web's client")
            }
            Client::Neighbour(at, foreign, record) => {
                neighbour(&load, &at, foreign, &record).await.context("the neighbour's client")
            }
        }
    }
}

async fn open(address: &Address, foreign: bool) -> Result<Session> {
    let opened = match foreign {
        true => Session::open_foreign(address, PATIENCE).await,
        false => Session::open(address, address.export.clone(), PATIENCE).await,
    };
    opened.with_context(|| address.to_string())
}

fn place(rng: &mut Rng, bytes: u64, length: u64) -> u64 {
    rng.below(bytes / length) * length
}

/// Connections that think, read, write durably, and think again.
async fn database(load: &Load, at: &Address, foreign: bool, record: &Arc<Recorder>) -> Result<()> {
    let mut all = JoinSet::new();
    let mut rng = load.rng("database");
    for i in 0..CONNECTIONS {
        let session = open(at, foreign).await?;
        all.spawn(connection(session, rng.split(&i.to_string()), record.clone()));
    }
    all.join_next().await.expect("there are some")?
}

async fn connection(mut session: Session, mut rng: Rng, record: Arc<Recorder>) -> Result<()> {
    let page = [0xdb; PAGE as usize];
    let served = |began: Instant, bytes| record.served(Tenant::Database, Span::from(began.elapsed()), bytes);
    loop {
        sleep(THINK.mul_f64(rng.exp1())).await;
        for _ in 0..READS {
            let (offset, began) = (place(&mut rng, DATABASE_BYTES, PAGE), Instant::now());
            session.read(offset, PAGE as u32).await?;
            served(began, PAGE);
        }
        let (offset, began) = (place(&mut rng, DATABASE_BYTES, PAGE), Instant::now());
        session.write(offset, &page).await?;
        served(began, PAGE);
        let began = Instant::now();
        session.flush().await?;
        served(began, 0);
        record.committed();
    }
}

/// Reads that come at random times, of a volume that two nodes have.
async fn web(load: &Load, at: &[Address], with: bool, foreign: bool, record: &Arc<Recorder>) -> Result<()> {
    let policy = if with { PolicyKind::MittWait } else { PolicyKind::Base };
    let options = Options { policy, foreign, limit: PATIENCE, seed: load.seed, ..Options::default() };
    let volume = Volume::open(at, &options).await?;
    let deadline = with.then(|| Duration::from(DEADLINE));
    let mut rng = load.rng("web");
    let mut inside = JoinSet::new();
    let (mut counted, mut look_at) = (volume.counts(), Instant::now());
    let mut due = load.began;
    loop {
        due += Duration::from_secs_f64(rng.exp1() / WEB_PER_S);
        sleep_until(due.into()).await;
        while inside.try_join_next().is_some() {}
        if inside.len() >= WEB_INSIDE_MAX {
            inside.join_next().await;
        }
        if look_at.elapsed() >= LOOK {
            let now = volume.counts();
            let further = |c: &Counts| c.tries.saturating_sub(c.gets);
            record.refused(now.busy - counted.busy, further(&now).saturating_sub(further(&counted)));
            (counted, look_at) = (now, Instant::now());
        }
        let offset = place(&mut rng, WEB_BYTES, PAGE);
        let (volume, record) = (volume.clone(), record.clone());
        inside.spawn(async move {
            let began = Instant::now();
            match volume.read(offset..offset + PAGE, deadline).await {
                Ok(_) => record.served(Tenant::Web, Span::from(began.elapsed()), PAGE),
                Err(_) => record.failed(Tenant::Web),
            }
        });
    }
}

/// Bursts of large requests, at one node after the other.
async fn neighbour(load: &Load, at: &[Address], foreign: bool, record: &Arc<Recorder>) -> Result<()> {
    let mut rng = load.rng("neighbour");
    let mut all = JoinSet::new();
    for (node, address) in at.iter().enumerate() {
        for i in 0..DEEP {
            let session = open(address, foreign).await?;
            let stream = Stream { node, writes: i % 2 == 0, i: i as u64, rng: rng.split(&format!("{node} {i}")) };
            all.spawn(stream.run(session, load.clone(), record.clone()));
        }
    }
    all.join_next().await.expect("there are some")?
}

/// One of the requests that a burst has in flight.
struct Stream {
    node: usize,
    writes: bool,
    i: u64,
    rng: Rng,
}

impl Stream {
    async fn run(mut self, mut session: Session, load: Load, record: Arc<Recorder>) -> Result<()> {
        let data = vec![0x1e; LARGE as usize];
        // Writers write one after the other in their own parts, readers read at random.
        let part = NEIGHBOUR_BYTES / DEEP as u64;
        let mut written = 0;
        loop {
            if let Some(begins) = next_burst(load.began, self.node, Instant::now()) {
                sleep_until(begins.into()).await;
            }
            let began = Instant::now();
            if self.writes {
                session.write(self.i * part + written % part, &data).await?;
                written += LARGE;
            } else {
                session.read(place(&mut self.rng, NEIGHBOUR_BYTES, LARGE), LARGE as u32).await?;
            }
            record.served(Tenant::Neighbour, Span::from(began.elapsed()), LARGE);
        }
    }
}

/// Begin of the next burst at `node`; `None` during one.
fn next_burst(began: Instant, node: usize, now: Instant) -> Option<Instant> {
    let each = BURST + PAUSE;
    let round = each * NODES as u32;
    let at = now.saturating_duration_since(began + each * node as u32);
    let rounds = (at.as_nanos() / round.as_nanos()) as u32;
    let first = began + each * node as u32;
    let burst = first + round * rounds;
    if now < first {
        Some(first)
    } else if now < burst + BURST {
        None
    } else {
        Some(burst + round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_rotate() {
        let began = Instant::now();
        let at = |ms: u64| began + Duration::from_millis(ms);
        assert_eq!(next_burst(began, 0, at(0)), None);
        assert_eq!(next_burst(began, 0, at(2_999)), None);
        assert_eq!(next_burst(began, 0, at(3_000)), Some(at(7_000)));
        assert_eq!(next_burst(began, 1, at(0)), Some(at(3_500)));
        assert_eq!(next_burst(began, 1, at(3_500)), None);
        assert_eq!(next_burst(began, 1, at(6_999)), Some(at(10_500)));
        assert_eq!(next_burst(began, 0, at(7_001)), None);
    }
}
