//! The states of a cache, each with what only it has.

use crate::recover::Recovery;
use crate::status::StartReport;
use plimsoll_base::{Io, Time};
use std::collections::VecDeque;

/// A state of a cache.
pub(crate) enum State {
    /// Reads what the fast device has. Requests wait.
    Recovering(Box<Recovery>),
    /// Makes durable what was found. Requests wait.
    Starting(Starting),
    Serving,
    /// The fast device failed: volumes go on without it.
    Bypassed(Bypassed),
    /// Not this cache's device, or one that can't be read and may have what nobody else has: the reason.
    Failed(String),
}

/// See [`State::Starting`].
pub(crate) struct Starting {
    pub begun_at: Time,
    /// The page is written anew at the end: the device was of version 2.
    pub upgrades: bool,
    pub report: StartReport,
}

/// See [`State::Bypassed`]. Changes wait until the owner has recorded that the device's content is out of date. After that, a request
/// waits only for a write of the same extent that write-back had sent before the device failed.
pub(crate) struct Bypassed {
    why: String,
    since: Time,
    recorded: bool,
    /// The failure can't be recorded: changes fail.
    refuses: bool,
    waiting: VecDeque<Io>,
    behind_write_back: VecDeque<Io>,
}

impl Bypassed {
    pub(crate) fn new(why: String, since: Time) -> Bypassed {
        let (waiting, behind_write_back) = (VecDeque::new(), VecDeque::new());
        Bypassed { why, since, recorded: false, refuses: false, waiting, behind_write_back }
    }

    /// The time at which the device failed.
    pub(crate) fn since(&self) -> Time {
        self.since
    }

    /// The reason.
    pub(crate) fn why(&self) -> &str {
        &self.why
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// True if the failure can't be recorded: changes fail.
    pub(crate) fn refuses_changes(&self) -> bool {
        self.refuses
    }

    /// The failure can't be recorded.
    pub(crate) fn refuse_changes(&mut self) {
        self.refuses = true;
    }

    /// A change waits until the failure is recorded.
    pub(crate) fn wait(&mut self, io: Io) {
        debug_assert!(!self.recorded && !self.refuses, "nothing waits for what is recorded, or never will be");
        self.waiting.push_back(io);
    }

    /// A request waits until write-back has no write of its extents in flight.
    pub(crate) fn wait_for_write_back(&mut self, io: Io) {
        self.behind_write_back.push_back(io);
    }

    /// A batch of write-back has ended: the requests that waited for one.
    pub(crate) fn write_back_over(&mut self) -> VecDeque<Io> {
        std::mem::take(&mut self.behind_write_back)
    }

    /// The failure is recorded, durably: the changes that waited.
    pub(crate) fn set_recorded(&mut self) -> VecDeque<Io> {
        (self.recorded, self.refuses) = (true, false);
        self.end_waiting()
    }

    /// The pool ends: the changes that waited.
    pub(crate) fn end_waiting(&mut self) -> VecDeque<Io> {
        std::mem::take(&mut self.waiting)
    }
}

impl State {
    /// Returns true until the start is over.
    pub(crate) fn is_starting(&self) -> bool {
        matches!(self, State::Recovering(_) | State::Starting(_))
    }

    pub(crate) fn bypassed(&self) -> Option<&Bypassed> {
        if let State::Bypassed(b) = self { Some(b) } else { None }
    }

    pub(crate) fn bypassed_mut(&mut self) -> Option<&mut Bypassed> {
        if let State::Bypassed(b) = self { Some(b) } else { None }
    }

    /// Returns true if changes wait for the failure's record, or for write-back.
    pub(crate) fn has_waiting(&self) -> bool {
        self.bypassed().is_some_and(|b| !b.waiting.is_empty() || !b.behind_write_back.is_empty())
    }
}
