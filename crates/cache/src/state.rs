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

/// See [`State::Bypassed`]. Changes wait until the owner has recorded that the device's content is out of date.
pub(crate) struct Bypassed {
    why: String,
    recorded: bool,
    waiting: VecDeque<Io>,
}

impl Bypassed {
    pub(crate) fn new(why: String) -> Bypassed {
        Bypassed { why, recorded: false, waiting: VecDeque::new() }
    }

    /// The reason.
    pub(crate) fn why(&self) -> &str {
        &self.why
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// A change waits until the failure is recorded.
    pub(crate) fn wait(&mut self, io: Io) {
        debug_assert!(!self.recorded, "nothing waits for what is recorded");
        self.waiting.push_back(io);
    }

    /// The failure is recorded, durably: the changes that waited.
    pub(crate) fn set_recorded(&mut self) -> VecDeque<Io> {
        self.recorded = true;
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

    /// Returns true if changes wait for the failure's record.
    pub(crate) fn has_waiting(&self) -> bool {
        self.bypassed().is_some_and(|b| !b.waiting.is_empty())
    }
}
