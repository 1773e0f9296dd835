//! Reference-counted, page-aligned buffers: written once, then immutable until the last holder lets go.

use memmap2::MmapMut;
use std::sync::Arc;

/// Alignment of every buffer, in bytes: what direct I/O needs on any device we know.
pub const BUF_ALIGN: usize = 4096;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; BUF_ALIGN]);

struct Block {
    memory: Memory,
    /// Its place among its pool's fixed blocks.
    fixed: Option<u16>,
}

enum Memory {
    Heap(Vec<Page>),
    /// A mapping of its own. It goes back to the system when the block is dropped, and takes no memory before it's written.
    Mapped(MmapMut),
}

/// Blocks of at least this size are mappings of their own. From the heap they would come aligned, and glibc's heap (2.36)
/// doesn't fill the holes that aligned blocks leave: a node's memory grew with each block that wasn't used again.
const MAPPED_BYTES_MIN: usize = 64 << 10;

impl Block {
    fn new(capacity: usize) -> Block {
        let capacity = capacity.next_multiple_of(BUF_ALIGN);
        let mapped = if capacity < MAPPED_BYTES_MIN { None } else { MmapMut::map_anon(capacity).ok() };
        let memory =
            mapped.map_or_else(|| Memory::Heap(vec![Page([0; BUF_ALIGN]); capacity / BUF_ALIGN]), Memory::Mapped);
        Block { memory, fixed: None }
    }
    fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(pages) => bytemuck::cast_slice(pages),
            Memory::Mapped(map) => map,
        }
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(pages) => bytemuck::cast_slice_mut(pages),
            Memory::Mapped(map) => map,
        }
    }
    fn capacity(&self) -> usize {
        self.bytes().len()
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

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True if it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the index of the pool's fixed block that holds the bytes; `None` if they are in no fixed block.
    pub fn fixed(&self) -> Option<u16> {
        self.block.fixed
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

    /// Returns the length of the view in bytes.
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

    /// Returns the index of the pool's fixed block that holds the bytes; `None` if they are in no fixed block.
    pub fn fixed(&self) -> Option<u16> {
        self.block.fixed
    }

    /// Bytes of memory that stay as long as this view does: those of the whole block that it is a part of.
    pub fn kept_bytes(&self) -> usize {
        self.block.capacity()
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
    /// Free ones of those made with [`BufPool::with_fixed`]: taken first.
    free_fixed: [Vec<Arc<Block>>; CLASSES],
}

const CLASSES: usize = 9;
const KEPT_BYTES_MAX: usize = 8 << 20;
/// Fixed blocks of each class: 5 MiB in all, which a user's limit on locked memory usually allows.
const FIXED: [u16; CLASSES] = [128, 32, 32, 32, 16, 8, 2, 1, 0];

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

    /// A pool with some blocks that exist as long as it does, each with a number, and where they are, by number: an
    /// engine may make them known to the kernel once instead of at each use. A buffer given to somebody who never gives it
    /// back is freed like any other, and its number never used again.
    pub fn with_fixed() -> (BufPool, Vec<(*const u8, usize)>) {
        let mut pool = BufPool::default();
        let mut places = Vec::new();
        for (class, &count) in FIXED.iter().enumerate() {
            for _ in 0..count {
                let block = Block { fixed: Some(places.len() as u16), ..Block::new(BUF_ALIGN << class) };
                places.push((block.bytes().as_ptr(), block.capacity()));
                pool.free_fixed[class].push(Arc::new(block));
            }
        }
        (pool, places)
    }

    /// A buffer of `len` bytes whose content is unspecified.
    pub fn take(&mut self, len: usize) -> BufMut {
        let len_u32 = u32::try_from(len).expect("buffer of at most 4 GiB");
        match class_of(len) {
            None => BufMut::zeroed(len),
            Some(c) => {
                let kept = self.free_fixed[c].pop().or_else(|| self.free[c].pop());
                let block = kept.unwrap_or_else(|| Arc::new(Block::new(BUF_ALIGN << c)));
                BufMut { block, len: len_u32 }
            }
        }
    }

    /// Gives a buffer back. It's kept only if nobody else holds its bytes and the class isn't full.
    pub fn give(&mut self, buf: Buf) {
        let mut block = buf.block;
        let Some(c) = class_of(block.capacity()) else { return };
        let whole_class = block.capacity() == BUF_ALIGN << c;
        let room = block.fixed.is_some() || self.free[c].len() < (KEPT_BYTES_MAX / (BUF_ALIGN << c));
        if whole_class && room && Arc::get_mut(&mut block).is_some() {
            let free = if block.fixed.is_some() { &mut self.free_fixed } else { &mut self.free };
            free[c].push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_any_size_are_aligned_and_zero() {
        for len in [0, 1, 4096, MAPPED_BYTES_MIN - 4096, MAPPED_BYTES_MIN - 4095, MAPPED_BYTES_MIN, (1 << 20) + 1] {
            let mut b = BufMut::zeroed(len);
            assert!((b.as_slice().as_ptr() as usize).is_multiple_of(BUF_ALIGN) && b.as_slice().iter().all(|x| *x == 0));
            b.as_mut_slice().fill(7);
            let (b, mut pool) = (b.freeze(), BufPool::new());
            assert_eq!((b.len(), b.slice(len / 2, len - len / 2).as_slice().iter().all(|x| *x == 7)), (len, true));
            pool.give(b);
            assert_eq!(pool.take(len).len(), len);
        }
    }

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
    fn fixed_blocks_are_taken_first_and_keep_their_numbers() {
        let (mut pool, places) = BufPool::with_fixed();
        assert_eq!(places.len(), FIXED.iter().map(|&n| usize::from(n)).sum::<usize>());
        let all: Vec<Buf> = (0..FIXED[0] + 2).map(|_| pool.take(4096).freeze()).collect();
        for (n, b) in all.iter().enumerate() {
            let place = b.fixed().map(|i| places[usize::from(i)]);
            assert_eq!(place.is_some(), n < usize::from(FIXED[0]), "the first {} are", FIXED[0]);
            assert!(place.is_none_or(|(at, len)| at == b.as_slice().as_ptr() && len == 4096));
        }
        all.into_iter().for_each(|b| pool.give(b));
        assert!(pool.take(100).fixed().is_some() && pool.take(2 << 20).fixed().is_none());
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
