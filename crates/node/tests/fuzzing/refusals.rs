//! Any sequence of late reads of NVMe hosts, and of refused ones that come back as they were, merged or split: none is refused twice while its
//! refusal is remembered, none is served without a rule, and what is remembered has a bound. Also called by `fuzz/`.

use plimsoll_base::{Span, Time, VolumeKey};
use plimsoll_node::engine::HostId;
use plimsoll_node::engine::refusals::{HOSTS_MAX, MEMORY, REFUSED_MAX, REMEMBERED_MAX, Refusals, Spared};
use std::collections::BTreeMap;

/// Reads of one input: each is compared with all that are remembered.
const READS_MAX: u64 = 1500;
const BLOCK: u64 = 512;

type Who = (HostId, VolumeKey);

#[derive(Clone, Copy)]
struct Refused {
    at: Time,
    until: Time,
    range: (u64, u64),
}

#[derive(Default)]
struct Scene {
    refusals: Refusals,
    now: Time,
    /// Each host's on each volume, in the order of time.
    refused: BTreeMap<Who, Vec<Refused>>,
    newest: Option<(Who, (u64, u64))>,
    reads: u64,
    names: u64,
    places: u64,
    /// Reads that were refused and that each rule spared.
    seen: [u64; 5],
}

/// Each four bytes are a step: its kind, its host, its place and the time before it.
pub fn fuzz_one(data: &[u8]) {
    run(data);
}

/// The same. Returns the number of reads that were refused, and that were spared by each rule.
pub fn run(data: &[u8]) -> [u64; 5] {
    let mut s = Scene::default();
    for step in data.as_chunks::<4>().0 {
        s.step(*step);
        if s.reads > READS_MAX {
            break;
        }
    }
    s.seen
}

impl Scene {
    fn step(&mut self, [kind, host, place, time]: [u8; 4]) {
        self.now += match time % 8 {
            0..=2 => Span::ZERO,
            3 => Span::from_micros(u64::from(time)),
            4 => Span::from_millis(7),
            5 => Span::from_millis(99),
            6 => MEMORY,
            _ => Span::from_secs(u64::from(time >> 3)),
        };
        let within =
            [Span::ZERO, Span::from_millis(20), Span::from_secs(1), Span::from_secs(60)][usize::from(kind >> 6)];
        let who = (HostId([host % 3; 16]), VolumeKey { id: u32::from(host / 3 % 2), generation: 0 });
        let place = u64::from(place);
        match (kind % 8, self.newest) {
            (2, Some((who, range))) => self.read(who, range, within),
            (3, Some((who, (start, len)))) => {
                let first = len / BLOCK / 2 * BLOCK;
                for half in [(start, first), (start + first, len - first)].into_iter().filter(|half| half.1 > 0) {
                    self.read(who, half, within);
                }
            }
            (4, Some((who, (start, len)))) => self.read(who, (start, len + (place + 1) * BLOCK), within),
            (5, Some(_)) => {
                let of = self.refused.get(&who).filter(|of| !of.is_empty());
                if let Some(older) = of.map(|of| of[place as usize % of.len()]) {
                    self.read(who, older.range, within);
                }
            }
            // Many places, of which none is another's.
            (6, _) => (0..place * 2).for_each(|_| {
                self.places += 1;
                self.read(who, ((1 << 40) + self.places * BLOCK, BLOCK), within);
            }),
            // Many names.
            (7, _) => (0..place * 2).for_each(|_| {
                self.names += 1;
                let mut name = [0xff; 16];
                name[..8].copy_from_slice(&self.names.to_le_bytes());
                self.read((HostId(name), who.1), (0, BLOCK), within);
            }),
            _ => self.read(who, (place * 4 * BLOCK, BLOCK * (1 + u64::from(host >> 4))), within),
        }
        let now = self.now;
        self.refused.retain(|_, of| {
            of.retain(|r| r.until > now);
            !of.is_empty()
        });
        self.check_bounds();
    }

    /// A late read.
    fn read(&mut self, who: Who, range: (u64, u64), within: Span) {
        self.reads += 1;
        let (now, (start, len)) = (self.now, range);
        let (mut remembered, mut fresh, mut newest) = (0, 0, None);
        for r in self.refused.get(&who).into_iter().flatten().filter(|r| r.until > now) {
            remembered += 1;
            fresh += usize::from(r.at + MEMORY > now);
            if r.range.0 < start + len && start < r.range.0 + r.range.1 {
                let ago = now.since(r.at);
                newest = Some(if r.range == range { Spared::Again(ago) } else { Spared::Overlap(ago) });
            }
        }
        let spared = self.refusals.spares(now, who, range);
        match spared {
            None => {
                assert!(newest.is_none(), "{range:?} is refused a second time: {newest:?}");
                assert!(fresh < REFUSED_MAX && remembered < REMEMBERED_MAX, "{fresh} and {remembered} are remembered");
                self.refusals.note(now, who, range, within);
                let refused = Refused { at: now, until: now + MEMORY + within, range };
                self.refused.entry(who).or_default().push(refused);
                self.newest = Some((who, range));
            }
            Some(Spared::Again(_) | Spared::Overlap(_)) => assert_eq!(spared, newest),
            Some(Spared::TooMany) => assert!(fresh >= REFUSED_MAX || remembered >= REMEMBERED_MAX),
            Some(Spared::Stranger) => {
                assert!(remembered == 0 && self.hosts(who.1) == HOSTS_MAX, "{remembered} are remembered");
            }
        }
        let rule = match spared {
            None => 0,
            Some(Spared::Again(_)) => 1,
            Some(Spared::Overlap(_)) => 2,
            Some(Spared::TooMany) => 3,
            Some(Spared::Stranger) => 4,
        };
        self.seen[rule] += 1;
    }

    /// Hosts of a volume whose refusals must be remembered.
    fn hosts(&self, volume: VolumeKey) -> usize {
        let of = self.refused.iter().filter(|((_, v), _)| *v == volume);
        of.filter(|(_, all)| all.iter().any(|r| r.until > self.now)).count()
    }

    fn check_bounds(&self) {
        for id in 0..2 {
            assert!(self.hosts(VolumeKey { id, generation: 0 }) <= HOSTS_MAX);
        }
    }
}

/// Each rule was met by one of these inputs.
pub fn meets_each_rule(inputs: &[Vec<u8>]) {
    let mut seen = [0; 5];
    inputs.iter().for_each(|data| seen.iter_mut().zip(run(data)).for_each(|(sum, n)| *sum += n));
    assert!(seen.iter().all(|n| *n > 0), "{seen:?}");
}
