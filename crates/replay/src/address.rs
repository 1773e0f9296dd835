//! Mapping of a trace's addresses to a modelled device.

/// Puts the addresses of a trace's devices onto one device, whole blocks each.
///
/// The trace's first device keeps its addresses; each further one is shifted by the golden ratio's share of the
/// capacity, so that several volumes lie apart without anybody knowing their sizes beforehand (they may overlap, which
/// timing doesn't mind). An address beyond the end wraps around; a request across the end is moved to end there.
#[derive(Clone, Debug)]
pub struct Placer {
    size_bytes: u64,
    block_bytes: u64,
    io_bytes_max: u64,
    wrapped: u64,
    cut: u64,
}

/// The golden ratio's fraction, in 1/2^32: multiples of it spread evenly whatever their number.
const GOLDEN: u64 = 2_654_435_769;
/// Volumes begin at multiples of this.
const VOLUME_ALIGN: u64 = 1 << 20;

impl Placer {
    /// For a device of `size_bytes` in blocks of `block_bytes` (a power of two) that takes `io_bytes_max` at once.
    ///
    /// # Panics
    /// If the device has no whole block.
    pub fn new(size_bytes: u64, block_bytes: u32, io_bytes_max: u64) -> Placer {
        let block_bytes = u64::from(block_bytes);
        assert!(size_bytes >= block_bytes && block_bytes.is_power_of_two(), "no block of {block_bytes} bytes fits");
        let io_bytes_max = io_bytes_max.min(size_bytes) & !(block_bytes - 1);
        Placer { size_bytes, block_bytes, io_bytes_max, wrapped: 0, cut: 0 }
    }

    /// Offset and length on the device of `len` bytes at `offset` of the trace's device number `device`.
    pub fn place(&mut self, device: u32, offset: u64, len: u64) -> (u64, u64) {
        let mask = self.block_bytes - 1;
        let start = offset & !mask;
        let mut len = (offset - start + len + mask) & !mask;
        if len > self.io_bytes_max {
            self.cut += 1;
            len = self.io_bytes_max;
        }
        self.wrapped += u64::from(start >= self.size_bytes);
        let mut at = start + self.shift(device);
        if at >= self.size_bytes {
            at = (at % self.size_bytes) & !mask;
        }
        (at.min(self.size_bytes - len), len)
    }

    fn shift(&self, device: u32) -> u64 {
        if device == 0 {
            return 0;
        }
        let share = u64::from(device).wrapping_mul(GOLDEN) & 0xffff_ffff;
        let at = ((u128::from(self.size_bytes) * u128::from(share)) >> 32) as u64;
        at & !(VOLUME_ALIGN - 1) & !(self.block_bytes - 1)
    }

    /// Requests whose address lay beyond the device.
    pub fn wrapped(&self) -> u64 {
        self.wrapped
    }

    /// Requests cut to the largest that the device takes.
    pub fn cut(&self) -> u64 {
        self.cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_inside_stay_and_outside_wrap() {
        let mut p = Placer::new(1 << 30, 512, 1 << 20);
        assert_eq!(p.place(0, 4096, 4096), (4096, 4096));
        assert_eq!(p.place(0, 4097, 100), (4096, 512));
        assert_eq!(p.place(0, 4000, 600), (3584, 1024));
        assert_eq!(p.wrapped(), 0);
        assert_eq!(p.place(0, (1 << 30) + 8192, 512), (8192, 512));
        assert_eq!(p.place(0, (1 << 30) - 512, 4096), ((1 << 30) - 4096, 4096));
        assert_eq!((p.wrapped(), p.cut()), (1, 0));
        assert_eq!(p.place(0, 0, 2 << 20).1, 1 << 20);
        assert_eq!(p.cut(), 1);
        assert_ne!(p.place(1, 0, 512).0, p.place(2, 0, 512).0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn whatever_a_trace_says_is_whole_blocks_on_the_device(
            device in any::<u32>(), offset in 0..i64::MAX as u64 / 2, len in 1..1u64 << 32, blocks in 1u64..1 << 40,
        ) {
            let mut p = Placer::new(blocks * 512, 512, 64 << 20);
            let (at, n) = p.place(device, offset, len);
            prop_assert!(at % 512 == 0 && n % 512 == 0 && n > 0 && at + n <= blocks * 512);
            prop_assert!(n >= len.min(64 << 20).min(blocks * 512 - 512) / 512 * 512);
        }
    }
}
