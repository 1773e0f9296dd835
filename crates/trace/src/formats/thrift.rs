//! Check of a Parquet file's footer before it's decoded: each list that it announces must fit into it.
//!
//! The footer is in Thrift's compact protocol. The decoder passes over unknown parts by counting, and trusts a list's count: a
//! kilobyte can keep it busy for minutes. In an honest writer's file each element takes at least a byte.

/// Deeper than any Parquet footer.
const DEPTH_MAX: u32 = 32;

const BOOLS: [u8; 2] = [1, 2];

struct Walker<'a> {
    left: &'a [u8],
}

/// True if `footer` is a whole structure whose lists fit into it. Lists of booleans don't occur in footers. Decoders differ about
/// them, so such a list is taken for damage.
pub(crate) fn is_plausible(footer: &[u8]) -> bool {
    Walker { left: footer }.structure(0).is_some()
}

impl Walker<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.left.split_first()?;
        self.left = rest;
        Some(first)
    }

    fn pass(&mut self, bytes: u64) -> Option<()> {
        self.left = self.left.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let b = self.byte()?;
            value |= u64::from(b & 0x7f) << shift;
            if b < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn structure(&mut self, depth: u32) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        loop {
            let header = self.byte()?;
            if header == 0 {
                return Some(());
            }
            if header >> 4 == 0 {
                self.varint()?; // the field's number in full
            }
            // A truth value is in its own header.
            if !BOOLS.contains(&(header & 15)) {
                self.value(header & 15, depth)?;
            }
        }
    }

    fn value(&mut self, kind: u8, depth: u32) -> Option<()> {
        match kind {
            3 => self.pass(1),
            4..=6 => self.varint().map(|_| ()),
            7 => self.pass(8),
            8 => self.varint().and_then(|n| self.pass(n)),
            9 | 10 => self.list(depth),
            12 => self.structure(depth + 1),
            _ => None, // maps don't occur
        }
    }

    fn list(&mut self, depth: u32) -> Option<()> {
        let header = self.byte()?;
        let (kind, short) = (header & 15, u64::from(header >> 4));
        let count = if short == 15 { self.varint()? } else { short };
        if depth > DEPTH_MAX || BOOLS.contains(&kind) || count > self.left.len() as u64 {
            return None;
        }
        (0..count).try_for_each(|_| self.value(kind, depth + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_takes_at_least_a_byte_an_element() {
        // Field 1: a list of three i32, then the end.
        assert!(is_plausible(&[0x19, 0x35, 2, 4, 6, 0]));
        // The same said to be of 300 million, of truth values, cut short, without an end, deeper than anything.
        assert!(!is_plausible(&[0x19, 0xf5, 0x80, 0x87, 0xa7, 0x8f, 1, 2, 4, 6, 0]));
        assert!(!is_plausible(&[0x19, 0x31, 1, 1, 1, 0]));
        assert!(!is_plausible(&[0x19, 0x35, 2, 4]));
        assert!(!is_plausible(&[0x15, 2]));
        assert!(!is_plausible(&[0x1c; 1000]));
        assert!(is_plausible(&[0x11, 0x18, 3, b'a', b'b', b'c', 0]));
    }
}
