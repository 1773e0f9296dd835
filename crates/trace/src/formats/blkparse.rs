//! blkparse's text: one line per event of a request's life, joined back into requests.
//!
//! ```text
//!   8,0    3        1     0.000072500   697  G   W 223490 + 8 [kjournald]
//!   dev   cpu      seq    seconds       pid  |  rwbs sector + sectors [process]
//! ```
//! A request arrives at its earliest kind of event in the file (queued Q, else got a request G, else inserted I,
//! else issued D); the time up to D is its queue time, from D to C its service time.

use crate::error::{Position, Problem};
use crate::formats::{Source, Step, device};
use crate::lines::Lines;
use crate::parse::{checked, nanos, sectors, trim, whole, words};
use crate::record::{Op, Tables, TraceRecord};
use plimsoll_base::{Span, Time};
use std::collections::{BTreeMap, VecDeque};

/// Requests waiting for their completion at most; the oldest is then given without one. Requests merged into
/// another are never completed under their own address, so such a bound is needed.
const PENDING_MAX: usize = 1 << 16;
/// A request not completed after this time of the trace won't be.
const PENDING_SPAN: Span = Span::from_secs(30);

/// The kinds of event we use, in the order of a request's life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    Queued,
    Got,
    Inserted,
    Issued,
    Completed,
}

/// One parsed line.
struct Event {
    kind: Kind,
    record: TraceRecord,
}

/// Returns whether the line starts blkparse's closing summary.
fn is_summary(line: &[u8]) -> bool {
    [&b"CPU"[..], b"Total", b"Throughput", b"Events", b"Skips", b"Input file"].iter().any(|p| line.starts_with(p))
}

/// The operation of an RWBS field: `WS`, `RA`, `FWFS`, `D`, …. `None` if it moves no data (`N`).
fn rwbs(field: &[u8], has_sectors: bool) -> Result<Option<Op>, Problem> {
    if field.is_empty() || !field.iter().all(u8::is_ascii_uppercase) {
        return Err(Problem::field("rwbs", "letters such as R, WS, D or FWFS", field));
    }
    let has = |letter| field.contains(&letter);
    Ok(match () {
        () if has(b'D') => Some(Op::Trim),
        () if has(b'R') => Some(Op::Read),
        () if has(b'W') && has_sectors => Some(Op::Write),
        () if has(b'F') => Some(Op::Flush),
        () => None,
    })
}

/// A line as an event; `None` for events that are no station of a request's life.
fn event(line: &[u8], tables: &mut Tables) -> Result<Option<Event>, Problem> {
    const SHAPE: &str = "blkparse's `major,minor cpu seq seconds pid action rwbs sector + sectors [process]`";
    let shape = || Problem::shape(SHAPE, line);
    let mut it = words(line);
    let mut next = || it.next().ok_or_else(shape);
    let (dev, cpu, seq, time, pid, action) = (next()?, next()?, next()?, next()?, next()?, next()?);
    let comma = dev.iter().position(|&b| b == b',').ok_or_else(shape)?;
    for (name, field) in
        [("major", &dev[..comma]), ("minor", &dev[comma + 1..]), ("cpu", cpu), ("seq", seq), ("pid", pid)]
    {
        whole(name, field)?;
    }
    let at = Time::from_nanos(nanos("time", time, 1_000_000_000)?);
    let kind = match action {
        b"Q" => Kind::Queued,
        b"G" => Kind::Got,
        b"I" => Kind::Inserted,
        b"D" => Kind::Issued,
        b"C" => Kind::Completed,
        _ if action.len() <= 2 && action.iter().all(u8::is_ascii_alphabetic) => return Ok(None),
        _ => return Err(Problem::field("action", "one of blkparse's letters", action)),
    };
    let flags = next()?;
    let rest: [Option<&[u8]>; 3] = [it.next(), it.next(), it.next()];
    let (offset, len) = match rest {
        [Some(sector), Some(b"+"), Some(count)] => (sectors("sector", sector)?, sectors("sectors", count)?),
        _ => (0, 0),
    };
    let Some(op) = rwbs(flags, len > 0)? else { return Ok(None) };
    let process = line.iter().position(|&b| b == b'[').map(|open| &line[open + 1..]);
    let context = match process.and_then(|p| p.strip_suffix(b"]")).map(trim) {
        Some(p) if !p.is_empty() && kind != Kind::Completed => tables.contexts.intern(p),
        _ => None,
    };
    let record = TraceRecord { context, ..TraceRecord::new(at, device(tables, dev)?, op, offset, len) };
    Ok(checked(record)?.map(|record| Event { kind, record }))
}

/// The earliest kind of event among the first lines, if one of them is an event.
pub(crate) fn earliest_kind<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Kind> {
    let mut tables = Tables::new();
    lines.filter_map(|l| event(l, &mut tables).ok().flatten()).map(|e| e.kind).min()
}

struct Pending {
    record: TraceRecord,
    issued_at: Option<Time>,
    done: bool,
}

/// Identity of a request in flight: device, address, operation.
type Key = (u32, u64, Op);

/// blkparse lines joined into requests.
pub(crate) struct Blkparse {
    lines: Lines,
    arrival: Kind,
    pending: VecDeque<Pending>,
    /// Number of the first in `pending`; numbers go up by one.
    first: u64,
    by_key: BTreeMap<Key, u64>,
    ended: bool,
}

impl Blkparse {
    /// `arrival`: which event a request arrives at (see [`earliest_kind`]).
    pub fn new(lines: Lines, arrival: Kind) -> Blkparse {
        Blkparse { lines, arrival, pending: VecDeque::new(), first: 0, by_key: BTreeMap::new(), ended: false }
    }

    fn handle(&mut self, e: Event) {
        let r = e.record;
        let key = (r.device, r.offset, r.op);
        if e.kind == self.arrival {
            self.by_key.insert(key, self.first + self.pending.len() as u64);
            let issued_at = (e.kind == Kind::Issued).then_some(r.arrived_at);
            self.pending.push_back(Pending { record: r, issued_at, done: false });
            return;
        }
        let Some(&number) = self.by_key.get(&key) else { return };
        let p = &mut self.pending[(number - self.first) as usize];
        match e.kind {
            Kind::Issued => {
                p.issued_at = Some(r.arrived_at);
                p.record.queue = Some(r.arrived_at.since(p.record.arrived_at));
            }
            Kind::Completed => {
                p.record.service = p.issued_at.map(|t| r.arrived_at.since(t));
                p.done = true;
                self.by_key.remove(&key);
            }
            _ => {}
        }
    }

    /// The oldest request, once nothing more can be learnt about it.
    fn pop_ready(&mut self, now: Option<Time>) -> Option<TraceRecord> {
        let head = self.pending.front()?;
        let given_up =
            self.pending.len() > PENDING_MAX || now.is_none_or(|t| t.since(head.record.arrived_at) > PENDING_SPAN);
        if !(head.done || given_up) {
            return None;
        }
        let p = self.pending.pop_front()?;
        let key = (p.record.device, p.record.offset, p.record.op);
        if self.by_key.get(&key) == Some(&self.first) {
            self.by_key.remove(&key);
        }
        self.first += 1;
        Some(p.record)
    }
}

impl Source for Blkparse {
    fn step(&mut self, tables: &mut Tables) -> Result<Step, Problem> {
        let mut now = None;
        if !self.ended {
            self.ended = !self.lines.advance()? || is_summary(trim(self.lines.current()));
        }
        if !self.ended {
            let e = event(self.lines.current(), tables)?;
            now = e.as_ref().map(|e| e.record.arrived_at).or(Some(Time::ZERO));
            if let Some(e) = e {
                self.handle(e);
            }
        }
        match self.pop_ready(now) {
            Some(r) => Ok(Step::Record(r)),
            None if self.ended => Ok(Step::End),
            None => Ok(Step::More),
        }
    }

    fn position(&self) -> Position {
        self.lines.position()
    }
}
