//! Reads that were refused to hosts which send them again.
//!
//! An NVMe host has no memory of refusals. It sends a refused read to another path, and may send the read here again at once,
//! merged with others or split. So a read is served, however late, if it overlaps one that was refused to the same host on the same
//! volume a short time ago: within [`MEMORY`] and the deadline of the refused read, as another path may have held it for as long before it
//! refused it, too. All reads of a host on a volume are served once the host has [`REFUSED_MAX`] refusals on it within [`MEMORY`], or
//! [`REMEMBERED_MAX`] in all. So are those of a host that isn't among the [`HOSTS_MAX`] remembered ones of its volume: a peer may claim many
//! names.

use super::nvme::HostId;
use plimsoll_base::{Span, Time, VolumeKey};
use std::collections::{BTreeMap, VecDeque};

/// Time for which a refusal is remembered, beside the read's deadline.
pub const MEMORY: Span = Span::from_millis(100);
/// Refusals within [`MEMORY`] from which on a host's reads of a volume are served.
pub const REFUSED_MAX: usize = 256;
/// Refusals in all from which on they are: each read is compared with them.
pub const REMEMBERED_MAX: usize = 4096;
/// Hosts of a volume whose refusals are remembered.
pub const HOSTS_MAX: usize = 256;
/// A host's place is kept for as long after its last refusal is forgotten, so that the next one needs no memory.
const PLACE_KEPT: Span = Span::from_secs(60);

struct Refused {
    at: Time,
    until: Time,
    start: u64,
    end: u64,
}

/// The rule by which a read is served, however late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spared {
    /// It was refused itself, this long ago.
    Again(Span),
    /// It overlaps a read in other bounds that was refused this long ago: its host merged or split that one, or it is another.
    Overlap(Span),
    /// Its host has [`REFUSED_MAX`] or [`REMEMBERED_MAX`] refusals on the volume.
    TooMany,
    /// Its host isn't among those whose refusals on the volume are remembered.
    Stranger,
}

/// Refusals to one host on one volume.
#[derive(Default)]
struct OfHost {
    /// In the order of time.
    refused: VecDeque<Refused>,
    /// The last of them is remembered for as long.
    until: Time,
}

impl OfHost {
    fn spares(&self, now: Time, (start, len): (u64, u64)) -> Option<Spared> {
        let (end, mut remembered) = (start + len, 0);
        for r in self.refused.iter().rev().filter(|r| r.until > now) {
            if r.start < end && start < r.end {
                let ago = now.since(r.at);
                let is_same = (r.start, r.end) == (start, end);
                return Some(if is_same { Spared::Again(ago) } else { Spared::Overlap(ago) });
            }
            remembered += 1;
        }
        let fresh = self.refused.len() - self.refused.partition_point(|r| r.at + MEMORY <= now);
        (fresh >= REFUSED_MAX || remembered >= REMEMBERED_MAX).then_some(Spared::TooMany)
    }
}

/// Refusals on one volume.
#[derive(Default)]
struct OfVolume {
    hosts: BTreeMap<HostId, OfHost>,
    /// With [`HOSTS_MAX`] hosts: the first of them is forgotten then.
    full_until: Time,
}

impl OfVolume {
    fn is_full(&self, now: Time) -> bool {
        self.hosts.len() >= HOSTS_MAX && now < self.full_until
    }

    fn forget(&mut self, now: Time, place_kept: Span) {
        self.hosts.retain(|_, host| {
            host.refused.retain(|r| r.until > now);
            !host.refused.is_empty() || now < host.until + place_kept
        });
    }
}

/// See the module's documentation.
#[derive(Default)]
pub struct Refusals {
    volumes: BTreeMap<VolumeKey, OfVolume>,
    forgot_at: Time,
}

impl Refusals {
    /// The rule by which a read must be served, however late, if there is one.
    pub fn spares(&self, now: Time, (host, volume): (HostId, VolumeKey), range: (u64, u64)) -> Option<Spared> {
        let of = self.volumes.get(&volume)?;
        match of.hosts.get(&host) {
            Some(host) => host.spares(now, range),
            None => of.is_full(now).then_some(Spared::Stranger),
        }
    }

    /// A read was refused that was to be done `within` this time, as it need not be served.
    pub fn note(&mut self, now: Time, (host, volume): (HostId, VolumeKey), (start, len): (u64, u64), within: Span) {
        if self.forgot_at + MEMORY <= now {
            // Of hosts that ask for nothing more, too.
            self.forgot_at = now;
            self.volumes.retain(|_, of| {
                of.forget(now, PLACE_KEPT);
                !of.hosts.is_empty()
            });
        }
        let of = self.volumes.entry(volume).or_default();
        if of.hosts.len() >= HOSTS_MAX && !of.hosts.contains_key(&host) {
            of.forget(now, Span::ZERO);
        }
        let own = of.hosts.entry(host).or_default();
        let until = now + MEMORY + within;
        own.until = own.until.max(until);
        own.refused.push_back(Refused { at: now, until, start, end: start + len });
        if of.hosts.len() >= HOSTS_MAX {
            of.full_until = of.hosts.values().map(|host| host.until).min().unwrap_or(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: (HostId, VolumeKey) = (HostId([1; 16]), VolumeKey { id: 1, generation: 0 });

    impl Refusals {
        fn must_serve(&self, now: Time, who: (HostId, VolumeKey), range: (u64, u64)) -> bool {
            self.spares(now, who, range).is_some()
        }
    }

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    #[test]
    fn a_read_that_overlaps_a_refused_one_is_served_for_a_while() {
        let mut all = Refusals::default();
        assert!(!all.must_serve(at(0), HOST, (0, 4096)));
        all.note(at(10), HOST, (4096, 4096), Span::ZERO);
        for (range, served) in [((0, 4096), false), ((0, 4097), true), ((8191, 1), true), ((8192, 512), false)] {
            assert_eq!(all.must_serve(at(109), HOST, range), served, "{range:?}");
        }
        assert!(!all.must_serve(at(110), HOST, (4096, 4096)), "forgotten");
        let others = [(HostId([2; 16]), HOST.1), (HOST.0, VolumeKey { id: 2, generation: 0 })];
        assert!(!others.iter().any(|who| all.must_serve(at(11), *who, (4096, 4096))));
    }

    #[test]
    fn the_rule_by_which_a_read_is_served_is_told() {
        let mut all = Refusals::default();
        all.note(at(0), HOST, (0, 8192), Span::from_secs(1));
        all.note(at(3), HOST, (65536, 4096), Span::ZERO);
        let ms = Span::from_millis;
        for (range, rule) in [
            ((65536, 4096), Some(Spared::Again(ms(2)))),
            ((0, 8192), Some(Spared::Again(ms(5)))),
            ((0, 4096), Some(Spared::Overlap(ms(5)))),
            ((4096, 65536), Some(Spared::Overlap(ms(2)))),
            ((16384, 4096), None),
        ] {
            assert_eq!(all.spares(at(5), HOST, range), rule, "{range:?}");
        }
        (0..REFUSED_MAX as u64).for_each(|n| all.note(at(5), HOST, ((1 << 20) + n * 512, 512), Span::ZERO));
        assert_eq!(all.spares(at(5), HOST, (16384, 4096)), Some(Spared::TooMany));
        let other = |n: u64| (HostId(u128::from(n + 100).to_be_bytes()), HOST.1);
        (1..HOSTS_MAX as u64).for_each(|n| all.note(at(5), other(n), (0, 512), Span::ZERO));
        assert_eq!(all.spares(at(5), other(5000), (0, 512)), Some(Spared::Stranger));
    }

    #[test]
    fn the_next_refusal_needs_no_memory() {
        let mut all = Refusals::default();
        let capacity =
            |all: &Refusals| all.volumes.get(&HOST.1).and_then(|v| v.hosts.get(&HOST.0)).map(|h| h.refused.capacity());
        (0..50).for_each(|n| all.note(at(n), HOST, (4096 * n, 4096), Span::ZERO));
        let had = capacity(&all);
        assert!(had >= Some(50));
        let other = (HostId([2; 16]), VolumeKey { id: 2, generation: 0 });
        all.note(at(30_000), other, (0, 4096), Span::ZERO);
        assert_eq!(capacity(&all), had, "its place is kept, though it has no refusals");
        assert!(!all.must_serve(at(30_000), HOST, (0, 4096)));
        all.note(at(90_000), other, (0, 4096), Span::ZERO);
        assert_eq!(capacity(&all), None, "a host that came no more is forgotten");
    }

    /// The other path may hold the read until its deadline, and refuse it then. Here it must not be refused a second time.
    #[test]
    fn a_refusal_is_remembered_for_the_deadline_of_its_read() {
        let mut all = Refusals::default();
        all.note(at(0), HOST, (0, 4096), Span::from_millis(300));
        all.note(at(10), HOST, (4096, 4096), Span::ZERO);
        assert!(all.must_serve(at(399), HOST, (0, 4096)) && !all.must_serve(at(110), HOST, (4096, 4096)));
        assert!(!all.must_serve(at(400), HOST, (0, 8192)));
    }

    /// A peer that claims many names has no more memory for it. Its hosts, and others, are served.
    #[test]
    fn hosts_beyond_those_remembered_are_served() {
        let mut all = Refusals::default();
        let host = |n: u64| (HostId(u128::from(n).to_be_bytes()), HOST.1);
        for n in 0..2 * HOSTS_MAX as u64 {
            let who = host(n);
            assert_eq!(all.must_serve(at(0), who, (0, 512)), n >= HOSTS_MAX as u64, "{n}");
            if n < HOSTS_MAX as u64 {
                all.note(at(0), who, (0, 512), Span::from_secs(60));
            }
        }
        assert!(all.must_serve(at(0), host(0), (0, 512)) && !all.must_serve(at(0), host(0), (512, 512)));
        // Another volume's hosts have their own room.
        let other = (host(5000).0, VolumeKey { id: 2, generation: 0 });
        assert!(!all.must_serve(at(0), other, (0, 512)));
        // Once they are forgotten there is room again.
        assert!(all.must_serve(at(60_099), host(5000), (0, 512)) && !all.must_serve(at(60_100), host(5000), (0, 512)));
        all.note(at(60_100), host(5000), (0, 512), Span::ZERO);
        assert_eq!(all.volumes[&HOST.1].hosts.len(), 1);
    }

    #[test]
    fn a_host_with_many_refusals_is_served_and_nothing_is_kept_of_old_ones() {
        let mut all = Refusals::default();
        for n in 0..REFUSED_MAX as u64 {
            assert!(!all.must_serve(at(50), HOST, (1 << 40, 512)), "{n} refusals");
            all.note(at(50), HOST, (n * 512, 512), Span::ZERO);
        }
        assert!(all.must_serve(at(50), HOST, (1 << 40, 512)), "full");
        assert!(!all.must_serve(at(150), HOST, (1 << 40, 512)));
        all.note(at(150), (HostId([2; 16]), HOST.1), (0, 512), Span::ZERO);
        assert!(all.volumes[&HOST.1].hosts[&HOST.0].refused.is_empty());
        // Deadlines are long: more are remembered than may be compared.
        let minute = Span::from_secs(60);
        let mut n = 0;
        while !all.must_serve(at(1000 + n), HOST, (1 << 40, 512)) {
            all.note(at(1000 + n), HOST, (n * 512, 512), minute);
            n += 1;
        }
        assert_eq!(n, REMEMBERED_MAX as u64);
        assert!(!all.must_serve(at(1000) + minute + minute, HOST, (0, 512)), "forgotten");
    }
}
