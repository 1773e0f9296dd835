//! State that a pool keeps of requests whose clients speak `x-plimsoll:promise`: their beginnings, and their durations.

use crate::replica::Replica;
use plimsoll_base::{IoHead, IoId, LatencyByLoad, Span, Time};
use plimsoll_nbd::promise::Note;
use plimsoll_nbd::wire::NoteKind;
use std::collections::{BTreeMap, BTreeSet};

/// A request in flight, with the notes that its client gets.
#[derive(Clone, Copy, Debug)]
pub struct Tracked {
    /// Its place among those inside.
    pub at: usize,
    /// The time at which its device got it.
    pub begun_at: Option<Time>,
    /// Its connection's place, and the client's name for it.
    asked: (usize, u64),
    /// Others inside when it came.
    came_with: u32,
    /// Lower half of its volume's generation when it came.
    generation_before: u32,
}

/// See the module's documentation.
#[derive(Default)]
pub struct PromiseTracker {
    by_id: BTreeMap<IoId, Tracked>,
    /// The same by connection and the client's name, which may be several requests': a client withdraws them by it.
    by_name: BTreeSet<(usize, u64, IoId)>,
    latency: LatencyByLoad,
}

impl PromiseTracker {
    /// A request of a connection, with the client's name for it, got in.
    pub fn entered(&mut self, id: IoId, at: usize, asked: (usize, u64), in_flight: usize, replica: &Replica) {
        let generation_before = replica.generation() as u32;
        let came_with = in_flight as u32;
        self.by_id.insert(id, Tracked { at, begun_at: None, asked, came_with, generation_before });
        self.by_name.insert((asked.0, asked.1, id));
    }

    /// The number of requests whose clients know promises.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// A device gets a request: its place, if it's one whose client knows promises and it hadn't begun before.
    pub fn begun(&mut self, now: Time, io: &IoHead) -> Option<usize> {
        if self.by_id.is_empty() {
            return None;
        }
        let course = self.by_id.get_mut(&io.id)?;
        course.begun_at.replace(now).is_none().then_some(course.at)
    }

    /// Ends a request; returns the notes for its client.
    pub fn ended(&mut self, now: Time, id: IoId, took: Option<Span>, in_flight: usize, replica: &Replica) -> Vec<Note> {
        let Some(course) = self.by_id.remove(&id) else { return Vec::new() };
        self.by_name.remove(&(course.asked.0, course.asked.1, id));
        if let Some(took) = took {
            self.latency.saw(course.came_with, took);
        }
        let service = course.begun_at.map_or(Span::ZERO, |begun| now.since(begun));
        vec![
            (NoteKind::InFlight, in_flight as u32),
            (NoteKind::ServiceUs, micros(service)),
            (NoteKind::GenerationBefore, course.generation_before),
            (NoteKind::GenerationLow, replica.generation() as u32),
        ]
    }

    /// The oldest request of a connection that its client calls `cookie`.
    pub fn find(&self, conn: usize, cookie: u64) -> Option<IoId> {
        let (first, last) = ((conn, cookie, IoId(0)), (conn, cookie, IoId(u64::MAX)));
        self.by_name.range(first..=last).next().map(|(_, _, id)| *id)
    }

    /// The answer to a probe: state of the pool, and of the volume.
    pub fn probe(&self, wait: Span, in_flight: usize, replica: &Replica) -> Vec<Note> {
        let generation = replica.generation();
        vec![
            (NoteKind::WaitUs, micros(wait)),
            (NoteKind::InFlight, in_flight as u32),
            (NoteKind::LatencyUs, micros(self.latency.estimate(in_flight as u32))),
            (NoteKind::GenerationLow, generation as u32),
            (NoteKind::GenerationHigh, (generation >> 32) as u32),
            (NoteKind::Behind, replica.behind() as u32),
            (NoteKind::Writers, replica.writers()),
        ]
    }
}

/// As a note's value.
pub fn micros(span: Span) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client may call several of its requests the same, and others' requests as well.
    #[test]
    fn a_request_is_found_by_its_connection_and_name() {
        let replica = Replica::new(1 << 20, Default::default(), None);
        let mut c = PromiseTracker::default();
        for (id, asked) in [(1, (5, 7)), (2, (5, 7)), (3, (6, 7)), (4, (5, 8))] {
            c.entered(IoId(id), id as usize, asked, 0, &replica);
        }
        assert_eq!([c.find(5, 7), c.find(6, 7), c.find(5, 8)], [1, 3, 4].map(|id| Some(IoId(id))), "the oldest");
        assert_eq!([c.find(4, 7), c.find(5, 6), c.find(7, 0)], [None; 3]);
        c.ended(Time::ZERO, IoId(1), None, 0, &replica);
        assert_eq!(c.find(5, 7), Some(IoId(2)));
        c.ended(Time::ZERO, IoId(2), None, 0, &replica);
        assert_eq!((c.find(5, 7), c.by_name.len()), (None, 2));
    }
}
