//! Changes: through to the slow device, or into the cache.
//!
//! An extent goes *through* if its volume is write-through. Its cached copy is made invalid for every later start before the slow device
//! can have anything newer.
//!
//! An extent is changed *in the cache* by a write of a write-back volume, and by any change if the extent is dirty or being written
//! back. The latter also happens in a volume that was write-back until now.

use crate::config::{Mode, Planted};
use crate::fetch::Purpose;
use crate::index::Key;
use crate::request::{ClientOp, Pending};
use crate::serve::{Cache, SLOW};
use crate::state::State;
use plimsoll_base::{BufMut, Data, Io, IoError, IoFlags, IoHead, Op, Outcome, Priority, TenantId, Time};
use plimsoll_stack::Actions;

impl Cache {
    pub(crate) fn change(&mut self, now: Time, io: Io, out: &mut Actions) {
        let Some((slot, size, mode)) = self.volume_of(&io.head) else { return self.pass(io, out) };
        if io.len == 0 {
            return self.pass(io, out);
        }
        let (e, head) = (self.extent_bytes(), io.head);
        let extents = || (head.offset / e..head.end().div_ceil(e)).map(|n| Key::new(slot, n));
        if let State::Bypassed(b) = &mut self.state {
            return match b.is_recorded() {
                false if self.stopping || b.refuses_changes() => out.end(io, Outcome::Failed(IoError::Device)),
                false => b.wait(io),
                true if extents().any(|k| self.dirty.is_at_risk(&k)) => out.end(io, Outcome::Failed(IoError::Device)),
                // It was given up: what write-back had sent of it before must not come after what is written now.
                true if !Planted::OvertakeWriteBack.is_in(self.config.planted)
                    && extents().any(|k| self.destaging.contains(&k)) =>
                {
                    b.wait_for_write_back(io);
                }
                true => self.pass(io, out),
            };
        }
        // Where there are more volumes than parts, some have none: theirs go through. So do all while write-back makes no room.
        let part = self.volumes[slot as usize].partition;
        let has_part = self.residency.use_of(part).1 > 0 && !self.is_known_full(part);
        let cached = |c: &Cache, k: Key| {
            let whole = (k.extent() + 1) * e <= size;
            let only_here = c.dirty.contains(&k) || c.destaging.contains(&k) || c.gate.is_closed(&k);
            // One that ends beyond the volume is there if the volume was larger: a restore of older metadata made it smaller.
            only_here || (whole && mode == Mode::Back && head.op == Op::Write && has_part)
        };
        let busy = |c: &Cache, k: Key| cached(c, k) && c.gate.is_busy(&k);
        if let Some(k) = extents().find(|k| busy(self, *k)) {
            return self.gate.wait(k, io);
        }
        let mut through: Vec<(u64, u64)> = Vec::new();
        let mut touched: Vec<(Key, bool)> = Vec::new();
        let mut locked: Vec<Key> = Vec::new();
        let mut needs = 0;
        for key in extents() {
            if !self.planted(Planted::AheadKept) {
                self.ahead.remove(key);
            }
            self.recipes.changed(key);
            self.counters.extents_written += 1;
            if cached(self, key) {
                self.gate.close(key);
                locked.push(key);
                continue;
            }
            self.gate.pass(key);
            let was_cached = self.drop_clean(key);
            needs = needs.max(self.durability.precedes(&key));
            touched.push((key, was_cached));
            let (from, to) = (head.offset.max(key.extent() * e), head.end().min((key.extent() + 1) * e));
            match through.last_mut() {
                Some((_, end)) if *end == from => *end = to,
                _ => through.push((from, to)),
            }
        }
        let flush_after = !locked.is_empty() && head.flags.has(IoFlags::FUA);
        let has_through = !through.is_empty();
        let (keys, data) = (locked.clone(), io.into_data());
        let op = self.ops.insert(ClientOp {
            head,
            data,
            outstanding: 1 + keys.len() as u32 + u32::from(has_through),
            failed: None,
            busy: None,
            dispatched_at: Time::NEVER,
            pieces: Vec::new(),
            hit: false,
            through,
            touched,
            locked,
            flush_after,
            fills: true,
        });
        if has_through {
            match self.durability.has_record(needs) || self.planted(Planted::NoBarrier) {
                true => self.send_through(now, op, out),
                false => self.durability.hold(needs, op),
            }
        }
        for key in keys {
            self.change_cached(now, op, key, out);
        }
        self.part_done(now, op, out);
    }

    /// Sends a write-through change to the slow device. No start trusts older cached copies from now on.
    pub(crate) fn send_through(&mut self, _now: Time, op: usize, out: &mut Actions) {
        let o = &mut self.ops[op];
        let ranges = o.through.clone();
        o.outstanding += ranges.len() as u32 - 1;
        for range in ranges {
            self.send_range(op, range, out);
        }
    }

    /// Sends a range of a change to the slow device: one of its outstanding parts.
    pub(crate) fn send_range(&mut self, op: usize, (from, to): (u64, u64), out: &mut Actions) {
        let head = self.ops[op].head;
        let mut part = head;
        let whole = (from, to) == (head.offset, head.end());
        if !whole {
            part = out.piece(&head, head.op, from, to - from, 0).head;
        }
        part.tag = self.pending.insert(Pending::Through { op }) as u64;
        let data = match head.op {
            Op::Write => self.ops[op].data.part(head.len, from - head.offset, to - from),
            _ => Data::Absent,
        };
        out.submit(SLOW, Io::new(part, data));
    }

    /// The content that a change brings to `from..from + len` of the volume.
    fn brought(&self, op: usize, from: u64, len: u64) -> Data {
        let o = &self.ops[op];
        match o.head.op {
            Op::Write => o.data.part(o.head.len, from - o.head.offset, len),
            _ => Data::Zeroes,
        }
    }

    /// The part of `key` that a change covers: its offset in the volume, and its length.
    pub(crate) fn covered(&self, head: &IoHead, key: Key) -> (u64, u64) {
        let e = self.extent_bytes();
        let (from, to) = (head.offset.max(key.extent() * e), head.end().min((key.extent() + 1) * e));
        (from, to - from)
    }

    fn change_cached(&mut self, now: Time, op: usize, key: Key, out: &mut Actions) {
        let head = self.ops[op].head;
        let (from, len) = self.covered(&head, key);
        if len == self.extent_bytes() {
            let data = self.brought(op, from, len);
            return self.insert_dirty(now, op, key, data, out);
        }
        let fetch = self.whole_fetch(key, Purpose::Rest { op }, head.tenant, head.priority);
        self.counters.fetched_for_writes += u64::from(fetch.loc.is_none());
        self.fetch(now, fetch, out);
    }

    /// The rest of an extent that is written in part is here.
    pub(crate) fn rest_fetched(&mut self, now: Time, op: usize, key: Key, rest: Option<Data>, out: &mut Actions) {
        let Some(rest) = rest else {
            self.ops[op].failed = Some(IoError::Device);
            return self.part_done(now, op, out);
        };
        let (from, len) = self.covered(&self.ops[op].head, key);
        let (e, at) = (self.extent_bytes(), key.extent() * self.extent_bytes());
        let new = self.brought(op, from, len);
        let merged = merge(&rest, &new, e, from - at, len);
        self.insert_dirty(now, op, key, merged, out);
    }

    pub(crate) fn unlock(&mut self, o: &ClientOp) {
        self.gate.leave(&o.locked, o.touched.iter().map(|t| t.0));
    }

    /// A change has ended: what went through may be cached now.
    pub(crate) fn changed(&mut self, now: Time, o: &ClientOp, out: &mut Actions) {
        self.unlock(o);
        let may_cache = |slot: u16| !self.is_known_full(self.volumes[slot as usize].partition);
        let caches = self.volume_of(&o.head).is_some_and(|(slot, _, mode)| mode != Mode::Off && may_cache(slot));
        if o.touched.is_empty()
            || !o.fills
            || o.failed.is_some()
            || o.head.op != Op::Write
            || !caches
            || !self.is_ready()
        {
            return;
        }
        let (e, size) = (self.extent_bytes(), self.volume_of(&o.head).map_or(0, |v| v.1));
        for (key, was_cached) in &o.touched {
            if self.gate.is_busy(key) || (key.extent() + 1) * e > size {
                continue;
            }
            let (from, len) = self.covered(&o.head, *key);
            if len == e {
                if *was_cached || self.admits(*key) {
                    let data = o.data.part(o.head.len, from - o.head.offset, len);
                    self.fill_with(now, *key, data, *was_cached, out);
                }
            } else if *was_cached && !self.stopping {
                // It was worth caching a moment ago.
                self.counters.fetched_for_writes += 1;
                self.fill_by_reading(now, *key, 1, false, out);
            }
        }
    }

    /// A client's flush: of the slow device, and of what only the cache has. After the fast device failed, a flush of a volume with dirty
    /// extents fails: they aren't durable anywhere that is sure to come back. The slow device has all of any other volume, so a flush of
    /// that alone keeps its promise, also after the operator gave the dirty extents up.
    pub(crate) fn flush(&mut self, _now: Time, io: Io, out: &mut Actions) {
        let Some((slot, _, mode)) = self.volume_of(&io.head) else { return self.pass(io, out) };
        let v = &self.volumes[slot as usize];
        if self.state.bypassed().is_some() && v.dirty > 0 && !self.planted(Planted::FlushWhenBroken) {
            return out.end(io, Outcome::Failed(IoError::Device));
        }
        if !self.is_ready() || (mode != Mode::Back && v.dirty == 0 && !self.gate.is_any_closed()) {
            return self.pass(io, out);
        }
        let head = io.head;
        let op = self.ops.insert(ClientOp {
            head,
            data: Data::Absent,
            outstanding: 2,
            failed: None,
            busy: None,
            dispatched_at: Time::NEVER,
            pieces: Vec::new(),
            hit: false,
            through: Vec::new(),
            touched: Vec::new(),
            locked: Vec::new(),
            flush_after: false,
            fills: true,
        });
        let mut below = head;
        below.tag =
            self.pending.insert(Pending::SlowFlush { op, covers: (slot, self.volumes[slot as usize].changes) }) as u64;
        out.submit(SLOW, Io::new(below, Data::Absent));
        self.durability.want_flush_for(op);
    }

    /// For whom the cache works when nobody asks.
    pub(crate) fn background_of(&self, key: Key) -> (TenantId, Priority) {
        let tenant = self.volumes[key.volume() as usize].config.map_or(TenantId::default(), |c| c.tenant);
        (tenant, Priority { class: plimsoll_base::PriorityClass::Idle, level: 0 })
    }
}

/// An extent of `e` bytes with `len` of them from `at` on replaced.
fn merge(old: &Data, new: &Data, e: u64, at: u64, len: u64) -> Data {
    let simulated = |d: &Data| matches!(d, Data::Absent | Data::Content(_) | Data::Parts(_));
    if simulated(old) || simulated(new) {
        let parts = [(at, old.part(e, 0, at)), (len, new.clone()), (e - at - len, old.part(e, at + len, e - at - len))];
        return Data::Parts(parts.into_iter().filter(|p| p.0 > 0).collect());
    }
    let mut merged = BufMut::zeroed(e as usize);
    old.copy_to(merged.as_mut_slice());
    new.copy_to(&mut merged.as_mut_slice()[at as usize..(at + len) as usize]);
    Data::Bytes(merged.freeze())
}
