//! Service times of batches of requests (VF-M12, M13): measured, and fitted for a fence's predictors.
//!
//! The model of a disk's batch: requests are served by address. Each costs a piecewise linear function of its distance from the
//! one before, and its transfer. The first request has a function of its own. Between knots the function is linear, so a
//! batch's time is linear in each knot's part of the batch's distances.
//!
//! The model of flash has two lines over number and bytes: one for reads, one for writes. A batch of both kinds takes the time of
//! the longer kind, and `both_permille` thousandths of the shorter kind's. `both_permille` is the median of the shares that were
//! measured.
//!
//! Least squares find a disk's weights; least absolute deviations find those of flash's lines. The reason: a batch that an erasure
//! holds up takes milliseconds more, which no count shows.
//!
//! Batches are as large as a slot has room for. On a disk they have 1 to 8 requests. On flash they have 1 to 100 reads, or 1 to 8
//! writes, or 1 to 8 reads and 1 to 8 writes.

use crate::measure::Target;
use plimsoll_base::linear::{least_deviations, least_squares};
use plimsoll_base::{Rng, Span};
use serde::{Deserialize, Serialize};

/// Fitted profile of batches.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchProfile {
    /// By distance, of a disk.
    pub disk: Option<DiskBatches>,
    /// By number, of flash.
    pub flash: Option<FlashBatches>,
}

/// A disk's requests by distance.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskBatches {
    /// Distances, rising, from 0.
    pub distance_bytes: Vec<u64>,
    /// The cost at each.
    pub cost_us: Vec<f64>,
    /// A KiB's transfer.
    pub transfer_ns_per_kib: u32,
    /// Cost of a batch's first request at each knot: it waits for the platter, while the drive orders the others by what it
    /// meets first. The same as the others' where the two weren't separated.
    #[serde(default)]
    pub first_cost_us: Vec<f64>,
}

/// Flash's batches by number.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashBatches {
    /// Fixed part of a batch that reads.
    pub fixed_us: f64,
    /// Cost of each read.
    pub read_us: f64,
    /// Cost of each KiB beyond a read's first four.
    pub transfer_ns_per_kib: u32,
    /// Fixed part of a batch that writes; the reads' where the two weren't separated.
    #[serde(default)]
    pub write_fixed_us: Option<f64>,
    /// Cost of each write.
    pub write_us: f64,
    /// Cost of each KiB beyond a write's first four; the reads' where the two weren't separated.
    #[serde(default)]
    pub write_ns_per_kib: Option<u32>,
    /// Overlap in a batch that reads and writes: it takes the time of the longer kind, and this many thousandths of the shorter
    /// kind's time. 1000 where it wasn't measured.
    #[serde(default)]
    pub both_permille: Option<u32>,
}

impl FlashBatches {
    /// Of reads and of writes: what there is once, for each, and for each KiB; ns.
    pub fn lines_ns(&self) -> [[u64; 3]; 2] {
        let ns = |us: f64| (us * 1000.0).round() as u64;
        let (read, write) = (self.transfer_ns_per_kib, self.write_ns_per_kib.unwrap_or(self.transfer_ns_per_kib));
        let write_fixed_us = self.write_fixed_us.unwrap_or(self.fixed_us);
        [[ns(self.fixed_us), ns(self.read_us), read.into()], [ns(write_fixed_us), ns(self.write_us), write.into()]]
    }
}

impl DiskBatches {
    /// Distances in bytes and costs in nanoseconds.
    pub fn knots_ns(&self) -> Vec<(u64, u64)> {
        let ns = |us: f64| (us * 1000.0).round() as u64;
        self.distance_bytes.iter().zip(&self.cost_us).map(|(d, us)| (*d, ns(*us))).collect()
    }

    /// The same of a batch's first request.
    pub fn first_knots_ns(&self) -> Vec<(u64, u64)> {
        match self.first_cost_us.is_empty() {
            true => self.knots_ns(),
            false => DiskBatches { cost_us: self.first_cost_us.clone(), ..self.clone() }.knots_ns(),
        }
    }
}

impl BatchProfile {
    pub(crate) fn check(&self) -> Result<(), String> {
        let plausible = |us: &f64| us.is_finite() && (0.0..=10e6).contains(us);
        if let Some(d) = &self.disk {
            let rises = d.distance_bytes.first() == Some(&0) && d.distance_bytes.is_sorted_by(|a, b| a < b);
            let firsts = d.first_cost_us.len();
            if !rises
                || (firsts > 0 && firsts != d.cost_us.len())
                || d.distance_bytes.len() != d.cost_us.len()
                || d.distance_bytes.len() > 64
            {
                return Err("batches.disk: distances must rise from 0, with a cost each, at most 64".into());
            }
            if !d.cost_us.iter().chain(&d.first_cost_us).all(plausible) {
                return Err("batches.disk: a cost is no time that a device takes".into());
            }
        }
        match &self.flash {
            Some(f) if f.both_permille.is_some_and(|p| p > 1000) => {
                Err("batches.flash: both_permille is more than all".into())
            }
            Some(f) if ![f.fixed_us, f.read_us, f.write_fixed_us.unwrap_or(0.0), f.write_us].iter().all(plausible) => {
                Err("batches.flash: a cost is no time that a device takes".into())
            }
            _ => Ok(()),
        }
    }
}

const BLOCK: u64 = 4096;
/// Knots beside that at 0, evenly by powers up to the capacity.
const KNOTS: usize = 9;
const DISK_BATCH_MAX: u64 = 8;
const FLASH_BATCH_MAX: u64 = 100;
/// Lengths that are drawn, in KiB: half of them a block.
const LENGTHS_KIB: [u64; 8] = [4, 4, 4, 4, 16, 64, 128, 256];
/// Parts of the device that a disk's batches lie in: all of it, and as a file system's would.
const WINDOWS: [u64; 5] = [1, 8, 64, 4096, 1 << 16];
/// Batches that write are smaller: a fence sends few writes at a time.
const WRITTEN_BATCH_MAX: u64 = 8;
/// Flash has done what it has to do of its own after a batch that wrote.
const SETTLES_WRITTEN: Span = Span::from_millis(100);
/// A flash drive is written in this part of it only: a cache writes its own place over and over, and what that costs isn't what it costs to
/// write at random all over a full drive.
const WRITTEN_PART: u64 = 16;
/// A device comes to rest between two batches: flash has then written what it buffered.
const SETTLES: Span = Span::from_millis(20);

/// Measures a disk by `n` batches; without `writes` only by reads.
///
/// # Errors
/// The device's first.
pub fn measure_disk_batches<T: Target>(
    target: &mut T,
    n: usize,
    writes: bool,
    seed: u64,
) -> Result<Option<DiskBatches>, T::Error> {
    let size = target.size_bytes();
    let knots: Vec<u64> = std::iter::once(0)
        .chain((0..KNOTS).map(|i| (size as f64 * 10f64.powf(-5.0 + 5.0 * i as f64 / (KNOTS - 1) as f64)) as u64))
        .collect();
    let mut rng = Rng::new(seed, "disk batches");
    // In small windows requests often adjoin, as a file's do.
    let (mut last, mut from, mut rows, mut times) = (0u64, 0, Vec::new(), Vec::new());
    for i in 0..n {
        // Every other batch stays where the one before was: a batch's first request is near, too, and waits for the platter, while
        // the drive orders the others by what it meets first.
        let window = (size / WINDOWS[i / 2 % WINDOWS.len()]).max(2 << 20);
        if i % 2 == 0 {
            from = rng.below((size - window) / BLOCK + 1) * BLOCK;
        }
        let mut batch: Vec<(bool, u64, u64)> = (0..1 + rng.below(DISK_BATCH_MAX))
            .map(|_| {
                let len = LENGTHS_KIB[rng.below(LENGTHS_KIB.len() as u64) as usize] << 10;
                (writes && rng.chance(0.5), from + rng.below((window - len) / BLOCK) * BLOCK, len)
            })
            .collect();
        batch.sort_unstable_by_key(|r| r.1);
        let took = target.batch(true, &batch)?;
        target.rest(SETTLES);
        // Of the others by distance, of the first by distance, and bytes.
        let (mut others, mut first, mut kib) = (vec![0.0; knots.len()], vec![0.0; knots.len()], 0.0);
        for (i, &(_, offset, len)) in batch.iter().enumerate() {
            hat(offset.abs_diff(last), &knots, if i == 0 { &mut first } else { &mut others });
            kib += len as f64 / 1024.0;
            last = offset + len;
        }
        rows.push([others, first, vec![kib]].concat());
        times.push(took.as_nanos() as f64);
    }
    // A knot that no distance was near can't be told: it stays as it is next to it.
    let Some(weights) = least_squares(&rows, &times) else { return Ok(None) };
    let us = |weights: &[f64]| weights.iter().map(|ns| round(ns.max(0.0) / 1000.0)).collect();
    let (cost_us, first_cost_us) = (us(&weights[..knots.len()]), us(&weights[knots.len()..2 * knots.len()]));
    let transfer_ns_per_kib = weights[2 * knots.len()].max(0.0) as u32;
    Ok(Some(DiskBatches { distance_bytes: knots, cost_us, transfer_ns_per_kib, first_cost_us }))
}

/// Computes each knot's part of a distance.
fn hat(distance: u64, knots: &[u64], x: &mut [f64]) {
    let right = knots.partition_point(|k| *k <= distance).clamp(1, knots.len() - 1);
    let (left, width) = (knots[right - 1], knots[right] - knots[right - 1]);
    let share = ((distance - left) as f64 / width as f64).min(1.0);
    x[right - 1] += 1.0 - share;
    x[right] += share;
}

/// Tenths of a microsecond are more than is known.
fn round(us: f64) -> f64 {
    (us * 10.0).round() / 10.0
}

/// Flash batches that are predicted as well as this are predicted well.
const FINE_NS: f64 = 20_000.0;

/// Measures flash by `n` batches of reads. With `writes` it measures `n / 3` batches of writes, and `n / 3` batches of both,
/// after them: a drive has work of its own for a while after writes, and reads would meet it. Without `writes`, writes are
/// assumed to cost the same as reads.
///
/// # Errors
/// The device's first.
pub fn measure_flash_batches<T: Target>(
    target: &mut T,
    n: usize,
    writes: bool,
    seed: u64,
) -> Result<Option<FlashBatches>, T::Error> {
    let mut rng = Rng::new(seed, "flash batches");
    let Some([fixed_us, read_us, kib_us]) = measure_flash(target, n, false, &mut rng)? else { return Ok(None) };
    let per_kib = |us: f64| (us * 1000.0) as u32;
    let reads = FlashBatches {
        fixed_us: round(fixed_us),
        read_us: round(read_us),
        transfer_ns_per_kib: per_kib(kib_us),
        write_fixed_us: None,
        write_us: round(read_us),
        write_ns_per_kib: None,
        both_permille: None,
    };
    if !writes {
        return Ok(Some(reads));
    }
    let Some([fixed_us, write_us, kib_us]) = measure_flash(target, n / 3, true, &mut rng)? else { return Ok(None) };
    let (write_fixed_us, write_ns_per_kib) = (Some(round(fixed_us)), Some(per_kib(kib_us)));
    let known = FlashBatches { write_fixed_us, write_us: round(write_us), write_ns_per_kib, ..reads };
    let both_permille = Some(measure_both(target, n / 3, &known, &mut rng)?);
    Ok(Some(FlashBatches { both_permille, ..known }))
}

/// Measures the overlap in a batch that reads and writes: the part of the shorter kind's time that adds to the longer kind's,
/// in thousandths. It is the median of `n` batches.
fn measure_both<T: Target>(target: &mut T, n: usize, known: &FlashBatches, rng: &mut Rng) -> Result<u32, T::Error> {
    let within = (target.size_bytes() / WRITTEN_PART).max(2 << 20).min(target.size_bytes());
    let mut shares = Vec::new();
    for _ in 0..n {
        let mut batch = Vec::new();
        let mut kinds = [0u64; 2];
        for (kind, [fixed, each, kib]) in known.lines_ns().into_iter().enumerate() {
            kinds[kind] = fixed;
            for _ in 0..1 + rng.below(WRITTEN_BATCH_MAX) {
                let len = LENGTHS_KIB[rng.below(LENGTHS_KIB.len() as u64) as usize] << 10;
                batch.push((kind == 1, rng.below((within - len) / BLOCK) * BLOCK, len));
                kinds[kind] += each + (len - BLOCK) / 1024 * kib;
            }
        }
        let took = target.batch(false, &batch)?.as_nanos();
        target.rest(SETTLES_WRITTEN);
        let (longer, shorter) = (kinds[0].max(kinds[1]), kinds[0].min(kinds[1]).max(1));
        shares.push((took.saturating_sub(longer) * 1000 / shorter).min(1000) as u32);
    }
    shares.sort_unstable();
    Ok(shares.get(shares.len() / 2).copied().unwrap_or(1000))
}

/// Measures batches of one kind, in us: the fixed part, the cost of each request, and of each KiB beyond the first four of
/// each.
fn measure_flash<T: Target>(
    target: &mut T,
    n: usize,
    is_write: bool,
    rng: &mut Rng,
) -> Result<Option<[f64; 3]>, T::Error> {
    let size = target.size_bytes();
    let (most, lengths, within, rest) = match is_write {
        // What is written is gathered first: a cache's chunks are longer than its blocks.
        true => (WRITTEN_BATCH_MAX, &LENGTHS_KIB[..], (size / WRITTEN_PART).max(2 << 20).min(size), SETTLES_WRITTEN),
        false => (FLASH_BATCH_MAX, &LENGTHS_KIB[..6], size, SETTLES),
    };
    let (mut rows, mut times) = (Vec::new(), Vec::new());
    for _ in 0..n {
        // Small batches are what most slots send: evenly by powers.
        let number = (most as f64).powf(rng.unit()) as u64;
        let batch: Vec<(bool, u64, u64)> = (0..number.clamp(1, most))
            .map(|_| {
                let len = lengths[rng.below(lengths.len() as u64) as usize] << 10;
                (is_write, rng.below((within - len) / BLOCK) * BLOCK, len)
            })
            .collect();
        times.push(target.batch(false, &batch)?.as_nanos() as f64);
        target.rest(rest);
        rows.push(vec![1.0, batch.len() as f64, batch.iter().map(|r| (r.2 - BLOCK) as f64 / 1024.0).sum()]);
    }
    let weights = least_deviations(&rows, &times, FINE_NS);
    Ok(weights.map(|w| [0, 1, 2].map(|i| w[i].max(0.0) / 1000.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// A device that does exactly what is to be fitted.
    struct Exact {
        is_disk: bool,
        last: u64,
    }

    const SIZE: u64 = 100 << 30;

    impl Exact {
        /// 2 ms, 1 ms every 10 GiB, and 1 us a KiB; 1.5 ms a batch.
        fn disk_ns(&mut self, requests: &[(bool, u64, u64)]) -> u64 {
            let mut ns = 1_500_000;
            for &(_, offset, len) in requests {
                ns += len / 1024 * 1000 + 2_000_000 + offset.abs_diff(self.last) / (10 << 10);
                self.last = offset + len;
            }
            ns
        }

        /// 70 us if something is read, 400 if something is written; 30 a read, 90 a write; 1 us a KiB that is read, 3 that is written; of
        /// both kinds a quarter of the shorter one's is beside the other's.
        fn flash_ns(requests: &[(bool, u64, u64)]) -> u64 {
            let each = |&(write, _, len): &(bool, u64, u64)| match write {
                true => 90_000 + (len - 4096) / 1024 * 3000,
                false => 30_000 + (len - 4096) / 1024 * 1000,
            };
            let [reads, writes] = [(false, 70_000), (true, 400_000)].map(|(write, fixed)| {
                let sum: u64 = requests.iter().filter(|r| r.0 == write).map(each).sum();
                if sum > 0 { fixed + sum } else { 0 }
            });
            reads.max(writes) + reads.min(writes) * 3 / 4
        }
    }

    impl Target for Exact {
        type Error = Infallible;
        fn size_bytes(&self) -> u64 {
            SIZE
        }
        fn one(&mut self, _write: bool, _offset: u64, _len: u64) -> Result<Span, Infallible> {
            unreachable!("only batches are measured")
        }
        fn together(&mut self, _offsets: &[u64]) -> Result<Vec<usize>, Infallible> {
            unreachable!("only batches are measured")
        }
        fn batch(&mut self, durable: bool, requests: &[(bool, u64, u64)]) -> Result<Span, Infallible> {
            assert_eq!(durable, self.is_disk);
            Ok(Span::from_nanos(if self.is_disk { self.disk_ns(requests) } else { Exact::flash_ns(requests) }))
        }
        fn rest(&mut self, _time: Span) {}
    }

    #[test]
    fn what_is_linear_is_found() {
        let mut disk = Exact { is_disk: true, last: 0 };
        let d = measure_disk_batches(&mut disk, 600, true, 1).unwrap().expect("determined");
        assert_eq!((d.distance_bytes[0], d.distance_bytes.len()), (0, 10));
        for (distance, us) in d.distance_bytes.iter().zip(&d.cost_us) {
            let want = 2000.0 + *distance as f64 / (10 << 10) as f64 / 1000.0;
            assert!((us - want).abs() < 2.0, "{distance}: {us} {want}");
        }
        assert!((995..=1005).contains(&d.transfer_ns_per_kib), "{d:?}");
        for (first, other) in d.first_cost_us.iter().zip(&d.cost_us) {
            assert!((first - other - 1500.0).abs() < 4.0, "{d:?}");
        }
        let mut flash = Exact { is_disk: false, last: 0 };
        let f = measure_flash_batches(&mut flash, 400, true, 1).unwrap().expect("determined");
        assert_eq!((f.fixed_us, f.read_us, f.write_fixed_us, f.write_us), (70.0, 30.0, Some(400.0), 90.0));
        assert!((745..=755).contains(&f.both_permille.expect("it was measured")), "{f:?}");
        let per_kib = (f.transfer_ns_per_kib, f.write_ns_per_kib.expect("it was measured"));
        assert!((995..=1005).contains(&per_kib.0) && (2995..=3005).contains(&per_kib.1), "{per_kib:?}");
        let only_reads = measure_flash_batches(&mut flash, 400, false, 1).unwrap().expect("determined");
        assert_eq!(only_reads.lines_ns()[0], only_reads.lines_ns()[1]);
        let profile = BatchProfile { disk: Some(d), flash: Some(f) };
        assert_eq!(profile.check(), Ok(()));
    }

    #[test]
    fn what_no_device_takes_is_refused() {
        let disk = |distance_bytes: Vec<u64>, cost_us: Vec<f64>| BatchProfile {
            disk: Some(DiskBatches { distance_bytes, cost_us, transfer_ns_per_kib: 1, first_cost_us: Vec::new() }),
            flash: None,
        };
        assert!(disk(vec![0, 5], vec![1.0, 2.0]).check().is_ok());
        assert!(disk(vec![1, 5], vec![1.0, 2.0]).check().unwrap_err().contains("rise from 0"));
        assert!(disk(vec![0, 5], vec![1.0]).check().unwrap_err().contains("a cost each"));
        assert!(disk(vec![0, 5], vec![1.0, -2.0]).check().unwrap_err().contains("no time"));
    }
}
