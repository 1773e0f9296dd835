//! TPC-C-like and YCSB-like load on a real MariaDB or PostgreSQL: the shape of those benchmarks at a small scale. No figure of it is
//! a tpmC or a YCSB result.

use super::client::{Answer, Client};
use crate::gate::LogHist;
use crate::walk::Protocol;
use plimsoll_base::{Rng, Span};
use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Kind of load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Five transactions over warehouses, districts, customers, stock: new order 45 %, payment 43 %, the rest 4 % each.
    TpccLike {
        /// Warehouses: fewer are hotter.
        warehouses: u32,
    },
    /// One row by key, by Zipf's law with YCSB's exponent of 0.99, half of them updates.
    YcsbLike {
        /// Rows.
        rows: u32,
    },
    /// Three updates of four rows.
    HotRows,
}

/// Rows of each table for one warehouse, kept small.
const DISTRICTS: u32 = 10;
const CUSTOMERS: u32 = 300;
const ITEMS: u32 = 1000;

/// Result of a run of some clients.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Transactions that were committed.
    pub done: u64,
    /// Answered with an error, and rolled back: not among `done`.
    pub errors: u64,
    /// Of these, by the server's number and first words (1213: a deadlock's victim; 1205: a lock wait that was given up).
    pub errors_by_kind: BTreeMap<String, u64>,
    /// For how long.
    pub elapsed: Duration,
    /// Transactions of each client.
    pub by_client: Vec<u64>,
    /// Their times.
    pub times: LogHist,
}

impl Outcome {
    /// Per second.
    pub fn rate(&self) -> f64 {
        self.done as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
    /// U_f over clients, in percent (AP-M5 with each client a user).
    pub fn unfairness_percent(&self) -> f64 {
        let mean = self.by_client.iter().sum::<u64>() as f64 / self.by_client.len().max(1) as f64;
        let far = self.by_client.iter().map(|n| (*n as f64 - mean).abs()).fold(0.0, f64::max);
        if mean > 0.0 { far * 100.0 / mean } else { 0.0 }
    }
}

/// Target of the load.
#[derive(Clone, Debug)]
pub struct Target {
    /// Protocol.
    pub protocol: Protocol,
    /// Port on this host.
    pub port: u16,
    /// Account.
    pub account: String,
    /// Database.
    pub database: String,
}

fn refused(sql: &str, answer: Answer) -> io::Result<()> {
    match answer {
        Answer::Ok => Ok(()),
        Answer::Error(e) => Err(io::Error::other(format!("{sql:.80}: {e}"))),
    }
}

impl Target {
    /// A connection.
    ///
    /// # Errors
    /// If there is none to be had.
    pub fn connect(&self) -> io::Result<Client> {
        Client::connect(self.protocol, self.port, &self.account, &self.database)
    }

    /// Makes the tables.
    ///
    /// # Errors
    /// With what the server says.
    pub fn prepare(&self, kind: Kind) -> io::Result<()> {
        let mut c = self.connect()?;
        let mut run = |sql: String| c.query(&sql).and_then(|a| refused(&sql, a));
        let mut table = |name: &str, columns: &str, rows: u32, row: &dyn Fn(u32) -> String| -> io::Result<()> {
            run(format!("DROP TABLE IF EXISTS {name}"))?;
            run(format!("CREATE TABLE {name} ({columns})"))?;
            for from in (0..rows).step_by(500) {
                let values: Vec<String> = (from..rows.min(from + 500)).map(|i| format!("({})", row(i))).collect();
                run(format!("INSERT INTO {name} VALUES {}", values.join(",")))?;
            }
            Ok(())
        };
        match kind {
            Kind::TpccLike { warehouses: w } => {
                table("warehouse", "w INT PRIMARY KEY, ytd BIGINT", w, &|i| format!("{i},0"))?;
                let key = "id INT PRIMARY KEY";
                table("district", &format!("{key}, ytd BIGINT, next_o INT"), w * DISTRICTS, &|i| format!("{i},0,0"))?;
                table("customer", &format!("{key}, balance BIGINT, pad CHAR(200)"), w * CUSTOMERS, &|i| {
                    format!("{i},0,'c'")
                })?;
                table("stock", &format!("{key}, quantity INT, pad CHAR(200)"), w * ITEMS, &|i| format!("{i},100,'s'"))?;
                table("orders", "d INT, o INT, c INT, delivered INT, PRIMARY KEY (d, o, c)", 0, &|_| String::new())
            }
            Kind::YcsbLike { rows } => table("usertable", "id INT PRIMARY KEY, field VARCHAR(1024)", rows, &|i| {
                format!("{i},'{}'", "v".repeat(1000))
            }),
            Kind::HotRows => table("hot", "id INT PRIMARY KEY, n INT", 4, &|i| format!("{i},0")),
        }
    }

    /// Runs `clients` clients in a closed loop without think time: `warm` without counting, then until the time is over.
    ///
    /// # Errors
    /// If a client can't connect or its connection breaks.
    pub fn run(&self, kind: Kind, clients: u32, warm: Duration, time: Duration, seed: u64) -> io::Result<Outcome> {
        let (counts, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let load = Load::new(kind);
        let errors = Mutex::new(BTreeMap::<String, u64>::new());
        let times = Mutex::new(LogHist::default());
        let connected: Vec<Client> = (0..clients).map(|_| self.connect()).collect::<io::Result<_>>()?;
        let mut elapsed = Duration::ZERO;
        let by_client = std::thread::scope(|scope| {
            let (counts, stop, errors, times, load) = (&counts, &stop, &errors, &times, &load);
            let one = |i: usize, mut c: Client| {
                let mut rng = Rng::new(seed, &format!("client {i}"));
                let (mut done, mut own) = (0, LogHist::default());
                while !stop.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    let counted = counts.load(Ordering::Relaxed);
                    let refused = load.transaction(&mut c, &mut rng)?;
                    match refused {
                        _ if !counted => {}
                        None => {
                            done += 1;
                            own.record(Span::from_nanos(begun.elapsed().as_nanos() as u64));
                        }
                        Some(why) => *errors.lock().expect("no client panics").entry(kind_of(&why)).or_default() += 1,
                    }
                }
                times.lock().expect("no client panics").merge(&own);
                Ok(done)
            };
            let threads: Vec<_> =
                connected.into_iter().enumerate().map(|(i, c)| scope.spawn(move || one(i, c))).collect();
            // The time itself is the warm-up: nothing tells that a server is warm.
            std::thread::sleep(warm);
            counts.store(true, Ordering::Relaxed);
            let begun = Instant::now();
            std::thread::sleep(time);
            stop.store(true, Ordering::Relaxed);
            elapsed = begun.elapsed();
            threads.into_iter().map(|t| t.join().expect("no client panics")).collect::<io::Result<Vec<u64>>>()
        })?;
        let errors_by_kind = errors.into_inner().expect("no client panics");
        Ok(Outcome {
            done: by_client.iter().sum(),
            errors: errors_by_kind.values().sum(),
            errors_by_kind,
            elapsed,
            by_client,
            times: times.into_inner().expect("no client panics"),
        })
    }
}

/// Number and first words of a server's message.
fn kind_of(why: &str) -> String {
    why.split_whitespace().take(4).collect::<Vec<_>>().join(" ")
}

/// A load, with what its draws need.
struct Load {
    kind: Kind,
    keys: Zipf,
}

impl Load {
    fn new(kind: Kind) -> Load {
        let rows = if let Kind::YcsbLike { rows } = kind { rows } else { 1 };
        Load { kind, keys: Zipf::new(rows) }
    }

    /// Runs one transaction; returns the server's message if it refused a statement (then the transaction was rolled back).
    fn transaction(&self, c: &mut Client, rng: &mut Rng) -> io::Result<Option<String>> {
        let statements = match self.kind {
            Kind::TpccLike { warehouses } => tpcc_like(warehouses, rng),
            Kind::YcsbLike { .. } => ycsb_like(&self.keys, rng),
            Kind::HotRows => hot_rows(rng),
        };
        for sql in &statements {
            if let Answer::Error(why) = c.query(sql)? {
                c.query("ROLLBACK")?;
                return Ok(Some(why));
            }
        }
        Ok(None)
    }
}

/// Keys by Zipf's law, the smallest the most often (Gray et al., SIGMOD 1994, as YCSB draws them).
struct Zipf {
    n: f64,
    sum: f64,
    eta: f64,
}

const ZIPF_EXPONENT: f64 = 0.99;

impl Zipf {
    fn new(n: u32) -> Zipf {
        let n = n.max(2);
        let sum = |n: u32| (1..=n).map(|i| f64::from(i).powf(-ZIPF_EXPONENT)).sum::<f64>();
        let whole = sum(n);
        let eta = (1.0 - (2.0 / f64::from(n)).powf(1.0 - ZIPF_EXPONENT)) / (1.0 - sum(2) / whole);
        Zipf { n: f64::from(n), sum: whole, eta }
    }

    fn draw(&self, rng: &mut Rng) -> u32 {
        let u = rng.unit();
        match u * self.sum {
            x if x < 1.0 => 0,
            x if x < 1.0 + 0.5f64.powf(ZIPF_EXPONENT) => 1,
            _ => (self.n * (self.eta * (u - 1.0) + 1.0).powf(1.0 / (1.0 - ZIPF_EXPONENT))).min(self.n - 1.0) as u32,
        }
    }
}

fn hot_rows(rng: &mut Rng) -> Vec<String> {
    let first = rng.below(2);
    let update = |i: u64| format!("UPDATE hot SET n = n + 1 WHERE id = {i}");
    let updates = (first..first + 3).map(update);
    ["BEGIN".into()].into_iter().chain(updates).chain(["COMMIT".into()]).collect()
}

fn ycsb_like(keys: &Zipf, rng: &mut Rng) -> Vec<String> {
    let id = keys.draw(rng);
    vec![match rng.chance(0.5) {
        true => format!("SELECT field FROM usertable WHERE id = {id}"),
        false => format!("UPDATE usertable SET field = '{}' WHERE id = {id}", "w".repeat(1000)),
    }]
}

fn tpcc_like(warehouses: u32, rng: &mut Rng) -> Vec<String> {
    let below = |rng: &mut Rng, n: u32| rng.below(u64::from(n)) as u32;
    let w = below(rng, warehouses);
    let d = w * DISTRICTS + below(rng, DISTRICTS);
    let customer = w * CUSTOMERS + below(rng, CUSTOMERS);
    let mut sql = vec!["BEGIN".to_string()];
    match below(rng, 100) {
        0..45 => {
            sql.push(format!("UPDATE district SET next_o = next_o + 1 WHERE id = {d}"));
            // In one order, so that two new orders can't deadlock.
            let mut items: Vec<u32> = (0..8).map(|_| w * ITEMS + below(rng, ITEMS)).collect();
            items.sort_unstable();
            items.dedup();
            sql.extend(items.iter().map(|i| format!("UPDATE stock SET quantity = quantity - 1 WHERE id = {i}")));
            let o = below(rng, i32::MAX as u32);
            sql.push(format!("INSERT INTO orders VALUES ({d}, {o}, {customer}, 0)"));
        }
        45..88 => {
            sql.push(format!("UPDATE warehouse SET ytd = ytd + 5 WHERE w = {w}"));
            sql.push(format!("UPDATE district SET ytd = ytd + 5 WHERE id = {d}"));
            sql.push(format!("UPDATE customer SET balance = balance - 5 WHERE id = {customer}"));
        }
        88..92 => sql.push(format!("SELECT balance FROM customer WHERE id = {customer}")),
        92..96 => {
            let from = w * ITEMS + below(rng, ITEMS - 20);
            sql.push(format!("SELECT COUNT(*) FROM stock WHERE id BETWEEN {from} AND {} AND quantity < 50", from + 20));
        }
        _ => sql.push(format!("UPDATE orders SET delivered = 1 WHERE d = {d} AND o < 100000000")),
    }
    sql.push("COMMIT".into());
    sql
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_follow_zipfs_law() {
        let (zipf, mut rng) = (Zipf::new(1000), Rng::new(1, "keys"));
        let mut counts = vec![0u64; 1000];
        (0..200_000).for_each(|_| counts[zipf.draw(&mut rng) as usize] += 1);
        let expected = |i: usize| 200_000.0 / (i as f64 + 1.0).powf(ZIPF_EXPONENT) / zipf.sum;
        for i in [0, 1, 9, 99] {
            let part = counts[i] as f64 / expected(i);
            assert!((0.8..1.25).contains(&part), "key {i}: {part}");
        }
        assert!(counts.iter().rposition(|c| *c > 0) > Some(950));
    }
}
