//! Measures a device from outside (MT-M7, MT-M9): the cost of its requests by distance, size and region, its read-ahead, and its
//! order of service.
//!
//! The paper fills a matrix of a million pairs in eleven hours. Costs depend on the distance first. So here some dozens of
//! distances are tried a few times each at random places. The rotational part averages out over the tries, and a line through
//! each three neighbours removes the rest of it. That takes some minutes.

use crate::disk::REGIONS;
use crate::profile::{DeviceId, DiskProfile, Measured, OpProfile, Profile, VERSION};
use plimsoll_base::{Rng, Span};

/// A device that can be asked and timed. Addresses and lengths are whole blocks of 4 KiB.
pub trait Target {
    /// Reason for a request's failure.
    type Error;

    /// Its size.
    fn size_bytes(&self) -> u64;

    /// Sends one request with nothing else at the device. Returns its time.
    ///
    /// # Errors
    /// If the device fails.
    fn one(&mut self, write: bool, offset: u64, len: u64) -> Result<Span, Self::Error>;

    /// Reads 4 KiB at each offset, all handed in at once; their numbers in the order in which they came back. A device
    /// that can't be given several answers in the order given.
    ///
    /// # Errors
    /// If the device fails.
    fn together(&mut self, offsets: &[u64]) -> Result<Vec<usize>, Self::Error>;

    /// Sends all requests at once, each as (is it a write, offset, length). Returns the time of all together. If `durable`, a write
    /// ends when it is on the media.
    ///
    /// # Errors
    /// If the device fails.
    fn batch(&mut self, durable: bool, requests: &[(bool, u64, u64)]) -> Result<Span, Self::Error>;

    /// Lets the device be for a while.
    fn rest(&mut self, time: Span);
}

/// Options of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MeasureOptions {
    /// Draws the places.
    pub seed: u64,
    /// Tries of each distance (the paper's 10).
    pub tries: u32,
    /// Also write. Destroys what the device holds.
    pub writes: bool,
}

impl Default for MeasureOptions {
    fn default() -> MeasureOptions {
        MeasureOptions { seed: 1, tries: 10, writes: false }
    }
}

const BLOCK: u64 = 4096;
/// The sizes between which a transfer's slope is measured.
const SIZES: [u64; 2] = [64 << 10, 1 << 20];
/// A read answered this fast came from the drive's buffer.
const HIT_MOST: Span = Span::from_micros(600);
/// Read-aheads that are tried.
const AHEADS: [u64; 8] = [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20];

/// Distances that are tried on a device of `size_bytes`: two an octave where the arm hardly moves, as they cost little.
fn distances(size_bytes: u64) -> Vec<u64> {
    let octaves = (12..48).flat_map(|e| [1u64 << e, 3 << (e - 1)]);
    octaves.filter(|d| *d <= size_bytes - size_bytes / 8).collect()
}

/// Direction from the block before.
#[derive(Clone, Copy)]
enum Way {
    Onwards,
    Backwards,
}

/// Distances from here on are spread a little around what they are named.
const SPREAD_FROM: u64 = 1 << 20;

struct Run<'a, T: Target> {
    target: &'a mut T,
    rng: Rng,
    options: MeasureOptions,
    requests: u64,
    took: Span,
    progress: &'a mut dyn FnMut(u64, u64),
    steps: u64,
    step: u64,
}

/// Measures `target`; `progress` hears of steps done and steps in all.
///
/// # Errors
/// The device's first.
pub fn measure_disk<T: Target>(
    target: &mut T,
    name: &str,
    options: MeasureOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Profile, T::Error> {
    let size_bytes = target.size_bytes();
    let distance_bytes = distances(size_bytes);
    let ops = 1 + u64::from(options.writes);
    let steps = ops * (2 * distance_bytes.len() as u64 + 1 + REGIONS as u64) + AHEADS.len() as u64 + 1;
    let rng = Rng::new(options.seed, "profile");
    let mut run = Run { target, rng, options, requests: 0, took: Span::ZERO, progress, steps, step: 0 };
    let read = run.operation(false, &distance_bytes)?;
    let write = if options.writes { run.operation(true, &distance_bytes)? } else { read.clone() };
    let read_ahead_bytes = run.read_ahead()?;
    let discipline = run.discipline()?.to_string();
    let measured = Measured {
        requests: run.requests,
        device_s: run.took.as_nanos().div_ceil(1_000_000_000),
        seed: options.seed,
        writes: options.writes,
    };
    let disk = DiskProfile { discipline, read_ahead_bytes, distance_bytes, read, write };
    let device = DeviceId { name: name.into(), size_bytes };
    Ok(Profile { version: VERSION, device, measured, disk: Some(disk), flash: None, batches: None })
}

impl<T: Target> Run<'_, T> {
    fn one(&mut self, write: bool, offset: u64, len: u64) -> Result<Span, T::Error> {
        let took = self.target.one(write, offset, len)?;
        self.requests += 1;
        self.took += took;
        Ok(took)
    }

    fn stepped(&mut self) {
        self.step += 1;
        (self.progress)(self.step, self.steps);
    }

    /// A random block in `from..to`.
    fn place(&mut self, from: u64, to: u64) -> u64 {
        from / BLOCK * BLOCK + self.rng.below(((to - from) / BLOCK).max(1)) * BLOCK
    }

    fn operation(&mut self, write: bool, distance_bytes: &[u64]) -> Result<OpProfile, T::Error> {
        let size = self.target.size_bytes();
        let mut transfer = Vec::new();
        for region in 0..REGIONS as u64 {
            let (from, to) = (size / 8 * region, size / 8 * (region + 1));
            let mut sums = [0f64; 2];
            for _ in 0..self.options.tries {
                for (sum, len) in sums.iter_mut().zip(SIZES) {
                    let at = self.place(from, to.saturating_sub(len).max(from + BLOCK));
                    *sum += self.one(write, at, len)?.as_nanos() as f64;
                }
            }
            let slope = (sums[1] - sums[0]) / f64::from(self.options.tries) / ((SIZES[1] - SIZES[0]) / 1024) as f64;
            transfer.push(slope.max(0.0).round() as u32);
            self.stepped();
        }
        // What a block's own transfer takes is no part of the way to it.
        let block_us = f64::from(transfer.iter().sum::<u32>()) / REGIONS as f64 * 4.0 / 1e3;
        let sequential_us = (self.mean_after(write, 0, Way::Onwards)? - block_us).max(0.0);
        self.stepped();
        let mut ways = [Vec::new(), Vec::new()];
        for (way, costs) in ways.iter_mut().enumerate() {
            for &d in distance_bytes {
                let way = if way == 0 { Way::Onwards } else { Way::Backwards };
                costs.push((self.mean_after(write, d, way)? - block_us).max(0.0));
                self.stepped();
            }
        }
        let [onwards_us, backwards_us] = ways.map(|w| smooth(distance_bytes, &w));
        Ok(OpProfile { sequential_us, onwards_us, backwards_us, transfer_ns_per_kib: transfer })
    }

    /// The mean time, in microseconds, of a block about `d` behind or before one at a random place. Not exactly: at one
    /// exact distance the platters always stand alike.
    fn mean_after(&mut self, write: bool, d: u64, way: Way) -> Result<f64, T::Error> {
        let size = self.target.size_bytes();
        let mut sum = 0.0;
        for _ in 0..self.options.tries {
            let spread = if d >= SPREAD_FROM { self.rng.below(d / 8) } else { d / 16 };
            let d = (d - d / 16 + spread) / BLOCK * BLOCK;
            let low = self.place(0, size - d - 2 * BLOCK);
            let (first, then) = match way {
                Way::Onwards => (low, low + BLOCK + d),
                Way::Backwards => (low + BLOCK + d, low),
            };
            self.one(write, first, BLOCK)?;
            sum += self.one(write, then, BLOCK)?.as_nanos() as f64 / 1e3;
        }
        Ok(sum / f64::from(self.options.tries))
    }

    /// The farthest that the drive has read of its own after a moment's rest.
    fn read_ahead(&mut self) -> Result<u64, T::Error> {
        let size = self.target.size_bytes();
        let mut ahead = 0;
        for &bytes in &AHEADS {
            let mut hits = 0;
            for _ in 0..5 {
                let at = self.place(0, size - 2 * bytes - BLOCK);
                self.one(false, at, BLOCK)?;
                self.target.rest(Span::from_millis(60));
                hits += u32::from(self.one(false, at + bytes, BLOCK)? < HIT_MOST);
            }
            if hits >= 3 {
                ahead = bytes;
            }
            self.stepped();
        }
        Ok(ahead)
    }

    /// Several reads whose order makes the arm go to and fro: a drive that takes the nearest first shortens its way. One that
    /// only answers in another order (several at once, from whoever is first) doesn't.
    fn discipline(&mut self) -> Result<&'static str, T::Error> {
        let size = self.target.size_bytes();
        let mut shortened = 0;
        for _ in 0..self.options.tries.max(4) {
            let mut offsets: Vec<u64> = (1..8u64).map(|i| self.place(size / 8 * i, size / 8 * i + size / 16)).collect();
            self.rng.shuffle(&mut offsets);
            let order = self.target.together(&offsets)?;
            self.requests += offsets.len() as u64;
            let way = |order: &[usize]| order.windows(2).map(|w| offsets[w[0]].abs_diff(offsets[w[1]])).sum::<u64>();
            let given: Vec<usize> = (0..order.len()).collect();
            shortened += u32::from(way(&order) * 4 < way(&given) * 3);
        }
        self.stepped();
        Ok(if shortened * 2 > self.options.tries.max(4) { "sstf" } else { "fifo" })
    }
}

/// A least-squares line through each point and its neighbours, by their places in the list (two an octave, so evenly by
/// powers of the distance).
fn smooth(distance_bytes: &[u64], us: &[f64]) -> Vec<f64> {
    // Nearer than the drive reads in a turn the costs have steps that are real.
    const REAL_STEPS_BELOW: u64 = 4 << 20;
    let n = us.len();
    (0..n)
        .map(|i| {
            if distance_bytes[i] < REAL_STEPS_BELOW {
                return us[i];
            }
            let (from, to) = (i.saturating_sub(2), (i + 3).min(n));
            let xs = || (from..to).map(|x| x as f64 - i as f64);
            let m = (to - from) as f64;
            let (sx, sy) = (xs().sum::<f64>(), us[from..to].iter().sum::<f64>());
            let (sxx, sxy) =
                (xs().map(|x| x * x).sum::<f64>(), xs().zip(&us[from..to]).map(|(x, y)| x * y).sum::<f64>());
            let slope = (m * sxy - sx * sy) / (m * sxx - sx * sx).max(1e-9);
            ((sy - slope * sx) / m).max(0.0)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of which only the order matters.
    struct Orders(fn(&mut Rng, &[u64]) -> Vec<usize>, Rng);

    impl Target for Orders {
        type Error = std::convert::Infallible;
        fn size_bytes(&self) -> u64 {
            1 << 36
        }
        fn one(&mut self, _: bool, _: u64, _: u64) -> Result<Span, Self::Error> {
            Ok(Span::from_micros(100))
        }
        fn together(&mut self, offsets: &[u64]) -> Result<Vec<usize>, Self::Error> {
            Ok((self.0)(&mut self.1, offsets))
        }
        fn batch(&mut self, _: bool, _: &[(bool, u64, u64)]) -> Result<Span, Self::Error> {
            unreachable!("only orders are measured")
        }
        fn rest(&mut self, _: Span) {}
    }

    #[test]
    fn only_a_shorter_way_is_nearest_first() {
        fn sorted(_: &mut Rng, offsets: &[u64]) -> Vec<usize> {
            let mut order: Vec<usize> = (0..offsets.len()).collect();
            order.sort_by_key(|i| offsets[*i]);
            order
        }
        fn any(rng: &mut Rng, offsets: &[u64]) -> Vec<usize> {
            let mut order: Vec<usize> = (0..offsets.len()).collect();
            rng.shuffle(&mut order);
            order
        }
        fn as_given(_: &mut Rng, offsets: &[u64]) -> Vec<usize> {
            (0..offsets.len()).collect()
        }
        for (orders, want) in [(sorted as fn(&mut Rng, &[u64]) -> _, "sstf"), (any, "fifo"), (as_given, "fifo")] {
            let mut device = Orders(orders, Rng::new(1, "orders"));
            let options = MeasureOptions { tries: 10, ..MeasureOptions::default() };
            let Ok(p) = measure_disk(&mut device, "orders", options, &mut |_, _| {});
            assert_eq!(p.disk.expect("costs").discipline, want);
        }
    }
}
