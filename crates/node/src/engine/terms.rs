//! A client's request in the stack's terms: its operation, its flags, and the deadline that was promised to it. The one place that
//! decides which deadline that is.

use super::conn::{Conn, DeadlineFrom, ExportParams};
use super::exports::Exports;
use super::refusals::{Refusals, Spared};
use plimsoll_base::{IoFlags, IoHead, OnBusy, Op, Span, Time};
use plimsoll_nbd::promise::Deadline;
use plimsoll_nbd::request::Request;
use plimsoll_nbd::wire::{Command, CommandFlags};

/// The head of a request of a connection that arrived at `arrived_at`, and the rule by which it is served however late, if it could be
/// refused otherwise.
#[inline]
pub fn head(
    conn: &Conn,
    request: &Request,
    (now, arrived_at): (Time, Time),
    exports: &Exports,
    refusals: &Refusals,
) -> (IoHead, Option<Spared>) {
    let params = &conn.params;
    let (offset, len) = (request.offset, u64::from(request.length));
    let mut head = IoHead::new(op_of(request.command), params.volume, params.tenant, offset, len, arrived_at);
    head.deadline = promised(conn, request, exports).map_or(Time::NEVER, |d| arrived_at + d);
    head.priority = params.priority;
    head.flags = flags_of(request);
    if params.on_busy == OnBusy::Wait && head.op == Op::Read {
        head.flags = head.flags.with(IoFlags::WAITS);
    }
    let who = if head.may_be_refused() { conn.sends_again() } else { None };
    let spared = who.and_then(|who| refusals.spares(now, who, (offset, len)));
    if spared.is_some() {
        head.flags = head.flags.with(IoFlags::WAITS);
    }
    (head, spared)
}

/// The time within which a request must be done: the request's own, the connection's, the volume's or the tenant's deadline, in this
/// order, or one that sets itself.
fn promised(conn: &Conn, request: &Request, exports: &Exports) -> Option<Span> {
    match conn.promise_of(request).deadline {
        Deadline::Within(us) => Some(Span::from_micros(u64::from(us))),
        Deadline::None => None,
        Deadline::Exports => default_deadline(&conn.params, exports).map(|(deadline, _)| deadline),
    }
}

/// The deadline of a connection's reads that don't ask for another, and its source.
pub fn default_deadline(params: &ExportParams, exports: &Exports) -> Option<(Span, DeadlineFrom)> {
    let auto = || Some(exports.auto_deadline(params.volume, params.tenant, params.auto?));
    params.deadline.or_else(|| Some((auto()?, DeadlineFrom::Automatic)))
}

/// True if a read has the deadline that sets itself, if its export has one. Then its end teaches that deadline.
#[inline]
pub fn teaches(conn: &Conn, request: &Request) -> bool {
    conn.params.deadline.is_none() && conn.promise_of(request).deadline == Deadline::Exports
}

fn op_of(command: Command) -> Op {
    match command {
        Command::Read => Op::Read,
        Command::Write => Op::Write,
        Command::Flush => Op::Flush,
        Command::Trim => Op::Trim,
        Command::WriteZeroes => Op::WriteZeroes,
        Command::Cache => Op::Cache,
        Command::BlockStatus => Op::BlockStatus,
        Command::Disconnect | Command::Cancel => unreachable!("never enters the stack"),
    }
}

fn flags_of(request: &Request) -> IoFlags {
    let mut flags = IoFlags::NONE;
    for (theirs, ours) in [
        (CommandFlags::FUA, IoFlags::FUA),
        (CommandFlags::NO_HOLE, IoFlags::NO_HOLE),
        (CommandFlags::FAST_ZERO, IoFlags::FAST_ZERO),
    ] {
        if request.flags.contains(theirs) {
            flags = flags.with(ours);
        }
    }
    flags
}
