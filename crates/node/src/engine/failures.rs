//! Reads of copies that failed, and the copies' volumes: their hosts have another path.
//!
//! A failed read of a copy ends with a status of the path, so that its host asks another node. Two things follow:
//!
//! * The copy's path isn't preferred for [`PREFERS_OTHERS`] after the last failure: its ANA state is non-optimized.
//! * A read that comes back has failed on the other paths, too, or they refused it. Then it has failed: without an end the host would
//!   send it round for ever.
//!
//! A read has come back if it overlaps one that failed here for the same host, and arrived between [`HEARD`] and [`ROUND_TRIP`] later.
//! Before [`HEARD`] the host may not know the ANA state yet. Linux drops a failed read-ahead, and sends the application's read here at
//! once. [`ROUND_TRIP`] is longer where the failure took long: the other paths may take as long.

use super::nvme::HostId;
use crate::replica::Replica;
use plimsoll_base::{Span, Time, VolumeKey};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Time within which a host knows that the path isn't preferred any more.
const HEARD: Span = Span::from_millis(500);
/// Time within which a read comes back, beside the time that it takes on other paths.
const ROUND_TRIP: Span = Span::from_secs(2);
/// Paths of a host to the same data, at most: `path` of a subsystem has no larger number.
const PATHS_MAX: u16 = 16;
/// Time for which a host is to prefer other paths, at least. It is never shorter than the time for which a read may come back.
const PREFERS_OTHERS: Span = Span::from_secs(120);
/// Failures of one host on one volume that are remembered. The oldest makes room.
const FAILED_MAX: usize = 1024;
/// Hosts, each on one volume, whose failures are remembered: a peer may claim many names. The one whose last failure is the oldest
/// makes room.
const HOSTS_MAX: usize = 1024;

struct Failed {
    at: Time,
    /// A read that arrives later has not come back.
    until: Time,
    start: u64,
    end: u64,
}

impl Failed {
    fn overlaps(&self, (start, len): (u64, u64)) -> bool {
        self.start < start + len && start < self.end
    }
}

/// See the module's documentation.
#[derive(Default)]
pub struct Failures {
    /// By host and volume, in the order of time.
    by_host: BTreeMap<(HostId, VolumeKey), VecDeque<Failed>>,
    /// Copies whose path isn't preferred, each until a time.
    copies: BTreeMap<VolumeKey, (Time, Arc<Replica>)>,
}

impl Failures {
    /// A read of a copy has failed at `now`. True if that is its end: it had come back. False if its host may ask another path.
    pub fn failed(
        &mut self,
        now: Time,
        (host, volume): (HostId, VolumeKey),
        range: (u64, u64),
        arrived_at: Time,
        copy: &Arc<Replica>,
    ) -> bool {
        let round_trip = ROUND_TRIP + now.since(arrived_at) * u64::from(PATHS_MAX);
        self.avoid(volume, now + PREFERS_OTHERS.max(round_trip), copy);
        let all = self.by_host.entry((host, volume)).or_default();
        while all.front().is_some_and(|f| f.until < arrived_at) {
            all.pop_front();
        }
        let mut overlapping = all.iter().filter(|f| f.overlaps(range) && arrived_at <= f.until).peekable();
        let is_known = overlapping.peek().is_some();
        if overlapping.any(|f| f.at + HEARD <= arrived_at) {
            return true;
        }
        // One that is sent again at once is known by the first.
        if !is_known {
            if all.len() == FAILED_MAX {
                all.pop_front();
            }
            all.push_back(Failed { at: now, until: now + round_trip, start: range.0, end: range.0 + range.1 });
        }
        self.make_room(now);
        false
    }

    fn avoid(&mut self, volume: VolumeKey, until: Time, copy: &Arc<Replica>) {
        let (latest, _) = self.copies.entry(volume).or_insert_with(|| (until, copy.clone()));
        *latest = until.max(*latest);
        // Before the host is answered: it then reads the ANA log page.
        copy.set_failing(true);
    }

    fn make_room(&mut self, now: Time) {
        let newest = |failed: &VecDeque<Failed>| failed.back().map(|f| f.at);
        if self.by_host.len() <= HOSTS_MAX {
            return;
        }
        self.by_host.retain(|_, failed| failed.back().is_some_and(|f| now <= f.until));
        if self.by_host.len() > HOSTS_MAX
            && let Some(oldest) = self.by_host.iter().min_by_key(|(_, failed)| newest(failed)).map(|(who, _)| *who)
        {
            self.by_host.remove(&oldest);
        }
    }

    /// The time at which [`Failures::end_old`] is due.
    pub fn next_due(&self) -> Time {
        self.copies.values().map(|(until, _)| *until).min().unwrap_or(Time::NEVER)
    }

    /// Copies that have failed no read for long enough may be preferred again. Failures on them are forgotten.
    pub fn end_old(&mut self, now: Time) {
        if self.copies.is_empty() {
            return;
        }
        let by_host = &mut self.by_host;
        self.copies.retain(|volume, (until, copy)| {
            let goes_on = now < *until;
            if !goes_on {
                copy.set_failing(false);
                by_host.retain(|(_, of), _| of != volume);
            }
            goes_on
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: (HostId, VolumeKey) = (HostId([1; 16]), VolumeKey { id: 1, generation: 0 });

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn copy() -> Arc<Replica> {
        Replica::new(1 << 20, Default::default(), None)
    }

    #[test]
    fn a_read_has_failed_if_it_comes_back_in_time() {
        // Milliseconds from the first failure to the arrival.
        for (ms, is_last) in [(0, false), (499, false), (500, true), (2000, true), (2001, false), (130_000, false)] {
            let (mut all, copy) = (Failures::default(), copy());
            assert!(!all.failed(at(10), HOST, (4096, 4096), at(10), &copy), "the first time");
            let (again, others) =
                (at(10 + ms), [(HostId([2; 16]), HOST.1), (HOST.0, VolumeKey { id: 2, generation: 0 })]);
            for range in [(0, 4096), (8192, 512)] {
                assert!(!all.failed(again, HOST, range, again, &copy), "beside it");
            }
            assert!(!others.iter().any(|who| all.failed(again, *who, (4096, 4096), again, &copy)));
            assert_eq!(all.failed(again, HOST, (4097, 1), again, &copy), is_last, "after {ms} ms");
        }
    }

    #[test]
    fn a_read_that_is_sent_round_at_once_comes_to_an_end() {
        let (mut all, copy) = (Failures::default(), copy());
        let rounds = (0..).find(|n| all.failed(at(*n), HOST, (0, 4096), at(*n), &copy));
        assert_eq!(rounds, Some(500));
        assert_eq!(all.by_host[&HOST].len(), 1);
    }

    /// Disks try for half a minute, the other path's, too.
    #[test]
    fn slow_failures_come_back_later() {
        let (mut all, copy) = (Failures::default(), copy());
        assert!(!all.failed(at(30_000), HOST, (0, 4096), at(0), &copy));
        let other_paths = u64::from(PATHS_MAX) - 1;
        let back = at(30_000 + other_paths * 30_000);
        assert!(all.failed(back + Span::from_secs(30), HOST, (0, 4096), back, &copy));
        assert!(all.next_due() > back, "the path is not preferred before");
    }

    #[test]
    fn a_copys_path_is_not_preferred_until_two_minutes_after_the_last_failure() {
        let (mut all, copy) = (Failures::default(), copy());
        assert_eq!(all.next_due(), Time::NEVER);
        all.failed(at(10), HOST, (0, 4096), at(10), &copy);
        all.failed(at(1010), HOST, (8192, 4096), at(1010), &copy);
        assert_eq!(all.next_due(), at(121_010));
        all.end_old(at(121_009));
        assert!(copy.is_failing());
        all.end_old(at(121_010));
        assert!(!copy.is_failing() && all.by_host.is_empty());
        assert_eq!(all.next_due(), Time::NEVER);
    }

    /// However many reads fail, none is the last before another path can have been asked.
    #[test]
    fn what_is_remembered_has_a_bound_and_the_oldest_makes_room() {
        let (mut all, copy) = (Failures::default(), copy());
        for n in 0..3 * FAILED_MAX as u64 {
            assert!(!all.failed(at(10), HOST, (n * 512, 512), at(10), &copy), "read {n}");
        }
        assert_eq!(all.by_host[&HOST].len(), FAILED_MAX);
        let mut comes_back = |n: u64| all.failed(at(1000), HOST, (n * 512, 512), at(1000), &copy);
        let last = 3 * FAILED_MAX as u64 - 1;
        assert!(comes_back(last) && !comes_back(0));
        for n in 0..2000u64 {
            let host = HostId((u128::from(n) << 64 | 7).to_le_bytes());
            assert!(!all.failed(at(1000 + n / 100), (host, HOST.1), (0, 512), at(1000 + n / 100), &copy));
        }
        assert_eq!(all.by_host.len(), HOSTS_MAX);
    }
}
