//! GreedyDual-Size-Frequency (OT-M12, equation 5.4): the file with the least `clock + Freq · Cost / Size(f)` is evicted first.
//! The clock rises to the priority of the evicted file, so that unused files age.

use std::collections::{BTreeMap, BTreeSet};

/// Weight of a file's size: `Size(f) = |f|^exponent`; Cost is 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SizeExponent(pub f64);

struct Entry {
    priority: u64,
    hits: u64,
    bytes: u64,
}

/// A cache of whole files by number.
pub struct Gdsf {
    capacity_bytes: u64,
    file_bytes_max: u64,
    exponent: SizeExponent,
    clock: f64,
    used_bytes: u64,
    entries: BTreeMap<u32, Entry>,
    /// Priorities as the bits of positive doubles, which sort as the doubles do.
    order: BTreeSet<(u64, u32)>,
}

impl Gdsf {
    /// Empty. Files above `file_bytes_max` are never kept (OpTune §5.4.2 footnote 3: 2 MB).
    pub fn new(capacity_bytes: u64, file_bytes_max: u64, exponent: SizeExponent) -> Gdsf {
        Gdsf {
            capacity_bytes,
            file_bytes_max,
            exponent,
            clock: 0.0,
            used_bytes: 0,
            entries: BTreeMap::new(),
            order: BTreeSet::new(),
        }
    }

    /// Changes how sizes count, for priorities that are computed from now on: what is cached stays as it is until it is
    /// asked for (OT-A5: content carries over).
    pub fn set_exponent(&mut self, exponent: SizeExponent) {
        // The clock is in the old function's units: scaled to the new one's, old content is neither forgotten at once
        // nor kept for ever.
        let scale = |e: SizeExponent| 65_536f64.powf(-e.0);
        let factor = scale(exponent) / scale(self.exponent);
        self.clock *= factor;
        self.order.clear();
        for (&file, e) in &mut self.entries {
            e.priority = (f64::from_bits(e.priority) * factor).to_bits();
            self.order.insert((e.priority, file));
        }
        self.exponent = exponent;
    }

    fn priority(&self, hits: u64, bytes: u64) -> u64 {
        (self.clock + hits as f64 / (bytes.max(1) as f64).powf(self.exponent.0)).to_bits()
    }

    /// Looks a file up. Returns true if it is cached; its priority then rises.
    pub fn hit(&mut self, file: u32) -> bool {
        let Some(e) = self.entries.get(&file) else { return false };
        let priority = self.priority(e.hits + 1, e.bytes);
        let e = self.entries.get_mut(&file).expect("just seen");
        self.order.remove(&(e.priority, file));
        (e.priority, e.hits) = (priority, e.hits + 1);
        self.order.insert((priority, file));
        true
    }

    /// Puts a file in that was read, evicting what is worth least until there is room.
    pub fn insert(&mut self, file: u32, bytes: u64) {
        self.insert_evicting(file, bytes, &mut |_| {});
    }

    /// The same; `evicted` hears which files go. False if the file isn't kept, or was there.
    pub fn insert_evicting(&mut self, file: u32, bytes: u64, evicted: &mut dyn FnMut(u32)) -> bool {
        if bytes > self.file_bytes_max.min(self.capacity_bytes) || self.entries.contains_key(&file) {
            return false;
        }
        while self.used_bytes + bytes > self.capacity_bytes {
            let (priority, victim) = self.order.pop_first().expect("what is used is in the order");
            self.clock = self.clock.max(f64::from_bits(priority));
            self.used_bytes -= self.entries.remove(&victim).expect("as ordered").bytes;
            evicted(victim);
        }
        let priority = self.priority(1, bytes);
        self.used_bytes += bytes;
        self.entries.insert(file, Entry { priority, hits: 1, bytes });
        self.order.insert((priority, file));
        debug_assert_eq!(self.order.len(), self.entries.len());
        true
    }

    /// Files cached.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    #[test]
    fn large_files_go_first_or_not_by_the_exponent() {
        // One large file asked for three times, then small ones asked for once.
        let run = |exponent| {
            let mut c = Gdsf::new(1_000, 1_000, SizeExponent(exponent));
            c.insert(0, 600);
            assert!(c.hit(0) && c.hit(0));
            (1..=6).for_each(|f| c.insert(f, 100));
            c.hit(0)
        };
        assert!(!run(1.0), "three hits on 600 bytes are worth less than one on 100");
        assert!(run(0.1));
    }

    /// The same by the definition: a list, searched.
    #[test]
    fn it_does_what_the_definition_says() {
        let mut rng = Rng::new(5, "gdsf");
        let mut ours = Gdsf::new(5_000, 2_000, SizeExponent(0.5));
        let (mut clock, mut naive): (f64, Vec<(u32, u64, f64, u64)>) = (0.0, Vec::new());
        for _ in 0..5_000 {
            let file = rng.below(60) as u32;
            let bytes = 50 + u64::from(file) * 40;
            let worth = |clock: f64, hits: u64| clock + hits as f64 / (bytes as f64).sqrt();
            let cached = naive.iter_mut().find(|e| e.0 == file);
            assert_eq!(ours.hit(file), cached.is_some());
            if let Some(e) = cached {
                e.3 += 1;
                e.2 = worth(clock, e.3);
                continue;
            }
            ours.insert(file, bytes);
            if bytes > 2_000 {
                continue;
            }
            while naive.iter().map(|e| e.1).sum::<u64>() + bytes > 5_000 {
                let least = (0..naive.len())
                    .min_by(|&a, &b| naive[a].2.total_cmp(&naive[b].2).then(naive[a].0.cmp(&naive[b].0)));
                let gone = naive.swap_remove(least.unwrap());
                clock = clock.max(gone.2);
            }
            naive.push((file, bytes, worth(clock, 1), 1));
        }
        assert_eq!(ours.len(), naive.len());
    }

    #[test]
    fn what_is_cached_survives_a_change() {
        let mut c = Gdsf::new(1_000, 1_000, SizeExponent(1.0));
        (0..9).for_each(|f| c.insert(f, 100));
        c.set_exponent(SizeExponent(0.1));
        assert_eq!((c.len(), c.hit(0)), (9, true));
    }
}
