//! A plain extent cache to compare with: each extent by itself in a slot of its own, least recently used first out,
//! write-through. Neither deduplicated nor compressed, never packed: every insertion is a small write of the fast device. As
//! Nitro's, insertions are dropped while the device is behind with those before, so that reads don't wait for them.

use crate::nitro::EXTENT_BYTES;
use plimsoll_base::{Completion, Data, Io, IoHead, Op, Origin, OwnKind, TenantId, Time, VolumeKey};
use plimsoll_stack::{Actions, Layer, Offer, Port};
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet};

const SLOW: Port = 0;
const FAST: Port = 1;
/// Insertions under way at most: the depth of a drive's queue.
const FILLS_MAX: usize = 32;

struct Entry {
    slot: u64,
    /// Time of its use, in accesses.
    used: u64,
}

enum Pending {
    /// A client's request, at the fast device or the slow one; a miss fills.
    Client { head: IoHead, fills: bool },
    /// Nobody waits for it.
    Fill,
}

/// See the module's documentation.
pub struct ExtentCache {
    entries: BTreeMap<u64, Entry>,
    by_use: BTreeMap<u64, u64>,
    free: Vec<u64>,
    clock: u64,
    /// Read from the slow device, and not written since.
    filling: BTreeSet<u64>,
    pending: Slab<Pending>,
    fills: usize,
    reads: u64,
    hits: u64,
}

impl ExtentCache {
    /// Creates a cache over `cache_bytes` of a fast device.
    pub fn new(cache_bytes: u64) -> ExtentCache {
        ExtentCache {
            entries: BTreeMap::new(),
            by_use: BTreeMap::new(),
            free: (0..cache_bytes / EXTENT_BYTES).rev().collect(),
            clock: 0,
            filling: BTreeSet::new(),
            pending: Slab::new(),
            fills: 0,
            reads: 0,
            hits: 0,
        }
    }

    /// Reads, and those that were hits.
    pub fn counts(&self) -> (u64, u64) {
        (self.reads, self.hits)
    }

    fn touch(&mut self, extent: u64) -> Option<u64> {
        self.clock += 1;
        let e = self.entries.get_mut(&extent)?;
        self.by_use.remove(&e.used);
        e.used = self.clock;
        self.by_use.insert(self.clock, extent);
        Some(e.slot)
    }

    /// A slot for an extent that has none; the one used longest ago goes.
    fn make_room(&mut self, extent: u64) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            let (_, oldest) = self.by_use.pop_first().expect("a cache has slots");
            self.entries.remove(&oldest).expect("it's in the order").slot
        });
        self.clock += 1;
        self.entries.insert(extent, Entry { slot, used: self.clock });
        self.by_use.insert(self.clock, extent);
        slot
    }

    /// Puts an extent into its slot, unless the device is behind: then it isn't cached any more.
    fn fill(&mut self, now: Time, extent: u64, data: Data, out: &mut Actions) {
        if self.fills >= FILLS_MAX {
            if let Some(e) = self.entries.remove(&extent) {
                self.by_use.remove(&e.used);
                self.free.push(e.slot);
            }
            return;
        }
        self.fills += 1;
        let slot = self.touch(extent).unwrap_or_else(|| self.make_room(extent));
        let (offset, len) = (slot * EXTENT_BYTES, EXTENT_BYTES);
        let mut head = IoHead::new(Op::Write, VolumeKey::POOL, TenantId::default(), offset, len, now);
        (head.id, head.origin) = (out.new_id(), Origin::Own(OwnKind::Fill));
        head.tag = self.pending.insert(Pending::Fill) as u64;
        out.submit(FAST, Io::new(head, data));
    }
}

impl Layer for ExtentCache {
    fn name(&self) -> &'static str {
        "extent-cache"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[SLOW as usize]
    }

    fn submit(&mut self, now: Time, mut io: Io, out: &mut Actions) {
        let (extent, head) = (io.offset / EXTENT_BYTES, io.head);
        assert!(io.op == Op::Flush || io.len == EXTENT_BYTES, "one extent at a time");
        let (mut port, mut fills) = (SLOW, false);
        match io.op {
            Op::Read => {
                self.reads += 1;
                if let Some(slot) = self.touch(extent) {
                    self.hits += 1;
                    (port, io.head.volume, io.head.offset) = (FAST, VolumeKey::POOL, slot * EXTENT_BYTES);
                } else {
                    fills = true;
                    self.filling.insert(extent);
                }
            }
            Op::Write => {
                self.filling.remove(&extent);
                self.fill(now, extent, io.data.clone(), out);
            }
            _ => {}
        }
        io.head.tag = self.pending.insert(Pending::Client { head, fills }) as u64;
        out.submit(port, io);
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        let pending = self.pending.remove(c.io.tag as usize);
        if let Pending::Fill = pending {
            self.fills -= 1;
        }
        if let Pending::Client { head, fills } = pending {
            let extent = head.offset / EXTENT_BYTES;
            if fills && self.filling.remove(&extent) {
                self.fill(now, extent, c.io.data.clone(), out);
            }
            let data = std::mem::take(&mut c.io.data);
            c.io = Io::new(head, data);
            out.complete(c);
        }
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }
}
