//! Measurements of the clients, second by second.

use plimsoll_base::{LatencyHistogram, Span};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// One of each: without promises, and with.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Side<T> {
    /// Without promises.
    pub without: T,
    /// With promises.
    pub with: T,
}

impl<T> Side<T> {
    /// Both, made alike.
    pub fn both(mut make: impl FnMut() -> T) -> Side<T> {
        Side { without: make(), with: make() }
    }

    /// One of them.
    pub fn of(&self, with: bool) -> &T {
        if with { &self.with } else { &self.without }
    }

    /// The same of each.
    pub fn map<U>(&self, f: impl Fn(&T) -> U) -> Side<U> {
        Side { without: f(&self.without), with: f(&self.with) }
    }
}

/// Tenant of the requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tenant {
    Database,
    Web,
    Neighbour,
}

impl Tenant {
    pub const ALL: [Tenant; 3] = [Tenant::Database, Tenant::Web, Tenant::Neighbour];

    pub const fn name(self) -> &'static str {
        match self {
            Tenant::Database => "database",
            Tenant::Web => "web",
            Tenant::Neighbour => "neighbour",
        }
    }
}

/// One tenant's requests of some time.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Response times of requests that were served, as the client saw them.
    pub latency: LatencyHistogram,
    /// Bytes read and written.
    pub bytes: u64,
    /// Transactions of the database.
    pub transactions: u64,
    /// Reads answered Busy by a node.
    pub busy: u64,
    /// Further tries of reads, at the other node.
    pub redirected: u64,
    /// Requests that failed.
    pub failed: u64,
}

impl Figures {
    fn add(&mut self, other: &Figures) {
        self.latency.merge(&other.latency);
        self.bytes += other.bytes;
        self.transactions += other.transactions;
        self.busy += other.busy;
        self.redirected += other.redirected;
        self.failed += other.failed;
    }

    /// Share of the requests that took longer than `bound`.
    pub fn later_than(&self, bound: Span) -> f64 {
        let all = self.latency.count();
        if all == 0 { 0.0 } else { (all - self.latency.count_at_most(bound)) as f64 / all as f64 }
    }

    /// Milliseconds of a percentile; `None` without requests.
    pub fn percentile_ms(&self, percent: f64) -> Option<f64> {
        (self.latency.count() > 0).then(|| self.latency.percentile(percent).as_millis_f64())
    }
}

/// A side's measurements. Requests belong to the second in which they ended.
pub struct Recorder {
    began: Instant,
    /// By tenant and second.
    seconds: [Mutex<Vec<Figures>>; 3],
}

/// Both sides'.
pub type Record = Side<Arc<Recorder>>;

impl Recorder {
    /// Nothing was measured yet.
    pub fn new(began: Instant, seconds: u32) -> Recorder {
        // What ends after the last second is counted with it: at most a request of each client.
        Recorder { began, seconds: std::array::from_fn(|_| Mutex::new(vec![Figures::default(); seconds as usize])) }
    }

    fn of(&self, tenant: Tenant) -> MutexGuard<'_, Vec<Figures>> {
        self.seconds[tenant as usize].lock().expect("no panic while held")
    }

    fn now(&self, tenant: Tenant, change: impl FnOnce(&mut Figures)) {
        let second = self.began.elapsed().as_secs() as usize;
        let mut all = self.of(tenant);
        let last = all.len() - 1;
        change(&mut all[second.min(last)]);
    }

    /// A request was served.
    pub fn served(&self, tenant: Tenant, took: Span, bytes: u64) {
        self.now(tenant, |f| {
            f.latency.record(took);
            f.bytes += bytes;
        });
    }

    /// A transaction of the database was committed.
    pub fn committed(&self) {
        self.now(Tenant::Database, |f| f.transactions += 1);
    }

    /// Reads of the web were answered Busy, and sent to the other node.
    pub fn refused(&self, busy: u64, redirected: u64) {
        self.now(Tenant::Web, |f| {
            f.busy += busy;
            f.redirected += redirected;
        });
    }

    /// A request failed.
    pub fn failed(&self, tenant: Tenant) {
        self.now(tenant, |f| f.failed += 1);
    }

    /// Ten requests of so long in each of the first seconds.
    #[cfg(test)]
    pub fn filled(&self, tenant: Tenant, seconds: usize, took: Span) {
        for f in self.of(tenant).iter_mut().take(seconds) {
            (0..10).for_each(|_| f.latency.record(took));
            f.bytes += 10_000_000_000 / took.as_micros();
        }
    }

    /// The figures of seconds `from` to `to`, the latter not included.
    pub fn between(&self, tenant: Tenant, from: u32, to: u32) -> Figures {
        let mut sum = Figures::default();
        self.of(tenant).iter().take(to as usize).skip(from as usize).for_each(|f| sum.add(f));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn requests_belong_to_the_second_of_their_end() {
        let began = Instant::now().checked_sub(Duration::from_millis(2_500)).unwrap();
        let r = Recorder::new(began, 4);
        r.served(Tenant::Database, Span::from_millis(3), 4096);
        r.served(Tenant::Database, Span::from_millis(30), 4096);
        r.refused(3, 2);
        let of = |tenant, from, to| r.between(tenant, from, to);
        assert_eq!(of(Tenant::Database, 0, 2).latency.count(), 0);
        let second = of(Tenant::Database, 2, 3);
        assert_eq!((second.latency.count(), second.bytes, second.later_than(Span::from_millis(4))), (2, 8192, 0.5));
        assert_eq!((of(Tenant::Web, 0, 4).busy, of(Tenant::Web, 0, 4).redirected), (3, 2));
        // What ends late is counted with the last second.
        let late = Recorder::new(Instant::now().checked_sub(Duration::from_secs(9)).unwrap(), 4);
        late.served(Tenant::Web, Span::from_millis(1), 1);
        assert_eq!(late.between(Tenant::Web, 3, 4).bytes, 1);
    }
}
