//! What a pool keeps of requests whose clients speak `x-plimsoll:promise`: when they begin, and how long they take.

use crate::replica::Replica;
use plimsoll_base::{IoHead, IoId, LatencyByLoad, Span, Time};
use plimsoll_nbd::promise::Note;
use plimsoll_nbd::wire::NoteKind;
use std::collections::BTreeMap;

/// A request that is inside, as its client is told of it.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    /// Its place among those inside.
    pub at: usize,
    /// When its device got it.
    pub begun_at: Option<Time>,
    /// Others inside when it came.
    came_with: u32,
    /// Lower half of its volume's generation when it came.
    generation_before: u32,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Courses {
    by_id: BTreeMap<IoId, Course>,
    latency: LatencyByLoad,
}

impl Courses {
    /// A request got in.
    pub fn entered(&mut self, id: IoId, at: usize, in_flight: usize, replica: &Replica) {
        let generation_before = replica.generation() as u32;
        self.by_id.insert(id, Course { at, begun_at: None, came_with: in_flight as u32, generation_before });
    }

    /// A device gets a request: its place, if it's one whose client knows promises and it hadn't begun before.
    pub fn begun(&mut self, now: Time, io: &IoHead) -> Option<usize> {
        if self.by_id.is_empty() {
            return None;
        }
        let course = self.by_id.get_mut(&io.id)?;
        course.begun_at.replace(now).is_none().then_some(course.at)
    }

    /// A request has ended; what its client is told of it.
    pub fn ended(&mut self, now: Time, id: IoId, took: Option<Span>, in_flight: usize, replica: &Replica) -> Vec<Note> {
        let Some(course) = self.by_id.remove(&id) else { return Vec::new() };
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

    /// The requests of some connection, found by their places.
    pub fn find(&self, mut is: impl FnMut(usize) -> bool) -> Option<IoId> {
        self.by_id.iter().find(|(_, c)| is(c.at)).map(|(id, _)| *id)
    }

    /// What a probe is answered: how the pool is, and the volume.
    pub fn probe(&self, wait: Span, in_flight: usize, replica: &Replica) -> Vec<Note> {
        let generation = replica.generation();
        vec![
            (NoteKind::WaitUs, micros(wait)),
            (NoteKind::InFlight, in_flight as u32),
            (NoteKind::LatencyUs, micros(self.latency.estimate(in_flight as u32))),
            (NoteKind::GenerationLow, generation as u32),
            (NoteKind::GenerationHigh, (generation >> 32) as u32),
            (NoteKind::Behind, replica.behind() as u32),
        ]
    }
}

/// As a note's value.
pub fn micros(span: Span) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(u32::MAX)
}
