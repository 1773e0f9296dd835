//! Reference-counted, page-aligned buffers: written once, then immutable until the last holder lets go.

use std::sync::Arc;

/// Alignment of every buffer, in bytes: what direct I/O needs on any device we know.
pub const BUF_ALIGN: usize = 4096;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; BUF_ALIGN]);

struct Block {
    pages: Vec<Page>,
}

impl Block {
    fn new(capacity: usize) -> Block {
        Block { pages: vec![Page([0; BUF_ALIGN]); capacity.div_ceil(BUF_ALIGN)] }
    }
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.pages)
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.pages)
    }
    fn capacity(&self) -> usize {
        self.pages.len() * BUF_ALIGN
    }
}

/// An immutable view of some bytes. Cloning and slicing share the bytes; no copy is made.
#[derive(Clone)]
pub struct Buf {
    block: Arc<Block>,
    start: u32,
    len: u32,
}

/// Bytes that one holder may still write. [`BufMut::freeze`] ends that.
pub struct BufMut {
    block: Arc<Block>,
    len: u32,
}

impl BufMut {
    /// `len` zero bytes, newly allocated, aligned to [`BUF_ALIGN`].
    ///
    /// # Panics
    /// If `len` exceeds `u32::MAX`.
    pub fn zeroed(len: usize) -> BufMut {
        BufMut { block: Arc::new(Block::new(len)), len: u32::try_from(len).expect("buffer of at most 4 GiB") }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.block.bytes()[..self.len as usize]
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let len = self.len as usize;
        &mut Arc::get_mut(&mut self.block).expect("a BufMut is the only holder of its block").bytes_mut()[..len]
    }

    /// How many bytes it holds.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True if it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Ends writing; from here on the bytes are shared and immutable.
    pub fn freeze(self) -> Buf {
        Buf { block: self.block, start: 0, len: self.len }
    }
}

impl Buf {
    /// A copy of `bytes` in a new aligned buffer.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        let mut b = BufMut::zeroed(bytes.len());
        b.as_mut_slice().copy_from_slice(bytes);
        b.freeze()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.block.bytes()[self.start as usize..(self.start + self.len) as usize]
    }

    /// How many bytes it shows.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True if it shows none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part `start..start + len` of this view, sharing its bytes.
    ///
    /// # Panics
    /// If the part isn't inside.
    pub fn slice(&self, start: usize, len: usize) -> Buf {
        assert!(start + len <= self.len(), "slice {start}+{len} of a buffer of {}", self.len());
        Buf { block: self.block.clone(), start: self.start + start as u32, len: len as u32 }
    }

    /// True if the first byte is aligned to [`BUF_ALIGN`] in memory.
    pub fn is_aligned(&self) -> bool {
        (self.start as usize).is_multiple_of(BUF_ALIGN)
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}
impl std::fmt::Debug for BufMut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BufMut({} bytes)", self.len)
    }
}
impl PartialEq for Buf {
    fn eq(&self, other: &Buf) -> bool {
        self.as_slice() == other.as_slice()
    }
}

/// Recycles blocks so that the hot path doesn't allocate. Sizes are powers of two from 4 KiB to 1 MiB; larger buffers
/// are allocated and freed each time.
///
/// A recycled buffer keeps its old bytes: whoever takes one writes all of it, or someone else's data would show.
#[derive(Default)]
pub struct BufPool {
    free: [Vec<Arc<Block>>; CLASSES],
}

const CLASSES: usize = 9;
const KEPT_BYTES_MAX: usize = 8 << 20;

fn class_of(len: usize) -> Option<usize> {
    let pages = len.div_ceil(BUF_ALIGN).max(1);
    let class = pages.next_power_of_two().trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

impl BufPool {
    /// An empty pool.
    pub fn new() -> BufPool {
        BufPool::default()
    }

    /// A buffer of `len` bytes whose content is unspecified.
    pub fn take(&mut self, len: usize) -> BufMut {
        let len_u32 = u32::try_from(len).expect("buffer of at most 4 GiB");
        match class_of(len) {
            None => BufMut::zeroed(len),
            Some(c) => {
                let block = self.free[c].pop().unwrap_or_else(|| Arc::new(Block::new(BUF_ALIGN << c)));
                BufMut { block, len: len_u32 }
            }
        }
    }

    /// Gives a buffer back. It's kept only if nobody else holds its bytes and the class isn't full.
    pub fn give(&mut self, buf: Buf) {
        let mut block = buf.block;
        let Some(c) = class_of(block.capacity()) else { return };
        let whole_class = block.capacity() == BUF_ALIGN << c;
        let room = self.free[c].len() < (KEPT_BYTES_MAX / (BUF_ALIGN << c));
        if whole_class && room && Arc::get_mut(&mut block).is_some() {
            self.free[c].push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_share_and_are_aligned() {
        let mut b = BufMut::zeroed(10_000);
        b.as_mut_slice()[4096] = 7;
        let b = b.freeze();
        assert!((b.as_slice().as_ptr() as usize).is_multiple_of(BUF_ALIGN));
        let s = b.slice(4096, 10);
        assert_eq!((s.as_slice()[0], s.is_aligned(), s.slice(1, 3).len()), (7, true, 3));
        assert!(!s.slice(1, 3).is_aligned());
    }

    #[test]
    fn the_pool_recycles_only_what_nobody_holds() {
        let mut pool = BufPool::new();
        let b = pool.take(5000).freeze();
        let first = b.as_slice().as_ptr();
        let held = b.clone();
        pool.give(b);
        assert_ne!(pool.take(5000).as_slice().as_ptr(), first, "a held block must not be reused");
        pool.give(held);
        assert_eq!(pool.take(8192).as_slice().as_ptr(), first);
    }
}
