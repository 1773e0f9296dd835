//! Reading big-endian fields from a slice whose end may come at any time.

/// A read position in a slice. Every read answers `None`, and takes nothing, where too little is left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `count` bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Everything that is left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// Moves bytes from the front of `input` to `partial` until it holds `wanted`; true when it does.
///
/// Never reserves for bytes that did not arrive: a peer pays for memory by sending.
pub(crate) fn fill(partial: &mut Vec<u8>, input: &mut &[u8], wanted: usize) -> bool {
    assert!(partial.len() <= wanted, "{} bytes held where {wanted} were wanted", partial.len());
    let count = input.len().min(wanted - partial.len());
    let (taken, rest) = input.split_at(count);
    partial.extend_from_slice(taken);
    *input = rest;
    partial.len() == wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_big_endian_and_a_short_read_takes_nothing() {
        let mut cursor = Cursor::new(&[1, 2, 0, 0, 0, 3, 9]);
        assert_eq!(cursor.u16(), Some(0x0102));
        assert_eq!(cursor.u32(), Some(3));
        assert_eq!(cursor.u16(), None);
        assert_eq!(cursor.rest(), [9]);
        assert_eq!(cursor.bytes(2), None);
        assert_eq!(cursor.bytes(1), Some(&[9u8][..]));
        assert!(cursor.is_empty());
        assert_eq!(cursor.u64(), None);
    }

    #[test]
    fn fill_takes_only_what_is_wanted() {
        let mut partial = Vec::new();
        let mut input = &[1u8, 2][..];
        assert!(!fill(&mut partial, &mut input, 3));
        assert!(input.is_empty());
        input = &[3, 4, 5];
        assert!(fill(&mut partial, &mut input, 3));
        assert_eq!((partial.as_slice(), input), (&[1u8, 2, 3][..], &[4u8, 5][..]));
    }
}
