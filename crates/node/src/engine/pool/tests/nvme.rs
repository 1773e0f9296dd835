//! NVMe/TCP hosts on a pool: statuses of the path, and writes whose data are fetched.

use super::*;
use crate::engine::conn::{Conn, DeadlineFrom};
use crate::engine::nvme::{HostId, fixture};
use crate::replica::ReplicaUse;
use plimsoll_base::{Confidence, Io, IoError, IoHead, Outcome, Rng};
use plimsoll_nvme::command::Status;
use plimsoll_nvme::host::{Command as HostCommand, Ear, Heard};
use plimsoll_nvme::pdu::Digests;
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};
use std::collections::BTreeMap;

/// A host on its only queue.
struct Host {
    stream: UnixStream,
    ear: Ear,
    digests: Digests,
    /// Not taken apart yet.
    rest: Vec<u8>,
}

impl Host {
    fn connect(s: &mut Scene, digests: bool, change: impl FnOnce(&mut ExportParams)) -> Host {
        let (queue, said) = fixture::connected(digests);
        let mut params = params_of(1, Wire::Nvme(queue));
        change(&mut params);
        let stream = s.attach(params);
        stream.set_nonblocking(true).unwrap();
        let digests = Digests { header: digests, data: digests };
        let mut host = Host { stream, ear: Ear::default(), digests, rest: said };
        assert!(matches!(host.next(), Some(Heard::Parameters(..))));
        assert!(matches!(host.next(), Some(Heard::Done { status: Status::OK, .. })));
        host
    }

    fn send(&mut self, command: HostCommand, data: &[u8]) {
        let mut out = Vec::new();
        command.send(&mut out, self.digests, data);
        self.stream.write_all(&out).unwrap();
    }

    fn next(&mut self) -> Option<Heard> {
        let mut input = &self.rest[..];
        let heard = self.ear.take(&mut input).expect("the node keeps to the protocol");
        self.rest = input.to_vec();
        heard
    }

    /// The next thing that the pool says; `None` if it closes.
    fn hear(&mut self, s: &mut Scene) -> Option<Heard> {
        let (begun, mut buffer) = (Instant::now(), vec![0; 1 << 20]);
        loop {
            if let Some(heard) = self.next() {
                return Some(heard);
            }
            s.round();
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(n) => self.rest.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return None,
                Err(_) => assert!(begun.elapsed() < Duration::from_secs(60), "the pool says nothing"),
            }
        }
    }

    /// The status of the next command to end.
    fn status(&mut self, s: &mut Scene) -> Status {
        match self.hear(s) {
            Some(Heard::Done { status, .. }) => status,
            Some(Heard::Data { done: true, .. }) => Status::OK,
            other => panic!("{other:?}"),
        }
    }

    fn ask(&mut self, s: &mut Scene, command: HostCommand, data: &[u8]) -> Status {
        self.send(command, data);
        self.status(s)
    }
}

/// A layer that forecasts a second's wait, or has failed.
struct Gloomy {
    has_failed: bool,
}

impl Layer for Gloomy {
    fn name(&self) -> &'static str {
        "gloomy"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }

    fn state(&self) -> LayerState {
        if self.has_failed { LayerState::Failed } else { LayerState::Ready }
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        Forecast { wait: Span::from_secs(1), ..below.ask(0, at, head) }
    }

    fn submit(&mut self, _: Time, io: Io, out: &mut Actions) {
        match self.has_failed {
            true => out.end(io, Outcome::Failed(IoError::Device)),
            false => out.submit(0, io),
        }
    }

    fn is_idle(&self) -> bool {
        true
    }
}

fn gloomy_scene(has_failed: bool) -> Scene {
    let devices = Devices::new(vec![Device::Null { size_bytes: 1 << 40 }]);
    let mut stack = Stack::new(StackConfig::default(), devices.offers());
    stack.push(Box::new(Gloomy { has_failed }), vec![Target::Node(1)]);
    stack.push(Box::new(Front::new()), vec![Target::Node(2)]);
    stack.push(Box::new(Map::new()), vec![Target::Device(0)]);
    let mut s = scene_of(stack, devices, PermitLimits::default());
    s.set_volume(1);
    s
}

/// Multipath moves on: a device that is lost is no end of the data, which another node may have.
#[test]
fn requests_of_a_failed_pool_are_for_another_path() {
    let mut s = gloomy_scene(true);
    let mut host = Host::connect(&mut s, false, |_| ());
    for n in 0..3 {
        assert_eq!(host.ask(&mut s, HostCommand::read(n, 0, 8), &[]), Status::INACCESSIBLE, "however often");
        assert_eq!(host.ask(&mut s, HostCommand::write(n, 0, 1, true), &[1; 512]), Status::INACCESSIBLE);
        assert_eq!(host.ask(&mut s, HostCommand::write_zeroes(n, 0, 1), &[]), Status::INACCESSIBLE);
    }
    let flushed = host.ask(&mut s, HostCommand::flush(1), &[]);
    assert_eq!(flushed, Status::WRITE_FAULT, "no other path can make durable what this one acknowledged");
    drop(host);
    s.end();
}

/// A bad block of one copy: the host is sent to the other, and prefers it. If the read comes back, the other has failed, too.
#[test]
fn a_read_that_fails_on_one_copy_is_tried_on_another_first() {
    const MS: Duration = Duration::from_millis(1);
    let mut s = flat_scene(Device::Absent { size_bytes: 1 << 40 }, PermitLimits::default());
    s.set_volume(1);
    s.freeze();
    let mut copy = None;
    let mut host = Host::connect(&mut s, false, |params| {
        params.used_as = Some(ReplicaUse::Read);
        copy = Some(params.replica.clone());
    });
    let copy = copy.expect("its volume");
    assert!(!copy.is_failing());
    assert_eq!(host.ask(&mut s, HostCommand::read(1, 0, 64), &[]), Status::INACCESSIBLE);
    assert!(copy.is_failing(), "the path isn't preferred any more");
    // Linux doesn't send a read-ahead again: the application's read comes here before its host has heard of that.
    assert_eq!(host.ask(&mut s, HostCommand::read(2, 0, 8), &[]), Status::INACCESSIBLE);
    assert_eq!(host.ask(&mut s, HostCommand::read(3, 128, 8), &[]), Status::INACCESSIBLE, "another one");
    s.shift(1000 * MS);
    assert_eq!(
        host.ask(&mut s, HostCommand::read(4, 63, 8), &[]),
        Status::UNRECOVERED_READ,
        "a part of it has come back"
    );
    // The application reads it again later, and for whatever reason comes here.
    s.shift(10_000 * MS);
    assert_eq!(host.ask(&mut s, HostCommand::read(5, 0, 64), &[]), Status::INACCESSIBLE);
    // Others that failed since make no difference.
    for n in 0..300u64 {
        assert_eq!(host.ask(&mut s, HostCommand::read(6, 1000 + n, 1), &[]), Status::INACCESSIBLE, "{n} others");
    }
    s.shift(119_999 * MS);
    s.round();
    assert!(copy.is_failing() && s.pool.timeout() <= Some(2 * MS));
    s.shift(MS);
    s.round();
    assert!(!copy.is_failing(), "no read has failed for two minutes");
    // Of a volume that isn't one of several there is no other copy.
    let mut alone = Host::connect(&mut s, false, |_| ());
    assert_eq!(alone.ask(&mut s, HostCommand::read(1, 256, 8), &[]), Status::UNRECOVERED_READ);
    drop((host, alone));
    s.end();
}

/// A layer that holds the first requests, and withdraws them when it is woken: as a scheduler does that finds reads late after it has taken
/// them in.
struct Regrets {
    held: Vec<Io>,
    to_hold: usize,
}

impl Layer for Regrets {
    fn name(&self) -> &'static str {
        "regrets"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        below.ask(0, at, head)
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        if self.to_hold == 0 {
            return out.submit(0, io);
        }
        self.held.push(io);
        self.to_hold -= 1;
        if self.to_hold == 0 {
            out.wake_at(now);
        }
    }

    fn wake(&mut self, _: Time, out: &mut Actions) {
        for io in self.held.drain(..) {
            assert!(io.may_be_refused());
            out.end(io, Outcome::Busy { wait: Span::ZERO, confidence: Confidence::NONE });
        }
    }

    fn is_idle(&self) -> bool {
        self.held.is_empty()
    }
}

/// Two reads that overlap are both found late after they have come in: one is refused, and the other is served.
#[test]
fn of_reads_that_overlap_one_is_refused_though_both_are_found_late() {
    let devices = Devices::new(vec![Device::Null { size_bytes: 1 << 40 }]);
    let mut stack = Stack::new(StackConfig::default(), devices.offers());
    stack.push(Box::new(Regrets { held: Vec::new(), to_hold: 3 }), vec![Target::Node(1)]);
    stack.push(Box::new(Front::new()), vec![Target::Node(2)]);
    stack.push(Box::new(Map::new()), vec![Target::Device(0)]);
    let mut s = scene_of(stack, devices, PermitLimits::default());
    s.set_volume(1);
    let mut host = Host::connect(&mut s, false, |params| {
        params.deadline = Some((Span::from_secs(100), DeadlineFrom::Connection));
        params.on_busy = OnBusy::Error;
    });
    for (n, block) in [(1, 0), (2, 4), (3, 100)] {
        host.send(HostCommand::read(n, block, 8), &[]);
    }
    let mut ended: Vec<Status> = (0..3).map(|_| host.status(&mut s)).collect();
    ended.sort_by_key(|status| *status == Status::OK);
    assert_eq!(ended, [Status::INACCESSIBLE, Status::INACCESSIBLE, Status::OK]);
    drop(host);
    s.end();
}

/// More late reads than the node remembers refusals of: the next ones are served, and counted as such.
#[test]
fn late_reads_are_served_when_the_table_of_refusals_is_full() {
    const READS: u16 = 300;
    let mut s = gloomy_scene(false);
    s.freeze();
    let mut host = Host::connect(&mut s, false, |params| {
        params.deadline = Some((Span::from_nanos(1), DeadlineFrom::Connection));
        params.on_busy = OnBusy::Error;
    });
    // None overlaps another.
    let statuses: Vec<Status> =
        (0..READS).map(|n| host.ask(&mut s, HostCommand::read(n, u64::from(n), 1), &[])).collect();
    let (refused, served) = statuses.split_at(256);
    assert!(refused.iter().all(|status| *status == Status::INACCESSIBLE), "{refused:?}");
    assert!(served.iter().all(|status| *status == Status::OK), "{served:?}");
    let (_, view) = s.pool.exports.view(0, s.pool.now).expect("its counts");
    assert_eq!(view.busy_refused, 256);
    s.shift(Duration::from_millis(101));
    assert_eq!(host.ask(&mut s, HostCommand::read(1, 0, 1), &[]), Status::INACCESSIBLE, "forgotten");
    drop(host);
    s.end();
}

fn volatile_scene(limits: PermitLimits) -> Scene {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![0; 4 * SIZE_BYTES as usize]).unwrap();
    let device = FileDevice { file, start: 0, len: 4 * SIZE_BYTES, block_bytes: 512, has_failed_sync: Arc::default() };
    let mut s = flat_scene(Device::File(device), limits);
    s.set_volume(1);
    s
}

/// Data that were asked for and damaged on their way: the host sends the write again, and nothing of it was written. The connection,
/// and what else is on it, goes on.
#[test]
fn fetched_data_that_are_damaged_change_nothing() {
    const BYTES: usize = 128 << 10;
    let mut s = volatile_scene(PermitLimits { jobs_max: 8, bytes_max: 1 << 20 });
    let mut host = Host::connect(&mut s, true, |_| ());
    let data = vec![7; BYTES];
    // More rounds than the tenant has room for payloads: each gives its room back.
    for n in 0..20u16 {
        host.send(HostCommand::write(n, 0, BYTES as u32 / 512, false), &[]);
        let ready = host.hear(&mut s).expect("it is asked for the data");
        let mut out = Vec::new();
        // In one PDU, or in several of which the first or another is damaged.
        ready.send_data(&mut out, host.digests, &data, [BYTES, 10_000, 50_000][usize::from(n) % 3]);
        out[[100, 5000, 100_000][usize::from(n) % 3]] ^= 1;
        host.send(HostCommand::flush(100), &[]);
        host.stream.write_all(&out).unwrap();
        let mut ended = [host.hear(&mut s), host.hear(&mut s)].map(|heard| match heard {
            Some(Heard::Done { id, status, .. }) => (id, status),
            other => panic!("{other:?}"),
        });
        ended.sort_by_key(|(id, _)| *id);
        assert_eq!(ended, [(n, Status::TRANSPORT), (100, Status::OK)]);
        let read = host.ask_data(&mut s, HostCommand::read(200, 0, BYTES as u32 / 512));
        assert!(read.iter().all(|b| *b == 0), "damaged data were written");
    }
    host.send(HostCommand::write(1, 0, BYTES as u32 / 512, false), &[]);
    let ready = host.hear(&mut s).expect("it is asked for the data");
    let mut out = Vec::new();
    ready.send_data(&mut out, host.digests, &data, BYTES);
    host.stream.write_all(&out).unwrap();
    assert_eq!(host.status(&mut s), Status::OK, "sent again");
    assert!(host.ask_data(&mut s, HostCommand::read(200, 0, BYTES as u32 / 512)) == data);
    drop(host);
    s.end();
}

impl Host {
    fn ask_data(&mut self, s: &mut Scene, command: HostCommand) -> Vec<u8> {
        self.send(command, &[]);
        match self.hear(s) {
            Some(Heard::Data { data, .. }) => data,
            other => panic!("{other:?}"),
        }
    }
}

/// A host that has more long writes waiting than its queue has entries breaks the protocol.
#[test]
fn more_waiting_writes_than_entries_end_the_connection() {
    const ENTRIES: u16 = 32;
    let mut s = volatile_scene(PermitLimits::default());
    let mut host = Host::connect(&mut s, false, |_| ());
    // One whose data are asked for, and one for each entry that waits.
    (0..=ENTRIES).for_each(|n| host.send(HostCommand::write(n, 0, 128, false), &[]));
    assert!(matches!(host.hear(&mut s), Some(Heard::Ready { id: 0, .. })));
    assert_eq!(host.ask(&mut s, HostCommand::read(100, 0, 8), &[]), Status::OK, "others are served meanwhile");
    host.send(HostCommand::write(101, 0, 128, false), &[]);
    assert_eq!(host.hear(&mut s), Some(Heard::Terminated(2)), "out of sequence");
    assert_eq!(host.hear(&mut s), None);
    s.end();
}

/// The first of two long writes waits for a permit that the connection's own answers hold. When it has one, too much still waits to be
/// sent. The second's data are asked for once the host has read.
#[test]
fn a_write_whose_data_were_not_asked_for_is_asked_for_when_its_host_has_read() {
    const READS: u16 = 12;
    const BYTES: u32 = 128 << 10;
    let mut s = slow_scene(PermitLimits { jobs_max: 1000, bytes_max: u64::from(READS) << 20 });
    s.set_volume(1);
    let mut host = Host::connect(&mut s, false, |_| ());
    (0..READS).for_each(|n| host.send(HostCommand::read(n, 0, 2048), &[]));
    (100..102).for_each(|n| host.send(HostCommand::write(n, 0, BYTES / 512, false), &[]));
    let ready = host.hear(&mut s).expect("before the reads have ended");
    assert!(matches!(ready, Heard::Ready { id: 100, .. }), "{ready:?}");
    let mut out = Vec::new();
    ready.send_data(&mut out, host.digests, &[7; BYTES as usize], BYTES as usize);
    host.stream.write_all(&out).unwrap();
    let is_full = |s: &Scene| s.pool.clients.iter().any(|c| c.outbox.is_full());
    let begun = Instant::now();
    while !is_full(&s) || s.pool.clients.waiting().get(&TENANT) != Some(&1) {
        s.round();
        assert!(begun.elapsed() < Duration::from_secs(60), "the first write waits for no permit");
    }
    let (mut reads, mut writes) = (0, 0);
    while reads < READS || writes < 2 {
        match host.hear(&mut s) {
            Some(Heard::Data { .. }) => reads += 1,
            Some(Heard::Done { status: Status::OK, .. }) => writes += 1,
            Some(ready @ Heard::Ready { id: 101, .. }) => {
                let mut out = Vec::new();
                ready.send_data(&mut out, host.digests, &[8; BYTES as usize], BYTES as usize);
                host.stream.write_all(&out).unwrap();
            }
            other => panic!("{other:?} after {reads} reads and {writes} writes"),
        }
    }
    drop(host);
    s.end();
}

/// A layer of moods. The forecast of a read may be late, a read that is taken in may be found late and withdrawn, or be held up and served.
struct Moody {
    rng: Rng,
    /// Each one's time to go on, and true if it is withdrawn then.
    held: Vec<(Time, Io, bool)>,
    submitted: u64,
}

impl Layer for Moody {
    fn name(&self) -> &'static str {
        "moody"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        // The same however often it is asked.
        let is_late = Rng::new(head.offset << 20 ^ self.submitted, "forecast").chance(0.3);
        Forecast { wait: if is_late { Span::from_secs(1) } else { Span::ZERO }, ..below.ask(0, at, head) }
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        self.submitted += 1;
        match self.rng.below(3) {
            0 => out.submit(0, io),
            n => {
                let due = now + Span::from_millis(self.rng.below(40));
                let is_withdrawn = n == 1 && io.may_be_refused();
                self.held.push((due, io, is_withdrawn));
                out.wake_at(due);
            }
        }
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        for (_, io, is_withdrawn) in self.held.extract_if(.., |(due, ..)| *due <= now) {
            match is_withdrawn {
                true => out.end(io, Outcome::Busy { wait: Span::ZERO, confidence: Confidence::NONE }),
                false => out.submit(0, io),
            }
        }
        if let Some(next) = self.held.iter().map(|(due, ..)| *due).min() {
            out.wake_at(next);
        }
    }

    fn is_idle(&self) -> bool {
        self.held.is_empty()
    }
}

/// A queue of one of several hosts.
struct Path {
    host: Host,
    who: u8,
    /// Reads without an answer, by number: start and blocks.
    waiting: BTreeMap<u16, (u64, u64)>,
    next_id: u16,
}

/// Hosts that send refused reads again, on two queues each.
struct Hosts {
    s: Scene,
    paths: Vec<Path>,
    /// Host, time, start and blocks of each refusal.
    refused: Vec<(u8, Time, u64, u64)>,
    served: u64,
}

impl Hosts {
    const DEADLINE: Span = Span::from_millis(20);

    fn new(seed: u64) -> Hosts {
        let devices = Devices::new(vec![Device::Null { size_bytes: 1 << 40 }]);
        let mut stack = Stack::new(StackConfig::default(), devices.offers());
        let moody = Moody { rng: Rng::new(seed, "moods"), held: Vec::new(), submitted: 0 };
        stack.push(Box::new(moody), vec![Target::Node(1)]);
        stack.push(Box::new(Front::new()), vec![Target::Node(2)]);
        stack.push(Box::new(Map::new()), vec![Target::Device(0)]);
        let mut s = scene_of(stack, devices, PermitLimits::default());
        s.set_volume(1);
        s.freeze();
        let mut hosts = Hosts { s, paths: Vec::new(), refused: Vec::new(), served: 0 };
        [1, 2, 1, 2].into_iter().for_each(|who| hosts.connect(who));
        hosts
    }

    fn connect(&mut self, who: u8) {
        let host = Host::connect(&mut self.s, false, |params| {
            params.deadline = Some((Self::DEADLINE, DeadlineFrom::Connection));
            params.on_busy = OnBusy::Error;
            let Wire::Nvme(queue) = &mut params.wire else { panic!("an NVMe queue") };
            queue.host = HostId([who; 16]);
        });
        self.paths.push(Path { host, who, waiting: BTreeMap::new(), next_id: 0 });
    }

    fn send(&mut self, at: usize, start: u64, blocks: u64) {
        let path = &mut self.paths[at];
        path.host.send(HostCommand::read(path.next_id, start, blocks as u32), &[]);
        path.waiting.insert(path.next_id, (start, blocks));
        path.next_id += 1;
    }

    /// A host goes without a word, with what it has in flight.
    fn go(&mut self, at: usize) {
        let Path { host, who, .. } = self.paths.swap_remove(at);
        drop(host);
        let alive = |s: &Scene| s.pool.clients.iter().filter(|c| !c.is_ending()).count();
        let begun = Instant::now();
        while alive(&self.s) > self.paths.len() {
            self.s.round();
            assert!(begun.elapsed() < Duration::from_secs(60), "its end isn't noticed");
        }
        self.connect(who);
    }

    /// All that was sent is in the stack, or answered and heard.
    fn settle(&mut self) {
        let begun = Instant::now();
        loop {
            self.s.round();
            for at in 0..self.paths.len() {
                self.hear(at);
            }
            let waiting: usize = self.paths.iter().map(|path| path.waiting.len()).sum();
            let clients = self.s.pool.clients.iter().filter(|c| !c.is_ending());
            let inside: u32 = clients.map(Conn::in_flight).sum();
            if waiting == inside as usize {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{waiting} wait for answers, {inside} are inside");
        }
    }

    fn hear(&mut self, at: usize) {
        let (path, mut buffer) = (&mut self.paths[at], vec![0; 1 << 16]);
        while let Ok(n) = path.host.stream.read(&mut buffer) {
            assert!(n > 0, "the pool closes");
            path.host.rest.extend_from_slice(&buffer[..n]);
        }
        while let Some(heard) = path.host.next() {
            let (id, status) = match heard {
                Heard::Done { id, status, .. } => (id, status),
                Heard::Data { id, done: true, .. } => (id, Status::OK),
                other => panic!("{other:?}"),
            };
            let (start, blocks) = path.waiting.remove(&id).expect("each is answered once");
            let (who, now) = (path.who, self.s.pool.now);
            if status == Status::OK {
                self.served += 1;
                continue;
            }
            assert_eq!(status, Status::INACCESSIBLE);
            let again = self.refused.iter().find(|(whose, then, s, b)| {
                *whose == who && now < *then + Span::from_millis(100) && *s < start + blocks && start < s + b
            });
            assert_eq!(again, None, "{start} and {blocks} blocks at {now:?}: refused twice");
            self.refused.push((who, now, start, blocks));
        }
    }
}

/// However hosts send refused reads again, each read is answered once, and none that overlaps a refused one is refused within 100 ms.
#[test]
fn reads_that_come_back_are_answered_once_and_refused_no_second_time() {
    let (mut refused, mut again) = (0, 0);
    for seed in 0..20 {
        println!("seed {seed}");
        let (mut h, mut rng) = (Hosts::new(seed), Rng::new(seed, "hosts"));
        for _ in 0..300 {
            let at = rng.below(h.paths.len() as u64) as usize;
            let who = h.paths[at].who;
            let newest = h.refused.iter().rev().filter(|r| r.0 == who).nth(rng.below(3) as usize).copied();
            match (rng.below(12), newest) {
                // As it was, split, or merged.
                (0..=2, Some((_, _, start, blocks))) => {
                    again += 1;
                    match rng.below(3) {
                        0 => h.send(at, start, blocks),
                        1 if blocks > 1 => {
                            h.send(at, start, blocks / 2);
                            h.send((at + 1) % 4, start + blocks / 2, blocks - blocks / 2);
                        }
                        _ => h.send(at, start.saturating_sub(8), (blocks + 16).min(64)),
                    }
                }
                (3..=5, _) => h.s.shift(Duration::from_millis(rng.below(30))),
                (6, _) if rng.chance(0.1) => h.go(at),
                _ => h.send(at, rng.below(2000), 1 + rng.below(16)),
            }
            h.settle();
        }
        // Of hosts that have gone, too.
        while h.s.pool.stack.inflight() > 0 {
            h.s.shift(Duration::from_millis(1));
            h.settle();
        }
        assert!(h.paths.iter().all(|path| path.waiting.is_empty()) && h.served > 0);
        refused += h.refused.len();
        let Hosts { s, paths, .. } = h;
        drop(paths);
        s.end();
    }
    println!("{refused} refused, {again} sent again");
    assert!(refused > 500 && again > 500, "{refused} refused, {again} sent again");
}
