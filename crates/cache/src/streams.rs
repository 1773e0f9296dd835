//! Sequential streams: which reads go on where another ended, over several streams at once (NI-M20).
//!
//! The metric is the number of bytes that a stream has read in a row (the paper's M11, NI-A4).

/// Streams that are distinguished; the one that moved longest ago is forgotten for a new one.
const STREAMS: usize = 32;

#[derive(Clone, Copy)]
struct Stream {
    volume: u16,
    /// The offset of its next sequential read.
    next: u64,
    /// Bytes in a row.
    run: u64,
    /// Read ahead up to here.
    ahead: u64,
    moved: u64,
}

/// A read's effect on its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Bytes in a row, this read included.
    pub run: u64,
    /// Read ahead from here ...
    pub ahead_from: u64,
    /// ... to here; empty unless something should be.
    pub ahead_to: u64,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Streams {
    streams: Vec<Stream>,
    clock: u64,
}

impl Streams {
    /// A read of `len` bytes at `offset`. A stream of at least `sequential` bytes is read ahead by twice what it last asked
    /// for, at most `ahead_max`.
    pub fn read(&mut self, volume: u16, offset: u64, len: u64, sequential: u64, ahead_max: u64) -> Step {
        self.clock += 1;
        let found = self.streams.iter_mut().find(|s| s.volume == volume && s.next == offset);
        let s = match found {
            Some(s) => s,
            None => {
                if self.streams.len() == STREAMS {
                    let oldest = (0..STREAMS).min_by_key(|&i| self.streams[i].moved).expect("there are some");
                    self.streams.swap_remove(oldest);
                }
                self.streams.push(Stream { volume, next: offset, run: 0, ahead: 0, moved: 0 });
                self.streams.last_mut().expect("just pushed")
            }
        };
        (s.next, s.run, s.moved) = (offset + len, s.run + len, self.clock);
        let mut step = Step { run: s.run, ahead_from: 0, ahead_to: 0 };
        // Ahead again when half of what was read ahead is used.
        let window = (s.run / 2).min(ahead_max);
        if s.run >= sequential && s.ahead < s.next + window / 2 {
            (step.ahead_from, step.ahead_to) = (s.ahead.max(s.next), s.next + window);
            s.ahead = step.ahead_to;
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_told_apart_and_read_ahead_without_gaps() {
        let mut s = Streams::default();
        let mut ahead = Vec::new();
        for i in 0..64u64 {
            // Two streams, and something random between.
            for volume in [1, 2] {
                let step = s.read(volume, i * 8192, 8192, 64 << 10, 128 << 10);
                assert_eq!(step.run, (i + 1) * 8192);
                if volume == 1 && step.ahead_to > 0 {
                    ahead.push((step.ahead_from, step.ahead_to));
                }
            }
            assert_eq!(s.read(1, (1 << 40) | (i * 7_000_000), 4096, 64 << 10, 128 << 10).run, 4096);
        }
        assert!(ahead[0].0 == 64 << 10, "from where the stream became sequential");
        assert!(ahead.windows(2).all(|w| w[0].1 == w[1].0), "{ahead:?}");
        assert!(ahead.iter().all(|(from, to)| to - from <= 128 << 10));
        assert!(ahead.len() < 30, "not at every read: {}", ahead.len());
    }

    #[test]
    fn what_moved_longest_ago_is_forgotten() {
        let mut s = Streams::default();
        s.read(1, 0, 4096, 1 << 20, 0);
        for i in 0..STREAMS as u64 {
            s.read(2, i << 30, 4096, 1 << 20, 0);
        }
        assert_eq!(s.read(1, 4096, 4096, 1 << 20, 0).run, 4096);
    }
}
