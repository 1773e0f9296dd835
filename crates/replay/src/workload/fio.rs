//! fio's kind of job: a pattern over a region, a mix of reads and writes, sizes, depth, rate and think time.

use crate::workload::random::{Sizes, Zipf, fnv_scramble};
use crate::workload::{BadWorkload, ClosedLoop, RateCap, Request, Requests, Step};
use plimsoll_base::{Rng, Span, Time};
use plimsoll_trace::record::Op;

/// Pattern of requests' addresses.
#[derive(Clone, PartialEq, Debug)]
pub enum Pattern {
    /// One after the other, wrapping at the end of the region (`rw=read`, `write`, `rw`).
    Sequential,
    /// Anywhere, equally likely (`random_distribution=random`).
    Uniform,
    /// Some addresses more than others, by Zipf's law with this exponent, scattered over the region by a hash
    /// (`random_distribution=zipf:theta`).
    Zipf(f64),
    /// Shares of the accesses to shares of the region, in percent, in order of address; each adds up to 100
    /// (`random_distribution=zoned:50/5:30/15:20/80`).
    Zoned(Vec<(u64, u64)>),
}

/// A job. Defaults are fio's where it has one.
#[derive(Clone, PartialEq, Debug)]
pub struct FioJob {
    /// Pattern of addresses.
    pub pattern: Pattern,
    /// Share of reads in percent, 0 to 100 (`rwmixread`).
    pub read_percent: u64,
    /// Sizes (`bs`, `bssplit`). Offsets are multiples of the smallest.
    pub sizes: Sizes,
    /// First byte of the region (`offset`).
    pub start: u64,
    /// Bytes of the region, at least one request of the largest size (`size`).
    pub bytes: u64,
    /// Distance of successive threads' starts in the region (`offset_increment`); sequential jobs only.
    pub stride: u64,
    /// Requests outstanding per thread (`iodepth`).
    pub depth: u32,
    /// Threads (`numjobs`).
    pub jobs: u32,
    /// Requests a second, all threads together; 0: no cap. (fio's `rate_iops` is per job.)
    pub rate_iops: u64,
    /// Pause after each completed batch of `depth` requests (`thinktime` with `thinktime_blocks=depth`).
    pub think: Span,
    /// Requests per thread; fio ends by `size` or `runtime`.
    pub requests_max: u64,
}

impl FioJob {
    /// One thread at depth 1 that reads `bytes` bytes from 0 in uniformly random 4 KiB pieces, for ever.
    pub fn new(bytes: u64) -> FioJob {
        FioJob {
            pattern: Pattern::Uniform,
            read_percent: 100,
            sizes: Sizes::fixed(4096).expect("4096 is not zero"),
            start: 0,
            bytes,
            stride: 0,
            depth: 1,
            jobs: 1,
            rate_iops: 0,
            think: Span::ZERO,
            requests_max: u64::MAX,
        }
    }

    fn check(&self) -> Result<(), BadWorkload> {
        if self.bytes < self.sizes.max() {
            return Err(BadWorkload::new("bytes", "the region is smaller than a request: enlarge it"));
        }
        if self.start.checked_add(self.bytes).is_none_or(|end| end > i64::MAX as u64) {
            return Err(BadWorkload::new("start", "the region ends beyond 2^63"));
        }
        if self.read_percent > 100 {
            return Err(BadWorkload::new("read_percent", "a share is at most 100"));
        }
        if self.depth == 0 || self.jobs == 0 {
            return Err(BadWorkload::new("depth and jobs", "each is at least 1"));
        }
        if let Pattern::Zoned(zones) = &self.pattern {
            let sum = |f: fn(&(u64, u64)) -> u64| zones.iter().map(f).fold(0u64, u64::saturating_add);
            if sum(|z| z.0) != 100 || sum(|z| z.1) != 100 {
                return Err(BadWorkload::new("zones", "accesses and region must each add up to 100 percent"));
            }
            if zones.iter().any(|z| z.0 > 0 && z.1 == 0) {
                return Err(BadWorkload::new("zones", "accesses to a zone of no size"));
            }
        }
        Ok(())
    }
}

/// The requests of one of a job's threads.
pub struct FioRequests {
    job: FioJob,
    zipf: Option<Zipf>,
    rng: Rng,
    /// Next offset in the region, of a sequential job.
    next: u64,
}

impl FioRequests {
    /// Thread number `thread` of `job`.
    ///
    /// # Errors
    /// If the job makes no sense.
    pub fn new(job: &FioJob, thread: u32, seed: u64) -> Result<FioRequests, BadWorkload> {
        job.check()?;
        let units = job.bytes / job.sizes.min();
        let zipf = match job.pattern {
            Pattern::Zipf(theta) => Some(Zipf::new(units, theta)?),
            _ => None,
        };
        let next = u64::from(thread).wrapping_mul(job.stride) % job.bytes;
        let next = next / job.sizes.min() * job.sizes.min();
        Ok(FioRequests { job: job.clone(), zipf, rng: Rng::new(seed, &format!("fio thread {thread}")), next })
    }

    /// An offset in the region for `len` bytes.
    fn offset(&mut self, len: u64) -> u64 {
        let unit = self.job.sizes.min();
        let units = self.job.bytes / unit;
        let chosen = match &self.job.pattern {
            Pattern::Sequential => {
                if self.next + len > self.job.bytes {
                    self.next = 0;
                }
                let at = self.next;
                self.next += len;
                return at;
            }
            Pattern::Uniform => self.rng.below(units),
            Pattern::Zipf(_) => match &self.zipf {
                Some(z) => fnv_scramble(z.draw(&mut self.rng)) % units,
                None => 0,
            },
            Pattern::Zoned(zones) => zoned(zones, units, &mut self.rng),
        };
        // A large request drawn near the end is moved to end there.
        (chosen * unit).min((self.job.bytes - len) / unit * unit)
    }
}

/// A unit of `units`, by zones.
fn zoned(zones: &[(u64, u64)], units: u64, rng: &mut Rng) -> u64 {
    let mut access = rng.below(100);
    let mut percent_before = 0;
    for &(share, percent) in zones {
        if access < share {
            let at = |p: u64| (u128::from(units) * u128::from(p) / 100) as u64;
            let (from, to) = (at(percent_before), at(percent_before + percent));
            return from + rng.below((to - from).max(1));
        }
        access -= share;
        percent_before += percent;
    }
    // The shares add up to 100.
    unreachable!("a share of accesses beyond 100 percent")
}

impl Requests for FioRequests {
    fn next_request(&mut self) -> Request {
        let op = if self.rng.below(100) < self.job.read_percent { Op::Read } else { Op::Write };
        let len = self.job.sizes.draw(&mut self.rng);
        Request { op, offset: self.job.start + self.offset(len), len }
    }
}

/// A job as a closed loop.
pub struct Fio {
    job: FioJob,
    threads: Vec<FioThread>,
    cap: RateCap,
}

struct FioThread {
    requests: FioRequests,
    sent: u64,
    /// Requests of the present batch still to send, if the job thinks between batches.
    batch: u32,
    is_waiting: bool,
}

impl Fio {
    /// All threads of `job`.
    ///
    /// # Errors
    /// If the job makes no sense.
    pub fn new(job: &FioJob, seed: u64) -> Result<Fio, BadWorkload> {
        let thread = |t| {
            let requests = FioRequests::new(job, t, seed)?;
            Ok(FioThread { requests, sent: 0, batch: job.depth, is_waiting: false })
        };
        let threads = (0..job.jobs).map(thread).collect::<Result<_, BadWorkload>>()?;
        Ok(Fio { job: job.clone(), threads, cap: RateCap::new(job.rate_iops) })
    }
}

impl ClosedLoop for Fio {
    fn threads(&self) -> u32 {
        self.job.jobs
    }
    fn depth(&self) -> u32 {
        self.job.depth
    }
    fn labels(&self) -> &[&'static str] {
        &["io"]
    }
    fn next(&mut self, thread: u32, now: Time) -> Step {
        let t = &mut self.threads[thread as usize];
        if t.sent == self.job.requests_max {
            return Step::Finished;
        }
        if self.job.think != Span::ZERO && t.batch == 0 {
            t.is_waiting = !t.is_waiting;
            if t.is_waiting {
                return Step::Wait;
            }
            t.batch = self.job.depth;
            return Step::Think(self.job.think);
        }
        let wait = self.cap.wait(now);
        if wait != Span::ZERO {
            return Step::Think(wait);
        }
        t.sent += 1;
        t.batch = t.batch.saturating_sub(1);
        Step::Send { request: t.requests.next_request(), label: 0 }
    }
}
