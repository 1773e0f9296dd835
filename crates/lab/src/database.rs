//! A queueing model of a database server under many users: row locks, a buffer cache, disks and cores, with a gate before it.
//!
//! Each user is one connection in a closed loop; its client asks again one round trip after an answer. A transaction is a row of steps: bursts
//! on a core, pages read through an LRU cache (a miss waits for a disk), exclusive row locks held to the end, a log write. The
//! cost of many users comes about by itself where it can. Users have pages of their own that they come back to, so that many at
//! a time push each other's out. Locks are held for as long as others delay their holder.
//!
//! The cost of more threads on the cores ("crowding": spinning, switching, cold processor caches) is a measured law, not ours
//! and not AppleS'. It is MariaDB's published benchmark of its thread pool (knowledge base, "Threadpool benchmarks"): a thread
//! for each of 16 to 4096 connections on a machine with 16 cores. The host of AppleS §5 has 16 cores, too. Transactions take
//! the law of its OLTP_RW, single operations the geometric mean of POINT_SELECT and UPDATE_NOKEY. Each is the throughput at its
//! peak over the throughput at that number of connections. Times of bursts are from the same tables (core time per transaction
//! and per statement at the peak).
//!
//! Storage is what AppleS §5 states: a RAID-0 of five SATA drives behind 10 Gb Ethernet, which carries 76,000 pages of 16 KiB a second.
//!
//! Optimistic: no background flushing, no deadlocks, all users' clients are equally near. Pessimistic: no group commit; the law above holds
//! some contention for rows, which is modelled too.

mod engine;
mod inside;
pub mod limiter;
mod report;
mod throttle;

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

/// Order of execution when cores are short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CoreOrder {
    /// As it came.
    Fifo,
    /// The user that used least first (equal CPU weights of threads in a cgroup).
    Fair,
}

/// A kind of row that transactions lock.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rows {
    /// Part of transactions that lock one.
    pub share: f64,
    /// Number at each home.
    pub each: u64,
}

/// The server and its load.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DatabaseConfig {
    /// Cores.
    pub cores: usize,
    /// A thread that doesn't block gives its core away after so long if others wait for it.
    pub slice: Span,
    /// Requests that the disks serve at a time.
    pub channels: usize,
    /// Mean time of a page read.
    pub read: Span,
    /// One burst on a core.
    pub burst: Span,
    /// Connections inside and how much longer a burst takes then, in thousandths; straight between, ascending.
    pub crowding: &'static [(u32, u32)],
    /// Operations that the server itself admits at a time, by a semaphore that wakes its oldest waiter and lets whoever comes first have it.
    pub tickets: Option<u32>,
    /// From an answer to the client's next request.
    pub round_trip: Span,
    /// Until a thread that is woken runs.
    pub wake: Span,
    /// Pages in the cache.
    pub cache_pages: usize,
    /// Pages that a user comes back to.
    pub own_pages: u64,
    /// Pages that all share.
    pub shared_pages: u64,
    /// Pages that a transaction reads.
    pub reads: usize,
    /// Rows that it locks, in this order, …
    pub locks: &'static [Rows],
    /// … at its user's home. This is the number of homes; users are assigned to them at random.
    pub homes: u64,
    /// An answer waits for the log.
    pub durable: bool,
    /// Disks.
    pub disk_order: DiskOrder,
    /// Cores.
    pub core_order: CoreOrder,
}

impl DatabaseConfig {
    /// Many statements, locks and a large data set: TPC-C on the paper's host.
    ///
    /// 3.4 ms of core time a transaction (12 cores over 3545 transactions/s, OLTP_RW) in 14.3 bursts. Pages stand for 3.3 MB: 60 are a
    /// warehouse of 200 MB (200 GB over 1,000 warehouses), 14,400 three quarters of 64 GB. Payment (43 %) locks the warehouse's row,
    /// payment and new order (88 %) one of its ten districts'.
    pub const TPCC: DatabaseConfig = DatabaseConfig {
        cores: 16,
        // Linux' default: 0.75 ms times 1 + log2 of 16 processors.
        slice: Span::from_micros(3750),
        channels: 20,
        read: Span::from_micros(260),
        burst: Span::from_micros(238),
        crowding: &[(64, 1000), (128, 1037), (256, 1088), (512, 1258), (1024, 1983)],
        tickets: None,
        round_trip: Span::from_micros(100),
        wake: Span::from_micros(50),
        cache_pages: 14_400,
        own_pages: 60,
        shared_pages: 2000,
        reads: 12,
        locks: &[Rows { share: 0.43, each: 1 }, Rows { share: 0.88, each: 10 }],
        homes: 1000,
        durable: true,
        disk_order: DiskOrder::Fifo,
        core_order: CoreOrder::Fifo,
    };

    /// One key at a time: YCSB on MongoDB, half of them written; answers don't wait for its journal, and it admits 128 at a time.
    ///
    /// 136 us of core time an operation (mean of POINT_SELECT's and UPDATE_NOKEY's) in 3.5 bursts.
    pub const YCSB: DatabaseConfig = DatabaseConfig {
        burst: Span::from_micros(39),
        crowding: &[(64, 1000), (128, 1092), (256, 1215), (512, 1684), (1024, 5690)],
        tickets: Some(128),
        own_pages: 40,
        shared_pages: 40_000,
        reads: 2,
        locks: &[Rows { share: 0.5, each: 4000 }],
        homes: 1,
        durable: false,
        ..DatabaseConfig::TPCC
    };

    /// Returns the lengthening of a burst with `inside` transactions in the server, in thousandths.
    pub fn crowded_milli(&self, inside: u32) -> u64 {
        let law = self.crowding;
        let Some(above) = law.iter().position(|x| x.0 >= inside) else {
            return law.last().map_or(1000, |x| u64::from(x.1));
        };
        let Some(below) = above.checked_sub(1) else { return u64::from(law[0].1) };
        let ((x0, y0), (x1, y1)) = (law[below], law[above]);
        u64::from(y0) + u64::from(y1 - y0) * u64::from(inside - x0) / u64::from(x1 - x0)
    }
}

/// Gate or limiter before the server.
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
    /// The same, but one queue for each user, who take turns.
    Queues(Limiter),
    /// No gate: the users without an objective are slowed until those with one are served in time (PSLO alone: it throttles).
    Throttle,
}

/// Some users with an objective beside the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sensitive {
    /// Number of users, the first ones.
    pub users: usize,
    /// Their objective for p99.9.
    pub p999: Span,
    /// Weights follow the objective; else all have one.
    pub controlled: bool,
}

/// Somebody else on the same disks, now and then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// There for half of this, away for half.
    pub every: Span,
    /// Number of channels that it takes while there.
    pub takes: usize,
    /// The storage's forecast lowers P where it is longer than this.
    pub wanted: Option<Span>,
}

/// A run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Setting {
    /// The server.
    pub database: DatabaseConfig,
    /// Connections, each a user of its own …
    pub users: usize,
    /// … or else each user has 1, 1, 2, 4 or 8 of them.
    pub uneven: bool,
    /// Gate or limiter before it.
    pub front: Front,
    /// Users with an objective.
    pub sensitive: Option<Sensitive>,
    /// Other load on the disks.
    pub neighbour: Option<Neighbour>,
    /// Not measured at the beginning.
    pub warm: Span,
    /// Measured.
    pub time: Span,
}

impl Setting {
    /// The user of a connection.
    pub fn user_of(&self, connection: usize) -> usize {
        const USERS_OF_SIXTEEN: [usize; 16] = [0, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4];
        if self.uneven { connection / 16 * 5 + USERS_OF_SIXTEEN[connection % 16] } else { connection }
    }
}

/// Measurements of a run.
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
    /// Part of core time that crowding cost, percent.
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
    /// Mean wait for locks of a transaction, ms.
    pub lock_wait_ms: f64,
    /// Most that were inside at a time while measured.
    pub inside_max: u32,
}
