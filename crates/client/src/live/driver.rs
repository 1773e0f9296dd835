//! Driver of gets over sockets: the one place that knows all requests in flight.

mod health;

use super::error::ReadError;
use super::link::{CONFIDENCE_MAX, For, Link, LinkState, Pending, promise_of};
use super::options::Options;
use crate::course::{Course, Ended, Step};
use crate::policy::{Answer, Get, Probe, ReplicaPolicy, Reply};
use plimsoll_base::{Rng, Span, Time};
use plimsoll_nbd::promise::Promise;
use plimsoll_nbd::transactions::Reply as Said;
use plimsoll_nbd::wire::{Command, NoteKind};
use slab::Slab;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// Result of a read.
pub type Outcome = Result<Vec<u8>, ReadError>;

/// Counters since a volume was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Reads begun.
    pub gets: u64,
    /// Reads that ended with an error.
    pub failed: u64,
    /// Requests sent for them.
    pub tries: u64,
    /// Of these, refused for taking too long.
    pub busy: u64,
    /// Of these, ended with another error, or with data older than what was read before. Those that were withdrawn don't count.
    pub errors: u64,
    /// Requests withdrawn.
    pub cancels: u64,
    /// Probes sent for reads.
    pub probes: u64,
}

impl std::ops::Add for Counts {
    type Output = Counts;
    fn add(self, other: Counts) -> Counts {
        Counts {
            gets: self.gets + other.gets,
            failed: self.failed + other.failed,
            tries: self.tries + other.tries,
            busy: self.busy + other.busy,
            errors: self.errors + other.errors,
            cancels: self.cancels + other.cancels,
            probes: self.probes + other.probes,
        }
    }
}

struct Sent {
    link: usize,
    cookie: Option<u64>,
}

struct Running {
    serial: u64,
    course: Course,
    sent: Vec<Sent>,
    waiter: Option<oneshot::Sender<Outcome>>,
    limit: Duration,
    /// Replies of replicas that didn't bring the data.
    heard: Vec<String>,
    /// Data must be at least as new.
    floor: u64,
    /// Of the replicas that refused, the one that would have the data soonest: when, and its certainty in thousandths.
    soonest: Option<(Time, Option<u32>)>,
}

/// Times of a read, and whether it may end as refused.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Of each try; `None`: the policy's own.
    pub deadline: Option<Span>,
    /// Of the whole read.
    pub limit: Duration,
    /// As [`Get::refusable`].
    pub refusable: bool,
}

/// Events still to be delivered to a course.
enum News {
    Failed { get: (usize, u64), number: u32, why: String },
    ProbeLost { get: (usize, u64) },
    Broken { link: usize },
}

/// See the module's documentation.
pub struct Driver {
    started: Instant,
    policy: Box<dyn ReplicaPolicy + Send>,
    options: Options,
    /// By number.
    pub links: Vec<Link>,
    gets: Slab<Running>,
    timers: BinaryHeap<Reverse<(Time, usize, u64)>>,
    /// Number of timers at which those of ended gets are discarded.
    sweep_at: usize,
    /// Notified when a timer is set that comes before all others.
    pub timer_set: Arc<Notify>,
    /// Notified when a link's state changes.
    pub changed: Arc<Notify>,
    rng: Rng,
    /// The volume's size in bytes, once its replicas have agreed on it.
    pub size_bytes: Option<u64>,
    /// Lower bound of the generation of the data read so far.
    floor: u64,
    news: VecDeque<News>,
    /// Links with something to send.
    touched: Vec<usize>,
    /// Counters.
    pub counts: Counts,
    /// The tasks that carry its bytes have ended.
    stopped: bool,
}

impl Driver {
    /// One that knows of no connection yet.
    pub fn new(addresses: Vec<String>, policy: Box<dyn ReplicaPolicy + Send>, options: Options) -> Driver {
        Driver {
            started: Instant::now(),
            policy,
            rng: Rng::new(options.seed, "live client"),
            options,
            links: addresses.into_iter().map(Link::new).collect(),
            gets: Slab::new(),
            timers: BinaryHeap::new(),
            sweep_at: TIMERS_SWEPT,
            timer_set: Arc::new(Notify::new()),
            changed: Arc::new(Notify::new()),
            size_bytes: None,
            floor: 0,
            news: VecDeque::new(),
            touched: Vec::new(),
            counts: Counts::default(),
            stopped: false,
        }
    }

    /// The time of this driver's policies.
    pub fn now(&self) -> Time {
        Time::from_nanos(self.started.elapsed().as_nanos() as u64)
    }

    /// A moment as others' clocks have it.
    pub fn instant(&self, at: Time) -> Instant {
        self.started + Duration::from(at.since(Time::ZERO))
    }

    /// The volume's size in bytes, and what reads must be multiples of and at most for every replica that is connected, if any is.
    pub fn shape(&self) -> Option<(u64, u32, u32)> {
        let all =
            self.links.iter().filter_map(|l| l.open.as_ref()).map(|o| (o.size_bytes, o.block_bytes, o.read_bytes_max));
        all.reduce(|a, b| (a.0, a.1.max(b.1), a.2.min(b.2)))
    }

    /// Begins a read; its place, and which user of it.
    pub fn begin(
        &mut self,
        offset: u64,
        len: u64,
        Terms { deadline, limit, refusable }: Terms,
        waiter: oneshot::Sender<Outcome>,
    ) -> (usize, u64) {
        let now = self.now();
        self.counts.gets += 1;
        let serial = self.counts.gets;
        let up = |(i, l): (usize, &Link)| (l.state == LinkState::Up).then_some(i as u16);
        let replicas: Box<[u16]> = self.links.iter().enumerate().filter_map(up).collect();
        if replicas.is_empty() {
            self.counts.failed += 1;
            let why = self.links.iter().filter_map(Link::closed).collect();
            let _ = waiter.send(Err(ReadError::Failed(why))); // the caller may have gone
            return (usize::MAX, serial);
        }
        let until = now + Span::from(limit);
        let draw = self.rng.next_u64();
        let get = Get {
            number: serial - 1,
            arrived_at: now,
            until,
            client: 0,
            replicas,
            offset,
            len,
            draw,
            limit: deadline,
            refusable,
        };
        let running = Running {
            serial,
            course: Course::new(get),
            sent: Vec::new(),
            waiter: Some(waiter),
            limit,
            heard: Vec::new(),
            floor: self.floor,
            soonest: None,
        };
        let at = self.gets.insert(running);
        let step = self.gets[at].course.begin(now, &mut self.policy);
        self.carry_out(now, at, step, Vec::new());
        self.settle();
        (at, serial)
    }

    /// Nobody waits for a read any more: what is under way for it is withdrawn, and nothing else is sent for it.
    pub fn left(&mut self, get: (usize, u64)) {
        let (now, policy) = (self.now(), &mut self.policy);
        if let Some(running) = self.gets.get_mut(get.0).filter(|r| r.serial == get.1)
            && running.waiter.take().is_some()
        {
            // It hasn't failed: there is nobody to tell an outcome.
            let Step { orders, ended: _ } = running.course.left(now, policy);
            self.carry_out(now, get.0, Step { orders, ended: None }, Vec::new());
            self.settle();
        }
    }

    /// The tasks that carry its bytes have ended: fails all reads, now and later.
    pub fn stop(&mut self) {
        self.stopped = true;
        // First all of them: no read goes on to another.
        self.links.iter_mut().for_each(|l| l.state = LinkState::Down(ENDED.into()));
        (0..self.links.len()).for_each(|link| self.lose(link, ENDED));
        // Those that only wait for a timer.
        for (_, running) in &mut self.gets {
            if let Some(waiter) = running.waiter.take() {
                self.counts.failed += 1;
                let _ = waiter.send(Err(ReadError::Failed(vec![ENDED.into()]))); // the caller may have gone
            }
        }
    }

    fn running(&mut self, (at, serial): (usize, u64)) -> Option<&mut Running> {
        self.gets.get_mut(at).filter(|r| r.serial == serial)
    }

    /// Carries out a step of a get's course. `data` are the data of the try that has just been answered.
    fn carry_out(&mut self, now: Time, at: usize, step: Step, data: Vec<u8>) {
        let Step { orders, ended } = step;
        if let Some(how) = ended {
            self.end(now, at, how, data);
        }
        let get = (at, self.gets[at].serial);
        for s in orders.sends {
            self.send(now, get, usize::from(s.node), promise_of(s.deadline, s.tells));
        }
        for number in orders.cancels {
            self.cancel(at, number);
        }
        for time in orders.timers {
            if self.timers.peek().is_none_or(|Reverse(first)| time < first.0) {
                self.timer_set.notify_one();
            }
            self.timers.push(Reverse((time, get.0, get.1)));
        }
        self.sweep();
        for node in orders.probes {
            self.probe(now, get, usize::from(node));
        }
        if self.gets[at].course.is_over() {
            self.gets.remove(at);
        }
    }

    /// Most gets end long before their timers: these mustn't pile up until then.
    fn sweep(&mut self) {
        if self.timers.len() >= self.sweep_at {
            let gets = &self.gets;
            self.timers.retain(|Reverse((_, at, serial))| gets.get(*at).is_some_and(|r| r.serial == *serial));
            self.sweep_at = (2 * self.timers.len()).max(TIMERS_SWEPT);
        }
    }

    fn end(&mut self, now: Time, at: usize, how: Ended, data: Vec<u8>) {
        let running = &mut self.gets[at];
        let outcome = match how {
            Ended::Done(_) => Ok(data),
            Ended::Failed if now >= running.course.get().until => {
                let silent = running.course.numbers_under_way().map(|n| &running.sent[n as usize]);
                let silent = silent.map(|s| format!("{}: hasn't answered", self.links[s.link].address));
                let heard = running.heard.iter().cloned().chain(silent).collect();
                Err(ReadError::Limit { limit: running.limit, heard })
            }
            Ended::Failed => {
                let heard = std::mem::take(&mut running.heard);
                Err(match running.soonest.filter(|_| running.course.get().refusable) {
                    Some((ready, confidence_permille)) => {
                        let wait = Duration::from(ready.since(now));
                        ReadError::Busy { wait, confidence_permille, heard }
                    }
                    None => ReadError::Failed(heard),
                })
            }
        };
        self.counts.failed += u64::from(outcome.is_err());
        if let Some(waiter) = running.waiter.take() {
            let _ = waiter.send(outcome); // the caller may have gone
        }
    }

    fn send(&mut self, now: Time, get: (usize, u64), link: usize, promise: Promise) {
        self.counts.tries += 1;
        let running = &mut self.gets[get.0];
        let number = running.sent.len() as u32;
        let (offset, length) = (running.course.get().offset, running.course.get().len as u32);
        let l = &mut self.links[link];
        // It was read when this get began. By now it may be behind, or connected again and not asked yet.
        let open = if l.state == LinkState::Up { l.open.as_mut() } else { None };
        let cookie =
            open.and_then(|o| o.submit(now, For::Try { get, number }, Command::Read, (offset, length), promise));
        running.sent.push(Sent { link, cookie });
        if cookie.is_none() {
            let why = l.closed().unwrap_or_else(|| format!("{}: too many requests are under way", l.address));
            self.news.push_back(News::Failed { get, number, why });
        }
        self.touched.push(link);
    }

    fn cancel(&mut self, at: usize, number: u32) {
        let Sent { link, cookie } = &mut self.gets[at].sent[number as usize];
        let (link, cookie) = (*link, cookie.take()); // withdrawn once, whatever a node says
        if let (Some(open), Some(cookie)) = (&mut self.links[link].open, cookie) {
            self.counts.cancels += 1;
            open.cancel(cookie);
            self.touched.push(link);
        }
    }

    fn probe(&mut self, now: Time, get: (usize, u64), link: usize) {
        self.counts.probes += 1;
        let (offset, length) = (self.gets[get.0].course.get().offset, self.gets[get.0].course.get().len as u32);
        let open = self.links[link].open.as_mut().filter(|o| o.promises);
        let sent = open.and_then(|o| {
            o.submit(now, For::Probe { get }, Command::BlockStatus, (offset, length), Promise::default())
        });
        match sent {
            Some(_) => self.touched.push(link),
            None => self.news.push_back(News::ProbeLost { get }),
        }
    }

    /// Sends what is to be sent and tells what came of it, until nothing more follows.
    fn settle(&mut self) {
        loop {
            while let Some(link) = self.touched.pop() {
                if !self.links[link].flush() {
                    self.news.push_back(News::Broken { link });
                }
            }
            let Some(news) = self.news.pop_front() else { return };
            let now = self.now();
            match news {
                News::Broken { link } => self.lose(link, "the connection broke"),
                News::Failed { get, number, why } => {
                    self.answered(now, get, number, Answer { reply: Reply::Failed, ..NOTHING }, why, Vec::new());
                }
                News::ProbeLost { get } => {
                    let policy = &mut self.policy;
                    if let Some(running) = self.gets.get_mut(get.0).filter(|r| r.serial == get.1) {
                        let step = running.course.probe_lost(now, policy);
                        self.carry_out(now, get.0, step, Vec::new());
                    }
                }
            }
        }
    }

    fn answered(&mut self, now: Time, get: (usize, u64), number: u32, answer: Answer, why: String, data: Vec<u8>) {
        let policy = &mut self.policy;
        let Some(running) = self.gets.get_mut(get.0).filter(|r| r.serial == get.1) else { return };
        match answer.reply {
            Reply::Done => {}
            Reply::Busy(_) => self.counts.busy += 1,
            Reply::Failed if running.course.tries()[number as usize].cancelled => {}
            Reply::Failed => self.counts.errors += 1,
        }
        if answer.reply != Reply::Done {
            running.heard.push(why);
        }
        let step = running.course.answered(now, number, answer, policy);
        self.carry_out(now, get.0, step, data);
    }

    /// Timers whose time has come; when the next one is due.
    pub fn fire(&mut self) -> Option<Instant> {
        loop {
            let now = self.now();
            let &Reverse((due, at, serial)) = self.timers.peek()?;
            if due > now {
                return Some(self.instant(due));
            }
            self.timers.pop();
            let policy = &mut self.policy;
            if let Some(running) = self.gets.get_mut(at).filter(|r| r.serial == serial) {
                let step = running.course.timer(now, policy);
                self.carry_out(now, at, step, Vec::new());
                self.settle();
            }
        }
    }

    /// Bytes have come. Fails where they are no NBD.
    pub fn feed(&mut self, link: usize, mut bytes: &[u8]) -> Result<(), String> {
        let now = self.now();
        let gone = || "the connection broke".to_string();
        self.links[link].open.as_mut().ok_or_else(gone)?.heard_at = now;
        loop {
            let open = self.links[link].open.as_mut().ok_or_else(gone)?;
            let Some(said) = open.transactions.poll(&mut bytes).map_err(|e| format!("speaks no NBD: {e}"))? else {
                self.settle();
                return Ok(());
            };
            match said {
                Said::Data { cookie, offset, bytes } => {
                    let p = open.pending.get_mut(&cookie).expect("in flight");
                    let at = (offset - p.offset) as usize;
                    p.data.resize(p.length as usize, 0);
                    p.data[at..at + bytes.len()].copy_from_slice(bytes);
                }
                Said::Hole { cookie, .. } => {
                    let p = open.pending.get_mut(&cookie).expect("in flight");
                    p.data.resize(p.length as usize, 0);
                }
                Said::Notes { cookie, notes } => {
                    let p = open.pending.get_mut(&cookie).expect("in flight");
                    let begun = notes.iter().any(|n| n.0 == NoteKind::Begun);
                    p.heard(notes);
                    p.note_chunks += 1;
                    if p.note_chunks > NOTE_CHUNKS_MAX {
                        return Err(format!("sends more than {NOTE_CHUNKS_MAX} chunks of notes for a request"));
                    }
                    if let (For::Try { get, number }, true) = (p.what, begun) {
                        self.began(now, get, number);
                    }
                }
                Said::Status { .. } => {}
                Said::Error { cookie, code, message, .. } => {
                    let p = open.pending.get_mut(&cookie).expect("in flight");
                    p.error = Some(if message.is_empty() { code.to_string() } else { message });
                }
                Said::Done { cookie } => {
                    let p = open.pending.remove(&cookie).expect("in flight");
                    self.complete(now, link, p);
                }
            }
        }
    }

    fn began(&mut self, now: Time, get: (usize, u64), number: u32) {
        let policy = &mut self.policy;
        if let Some(running) = self.gets.get_mut(get.0).filter(|r| r.serial == get.1) {
            let step = running.course.began(now, number, policy);
            self.carry_out(now, get.0, step, Vec::new());
        }
    }

    fn complete(&mut self, now: Time, link: usize, p: Pending) {
        match p.what {
            For::Health { required, claimed } => self.health(now, link, &p, required, claimed),
            For::Probe { get } => {
                let us = |kind| Span::from_micros(u64::from(p.note(kind).unwrap_or(0)));
                let in_flight = p.note(NoteKind::InFlight).unwrap_or(0);
                let probe = Probe { node: link as u16, in_flight, latency: us(NoteKind::LatencyUs) };
                let policy = &mut self.policy;
                if let Some(running) = self.gets.get_mut(get.0).filter(|r| r.serial == get.1) {
                    let step = running.course.probed(now, probe, policy);
                    self.carry_out(now, get.0, step, Vec::new());
                }
            }
            For::Try { get, number } => {
                let (answer, why) = self.judge(link, get, &p);
                if let (Reply::Busy(wait), Some(running)) = (answer.reply, self.running(get)) {
                    let ready = (now + wait, p.note(NoteKind::Confidence).map(|c| c.min(CONFIDENCE_MAX)));
                    running.soonest = Some(running.soonest.map_or(ready, |s| if s.0 <= ready.0 { s } else { ready }));
                }
                self.answered(now, get, number, answer, why, p.data);
            }
        }
    }

    /// Judges a read's answer: whether it can be used.
    fn judge(&mut self, link: usize, get: (usize, u64), p: &Pending) -> (Answer, String) {
        let us = |kind| p.note(kind).map(|us| Span::from_micros(u64::from(us)));
        let moment = self.now();
        let l = &mut self.links[link];
        let (in_flight, service) = (p.note(NoteKind::InFlight), us(NoteKind::ServiceUs).unwrap_or(Span::ZERO));
        let mut answer = Answer { reply: Reply::Done, in_flight: in_flight.unwrap_or(0), service };
        let mut why = String::new();
        if let Some(error) = &p.error {
            answer.reply = us(NoteKind::WaitUs).map_or(Reply::Failed, Reply::Busy);
            why = format!("{}: {error}", l.address);
            if p.note(NoteKind::Behind).is_some() {
                l.state = LinkState::Behind(error.clone());
                (l.marked, l.counts) = (true, 0);
                self.changed.notify_waiters();
            }
        } else if let (Some(before), Some(now)) = (p.note(NoteKind::GenerationBefore), p.note(NoteKind::GenerationLow))
        {
            let (before, now) = (near(l.generation, before), near(l.generation, now));
            if now.max(before) > generation_max(l.confirmed, moment.since(l.confirmed_at.unwrap_or(Time::ZERO))) {
                answer.reply = Reply::Failed;
                why = format!("{}: says {now} changes, but had {} when it was last asked", l.address, l.confirmed);
                return (answer, why);
            }
            l.generation = l.generation.max(now);
            if l.state == LinkState::Up {
                l.counts = l.counts.max(now);
            }
            let floor = self.gets.get(get.0).filter(|r| r.serial == get.1).map_or(0, |r| r.floor);
            if self.options.monotonic && before < floor {
                answer.reply = Reply::Failed;
                why = format!("{}: its data may be older ({before} changes) than what was read ({floor})", l.address);
            } else {
                self.floor = self.floor.max(now);
            }
        }
        (answer, why)
    }
}

const ENDED: &str = "the runtime in which the volume was opened has ended: open it in one that goes on";
/// Most chunks of notes in an answer: one when the request begins, and one before its end.
const NOTE_CHUNKS_MAX: u32 = 2;
/// No fewer timers are looked through for those of gets that have ended.
const TIMERS_SWEPT: usize = 1024;
const NOTHING: Answer = Answer { reply: Reply::Failed, in_flight: 0, service: Span::ZERO };

/// The most changes that a replica can have seen, so long after it had `confirmed`: ten million a second, and a million for answers that
/// overtake each other. An answer that says more is wrong. Taking it would make the answers of all other replicas too old.
fn generation_max(confirmed: u64, since: Span) -> u64 {
    const AT_ONCE: u64 = 1 << 20;
    const PER_S: u64 = 10_000_000;
    let changes = u128::from(since.as_nanos()) * u128::from(PER_S) / 1_000_000_000;
    confirmed.saturating_add(AT_ONCE).saturating_add(u64::try_from(changes).unwrap_or(u64::MAX))
}

/// The number nearest to `known` whose lower half is `low`.
fn near(known: u64, low: u32) -> u64 {
    known.wrapping_add_signed(i64::from(low.wrapping_sub(known as u32) as i32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::link::Open;
    use crate::live::stream::Stream;
    use plimsoll_nbd::client::Opened;
    use plimsoll_nbd::wire::MetaContext;

    #[test]
    fn a_generation_is_known_from_its_lower_half() {
        assert_eq!(near(5, 7), 7);
        assert_eq!(near(7, 5), 5);
        assert_eq!(near((1 << 32) - 1, 0), 1 << 32);
        assert_eq!(near((3 << 32) + 2, u32::MAX), (3 << 32) - 1);
    }

    #[test]
    fn a_replica_cant_have_seen_more_changes_than_time_allows() {
        let a_while = Span::from_millis(500);
        assert_eq!(generation_max(7, Span::ZERO), 7 + (1 << 20));
        assert_eq!(generation_max(7, a_while), 7 + (1 << 20) + 5_000_000);
        assert!(near(1000, 1000 + (1 << 31) - 1) > generation_max(1000, a_while), "half the lower word too large");
        assert_eq!(generation_max(u64::MAX - 1, Span::from_secs(1 << 30)), u64::MAX);
    }

    /// A driver whose links are up, and the far ends of their sockets.
    fn connected(policy: crate::PolicyKind, replicas: usize) -> (Driver, Vec<tokio::net::UnixStream>) {
        let policy = policy.build(&crate::PolicySettings::default()).unwrap();
        let mut driver = Driver::new(vec!["one".into(); replicas], policy, Options::default());
        let opened = Opened {
            size_bytes: 1 << 20,
            structured_replies: true,
            meta_contexts: vec![(1, MetaContext::Promise.name().to_string())],
            ..Opened::default()
        };
        let mut far_ends = Vec::new();
        for link in 0..replicas {
            let (near, far) = tokio::net::UnixStream::pair().unwrap();
            driver.links[link].open = Some(Open::new(driver.now(), Arc::new(Stream::Unix(near)), &opened));
            driver.links[link].state = LinkState::Up;
            far_ends.push(far);
        }
        (driver, far_ends)
    }

    const TERMS: Terms = Terms { deadline: None, limit: Duration::from_secs(30), refusable: false };

    #[tokio::test]
    async fn a_read_that_goes_on_to_another_replica_asks_none_that_is_behind_by_now() {
        let (mut driver, _far) = connected(crate::PolicyKind::Base, 2);
        let (send, mut answer) = oneshot::channel();
        driver.begin(0, 512, TERMS, send);
        let first = (0..2).find(|i| !driver.links[*i].open.as_ref().unwrap().pending.is_empty()).unwrap();
        let second = 1 - first;
        driver.links[second].state = LinkState::Behind("lacks a change".into());
        driver.lose(first, "it was stopped");
        assert!(driver.links[second].open.as_ref().unwrap().pending.is_empty(), "it isn't asked");
        let e = answer.try_recv().unwrap().unwrap_err().to_string();
        assert!(e.contains("it was stopped") && e.contains("lacks a change"), "{e}");
    }

    #[test]
    fn timers_of_gets_that_have_ended_dont_pile_up() {
        let policy = crate::PolicyKind::Timeout.build(&crate::PolicySettings::default()).unwrap();
        let mut driver = Driver::new(vec!["one".into()], policy, Options::default());
        driver.links[0].state = LinkState::Up; // without a connection: each read fails at once
        for _ in 0..10_000 {
            let (send, mut answer) = oneshot::channel();
            let terms = Terms { deadline: None, limit: Duration::from_secs(30), refusable: false };
            driver.begin(0, 512, terms, send);
            assert!(answer.try_recv().unwrap().is_err());
        }
        assert!(driver.timers.len() <= TIMERS_SWEPT, "{}", driver.timers.len());
    }
}
