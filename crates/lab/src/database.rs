//! A queueing model of a database server under many users: row locks, a buffer cache, disks and cores, with a gate before it.
//!
//! Each user is one connection in a closed loop without think time. A transaction is a row of steps: a burst on a core, pages read through
//! an LRU cache (a miss waits for a disk), exclusive row locks held to the end, a log write. What makes many users dear is not put in as a
//! curve but comes about: users have pages of their own that they come back to, so that many at a time push each other's out; locks are held
//! for as long as others delay their holder. One cost is assumed: each burst grows with the number of transactions inside, as they spin on
//! the lock table's and the LRU list's latches (AppleS Fig. 1 measures those at 512 users).
//!
//! Optimistic: no network, no log contention, no background flushing. Pessimistic: no group commit; every lock is exclusive.

mod engine;
pub mod limiter;

pub use engine::run;

use limiter::Limiter;
use plimsoll_base::Span;
use plimsoll_shape::tune::zeta::ZetaConfig;

/// In which order a disk takes what waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskOrder {
    /// As it came (noop).
    Fifo,
    /// The user that had the least first (fair queuing).
    Fair,
    /// The nearest page upwards first (deadline's and BFQ's sorting).
    Elevator,
}

/// Who runs first when cores are short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CoreOrder {
    /// As it came.
    Fifo,
    /// The user that used least first (equal CPU weights of threads in a cgroup).
    Fair,
}

/// The server and its load.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DatabaseConfig {
    /// Cores.
    pub cores: usize,
    /// Requests that the disks serve at a time.
    pub channels: usize,
    /// Mean time of a page read.
    pub read: Span,
    /// One burst on a core, alone.
    pub burst: Span,
    /// What each further transaction inside adds to a burst, in millionths.
    pub spin_ppm: u64,
    /// Pages in the cache.
    pub cache_pages: usize,
    /// Pages that a user comes back to.
    pub own_pages: u64,
    /// Pages that all share.
    pub shared_pages: u64,
    /// Pages that a transaction reads.
    pub reads: usize,
    /// Rows that a transaction locks, …
    pub locks: usize,
    /// … of so many that are hot at each of the homes, …
    pub rows: u64,
    /// … of which there are so many; users live at them by chance.
    pub homes: u64,
    /// Disks.
    pub disk_order: DiskOrder,
    /// Cores.
    pub core_order: CoreOrder,
}

impl DatabaseConfig {
    /// Many statements, locks and a large data set: TPC-C on the paper's host (16 cores, five solid-state drives).
    pub const TPCC: DatabaseConfig = DatabaseConfig {
        cores: 16,
        channels: 10,
        read: Span::from_micros(500),
        burst: Span::from_micros(100),
        spin_ppm: 3000,
        cache_pages: 6000,
        own_pages: 60,
        shared_pages: 2000,
        reads: 12,
        locks: 3,
        rows: 10,
        homes: 100,
        disk_order: DiskOrder::Fifo,
        core_order: CoreOrder::Fifo,
    };

    /// One key at a time: YCSB, half of them written; bound by disks.
    pub const YCSB: DatabaseConfig = DatabaseConfig {
        cores: 16,
        channels: 10,
        read: Span::from_micros(500),
        burst: Span::from_micros(60),
        spin_ppm: 1500,
        cache_pages: 6000,
        own_pages: 40,
        shared_pages: 20_000,
        reads: 2,
        locks: 1,
        rows: 200,
        homes: 20,
        disk_order: DiskOrder::Fifo,
        core_order: CoreOrder::Fifo,
    };
}

/// What stands before the server.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Front {
    /// Nothing.
    None,
    /// The gate with P and ζ as given.
    Fixed {
        /// P.
        p: u32,
        /// ζ.
        zeta: u32,
    },
    /// The gate with P by the tuner and, where bounds are given, ζ by its loop.
    Auto {
        /// ζ to begin with.
        zeta: u32,
        /// Bounds.
        bounds: Option<ZetaConfig>,
    },
    /// One queue for all, first in first out, with a limit on who is inside.
    Queue(Limiter),
}

/// Some users with an objective beside the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sensitive {
    /// The first so many users.
    pub users: usize,
    /// Their objective for p99.9.
    pub p999: Span,
    /// Weights follow the objective; else all have one.
    pub controlled: bool,
}

/// A run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Setting {
    /// The server.
    pub database: DatabaseConfig,
    /// Users.
    pub users: usize,
    /// What stands before it.
    pub front: Front,
    /// Users with an objective.
    pub sensitive: Option<Sensitive>,
    /// Not measured at the beginning.
    pub warm: Span,
    /// Measured.
    pub time: Span,
}

/// What a run measured.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Measured {
    /// Transactions per second.
    pub rate: f64,
    /// U_f over users in percent (AP-M5).
    pub unfairness: f64,
    /// V_l in percent (AP-M6): mean over users of the coefficient of variation of latency.
    pub variability: f64,
    /// Mean wait outside, ms.
    pub delay_ms: f64,
    /// Mean time inside, ms.
    pub inside_ms: f64,
    /// Page reads that hit, percent.
    pub hit: f64,
    /// Part of core time that was spun away, percent.
    pub spin: f64,
    /// Waits for locks of each user, ms in all.
    pub lock_waits_ms: Vec<f64>,
    /// Mean number of requests that wait for a disk.
    pub disk_queue: f64,
    /// p99.9 of latency-sensitive users, ms.
    pub sensitive_p999_ms: f64,
    /// Their coefficient of variation of latency, percent.
    pub sensitive_variability: f64,
    /// Their transactions per second, together.
    pub sensitive_rate: f64,
    /// P at the end.
    pub p: u32,
    /// ζ at the end.
    pub zeta: u32,
    /// Most that were inside at a time while measured.
    pub inside_max: u32,
}
