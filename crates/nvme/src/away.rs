//! An I/O queue whose namespace is inaccessible here: each command ends with a status of the path.
//!
//! The queue can go on as a [`Queue`] when the namespace is served here, between two PDUs.

use crate::command::Status;
use crate::opening::Terms;
use crate::pdu::{Fault, Gathered};
use crate::queue::{Namespace, Next, Queue, Replies};
use crate::wire::{CAPSULE_DATA_BYTES_MAX, Kind};

/// See the module's documentation.
#[derive(Debug)]
pub struct AwayQueue {
    terms: Terms,
    queue: Queue,
    replies: Replies,
    gathered: Gathered,
    output: Vec<u8>,
}

impl AwayQueue {
    /// A queue that was just connected.
    pub fn new(terms: Terms, replies: Replies, namespace: Namespace) -> AwayQueue {
        let queue = Queue::new(terms, namespace);
        AwayQueue { terms, queue, replies, gathered: Gathered::default(), output: Vec::new() }
    }

    /// Bytes to be sent; the driver clears them.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// True if no part of a PDU has come.
    pub fn is_between(&self) -> bool {
        self.gathered.pdu().is_empty()
    }

    /// The answers so far, for whoever serves the queue from now on.
    pub fn into_replies(self) -> Replies {
        self.replies
    }

    /// Takes at most one PDU from the front of `input`, and answers it. Data of a write are taken with its command, or not asked for.
    ///
    /// # Errors
    /// A fault. Send the output and close.
    pub fn take(&mut self, input: &mut &[u8]) -> Result<(), Fault> {
        let taken = self.step(input);
        if let Err(fault) = taken {
            fault.tell(&mut self.output, self.gathered.pdu());
        }
        taken
    }

    fn step(&mut self, input: &mut &[u8]) -> Result<(), Fault> {
        let (digests, kinds) = (self.terms.digests, [Kind::Command, Kind::H2cTerm]);
        let shape = |start: &_| digests.shape(start, &kinds, CAPSULE_DATA_BYTES_MAX as usize);
        if self.gathered.take(input, shape)?.is_none() {
            return Ok(());
        }
        let (id, status) = match self.queue.next(self.gathered.pdu())? {
            Next::Serve { command, .. } | Next::Fetch { command, .. } => (command.id, Status::INACCESSIBLE),
            Next::Refuse { id, status, .. } => (id, status),
            Next::NeedBytes | Next::Data { .. } => return Err(Fault::Sequence),
        };
        self.replies.complete(&mut self.output, id, 0, status);
        self.gathered.clear();
        Ok(())
    }
}
