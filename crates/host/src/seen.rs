//! Pages that this process has read: only these can have been evicted (MittOS §4.4: no Busy at a first access).
//!
//! Two sets of hashed bits, of which the older is emptied when the newer is half full. A page that was never read is taken for one that was
//! with a probability of a few percent at most; one that was read is remembered for at least 400,000 others. Without memory for the sets no
//! page was ever read.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Bits of a set: 512 KiB of memory.
const BITS: usize = 1 << 22;
/// Two bits a page: a set is full when this number of pages is in it.
const PAGES: u32 = 400_000;

/// Words of zero; none if there is no memory for them: a program that preloads the library must not end by that.
pub(crate) fn table(words: usize) -> Box<[AtomicU64]> {
    let mut table = Vec::new();
    if table.try_reserve_exact(words).is_ok() {
        table.resize_with(words, || AtomicU64::new(0));
    }
    table.into_boxed_slice()
}

struct Set {
    words: Box<[AtomicU64]>,
    pages: AtomicU32,
}

impl Set {
    fn new() -> Set {
        Set { words: table(BITS / 64), pages: AtomicU32::new(0) }
    }

    fn bits(key: u64) -> [(usize, u64); 2] {
        let mut x = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= x >> 32;
        x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
        x ^= x >> 29;
        [x, x >> 32].map(|h| ((h as usize % BITS) / 64, 1 << (h % 64)))
    }

    fn has(&self, key: u64) -> bool {
        let is_set = |word: usize, bit| self.words.get(word).is_some_and(|w| w.load(Relaxed) & bit != 0);
        Set::bits(key).into_iter().all(|(word, bit)| is_set(word, bit))
    }

    fn put(&self, key: u64) {
        for (word, bit) in Set::bits(key) {
            if let Some(w) = self.words.get(word) {
                w.fetch_or(bit, Relaxed);
            }
        }
        self.pages.fetch_add(1, Relaxed);
    }
}

/// Pages that were read.
pub struct Seen {
    sets: [Set; 2],
    newer: AtomicUsize,
}

/// The owner of pages: a file, or an address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Of(u64);

impl Of {
    /// A file.
    pub fn file(dev: u64, inode: u64) -> Of {
        Of(dev.rotate_left(40) ^ inode.wrapping_mul(0xff51_afd7_ed55_8ccd))
    }

    /// This process's addresses in this minute: a mapping at an address may be replaced.
    pub fn addresses(now_ns: u64) -> Of {
        Of((now_ns / 60_000_000_000).wrapping_mul(0x94d0_49bb_1331_11eb))
    }

    /// A hash of a page: its low bits and its high bits are independent.
    pub fn hash(self, page: u64) -> u64 {
        let x = self.key(page).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^ x >> 32
    }

    fn key(self, page: u64) -> u64 {
        self.0.wrapping_add(page.wrapping_mul(0xc2b2_ae3d_27d4_eb4f))
    }
}

impl Default for Seen {
    fn default() -> Seen {
        Seen { sets: [Set::new(), Set::new()], newer: AtomicUsize::new(0) }
    }
}

impl Seen {
    /// Remembers pages.
    pub fn mark(&self, of: Of, pages: std::ops::Range<u64>) {
        for page in pages {
            let newer = self.newer.load(Relaxed);
            let set = &self.sets[newer];
            let key = of.key(page);
            if set.has(key) {
                continue;
            }
            set.put(key);
            if set.pages.load(Relaxed) >= PAGES
                && self.newer.compare_exchange(newer, 1 - newer, Relaxed, Relaxed).is_ok()
            {
                let older = &self.sets[1 - newer];
                older.pages.store(0, Relaxed);
                older.words.iter().for_each(|w| w.store(0, Relaxed));
            }
        }
    }

    /// True if all of these pages were read.
    pub fn has(&self, of: Of, mut pages: std::ops::Range<u64>) -> bool {
        pages.all(|page| self.sets.iter().any(|set| set.has(of.key(page))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_is_remembered_and_little_else() {
        let seen = Seen::default();
        let (a, b) = (Of::file(1, 2), Of::file(1, 3));
        seen.mark(a, 0..100_000);
        assert!(seen.has(a, 0..100_000));
        let wrong = (0..100_000).filter(|p| seen.has(b, *p..*p + 1)).count();
        assert!(wrong < 1000, "{wrong} of another file");
        seen.mark(b, 0..500_000);
        assert!(seen.has(a, 0..100_000), "the older set is kept");
        seen.mark(b, 500_000..1_300_000);
        assert!(!seen.has(a, 0..100), "it has been emptied");
    }

    #[test]
    fn without_memory_nothing_was_read() {
        assert!(table(usize::MAX / 16).is_empty(), "more than there is");
        let none = || Set { words: Box::default(), pages: AtomicU32::new(0) };
        let seen = Seen { sets: [none(), none()], newer: AtomicUsize::new(0) };
        seen.mark(Of::file(1, 2), 0..1_000_000);
        assert!(!seen.has(Of::file(1, 2), 0..1));
    }
}
