//! Prediction of a batch's time (VirtualFence §4.5.3).
//!
//! * A disk: each request costs a piecewise-linear function of its distance from the one before, and its transfer. The first request
//!   of a batch has a function of its own. Requests are in the order of addresses, as the drive is assumed to sort them (VF-M12).
//! * Flash: a line over the number of requests handed in together (VF-M13); here one line over reads and their bytes, and another
//!   one over writes. A batch of both kinds takes the time of the longer kind, and a share of the shorter kind's.
//!
//! The paper differs: all of its requests are of one block. So it has no term for a request's length, and one line for reads and
//! writes.

use plimsoll_base::{IoHead, Op, Span};
use serde::{Deserialize, Serialize};

/// The most knots.
pub const KNOTS_MAX: usize = 64;
/// A slot must have room for a request of this length.
pub const BLOCK_BYTES: u64 = 4096;
/// No request takes longer than this.
const COST_MAX_NS: u64 = 10_000_000_000;

/// A disk's requests by distance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Knots")]
pub struct DiskPredictor {
    /// Distance in bytes and cost in nanoseconds, rising in distance, the first at 0.
    knots: Vec<(u64, u64)>,
    /// The same of the first request of a batch.
    first: Vec<(u64, u64)>,
    ns_per_kib: u64,
}

/// A [`DiskPredictor`] as it is written, before it is checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Knots {
    knots: Vec<(u64, u64)>,
    first: Vec<(u64, u64)>,
    ns_per_kib: u64,
}

impl TryFrom<Knots> for DiskPredictor {
    type Error = String;
    fn try_from(k: Knots) -> Result<DiskPredictor, String> {
        DiskPredictor::new(k.knots, k.ns_per_kib)?.with_first(k.first)
    }
}

impl DiskPredictor {
    /// The function through `knots` (bytes, nanoseconds), and a transfer's cost.
    ///
    /// # Errors
    /// If the knots aren't valid; the error names the mistake.
    pub fn new(knots: Vec<(u64, u64)>, ns_per_kib: u64) -> Result<DiskPredictor, String> {
        check_knots(&knots)?;
        if ns_per_kib > COST_MAX_NS {
            return Err(TOO_LONG.into());
        }
        Ok(DiskPredictor { first: knots.clone(), knots, ns_per_kib })
    }

    /// A batch's first request costs by these knots instead: it waits for the platter, while the drive orders the others by what it
    /// meets first.
    ///
    /// # Errors
    /// If the knots aren't valid; the error names the mistake.
    pub fn with_first(self, first: Vec<(u64, u64)>) -> Result<DiskPredictor, String> {
        check_knots(&first)?;
        Ok(DiskPredictor { first, ..self })
    }

    /// A 7200 rpm disk of `size_bytes` of which nothing was measured: seeks of 1 to 18 ms, half a turn of 4.2 ms, 70 MB/s.
    pub fn typical(size_bytes: u64) -> DiskPredictor {
        let size = size_bytes.max(1 << 30);
        let us = |us: u64| us * 1000;
        let knots = vec![
            (0, us(500)),
            (1 << 20, us(5_500)),
            (size / 100, us(7_500)),
            (size / 3, us(13_000)),
            (size, us(20_000)),
        ];
        DiskPredictor { first: knots.clone(), knots, ns_per_kib: 14_600 }
    }

    /// Returns the assumed distance of a request from the arm after a neighbour had it: half of the disk.
    pub fn away_bytes(&self) -> u64 {
        self.knots[self.knots.len() - 1].0 / 2
    }

    /// Its knots: bytes and nanoseconds.
    pub fn knots(&self) -> &[(u64, u64)] {
        &self.knots
    }

    /// A KiB's transfer, in nanoseconds.
    pub fn ns_per_kib(&self) -> u64 {
        self.ns_per_kib
    }

    /// A request of `len` bytes that begins `distance` from where the one before it in its batch ended.
    pub fn cost(&self, distance: u64, len: u64) -> Span {
        Span::from_nanos(by_distance(&self.knots, distance) + transfer(self.ns_per_kib, len))
    }

    /// The first request of a batch, of `len` bytes, that begins `distance` from where the one before ended.
    pub fn first_cost(&self, distance: u64, len: u64) -> Span {
        Span::from_nanos(by_distance(&self.first, distance) + transfer(self.ns_per_kib, len))
    }
}

const TOO_LONG: &str = "no request takes longer than 10 s";

fn check_knots(knots: &[(u64, u64)]) -> Result<(), String> {
    if knots.is_empty() || knots.len() > KNOTS_MAX || knots[0].0 != 0 {
        return Err(format!("1 to {KNOTS_MAX} knots, the first at distance 0"));
    }
    if knots.windows(2).any(|w| w[0].0 >= w[1].0) {
        return Err("distances must rise".into());
    }
    match knots.iter().any(|k| k.1 > COST_MAX_NS) {
        true => Err(TOO_LONG.into()),
        false => Ok(()),
    }
}

fn by_distance(knots: &[(u64, u64)], distance: u64) -> u64 {
    let right = knots.partition_point(|k| k.0 <= distance);
    let left = knots[right - 1];
    let Some(right) = knots.get(right) else { return left.1 };
    let (along, whole) = (distance - left.0, right.0 - left.0);
    let part = |a: u64, b: u64| (u128::from(a - b) * u128::from(along) / u128::from(whole)) as u64;
    if right.1 >= left.1 { left.1 + part(right.1, left.1) } else { left.1 - part(left.1, right.1) }
}

/// Flash's batches by size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashPredictor {
    /// The reads of a batch.
    pub reads: Line,
    /// Its writes.
    pub writes: Line,
    /// Overlap in a batch of both: it takes the time of the longer kind, and this many thousandths of the shorter kind's time.
    pub both_permille: u64,
}

/// Time of requests of one kind together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Time if there is at least one request, ns.
    pub fixed_ns: u64,
    /// Time of each request, ns.
    pub each_ns: u64,
    /// Time of each KiB beyond a request's first 4, ns.
    pub ns_per_kib: u64,
}

impl FlashPredictor {
    /// A SATA drive of which nothing was measured.
    pub const TYPICAL: FlashPredictor = FlashPredictor {
        reads: Line { fixed_ns: 150_000, each_ns: 45_000, ns_per_kib: 5_000 },
        writes: Line { fixed_ns: 100_000, each_ns: 45_000, ns_per_kib: 5_000 },
        both_permille: 1000,
    };

    /// Each request takes so long, whatever its length.
    pub fn by_number(read_ns: u64, write_ns: u64) -> FlashPredictor {
        let line = |each_ns| Line { fixed_ns: 0, each_ns, ns_per_kib: 0 };
        FlashPredictor { reads: line(read_ns), writes: line(write_ns), both_permille: 1000 }
    }
}

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Predictor {
    /// By distance.
    Disk(DiskPredictor),
    /// By number.
    Flash(FlashPredictor),
}

fn transfer(ns_per_kib: u64, len: u64) -> u64 {
    (u128::from(ns_per_kib) * u128::from(len) / 1024).min(u128::from(COST_MAX_NS)) as u64
}

/// Bytes that a request moves.
fn moved(head: &IoHead) -> u64 {
    if matches!(head.op, Op::Read | Op::Write | Op::WriteZeroes) { head.len } else { 0 }
}

impl Predictor {
    /// Returns the time of a request by itself when the device was last at `arm`.
    pub fn one(&self, arm: Arm, head: &IoHead) -> Span {
        Forming::new(self, arm).add(head)
    }

    /// Returns the time of a request after one of its batch that ended at `end`.
    pub fn next(&self, end: u64, head: &IoHead) -> Span {
        match self {
            Predictor::Disk(d) if moved(head) > 0 => d.cost(head.offset.abs_diff(end), head.len),
            _ => self.one(Arm::At(end), head),
        }
    }

    /// Returns the least time of one block at another place, or from `away`: no slot is shorter. (Longer requests gather
    /// credit.)
    pub fn least(&self, away: bool) -> Span {
        match self {
            Predictor::Disk(d) if away => d.first_cost(d.away_bytes(), BLOCK_BYTES),
            Predictor::Disk(d) => {
                let near = d.first.get(1).unwrap_or(&d.first[0]);
                Span::from_nanos(near.1 + transfer(d.ns_per_kib, BLOCK_BYTES))
            }
            Predictor::Flash(f) => Span::from_nanos(
                [f.reads, f.writes].map(|line| line.fixed_ns + line.each_ns).into_iter().max().unwrap_or(0),
            ),
        }
    }
}

/// Position of a device when a batch begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arm {
    /// Its last request ended there.
    At(u64),
    /// Somewhere else: at a neighbour's, or as if it were.
    Away,
}

/// A batch that is being put together.
pub struct Forming<'a> {
    predictor: &'a Predictor,
    from: Arm,
    /// Offset and length of those with a place, by offset; only for a disk.
    places: Vec<(u64, u64)>,
    /// Part that doesn't depend on the order, ns.
    rest_ns: u64,
    /// Times of the reads and of the writes, ns; only for flash.
    kinds_ns: [u64; 2],
}

impl<'a> Forming<'a> {
    /// An empty one.
    pub fn new(predictor: &'a Predictor, from: Arm) -> Forming<'a> {
        Forming { predictor, from, places: Vec::new(), rest_ns: 0, kinds_ns: [0; 2] }
    }

    /// Adds a request; what the batch takes with it.
    pub fn add(&mut self, head: &IoHead) -> Span {
        let moved = moved(head);
        match self.predictor {
            Predictor::Disk(d) if moved == 0 => self.rest_ns += d.knots[0].1,
            Predictor::Disk(_) => {
                let at = self.places.partition_point(|p| p.0 <= head.offset);
                self.places.insert(at, (head.offset, moved));
            }
            Predictor::Flash(f) => {
                let kind = usize::from(head.op != Op::Read);
                let line = [f.reads, f.writes][kind];
                let sum = &mut self.kinds_ns[kind];
                *sum += if *sum == 0 { line.fixed_ns } else { 0 };
                *sum += line.each_ns + transfer(line.ns_per_kib, moved.saturating_sub(BLOCK_BYTES));
            }
        }
        self.total()
    }

    fn total(&self) -> Span {
        let d = match self.predictor {
            Predictor::Flash(f) => {
                let [a, b] = self.kinds_ns;
                return Span::from_nanos(a.max(b)) + Span::from_nanos(a.min(b)).scale(f.both_permille, 1000);
            }
            Predictor::Disk(d) => d,
        };
        let mut total = Span::from_nanos(self.rest_ns);
        let mut from = None;
        for &(offset, len) in &self.places {
            total += match (from, self.from) {
                (Some(end), _) => d.cost(offset.abs_diff(end), len),
                (None, Arm::At(end)) => d.first_cost(offset.abs_diff(end), len),
                (None, Arm::Away) => d.first_cost(d.away_bytes(), len),
            };
            from = Some(offset + len);
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{TenantId, Time, VolumeKey};

    fn head(op: Op, offset: u64, len: u64) -> IoHead {
        IoHead::new(op, VolumeKey::POOL, TenantId(0), offset, len, Time::ZERO)
    }

    #[test]
    fn between_knots_it_is_a_line_and_beyond_the_last_it_stays() {
        let d = DiskPredictor::new(vec![(0, 1000), (100, 3000), (200, 2000)], 1024).unwrap();
        for (distance, ns) in [(0, 1000), (50, 2000), (100, 3000), (150, 2500), (200, 2000), (u64::MAX, 2000)] {
            assert_eq!(d.cost(distance, 0).as_nanos(), ns, "{distance}");
        }
        assert_eq!(d.cost(0, 4096).as_nanos(), 1000 + 4096);
        assert!(DiskPredictor::new(vec![], 0).is_err());
        assert!(DiskPredictor::new(vec![(1, 0)], 0).is_err());
        assert!(DiskPredictor::new(vec![(0, 0), (5, 1), (5, 2)], 0).is_err());
        assert!(DiskPredictor::new(vec![(0, u64::MAX)], 0).is_err());
    }

    /// VF-M12: whatever the order in which they came, a batch is taken to be served by address.
    #[test]
    fn a_disk_batch_costs_its_distances_by_address() {
        let p = Predictor::Disk(DiskPredictor::new(vec![(0, 0), (1_000_000, 1_000_000)], 0).unwrap());
        let mut batch = Forming::new(&p, Arm::At(1000));
        for offset in [90_000, 10_000, 50_000] {
            batch.add(&head(Op::Read, offset, 4096));
        }
        // 1000 to 10,000, from its end 14,096 to 50,000, from there 54,096 to 90,000.
        assert_eq!(batch.total().as_nanos(), 9_000 + 35_904 + 35_904);
        assert_eq!(batch.add(&head(Op::Flush, 0, 0)), Span::from_nanos(80_808), "a flush costs no distance");
        let mut first = Forming::new(&p, Arm::Away);
        first.add(&head(Op::Read, 10_000, 4096));
        assert_eq!(first.total().as_nanos(), 500_000, "from half of the disk away, wherever that is");
        let p = Predictor::Disk(DiskPredictor::new(vec![(0, 10)], 0).unwrap().with_first(vec![(0, 1010)]).unwrap());
        let mut batch = Forming::new(&p, Arm::At(0));
        assert_eq!(batch.add(&head(Op::Flush, 0, 0)).as_nanos(), 10, "which moves no arm");
        assert_eq!((batch.add(&head(Op::Read, 0, 4096)).as_nanos(), p.least(true).as_nanos()), (1020, 1010));
        assert_eq!(batch.add(&head(Op::Read, 0, 4096)).as_nanos(), 1030, "once a batch");
        assert!(DiskPredictor::typical(1 << 40).with_first(vec![(1, 0)]).is_err());
    }

    #[test]
    fn a_flash_batch_costs_by_number_and_bytes() {
        let reads = Line { fixed_ns: 100, each_ns: 10, ns_per_kib: 1 };
        let writes = Line { fixed_ns: 1000, each_ns: 30, ns_per_kib: 5 };
        let p = Predictor::Flash(FlashPredictor { reads, writes, both_permille: 500 });
        let mut batch = Forming::new(&p, Arm::At(0));
        assert_eq!(batch.add(&head(Op::Read, 1 << 30, 4096)).as_nanos(), 110);
        assert_eq!(batch.add(&head(Op::Read, 0, 8192)).as_nanos(), 124, "what is only read pays for no write");
        assert_eq!(
            batch.add(&head(Op::Write, 0, 4096)).as_nanos(),
            1030 + 62,
            "half of what reads take is beside that"
        );
        assert_eq!(batch.add(&head(Op::Write, 0, 8192)).as_nanos(), 1080 + 62, "once a batch");
        assert_eq!(p.least(true).as_nanos(), 1030);
        assert_eq!(Forming::new(&p, Arm::At(0)).add(&head(Op::Write, 0, 4096)).as_nanos(), 1030);
    }
}
