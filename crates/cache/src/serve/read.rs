//! Reads: extent by extent from where each is, read ahead where they are sequential.

use crate::config::{Mode, Sharing};
use crate::fetch::{Fetch, Purpose};
use crate::index::{Key, Loc};
use crate::request::{ClientOp, Pending, WorkFor};
use crate::serve::{Cache, FAST, SLOW};
use crate::state::State;
use crate::tasks::{Expected, Unpack};
use plimsoll_base::{
    Completion, Confidence, Data, Io, IoError, IoHead, Op, Origin, Outcome, OwnKind, Priority, Span, TenantId, Time,
};
use plimsoll_stack::{Actions, Forecast, Ports};

/// A run of missing extents is widened to whole ones only up to this.
const WIDEN_BYTES_MAX: u64 = 4 << 20;
/// Extents that a forecast looks at.
const LOOKED_AT_MAX: u64 = 16;

impl Cache {
    /// The slot, size and mode of a request's volume, if the cache knows it.
    pub(crate) fn volume_of(&self, head: &IoHead) -> Option<(u16, u64, Mode)> {
        let slot = self.volumes.slot(&head.volume)?;
        let config = self.volumes[slot as usize].config?;
        Some((slot, config.size_bytes, config.mode))
    }

    pub(crate) fn read(&mut self, now: Time, io: Io, out: &mut Actions) {
        let Some((slot, size, mode)) = self.volume_of(&io.head) else { return self.pass(io, out) };
        let none_dirty = self.volumes[slot as usize].dirty == 0 && (self.is_ready() || self.destaging.is_empty());
        let useless = mode == Mode::Off || !self.is_ready();
        if io.len == 0 || (useless && none_dirty) {
            return self.pass(io, out);
        }
        let (e, head) = (self.extent_bytes(), io.head);
        let keys = |from: u64, to: u64| (from / e..to.div_ceil(e)).map(|n| Key::new(slot, n));
        if !self.is_ready() {
            let mut all = keys(head.offset, head.end());
            if all.clone().any(|k| self.dirty.contains(&k)) {
                return out.end(io, Outcome::Failed(IoError::Device));
            }
            return match &mut self.state {
                // It was given up: what write-back had sent of it before is there first, or what is read now would change afterwards.
                State::Bypassed(b) if all.any(|k| self.destaging.contains(&k)) => b.wait_for_write_back(io),
                _ => self.pass(io, out),
            };
        }
        let step = self.streams.read(
            slot,
            head.offset,
            head.len,
            self.config.sequential_bytes,
            self.config.prefetch_bytes_max,
        );
        let sequential = step.run >= self.config.sequential_bytes;
        let op = self.ops.insert(ClientOp {
            head,
            data: Data::Absent,
            outstanding: 1,
            failed: None,
            busy: None,
            dispatched_at: Time::NEVER,
            pieces: Vec::new(),
            hit: true,
            through: Vec::new(),
            touched: Vec::new(),
            locked: Vec::new(),
            flush_after: false,
            fills: true,
        });
        let mut runs: Vec<(usize, u64, u64)> = Vec::new();
        let mut hits: Vec<(usize, Key, Loc, u64, u64)> = Vec::new();
        for key in keys(head.offset, head.end()) {
            let (from, to) = (head.offset.max(key.extent() * e), head.end().min((key.extent() + 1) * e));
            self.counters.extents_read += 1;
            let mut found = self.residency.find(key).filter(|loc| mode != Mode::Off || loc.is_dirty());
            if found.is_none() && mode != Mode::Off && !self.ahead.has(key) {
                found = self.find_by_recipe(now, key, size, out);
            }
            let pieces = &mut self.ops[op].pieces;
            if let Some(loc) = found {
                hits.push((pieces.len(), key, loc, from % e, to - from));
                pieces.push((to - from, Data::Absent));
                self.residency.touch(loc);
                self.counters.extents_hit += 1;
            } else if let Some((data, wanted_before)) = self.ahead.take(key) {
                pieces.push((to - from, data.part(e, from % e, to - from)));
                self.counters.extents_hit_ahead += 1;
                if wanted_before && mode != Mode::Off {
                    self.ahead.remove(key);
                    self.fill_with(now, key, data, false, out);
                }
            } else {
                match runs.last_mut() {
                    Some((piece, _, end)) if *end == from && *piece + 1 == pieces.len() => {
                        *end = to;
                        pieces[*piece].0 += to - from;
                    }
                    _ => {
                        runs.push((pieces.len(), from, to));
                        pieces.push((to - from, Data::Absent));
                    }
                }
            }
        }
        let o = &mut self.ops[op];
        o.outstanding += (runs.len() + hits.len()) as u32;
        o.hit = runs.is_empty();
        for (piece, key, loc, from, len) in hits {
            let purpose = Purpose::Piece { op, piece };
            let (tenant, priority) = (head.tenant, head.priority);
            self.fetch(
                now,
                Fetch {
                    key,
                    loc: Some(loc),
                    wanted: (from, len),
                    purpose,
                    tenant,
                    priority,
                    at: 0,
                    joined: Vec::new(),
                },
                out,
            );
        }
        for (piece, from, to) in runs {
            self.read_run(now, op, piece, (from, to), size, sequential || mode == Mode::Off, out);
        }
        if step.ahead_to > 0 && mode != Mode::Off && !self.stopping {
            self.read_ahead(now, slot, (step.ahead_from, step.ahead_to.min(size)), out);
        }
        self.part_done(now, op, out);
    }

    /// Reads missing extents from the slow device; whole ones, so that they can be cached.
    #[allow(clippy::too_many_arguments)] // all of them describe the one run
    fn read_run(
        &mut self,
        now: Time,
        op: usize,
        piece: usize,
        (from, to): (u64, u64),
        size: u64,
        scan: bool,
        out: &mut Actions,
    ) {
        let e = self.extent_bytes();
        let (mut wide_from, mut wide_to) = (from, to);
        if !scan && to - from <= WIDEN_BYTES_MAX {
            wide_from = from / e * e;
            wide_to = if to.next_multiple_of(e) <= size { to.next_multiple_of(e) } else { to };
        }
        let slot = self.volumes.slot_known(&self.ops[op].head.volume);
        let token = self.gate.new_token();
        for n in wide_from.div_ceil(e)..wide_to / e {
            let key = Key::new(slot, n);
            if scan {
                self.counters.scans += 1;
            } else if !self.gate.is_busy(&key) && self.admits(key) {
                self.gate.begin_fill(key, token);
            }
        }
        let o = &self.ops[op];
        let mut head = o.head;
        let whole = o.pieces.len() == 1;
        if !whole {
            head = out.piece(&o.head, Op::Read, 0, 0, 0).head;
        }
        (head.offset, head.len) = (wide_from, wide_to - wide_from);
        head.arrived_at = head.arrived_at.min(now);
        head.tag = self.pending.insert(Pending::Run { op, piece, from, len: to - from, token }) as u64;
        out.submit(SLOW, Io::new(head, Data::Absent));
    }

    pub(crate) fn run_done(
        &mut self,
        now: Time,
        (op, piece): (usize, usize),
        (from, len): (u64, u64),
        token: u64,
        c: Completion,
        out: &mut Actions,
    ) {
        let o = &mut self.ops[op];
        o.dispatched_at = o.dispatched_at.min(c.dispatched_at);
        match c.outcome {
            Outcome::Done => {
                o.pieces[piece].1 = c.io.data.part(c.io.len, from - c.io.offset, len);
                let slot = self.volumes.slot_known(&c.io.volume);
                self.fill_from(now, slot, c.io.offset, &c.io.data, c.io.len, token, out);
            }
            other => {
                match other {
                    Outcome::Failed(e) => o.failed = Some(e),
                    busy => o.busy = Some(busy),
                }
                self.gate.end_fills(token);
            }
        }
        self.part_done(now, op, out);
    }

    /// Caches those extents of `data` whose fill may go on.
    #[allow(clippy::too_many_arguments)] // where it is, what it is, whose it is
    fn fill_from(&mut self, now: Time, slot: u16, offset: u64, data: &Data, len: u64, token: u64, out: &mut Actions) {
        let e = self.extent_bytes();
        for n in offset.div_ceil(e)..(offset + len) / e {
            let key = Key::new(slot, n);
            if self.gate.may_fill(&key, token) {
                let insert = self.clean_insert(key, data.part(len, n * e - offset, e), token);
                self.insert_clean(now, insert, out);
            }
        }
    }

    /// Caches an extent that is at hand; an older content of it `was_cached`.
    pub(crate) fn fill_with(&mut self, now: Time, key: Key, data: Data, was_cached: bool, out: &mut Actions) {
        let token = self.gate.new_token();
        self.gate.begin_fill(key, token);
        let insert = self.clean_insert(key, data, token).over(was_cached);
        self.insert_clean(now, insert, out);
    }

    /// Reads `from..to` of a stream before it's asked for.
    fn read_ahead(&mut self, now: Time, slot: u16, (from, to): (u64, u64), out: &mut Actions) {
        let e = self.extent_bytes();
        let (first, end) = (from.div_ceil(e), to / e);
        let here = |c: &Cache, n: u64| {
            let key = Key::new(slot, n);
            c.gate.is_busy(&key) || c.gate.is_filling(&key) || c.ahead.has(key) || c.residency.look(key).is_some()
        };
        let mut n = first;
        while n < end {
            let run = (n..end).take_while(|n| !here(self, *n)).count() as u64;
            if run == 0 {
                n += 1;
                continue;
            }
            self.fill_by_reading(now, Key::new(slot, n), run, true, out);
            n += run;
        }
    }

    /// Reads `count` extents of its own accord, to hold them ahead or to cache them.
    pub(crate) fn fill_by_reading(&mut self, now: Time, key: Key, count: u64, ahead: bool, out: &mut Actions) {
        let e = self.extent_bytes();
        let token = self.gate.new_token();
        for n in key.extent()..key.extent() + count {
            self.gate.begin_fill(Key::new(key.volume(), n), token);
        }
        let v = &self.volumes[key.volume() as usize];
        let whose = (v.key, v.config.map_or(TenantId::default(), |c| c.tenant));
        let pending = Pending::Fill { key, count, token, ahead };
        let range = (key.extent() * e, count * e);
        self.send_own(now, SLOW, (Op::Read, OwnKind::Fill), whose, range, Data::Absent, pending, out);
    }

    pub(crate) fn fill_read(
        &mut self,
        now: Time,
        (key, count): (Key, u64),
        token: u64,
        ahead: bool,
        c: Completion,
        out: &mut Actions,
    ) {
        if !c.outcome.is_done() || !ahead {
            return match c.outcome.is_done() {
                true => self.fill_from(now, key.volume(), c.io.offset, &c.io.data, c.io.len, token, out),
                false => self.gate.end_fills(token),
            };
        }
        let e = self.extent_bytes();
        for n in 0..count {
            let key = Key::new(key.volume(), key.extent() + n);
            if self.gate.end_fill(&key, token) {
                self.counters.ahead += 1;
                self.ahead.add(key, c.io.data.part(c.io.len, n * e, e), e);
            }
        }
    }

    /// A fetch of a whole extent from wherever it is.
    pub(crate) fn whole_fetch(&self, key: Key, purpose: Purpose, tenant: TenantId, priority: Priority) -> Fetch {
        Fetch {
            key,
            loc: self.residency.look(key),
            wanted: (0, self.extent_bytes()),
            purpose,
            tenant,
            priority,
            at: 0,
            joined: Vec::new(),
        }
    }

    /// Brings an extent from where it is. [`Cache::fetched`] goes on.
    pub(crate) fn fetch(&mut self, now: Time, mut f: Fetch, out: &mut Actions) {
        let Some(loc) = f.loc else { return self.fetch_slow(now, f, out) };
        if self.dirty.is_lost(f.key) {
            // What the slow device has is older.
            return self.deliver(now, f, None, out);
        }
        if let Some(p) = self.packing.packed(loc) {
            self.counters.extents_hit_memory += u64::from(matches!(f.purpose, Purpose::Piece { .. }));
            let (parts, total) = p.stored(self.residency.weu(loc.weu()).sequence);
            let fetch = self.fetches.insert(f);
            self.residency.pin(loc.weu());
            return self.unpack(fetch, Data::Parts(parts.into()), total, out);
        }
        let block = u64::from(self.layout.block_bytes);
        let at = self.layout.weu_at(loc.weu()) + u64::from(loc.at_bytes());
        let (from, to) = (at / block * block, (at + u64::from(loc.len_bytes())).next_multiple_of(block));
        f.at = at - from;
        if let Some(first) =
            self.reading.get(&loc.place()).copied().filter(|first| self.may_join(&self.fetches[*first], &f))
        {
            let fetch = self.fetches.insert(f);
            self.residency.pin(loc.weu());
            return self.fetches[first].joined.push(fetch);
        }
        self.residency.pin(loc.weu());
        let mut head = self.fetch_head(now, &f, (from, to - from), out);
        let fetch = self.fetches.insert(f);
        self.reading.entry(loc.place()).or_insert(fetch);
        head.tag = self.pending.insert(Pending::Fetch(fetch)) as u64;
        out.submit(FAST, Io::new(head, Data::Absent));
    }

    /// True if a fetch may wait for another of the same place. Not if it would wait for another tenant's turn, or at another priority.
    fn may_join(&self, first: &Fetch, f: &Fetch) -> bool {
        let in_one_turn = self.config.sharing == Sharing::Shared || first.key.volume() == f.key.volume();
        in_one_turn && (first.tenant, first.priority) == (f.tenant, f.priority)
    }

    fn fetch_slow(&mut self, now: Time, f: Fetch, out: &mut Actions) {
        let range = (f.key.extent() * self.extent_bytes() + f.wanted.0, f.wanted.1);
        let mut head = self.fetch_head(now, &f, range, out);
        let fetch = self.fetches.insert(f);
        head.tag = self.pending.insert(Pending::Fetch(fetch)) as u64;
        out.submit(SLOW, Io::new(head, Data::Absent));
    }

    /// The request for a fetch of `range`: a piece of the client's request that needs it, or write-back's own. It is its volume's, so
    /// that a fence below serves it in the volume's slot. Nothing below may refuse it: the client's request was accepted.
    fn fetch_head(&self, now: Time, f: &Fetch, (offset, len): (u64, u64), out: &mut Actions) -> IoHead {
        let volume = self.volumes[f.key.volume() as usize].key;
        let new = IoHead::new(Op::Read, volume, f.tenant, offset, len, now);
        let own = |kind| (Origin::Own(kind), 0, 0);
        let (origin, account, root) = match f.purpose {
            Purpose::Piece { op, .. } | Purpose::Rest { op } => {
                let piece = self.ops[op].head.piece();
                (piece.origin, piece.account, piece.root)
            }
            Purpose::Destage { .. } => own(OwnKind::WriteBack),
            Purpose::Reinsert { .. } => own(OwnKind::Fill),
        };
        IoHead { id: out.new_id(), origin, account, root, priority: f.priority, ..new }
    }

    /// A device has answered a fetch.
    pub(crate) fn fetch_read(&mut self, now: Time, fetch: usize, c: Completion, out: &mut Actions) {
        if let Purpose::Piece { op, .. } | Purpose::Rest { op } = self.fetches[fetch].purpose {
            self.ops[op].dispatched_at = self.ops[op].dispatched_at.min(c.dispatched_at);
        }
        let Some(loc) = self.fetches[fetch].loc else {
            let data = c.outcome.is_done().then(|| c.io.into_data());
            return self.fetched(now, fetch, data, out);
        };
        if self.reading.get(&loc.place()) == Some(&fetch) {
            self.reading.remove(&loc.place());
        }
        if !c.outcome.is_done() {
            self.read_failed(now, out);
        }
        let joined = std::mem::take(&mut self.fetches[fetch].joined);
        for fetch in std::iter::once(fetch).chain(joined) {
            match c.outcome.is_done() {
                true => self.unpack(fetch, c.io.data.clone(), c.io.len, out),
                false => self.fetched(now, fetch, None, out),
            }
        }
    }

    fn unpack(&mut self, fetch: usize, data: Data, total: u64, out: &mut Actions) {
        let f = &self.fetches[fetch];
        let loc = f.loc.expect("from the cache");
        let weu = self.residency.weu(loc.weu());
        let expected = match loc.is_bare(self.extent_bytes()) {
            true => Expected::Sum(weu.sum(loc.slot())),
            false => {
                let name = (!loc.is_dup()).then(|| self.name_of(f.key));
                Expected::Head { name, sequence: weu.sequence }
            }
        };
        let task = Unpack {
            data,
            total,
            at: f.at,
            expected,
            extent_bytes: self.extent_bytes(),
            wanted: f.wanted,
            trusting: self.planted(crate::config::Planted::IgnoreChecksum),
            packed: !loc.is_bare(self.extent_bytes()),
            speeds: self.config.speeds,
        };
        let (tenant, priority) = (f.tenant, f.priority);
        self.order_work(WorkFor::Unpack(fetch), tenant, priority, Box::new(task), out);
    }

    /// An extent is here, or isn't what it should be.
    pub(crate) fn fetched(&mut self, now: Time, fetch: usize, data: Option<Data>, out: &mut Actions) {
        let mut f = self.fetches.remove(fetch);
        if let Some(loc) = f.loc {
            self.residency.unpin(loc.weu());
        }
        if data.is_none()
            && let Some(loc) = f.loc.take()
        {
            let lost = self.found_corrupt(f.key, loc);
            // Whoever asked is served from where it is now (another part of it was written meanwhile), or from the slow device;
            // only the write-back, and what is lost, can't be, and nobody asked for what is to be put in again.
            if !lost && !matches!(f.purpose, Purpose::Destage { .. } | Purpose::Reinsert { .. }) {
                let elsewhere = self.residency.look(f.key).filter(|l| self.is_ready() && !l.same_place(loc));
                (f.loc, f.at) = (elsewhere, 0);
                if let Purpose::Piece { op, .. } = f.purpose {
                    self.ops[op].hit = false;
                }
                return self.fetch(now, f, out);
            }
        }
        self.deliver(now, f, data, out);
    }

    /// Gives an extent to whoever asked for it, or tells that it can't be had.
    fn deliver(&mut self, now: Time, f: Fetch, data: Option<Data>, out: &mut Actions) {
        match f.purpose {
            Purpose::Piece { op, piece } => {
                match data {
                    Some(d) => self.ops[op].pieces[piece].1 = d,
                    None => self.ops[op].failed = Some(IoError::Device),
                }
                self.part_done(now, op, out);
            }
            Purpose::Rest { op } => self.rest_fetched(now, op, f.key, data, out),
            Purpose::Destage { part, at } => self.destage_fetched(now, part, at, data, out),
            Purpose::Reinsert { token } => self.reinsert_fetched(now, f.key, token, data, out),
        }
    }

    /// The content read at `loc` isn't `key`'s: that place is corrupt. Returns true if `key` is dirty and has no other copy: it is lost.
    fn found_corrupt(&mut self, key: Key, loc: Loc) -> bool {
        if self.state.bypassed().is_some() {
            return self.dirty.contains(&key);
        }
        self.counters.corrupt += 1;
        let first_time = self.residency.set_bad(loc);
        self.durability.suspect(loc.weu(), self.residency.weu(loc.weu()).sequence);
        let now_at = self.residency.look(key);
        if now_at.is_none_or(|l| !l.same_place(loc)) {
            return false;
        }
        if !self.dirty.contains(&key) {
            self.drop_clean(key);
            return false;
        }
        // It stays as it is, unreadable: what the slow device has is older.
        if first_time {
            self.lose(key);
        }
        self.dirty.hold(key, Time::NEVER);
        true
    }

    /// Forecasts a read's wait: that of its slowest part.
    pub(crate) fn forecast_read(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let Some((slot, _, mode)) = self.volume_of(head).filter(|_| self.is_ready()) else {
            return below.ask(SLOW, at, head);
        };
        if head.op != Op::Read {
            let cached = mode == Mode::Back && head.op == Op::Write;
            return if cached { Forecast::NONE } else { below.ask(SLOW, at, head) };
        }
        let e = self.extent_bytes();
        let mut worst: Option<Forecast> = None;
        let (mut first_missing, mut missing) = (0, 0);
        for n in (head.offset / e..head.end().div_ceil(e)).take(LOOKED_AT_MAX as usize) {
            let key = Key::new(slot, n);
            let (from, to) = (head.offset.max(n * e), head.end().min((n + 1) * e));
            let f = match self.residency.look(key) {
                Some(loc) if self.packing.has(loc) => Forecast::NONE,
                Some(loc) => {
                    let mut part = *head;
                    part.offset = self.layout.weu_at(loc.weu()) + u64::from(loc.at_bytes());
                    part.len = u64::from(loc.len_bytes());
                    below.ask(FAST, at, &part)
                }
                None if self.ahead.has(key) => Forecast::NONE,
                None => {
                    if missing == 0 {
                        first_missing = from;
                    }
                    missing = to - first_missing;
                    continue;
                }
            };
            worst = Some(worst.map_or(f, |w| if w.total() >= f.total() { w } else { f }));
        }
        if missing > 0 {
            let mut part = *head;
            (part.offset, part.len) = (first_missing, missing);
            let f = below.ask(SLOW, at, &part);
            worst = Some(worst.map_or(f, |w| if w.total() >= f.total() { w } else { f }));
        }
        worst.unwrap_or_else(|| below.serve(Span::ZERO, Span::ZERO, Confidence::CERTAIN))
    }
}
