//! Times of reads that a profile lets expect, before anything was measured.

use crate::device::Discipline;
use crate::disk::DiskModel;
use crate::profile::Profile;
use plimsoll_base::{IoHead, Op, Rng, Span, TenantId, Time, VolumeKey};
use std::collections::VecDeque;

/// Bytes of a read.
pub const READ_BYTES: u64 = 4096;
/// Requests in flight beyond which nothing is learned: all of them but a few wait in order of arrival.
const IN_FLIGHT_MAX: u32 = 1024;

/// Times of `number` random reads of [`READ_BYTES`] over all of the measured device, from their dispatch to their end, while `in_flight`
/// requests are always in flight: `depth` of them at the device, in its own order, the others before it in order of arrival. Of flash
/// it is one time, that of a lone read.
pub fn random_reads(profile: &Profile, in_flight: u32, depth: u32, number: usize) -> Vec<Span> {
    match (profile.disk_model(), &profile.flash) {
        (Some(model), _) => of_disk(profile, &model, in_flight, depth, number),
        (None, Some(flash)) => vec![Span::from_nanos((flash.read_us * 1e3) as u64); number],
        (None, None) => Vec::new(),
    }
}

fn of_disk(profile: &Profile, model: &DiskModel, in_flight: u32, depth: u32, number: usize) -> Vec<Span> {
    let in_flight = in_flight.clamp(1, IN_FLIGHT_MAX) as usize;
    let window = match profile.discipline() {
        Discipline::Fifo => 1,
        Discipline::Sstf => in_flight.min(depth.max(1) as usize),
    };
    let blocks = (profile.device.size_bytes / READ_BYTES).max(1);
    let mut rng = Rng::new(1, "expected reads");
    let mut read = |now| {
        let volume = VolumeKey { id: 0, generation: 0 };
        IoHead::new(Op::Read, volume, TenantId(0), rng.below(blocks) * READ_BYTES, READ_BYTES, now)
    };
    let mut pending: VecDeque<IoHead> = (0..in_flight).map(|_| read(Time::ZERO)).collect();
    let (mut now, mut arm) = (Time::ZERO, 0);
    let mut times = Vec::with_capacity(number);
    // Those that were there at the beginning waited for less than there is in front of the others.
    for n in 0..number + in_flight {
        let cost = |head: &IoHead| model.cost(now, arm, head);
        let nearest = (0..window).min_by_key(|&at| cost(&pending[at])).expect("at least one is pending");
        let head = pending.remove(nearest).expect("it is pending");
        (now, arm) = (now + cost(&head), head.end());
        if n >= in_flight {
            times.push(now.since(head.arrived_at));
        }
        pending.push_back(read(now));
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::tests::sample;

    fn mean_us(profile: &Profile, in_flight: u32, depth: u32) -> u64 {
        let times = random_reads(profile, in_flight, depth, 4096);
        times.iter().map(|t| t.as_micros()).sum::<u64>() / times.len() as u64
    }

    #[test]
    fn times_grow_with_the_requests_in_flight_and_an_order_of_its_own_shortens_them() {
        let fifo = {
            let mut p = sample();
            p.disk.as_mut().expect("a disk's").discipline = "fifo".into();
            p
        };
        // 5 to 9 ms to a place at random, and 32 us for 4 KiB.
        let alone = mean_us(&fifo, 1, 32);
        assert!((5000..9200).contains(&alone), "{alone}");
        let four = mean_us(&fifo, 4, 32);
        assert!(four.abs_diff(4 * alone) < alone / 4, "{four} {alone}");
        let chosen = mean_us(&sample(), 16, 16);
        assert!(chosen < mean_us(&fifo, 16, 16) * 9 / 10, "{chosen}");
        assert_eq!(mean_us(&sample(), 16, 1), mean_us(&fifo, 16, 1));
        assert_eq!(random_reads(&sample(), 0, 0, 10).len(), 10);
    }
}
