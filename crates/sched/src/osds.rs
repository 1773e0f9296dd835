//! Reads of a Ceph RBD image by the OSDs that have them. Each OSD has a forecast. A replica serves a read if the primary would be late.
//!
//! ```text
//!  read ─► object ─► placement group ─► primary ─┬─ in time ─► port 0: librbd's own choice, the primary
//!                                                └─ late, or it stands out ─► port of a replica's host, if that one is in time
//!  read under way, stalled ─► once more at a replica: the first answer counts
//!  change, flush ─► port 0
//! ```
//! An OSD stands out when a read stalls there: the read takes several times as long as reads take at the OSD in the middle. The OSD is then avoided for a while,
//! and tried again. So one slow OSD costs its own objects' reads the time until it is noticed, and costs other reads nothing.
//!
//! A read that fails at a replica is tried at the primary. A replica sends a read back if it doesn't know that the object's last write is stable. It learns that with a later write of the
//! placement group. Such objects are read at their primary, and counted.
//!
//! The layer has no queue: a depth would let one slow OSD hold up the requests of all.

pub mod crush;
pub mod map;
pub mod place;
mod standing;

pub use crush::{Bucket, Crush, Level};
pub use map::{OsdMap, OsdPlace, OsdView, OsdsControl};

use plimsoll_base::{
    Completion, Confidence, Data, Io, IoError, IoHead, IoId, Op, Outcome, Span, TenantId, Time, VolumeKey,
};
use plimsoll_stack::layer::CHECKED_EACH_MAX;
use plimsoll_stack::{Actions, Forecast, Layer, Message, Offer, Port, Ports};
use slab::Slab;
use standing::{Standing, stall_limit};
use std::collections::BTreeMap;

/// A read that a client waits for.
struct Read {
    /// `None` once it has been answered.
    io: Option<Io>,
    primary: usize,
    /// Under way at this OSD, by the id of the first try.
    first: (IoId, usize),
    sent_at: Time,
    /// The second try's id and OSD.
    second: Option<(IoId, usize)>,
    /// It has stalled, and was counted.
    is_late: bool,
    /// A try goes to the primary by librbd's own choice.
    is_at_primary: bool,
    /// Tries that haven't ended.
    tries: u8,
}

/// Writes of a placement group that its replicas may not know as stable.
#[derive(Default)]
struct Unstable(Vec<(IoId, u64, bool)>);

impl Unstable {
    /// A new write tells replicas of all that have ended.
    fn sent(&mut self, id: IoId, object: u64) {
        self.0.retain(|(_, _, ended)| !ended);
        self.0.push((id, object, false));
    }

    fn ended(&mut self, id: IoId) {
        self.0.iter_mut().filter(|w| w.0 == id).for_each(|w| w.2 = true);
    }

    fn has(&self, object: u64) -> bool {
        self.0.iter().any(|w| w.1 == object)
    }
}

/// See the module's documentation.
pub struct Osds {
    map: OsdMap,
    standings: Vec<Standing>,
    reads: Slab<Read>,
    /// Changes under way: the OSD of the first object, and the groups.
    changes: BTreeMap<IoId, (usize, Vec<usize>)>,
    unstable: Vec<Unstable>,
    /// Time of reads at the OSD in the middle.
    typical: Span,
    /// Reads that ended, and their number at which the typical time is worked out again.
    ended: u64,
    typical_at: u64,
    /// Reason why reads aren't steered.
    unsteered: Option<String>,
}

impl Default for Osds {
    fn default() -> Osds {
        Osds::new()
    }
}

impl Osds {
    /// A layer that knows no map: all is at one OSD.
    pub fn new() -> Osds {
        let map = OsdMap {
            object_bytes: u64::MAX,
            acting: vec![vec![0]],
            osds: vec![OsdPlace { number: 0, host: String::new(), port: None }],
            ..OsdMap::default()
        };
        let (standings, unstable) = (vec![Standing::new()], vec![Unstable::default()]);
        let (reads, changes) = (Slab::new(), BTreeMap::new());
        let unsteered = Some("the cluster's map isn't known yet".into());
        Osds { map, standings, reads, changes, unstable, typical: Span::ZERO, ended: 0, typical_at: 1, unsteered }
    }

    /// Reason why reads aren't steered past slow OSDs; `None` if they are.
    pub fn unsteered(&self) -> Option<&str> {
        self.unsteered.as_deref()
    }

    /// The epoch of the cluster's map; 0 before there is one.
    pub fn epoch(&self) -> u64 {
        self.map.epoch
    }

    /// Requests under way.
    pub fn depth(&self) -> usize {
        self.reads.len() + self.changes.len()
    }

    /// The OSDs as they stand.
    pub fn view(&self, now: Time) -> Vec<OsdView> {
        let head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(0), 0, 4096, now);
        let of = |(place, s): (&OsdPlace, &Standing)| OsdView {
            number: place.number,
            host: place.host.clone(),
            forecast_ns: s.forecast(now, &head, self.limit()).0.as_nanos(),
            reads: s.counts.reads,
            late: s.counts.late,
            steered: s.counts.steered,
            refused: s.counts.refused,
            fresh: s.counts.fresh,
            stands_out: s.stands_out,
        };
        self.map.osds.iter().zip(&self.standings).filter(|(_, s)| s.is_in_map).map(of).collect()
    }

    fn limit(&self) -> Span {
        stall_limit(self.typical)
    }

    /// A read has ended. The typical time is worked out again after one read per OSD, on average. So the cost of a read is fixed.
    fn learn_typical(&mut self) {
        self.ended += 1;
        if self.ended < self.typical_at {
            return;
        }
        self.typical_at = self.ended + self.ended.min(self.standings.len() as u64);
        let mut known: Vec<Span> =
            self.standings.iter().filter(|s| s.is_in_map).filter_map(Standing::typical).collect();
        if known.is_empty() {
            return;
        }
        let middle = (known.len() - 1) / 2;
        self.typical = *known.select_nth_unstable(middle).1;
    }

    fn set_map(&mut self, map: OsdMap) {
        // OSDs keep what was learned of them, and requests under way their OSDs: places may only be added. One that no map has any more
        // isn't shown.
        let mut osds = std::mem::take(&mut self.map.osds);
        if self.map.epoch == 0 && self.reads.is_empty() && self.changes.is_empty() {
            osds.clear();
            self.standings.clear();
        }
        // Before the first map all was at an OSD without a host, which none of the map's is.
        let with_host = osds.iter().enumerate().filter(|(_, o)| !o.host.is_empty());
        let mut known: BTreeMap<u32, usize> = with_host.map(|(at, o)| (o.number, at)).collect();
        let mut place_of = |osd: &OsdPlace| {
            let at = *known.entry(osd.number).or_insert(osds.len());
            match osds.get_mut(at) {
                Some(place) => *place = osd.clone(),
                None => osds.push(osd.clone()),
            }
            at as u16
        };
        let places: Vec<u16> = map.osds.iter().map(&mut place_of).collect();
        let acting: Vec<Vec<u16>> =
            map.acting.iter().map(|a| a.iter().map(|p| places[usize::from(*p)]).collect()).collect();
        let were_in_map: Vec<bool> = self.standings.iter_mut().map(|s| std::mem::take(&mut s.is_in_map)).collect();
        self.standings.resize_with(osds.len(), Standing::new);
        for at in places.iter().map(|place| usize::from(*place)) {
            // Of an OSD that comes back nothing is known: it may be another disk. Its old requests teach nothing.
            if were_in_map.get(at) == Some(&false) {
                self.standings[at] = Standing::new();
            }
            self.standings[at].is_in_map = true;
        }
        if acting.len() != self.map.acting.len() || self.unstable.is_empty() {
            // Groups were split. Nothing is known of which writes their replicas know as stable: those under way end as of none.
            self.unstable = std::iter::repeat_with(Unstable::default).take(acting.len()).collect();
        }
        self.map = OsdMap { osds, acting, ..map };
    }

    fn acting(&self, head: &IoHead) -> (u64, usize, &[u16]) {
        let object = self.map.object(head.offset);
        let pg = self.map.pg(object);
        (object, pg, &self.map.acting[pg])
    }

    /// The primary of a read's object. Of a read over several objects, the primary that is forecast to be the last: the read is its.
    fn primary(&self, at: Time, head: &IoHead) -> usize {
        let first = usize::from(self.acting(head).2[0]);
        if self.is_in_one_object(head) {
            return first;
        }
        let primaries = self.groups(head).into_iter().rev().map(|(_, pg)| usize::from(self.map.acting[pg][0]));
        let lateness = |osd: &usize| {
            let standing = &self.standings[*osd];
            (standing.forecast(at, head, self.limit()).0, standing.is_avoided(at, self.limit()))
        };
        primaries.max_by_key(lateness).unwrap_or(first)
    }

    /// True if all bytes of a read are in one object.
    fn is_in_one_object(&self, head: &IoHead) -> bool {
        head.len > 0 && self.map.object(head.offset) == self.map.object(head.end() - 1)
    }

    fn is_in_time(&self, at: Time, head: &IoHead, osd: usize) -> bool {
        !head.deadline.is_set() || at + self.standings[osd].forecast(at, head, self.limit()).0 <= head.deadline
    }

    /// The best replica for a read but for `not`: its place and port. `Err`: there would be one, but the object is fresh.
    fn replica(&self, at: Time, head: &IoHead, not: usize) -> Option<Result<(usize, Port), ()>> {
        if !self.is_in_one_object(head) {
            return None;
        }
        let (object, pg, acting) = self.acting(head);
        let usable = |place: &u16| {
            let osd = usize::from(*place);
            let port = self.map.osds[osd].port.filter(|_| osd != not)?;
            // A handle reads from the first OSD of its host in the acting set, and takes no other.
            let reached = acting.iter().find(|p| self.map.osds[usize::from(**p)].port == Some(port));
            if reached != Some(place) {
                return None;
            }
            let standing = &self.standings[osd];
            // One that is no group's primary would never be asked again after it was late.
            let may_be_in_time = self.is_in_time(at, head, osd) || standing.is_forgotten(at);
            let is_good = !standing.is_avoided(at, self.limit()) && may_be_in_time;
            is_good.then(|| (standing.forecast(at, head, self.limit()).0, osd, port))
        };
        let (_, osd, port) = acting.iter().filter_map(usable).min()?;
        if self.unstable[pg].has(object) && osd != usize::from(acting[0]) {
            return Some(Err(()));
        }
        Some(Ok((osd, port)))
    }

    /// The OSD that a read goes to, and the port; `true` if it would have been steered but for its object's last write.
    fn choose(&self, at: Time, head: &IoHead) -> (usize, Port, bool) {
        let primary = self.primary(at, head);
        let standing = &self.standings[primary];
        // One that has a good replica would never be asked again after it was late.
        let may_be_in_time = self.is_in_time(at, head, primary) || standing.is_forgotten(at);
        let late = standing.is_avoided(at, self.limit()) || !may_be_in_time;
        match late.then(|| self.replica(at, head, primary)).flatten() {
            Some(Ok((osd, port))) => (osd, port, false),
            Some(Err(())) => (primary, 0, true),
            None => (primary, 0, false),
        }
    }

    /// Sends a try of a read to an OSD, by a port; its id.
    fn send(
        &mut self,
        now: Time,
        (slot, head): (usize, &IoHead),
        (osd, port): (usize, Port),
        out: &mut Actions,
    ) -> IoId {
        let io = out.piece(head, Op::Read, head.offset, head.len, slot as u64);
        let id = io.id;
        self.standings[osd].sent(now, &io, true);
        self.reads[slot].tries += 1;
        self.reads[slot].is_at_primary |= port == 0;
        out.submit(port, io);
        out.wake_at(now + self.limit());
        id
    }

    fn submit_read(&mut self, now: Time, io: Io, out: &mut Actions) {
        let primary = self.primary(now, &io);
        let (osd, port, is_fresh) = self.choose(now, &io);
        let head = io.head;
        let counts = &mut self.standings[primary].counts;
        counts.fresh += u64::from(is_fresh);
        counts.steered += u64::from(osd != primary);
        let read = Read {
            io: Some(io),
            primary,
            first: (IoId(0), osd),
            sent_at: now,
            second: None,
            is_late: false,
            is_at_primary: false,
            tries: 0,
        };
        let slot = self.reads.insert(read);
        self.reads[slot].first.0 = self.send(now, (slot, &head), (osd, port), out);
    }

    /// A read has stalled: it is sent to a replica, too.
    fn rescue(&mut self, now: Time, slot: usize, out: &mut Actions) {
        let read = &mut self.reads[slot];
        read.is_late = true;
        let ((id, osd), primary) = (read.first, read.primary);
        let Some(head) = read.io.as_ref().map(|io| io.head) else { return };
        self.standings[osd].stalled(now, id);
        // A deadline that it misses is no reason to wait longer.
        let patient = IoHead { deadline: Time::NEVER, ..head };
        match self.replica(now, &patient, osd) {
            Some(Ok(to)) => {
                self.standings[primary].counts.steered += u64::from(osd == primary);
                let id = self.send(now, (slot, &head), to, out);
                self.reads[slot].second = Some((id, to.0));
            }
            Some(Err(())) => self.standings[primary].counts.fresh += 1,
            None => {}
        }
    }

    /// Objects of a request and their groups, the first few of many. A replica that is asked for another one of a change sends the read back.
    fn groups(&self, head: &IoHead) -> Vec<(u64, usize)> {
        const OBJECTS_MORE_MAX: u64 = 64;
        let (first, last) = (self.map.object(head.offset), self.map.object(head.end().max(head.offset + 1) - 1));
        (first..=last.min(first + OBJECTS_MORE_MAX)).map(|object| (object, self.map.pg(object))).collect()
    }

    fn read_ended(&mut self, now: Time, c: Completion, out: &mut Actions) {
        let slot = c.io.tag as usize;
        let limit = self.limit();
        let read = &mut self.reads[slot];
        read.tries -= 1;
        let (id, osd) = read.second.filter(|s| s.0 == c.io.id).unwrap_or(read.first);
        if c.outcome.is_done() {
            self.standings[osd].ended(now, id, limit);
            self.learn_typical();
        } else {
            // What the gateway refuses by itself says nothing of an OSD, and a failure at the primary is the client's to hear of.
            let by_osd = c.outcome != Outcome::Failed(IoError::Unavailable) && osd != read.primary;
            self.standings[osd].failed(now, id, by_osd);
        }
        let read = &mut self.reads[slot];
        let (primary, may_go_on) = (read.primary, read.tries == 0 && !read.is_at_primary && !c.outcome.is_done());
        if may_go_on && let Some(head) = read.io.as_ref().map(|io| io.head) {
            // A replica that can't serve it says nothing of the data: the primary is the judge.
            let id = self.send(now, (slot, &head), (primary, 0), out);
            let read = &mut self.reads[slot];
            (read.first, read.sent_at, read.second) = ((id, primary), now, None);
            return;
        }
        let is_over = read.tries == 0;
        // A failure counts only if no other try may still succeed.
        if (c.outcome.is_done() || is_over)
            && let Some(mut io) = read.io.take()
        {
            let (outcome, dispatched_at) = (c.outcome, c.dispatched_at);
            io.data = if outcome.is_done() { c.io.into_data() } else { Data::Absent };
            out.complete(Completion { io, outcome, dispatched_at });
        }
        if is_over {
            self.reads.remove(slot);
        }
    }
}

impl Layer for Osds {
    fn name(&self) -> &'static str {
        OsdsControl::LAYER
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        if head.op != Op::Read {
            return below.serve(Span::ZERO, Span::ZERO, Confidence::NONE);
        }
        let (osd, _, _) = self.choose(at, head);
        let standing = &self.standings[osd];
        let (took, confidence) = standing.forecast(at, head, self.limit());
        if head.deadline.is_set() && at + took > head.deadline && standing.is_forgotten(at) {
            return below.serve(Span::ZERO, Span::ZERO, Confidence::NONE);
        }
        // An OSD doesn't say how long a read waits there. All of it is a wait to a client that compares replicas.
        below.serve(took, Span::ZERO, confidence)
    }

    fn refused(&mut self, now: Time, head: &IoHead, _forecast: &Forecast, _out: &mut Actions) {
        let primary = self.primary(now, head);
        self.standings[primary].counts.refused += 1;
        self.standings[primary].judged(now, head);
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        if io.op == Op::Read {
            return self.submit_read(now, io, out);
        }
        if io.op.is_change() {
            let groups = self.groups(&io);
            groups.iter().for_each(|(object, pg)| self.unstable[*pg].sent(io.id, *object));
            let osd = usize::from(self.acting(&io).2[0]);
            self.standings[osd].sent(now, &io, false);
            self.changes.insert(io.id, (osd, groups.iter().map(|(_, pg)| *pg).collect()));
        }
        out.submit(0, io);
    }

    fn completed(&mut self, now: Time, c: Completion, out: &mut Actions) {
        if c.io.op == Op::Read {
            return self.read_ended(now, c, out);
        }
        if let Some((osd, groups)) = self.changes.remove(&c.io.id) {
            let limit = self.limit();
            // An error comes as soon as it is known, whatever the OSD would have taken.
            match c.outcome.is_done() {
                true => self.standings[osd].ended(now, c.io.id, limit),
                false => self.standings[osd].failed(now, c.io.id, false),
            }
            for pg in groups {
                if let Some(unstable) = self.unstable.get_mut(pg) {
                    unstable.ended(c.io.id);
                }
            }
        }
        out.complete(c);
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        let limit = self.limit();
        let waits = |r: &Read| !r.is_late && r.io.is_some();
        let is_stalled = |r: &Read| waits(r) && now.since(r.sent_at) >= limit;
        let stalled: Vec<usize> = self.reads.iter().filter(|(_, r)| is_stalled(r)).map(|(slot, _)| slot).collect();
        for slot in stalled {
            self.rescue(now, slot, out);
        }
        let next = self.reads.iter().filter(|(_, r)| waits(r)).map(|(_, r)| r.sent_at).min();
        if let Some(sent_at) = next {
            out.wake_at(sent_at + limit);
        }
    }

    fn told(&mut self, _now: Time, message: &[u8], _out: &mut Actions) -> bool {
        match OsdsControl::decode(message) {
            Some(OsdsControl::Map(map)) if map.is_sound() => {
                self.set_map(map);
                true
            }
            Some(OsdsControl::Unsteered(why)) => {
                self.unsteered = why;
                true
            }
            // Epoch 0 says that there is no map.
            Some(OsdsControl::Epoch(epoch)) if self.map.epoch > 0 && epoch > 0 => {
                self.map.epoch = epoch;
                true
            }
            _ => false,
        }
    }

    fn cancel(&mut self, _now: Time, _id: IoId, _out: &mut Actions) {
        // All that came is at a device.
    }

    fn is_idle(&self) -> bool {
        self.reads.is_empty() && self.changes.is_empty()
    }

    fn check(&self) {
        assert_eq!(self.standings.len(), self.map.osds.len(), "an OSD without a standing, or the other way round");
        assert_eq!(self.unstable.len(), self.map.acting.len(), "a group without its writes, or the other way round");
        if self.reads.len() > CHECKED_EACH_MAX || self.standings.len() > CHECKED_EACH_MAX {
            return;
        }
        self.standings.iter().for_each(Standing::check);
        for (_, read) in &self.reads {
            assert!((1..=2).contains(&read.tries), "a read has {} tries under way", read.tries);
        }
    }
}

#[cfg(test)]
mod tests;
