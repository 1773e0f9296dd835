//! The layer over three OSDs on three hosts, driven by hand.

use super::*;
use plimsoll_base::Outcome;
use plimsoll_stack::{Addressed, Offered, Stack, StackConfig, Target};

const OBJECT: u64 = 4 << 20;

fn us(n: u64) -> Time {
    Time::ZERO + Span::from_micros(n)
}

struct Bench {
    stack: Stack,
    at: Vec<(usize, Io)>,
}

/// Group N's OSDs are N, N+1, N+2 (of three), and there are three groups.
fn map(epoch: u64) -> OsdMap {
    let osds = (0..3).map(|n| OsdPlace { number: n, host: format!("h{n}"), port: Some(1 + n as u8) }).collect();
    let acting = (0..3).map(|n: u16| vec![n, (n + 1) % 3, (n + 2) % 3]).collect();
    OsdMap { epoch, prefix: "rbd_data.1".into(), object_bytes: OBJECT, start: 0, acting, osds }
}

impl Bench {
    fn new() -> Bench {
        let offer =
            Offer { size_bytes: 1 << 40, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 64 };
        let mut stack = Stack::new(StackConfig::default(), vec![offer; 4]);
        stack.push(Box::new(Osds::new()), (0..4).map(Target::Device).collect());
        stack.start(Time::ZERO);
        assert!(stack.tell(Time::ZERO, &Addressed::new(&OsdsControl::Map(map(1)))));
        Bench { stack, at: Vec::new() }
    }

    /// An offset whose primary is this OSD.
    fn of(&self, osd: u16) -> u64 {
        let m = map(1);
        (0..100).find(|object| m.acting[m.pg(*object)][0] == osd).expect("a hash spreads") * OBJECT
    }

    fn offer(&mut self, now: Time, op: Op, offset: u64, deadline: Option<Span>) -> Option<IoId> {
        let mut head = IoHead::new(op, VolumeKey::POOL, TenantId(1), offset, 4096, now);
        head.deadline = deadline.map_or(Time::NEVER, |d| now + d);
        let data = if op == Op::Write { Data::Zeroes } else { Data::Absent };
        let offered = self.stack.offer(now, Io::new(head, data));
        self.collect();
        match offered {
            Offered::Accepted(id) => Some(id),
            _ => None,
        }
    }

    fn collect(&mut self) {
        while let Some(io) = self.stack.next_device_io() {
            self.at.push(io);
        }
    }

    /// Devices of the requests in flight, in order.
    fn devices(&self) -> Vec<usize> {
        self.at.iter().map(|(d, _)| *d).collect()
    }

    /// The device answers its request that is the `nth` in flight; requests that end by it.
    fn end(&mut self, now: Time, nth: usize, outcome: Outcome) -> Vec<(IoId, Outcome)> {
        let (device, mut io) = self.at.remove(nth);
        io.data = Data::Zeroes;
        self.stack.device_done(now, device, Completion { io, outcome, dispatched_at: now });
        self.collect();
        std::iter::from_fn(|| self.stack.next_done()).map(|c| (c.io.id, c.outcome)).collect()
    }

    fn view(&self, now: Time, osd: usize) -> OsdView {
        self.stack.layer::<Osds>().expect("there").view(now).remove(osd)
    }

    /// Reads of an OSD that take 200 us each, from `at` on; when the last has ended.
    fn learn(&mut self, mut at: Time, osd: u16, reads: u32) -> Time {
        for _ in 0..reads {
            let offset = self.of(osd);
            self.offer(at, Op::Read, offset, None).expect("no deadline");
            at += Span::from_micros(200);
            assert_eq!(self.end(at, self.at.len() - 1, Outcome::Done).len(), 1);
        }
        at
    }
}

/// A full pool, or a lock that is lost, is told at once.
#[test]
fn a_write_that_fails_says_nothing_of_its_osds_time() {
    let forecast = |outcome| {
        let mut b = Bench::new();
        let mut now = b.learn(us(0), 0, 50);
        let offset = b.of(0);
        for _ in 0..200 {
            b.offer(now, Op::Write, offset, None).unwrap();
            now += Span::from_micros(1);
            b.end(now, 0, outcome);
        }
        let standing = &b.stack.layer::<Osds>().expect("there").standings[0];
        standing.predictor.as_ref().expect("it was read").piece_ns()
    };
    let failed = forecast(Outcome::Failed(IoError::NoSpace));
    assert!(failed > 150_000, "reads took 200 us, and now {failed} ns");
    assert!(forecast(Outcome::Done) < failed / 2, "those that are done are learned from");
}

/// A map of a large cluster is received in one call.
#[test]
fn an_osd_that_was_never_asked_has_no_predictor() {
    let mut b = Bench::new();
    b.learn(us(0), 1, 1);
    let standings = &b.stack.layer::<Osds>().expect("there").standings;
    assert_eq!(standings.iter().map(|s| s.predictor.is_some()).collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn a_stalled_read_is_sent_to_a_replica_and_the_first_answer_counts() {
    let mut b = Bench::new();
    let now = b.learn(us(0), 0, 50);
    let offset = b.of(0);
    let id = b.offer(now, Op::Read, offset, None).unwrap();
    assert_eq!(b.devices(), [0], "the primary, by the handle that chooses nothing");
    let limit = now + Span::from_millis(3);
    assert!(b.stack.next_wake() <= limit);
    b.stack.wake(limit);
    b.collect();
    assert_eq!(b.devices(), [0, 2], "once more, at the first replica's host");
    assert_eq!(b.end(limit + Span::from_micros(200), 1, Outcome::Done), [(id, Outcome::Done)]);
    assert!(!b.stack.is_idle(), "the first try is still under way");
    // The OSD stands out: what comes next goes elsewhere at once.
    let late = limit + Span::from_millis(1);
    b.offer(late, Op::Read, offset, None).unwrap();
    assert_eq!(b.devices()[1], 2);
    assert_eq!(b.end(late, 1, Outcome::Done).len(), 1);
    assert!(b.end(late, 0, Outcome::Done).is_empty(), "the request has ended already");
    assert!(b.stack.is_idle());
    let v = b.view(late, 0);
    assert!(v.stands_out && (v.late, v.steered) == (1, 2), "{v:?}");
    assert!(!b.view(late, 1).stands_out);
}

#[test]
fn a_failed_try_waits_for_the_other() {
    let mut b = Bench::new();
    let offset = b.of(0);
    let id = b.offer(us(0), Op::Read, offset, None).unwrap();
    b.stack.wake(us(3000));
    b.collect();
    assert!(b.end(us(3100), 1, Outcome::Failed(plimsoll_base::IoError::Device)).is_empty());
    assert_eq!(b.end(us(9000), 0, Outcome::Done), [(id, Outcome::Done)]);
}

#[test]
fn an_object_that_was_just_written_is_read_at_its_primary() {
    let mut b = Bench::new();
    let (mine, now) = (b.of(0), us(10));
    b.offer(now, Op::Write, mine, None).unwrap();
    assert_eq!(b.devices(), [0], "changes go to the handle that has the lock");
    b.end(us(300), 0, Outcome::Done);
    b.offer(us(400), Op::Read, mine, None).unwrap();
    b.stack.wake(us(3400));
    b.collect();
    assert_eq!(b.devices(), [0], "a replica would send it back");
    assert_eq!(b.view(us(3400), 0).fresh, 1);
    b.end(us(30_000), 0, Outcome::Done);
    // A later write of the same group tells the replicas of it.
    let m = map(1);
    let other = (0..1000).find(|o| m.acting[m.pg(*o)][0] == 0 && o * OBJECT != mine).unwrap() * OBJECT;
    b.offer(us(31_000), Op::Write, other, None).unwrap();
    b.end(us(31_300), 0, Outcome::Done);
    b.offer(us(31_400), Op::Read, mine, None).unwrap();
    assert_eq!(b.devices(), [2], "the primary stands out, and the replica knows the object as stable");
}

#[test]
fn a_slow_osd_refuses_its_own_objects_only_where_no_replica_can_be_read() {
    let mut b = Bench::new();
    let mut alone = map(2);
    alone.osds.iter_mut().for_each(|o| o.port = None);
    assert!(b.stack.tell(us(0), &Addressed::new(&OsdsControl::Map(alone))));
    let now = b.learn(us(0), 0, 100);
    let now = b.learn(now, 1, 100);
    let (slow, fast) = (b.of(0), b.of(1));
    b.offer(now, Op::Read, slow, None).unwrap();
    let later = now + Span::from_millis(20);
    b.stack.wake(later);
    b.collect();
    assert_eq!(b.offer(later, Op::Read, slow, Some(Span::from_millis(10))), None, "it stalls for twice as long");
    assert!(b.offer(later, Op::Read, fast, Some(Span::from_millis(10))).is_some());
    assert_eq!((b.view(later, 0).refused, b.view(later, 1).refused), (1, 0));
    // With the replicas' handles it is steered before it would be refused.
    assert!(b.stack.tell(later, &Addressed::new(&OsdsControl::Map(map(3)))));
    assert!(b.offer(later, Op::Read, slow, Some(Span::from_millis(10))).is_some());
    assert_eq!(b.devices().last(), Some(&3), "the other replica has a read in flight");
}

#[test]
fn an_osd_is_asked_again_and_forgiven() {
    let mut b = Bench::new();
    let offset = b.of(0);
    b.offer(us(0), Op::Read, offset, None).unwrap();
    b.stack.wake(us(3000));
    b.collect();
    b.end(us(3100), 1, Outcome::Done);
    b.end(us(3200), 0, Outcome::Done);
    let asked = us(3000) + Span::from_secs(1);
    let now = b.learn(asked, 0, 20);
    assert!(b.view(now, 0).stands_out, "it was asked again for less time than it was avoided");
    let now = b.learn(asked + Span::from_secs(1), 0, 1);
    assert!(!b.view(now, 0).stands_out);
}

#[test]
fn maps_that_make_no_sense_are_refused_and_changed_ones_keep_what_was_learned() {
    let mut b = Bench::new();
    let now = b.learn(us(0), 1, 30);
    let mut bad = map(2);
    bad.acting[0] = vec![7];
    assert!(!b.stack.tell(now, &Addressed::new(&OsdsControl::Map(bad))));
    let mut next = map(2);
    // OSD 0 was replaced by OSD 9, and the order of the rest is another.
    next.osds[0] = OsdPlace { number: 9, host: "h9".into(), port: None };
    next.osds.reverse();
    assert!(b.stack.tell(now, &Addressed::new(&OsdsControl::Map(next))));
    let views = b.stack.layer::<Osds>().unwrap().view(now);
    let of = |n: u32| views.iter().find(|v| v.number == n).unwrap().reads;
    assert_eq!((of(1), of(9)), (30, 0));
}

impl Bench {
    /// Tells the layer another map.
    fn tell(&mut self, now: Time, map: OsdMap) {
        assert!(self.stack.tell(now, &Addressed::new(&OsdsControl::Map(map))));
    }

    /// One read at a time, each of another primary, with the time of the nth read at an OSD; when the last has ended.
    fn reads(&mut self, mut at: Time, reads: usize, took: impl Fn(usize, usize) -> Span) -> Time {
        for nth in 0..reads {
            let offset = self.of((nth % 3) as u16);
            self.offer(at, Op::Read, offset, None).expect("no deadline");
            let device = self.at[0].0;
            at += took(nth, if device == 0 { nth % 3 } else { device - 1 });
            self.stack.wake(at);
            self.collect();
            while !self.at.is_empty() {
                self.end(at, 0, Outcome::Done);
            }
        }
        at
    }

    fn stand_out(&self, now: Time) -> Vec<u32> {
        let views = self.stack.layer::<Osds>().expect("there").view(now);
        views.iter().filter(|v| v.stands_out).map(|v| v.number).collect()
    }
}

#[test]
fn a_cluster_whose_reads_all_take_long_has_no_osd_that_stands_out() {
    let mut b = Bench::new();
    let now = b.reads(us(0), 1000, |_, _| Span::from_millis(8));
    assert_eq!(b.stand_out(now), [0; 0]);
    let late: u64 = (0..3).map(|osd| b.view(now, osd).late).sum();
    assert!(late < 30, "{late} of 1000 reads were taken for stalled ones");
    let offset = b.of(0);
    b.offer(now, Op::Read, offset, None).unwrap();
    let later = now + Span::from_millis(7);
    b.stack.wake(later);
    b.collect();
    assert_eq!(b.at.len(), 1, "the read isn't doubled");
    assert!(b.offer(later, Op::Read, offset, Some(Span::from_millis(12))).is_some());
}

#[test]
fn reads_of_two_kinds_make_no_osd_stand_out() {
    // Cache hits and reads of a disk, at all OSDs alike: three of each kind in turn, then one of ten from the disk.
    let of = |is_slow: bool| Span::from_micros(if is_slow { 8000 } else { 400 });
    let mut b = Bench::new();
    let now = b.reads(us(0), 1000, |nth, _| of(nth / 3 % 2 == 0));
    assert_eq!(b.stand_out(now), [0; 0]);
    let late = |b: &Bench| -> u64 { (0..3).map(|osd| b.view(now, osd).late).sum() };
    assert!(late(&b) < 30, "{}", late(&b));
    let mut b = Bench::new();
    let now = b.reads(us(0), 3000, |nth, _| of(nth % 10 == 0));
    assert_eq!(b.stand_out(now), [0; 0]);
    assert!(late(&b) < 30, "{}", late(&b));
}

#[test]
fn one_slow_osd_of_three_stands_out() {
    let mut b = Bench::new();
    let now = b.reads(us(0), 3000, |_, osd| Span::from_micros(if osd == 1 { 20_000 } else { 400 }));
    assert_eq!(b.stand_out(now), [1]);
    assert!(b.view(now, 1).steered > 900, "{}", b.view(now, 1).steered);
}

#[test]
fn a_read_that_never_ends_makes_its_osd_late_only_until_later_ones_are_answered() {
    let mut b = Bench::new();
    let mut alone = map(2);
    alone.osds.iter_mut().for_each(|o| o.port = None);
    b.tell(us(0), alone);
    let now = b.learn(us(0), 0, 100);
    let offset = b.of(0);
    let never = b.offer(now, Op::Read, offset, None).unwrap();
    let stalled = now + Span::from_millis(20);
    b.stack.wake(stalled);
    assert_eq!(b.offer(stalled, Op::Read, offset, Some(Span::from_millis(10))), None);
    let now = b.learn(stalled, 0, 1000) + Span::from_millis(100);
    assert!(b.offer(now, Op::Read, offset, Some(Span::from_millis(10))).is_some());
    assert!(b.view(now, 0).forecast_ns < 3_000_000);
    // Long after, the OSD is even asked again as one without reads; the answer still comes to its client.
    b.end(now + Span::from_micros(200), 1, Outcome::Done);
    let now = b.learn(now + Span::from_secs(60), 0, 2);
    assert_eq!(b.end(now, 0, Outcome::Done), [(never, Outcome::Done)]);
    assert!(b.stack.is_idle());
}

#[test]
fn a_stalled_read_that_later_ones_overtook_does_not_make_its_osd_late() {
    let mut b = Bench::new();
    let now = b.learn(us(0), 0, 100);
    let offset = b.of(0);
    let late = b.offer(now, Op::Read, offset, None).unwrap();
    let now = b.learn(now, 0, 10);
    b.stack.wake(now + Span::from_millis(4));
    b.collect();
    assert_eq!(b.devices(), [0, 2], "the client needn't wait for it");
    let now = now + Span::from_millis(4);
    assert_eq!(b.stand_out(now), [0; 0]);
    assert_eq!(b.end(now, 1, Outcome::Done), [(late, Outcome::Done)]);
    b.offer(now, Op::Read, offset, None).unwrap();
    assert_eq!(b.devices(), [0, 0], "later ones go to the primary");
    // One that no later one overtook does.
    let now = now + Span::from_millis(4);
    b.stack.wake(now);
    b.collect();
    assert_eq!(b.stand_out(now), [0]);
}

#[test]
fn a_steered_read_that_fails_is_tried_at_the_primary() {
    let mut b = Bench::new();
    let now = b.learn(us(0), 0, 50);
    let offset = b.of(0);
    b.offer(now, Op::Read, offset, None).unwrap();
    let now = now + Span::from_millis(5);
    b.stack.wake(now);
    b.collect();
    b.end(now, 1, Outcome::Done);
    b.end(now, 0, Outcome::Done);
    let id = b.offer(now, Op::Read, offset, None).unwrap();
    assert_eq!(b.devices(), [2], "the primary stands out");
    let failed = Outcome::Failed(plimsoll_base::IoError::Device);
    assert!(b.end(now, 0, failed).is_empty());
    assert_eq!(b.devices(), [0], "librbd's own choice");
    assert_eq!(b.end(now, 0, Outcome::Done), [(id, Outcome::Done)]);
    // The replica that failed is avoided, too. A read that fails at the primary as well has failed.
    let id = b.offer(now, Op::Read, offset, None).unwrap();
    assert_eq!(b.devices(), [3]);
    assert!(b.end(now, 0, failed).is_empty());
    assert_eq!(b.end(now, 0, failed), [(id, failed)]);
    assert!(b.stack.is_idle());
}

#[test]
fn a_read_over_two_objects_has_the_forecast_of_the_later_one() {
    let mut b = Bench::new();
    let now = b.learn(us(0), 0, 100);
    let now = b.learn(now, 1, 100);
    let m = map(1);
    let primary = |object: u64| m.acting[m.pg(object)][0];
    let first = (0..1000).find(|o| primary(*o) == 0 && primary(o + 1) == 1).unwrap();
    b.offer(now, Op::Read, (first + 1) * OBJECT, None).unwrap();
    let later = now + Span::from_millis(20);
    b.stack.wake(later);
    b.collect();
    let over = (first + 1) * OBJECT - 2048;
    assert_eq!(b.offer(later, Op::Read, over, Some(Span::from_millis(10))), None);
    assert_eq!((b.view(later, 0).refused, b.view(later, 1).refused), (0, 1), "the OSD at fault has refused it");
    assert!(b.offer(later, Op::Read, over - 2048, Some(Span::from_millis(10))).is_some(), "all of it is in the first");
    b.offer(later, Op::Read, over, None).unwrap();
    assert_eq!(b.devices().last(), Some(&0), "it can't be steered");
}

#[test]
fn a_replica_that_its_hosts_handle_cannot_reach_is_not_used() {
    // OSD 0 and 1 are on one host: its handle reads from the primary.
    let mut b = Bench::new();
    let mut next = map(2);
    next.osds[1] = OsdPlace { number: 1, host: "h0".into(), port: Some(1) };
    b.tell(us(0), next);
    let offset = b.of(0);
    b.offer(us(0), Op::Read, offset, None).unwrap();
    b.stack.wake(us(3000));
    b.collect();
    assert_eq!(b.devices(), [0, 3]);
    // Two replicas on one host: its handle reads from the first of them.
    let mut b = Bench::new();
    let mut next = map(2);
    next.osds[2] = OsdPlace { number: 2, host: "h1".into(), port: Some(2) };
    b.tell(us(0), next);
    let first = b.of(1);
    b.offer(us(0), Op::Read, offset, None).unwrap();
    b.offer(us(0), Op::Read, first, None).unwrap();
    b.stack.wake(us(3000));
    b.collect();
    assert!(!b.devices()[2..].contains(&2), "both copies that can be reached have stalled: {:?}", b.devices());
}

#[test]
fn an_osd_that_no_map_has_any_more_is_not_shown() {
    let mut b = Bench::new();
    let offset = b.of(0);
    b.offer(us(0), Op::Read, offset, None).unwrap();
    b.stack.wake(us(3000));
    b.collect();
    assert_eq!(b.stand_out(us(3000)), [0]);
    let mut next = map(2);
    next.acting = (0..3).map(|n: u16| vec![n % 2, (n + 1) % 2]).collect();
    next.osds.remove(0);
    b.tell(us(3100), next);
    let numbers =
        |b: &Bench| b.stack.layer::<Osds>().unwrap().view(us(4000)).iter().map(|v| v.number).collect::<Vec<_>>();
    assert_eq!(numbers(&b), [1, 2]);
    assert_eq!(b.stand_out(us(4000)), [0; 0]);
    while !b.at.is_empty() {
        b.end(us(4000), 0, Outcome::Done);
    }
    // It comes back as one of which nothing is known.
    b.tell(us(5000), map(3));
    assert_eq!(b.stand_out(us(5000)), [0; 0]);
    let mut shown = numbers(&b);
    shown.sort_unstable();
    assert_eq!(shown, [0, 1, 2]);
}

/// An OSD that stops again and again answers many reads in time between two stops. Each time it is asked again, reads of clients stall. Its period
/// doesn't divide the time for which it is avoided: otherwise it would be asked again in a stop each time.
#[test]
fn an_osd_that_goes_on_to_stall_is_asked_ever_more_seldom() {
    const SECONDS: u64 = 60;
    let mut b = Bench::new();
    let (offset, end) = (b.of(0), us(0) + Span::from_secs(SECONDS));
    let mut at = b.learn(us(0), 0, 100);
    while at < end {
        let begun = at;
        b.offer(begun, Op::Read, offset, None).expect("no deadline");
        let stops = b.at[0].0 == 0 && begun.since(us(0)).as_micros() % 101_000 < 30_000;
        at += Span::from_micros(if stops { 3000 } else { 200 });
        b.stack.wake(at);
        b.collect();
        while !b.at.is_empty() {
            b.end(at, 0, Outcome::Done);
        }
        at += Span::from_micros(800);
    }
    let late = b.view(at, 0).late;
    assert!((4..=8).contains(&late), "{late} reads stalled in {SECONDS} s");
    assert!(b.stand_out(at) == [0], "it still stops");
    // It is well again: asked after half a minute, and forgiven after as long again.
    let (mut reads, calm) = (0, at + Span::from_secs(70));
    while at < calm {
        b.offer(at, Op::Read, offset, None).expect("no deadline");
        reads += u64::from(b.at[0].0 == 0);
        at += Span::from_micros(200);
        b.end(at, 0, Outcome::Done);
        at += Span::from_millis(5);
    }
    assert!(reads > 1000 && b.stand_out(at).is_empty(), "{reads} reads");
    // The next stall counts as a first one.
    let stalled = at;
    b.offer(stalled, Op::Read, offset, None).expect("no deadline");
    b.stack.wake(stalled + Span::from_millis(3));
    b.collect();
    (0..2).for_each(|_| drop(b.end(stalled + Span::from_millis(4), 0, Outcome::Done)));
    let again = b.learn(stalled + Span::from_millis(1010), 0, 1);
    assert_eq!(b.view(again, 0).steered, b.view(stalled + Span::from_millis(4), 0).steered);
}

impl Bench {
    /// Reads of an OSD without a deadline that take 40 ms each, from `at` on, until one with a deadline of 10 ms is refused.
    fn learn_slow(&mut self, mut at: Time, osd: u16) -> Time {
        let offset = self.of(osd);
        for _ in 0..1000 {
            if self.offer(at, Op::Read, offset, Some(Span::from_millis(10))).is_none() {
                return at;
            }
            self.stack.wake(at);
            at += Span::from_millis(40);
            self.end(at, self.at.len() - 1, Outcome::Done);
            at += Span::from_millis(100);
        }
        panic!("reads of 40 ms are never refused");
    }

    /// The map with OSDs that can't be read but as primaries.
    fn without_handles(&mut self) {
        let mut alone = map(2);
        alone.osds.iter_mut().for_each(|o| o.port = None);
        self.tell(us(0), alone);
    }

    /// Number of reads with a deadline of 10 ms that an OSD is sent, one offered each second, and each done after 200 us.
    fn sent_in(&mut self, mut at: Time, osd: u16, seconds: u64) -> (u64, Time) {
        let (offset, mut sent) = (self.of(osd), 0);
        for _ in 0..seconds {
            at += Span::from_secs(1);
            if self.offer(at, Op::Read, offset, Some(Span::from_millis(10))).is_some() {
                sent += 1;
                self.end(at + Span::from_micros(200), self.at.len() - 1, Outcome::Done);
            }
        }
        (sent, at)
    }
}

/// An object that can't be found, or a placement group that is incomplete: a read of it never ends, and others of its OSD go on.
#[test]
fn a_read_that_never_ends_does_not_have_all_others_refused_for_ever() {
    let mut b = Bench::new();
    b.without_handles();
    let now = b.learn(us(0), 0, 100);
    let offset = b.of(0);
    b.offer(now, Op::Read, offset, None).expect("no deadline");
    let (sent, now) = b.sent_in(now, 0, 31);
    assert_eq!(sent, 0, "the OSD is silent");
    let (sent, _) = b.sent_in(now, 0, 30);
    assert!(sent >= 28, "{sent} of 30 reads were sent");
    // The read that was asked again may hang as well: then the next is sent after as long again.
    let mut b = Bench::new();
    b.without_handles();
    let mut now = b.learn(us(0), 0, 100);
    b.offer(now, Op::Read, offset, None).expect("no deadline");
    for _ in 0..128 {
        now += Span::from_secs(1);
        b.offer(now, Op::Read, offset, Some(Span::from_millis(10)));
    }
    assert_eq!(b.at.len(), 5, "one every 32 s");
}

/// It was slow, and one of its reads never ends. It is well again: a read is sent to see that, though no other gives the lost one up.
#[test]
fn a_lost_read_does_not_keep_an_osd_from_being_asked_again() {
    let mut b = Bench::new();
    b.without_handles();
    let offset = b.of(0);
    b.offer(us(0), Op::Read, offset, None).expect("no deadline");
    let now = b.learn_slow(us(100), 0);
    assert_eq!(b.at.len(), 1, "the lost read");
    let (sent, _) = b.sent_in(now, 0, 600);
    assert!(sent > 300, "{sent} of 600 reads were sent");
}

/// A replica that is no group's primary was late, and so is the primary.
#[test]
fn a_replica_that_was_late_is_asked_again() {
    let mut b = Bench::new();
    let mut one = map(2);
    one.acting = vec![vec![0, 1]];
    b.tell(us(0), one.clone());
    let alone = OsdMap { acting: vec![vec![1]], ..one.clone() };
    let mut now = b.learn_slow(us(0), 0);
    b.tell(now, alone);
    now = b.learn_slow(now, 1);
    b.tell(now, one);
    // All are slow: next to nothing is sent, and to both in turn.
    let mut sent = [0; 2];
    for _ in 0..120 {
        now += Span::from_secs(1);
        if b.offer(now, Op::Read, 0, Some(Span::from_millis(10))).is_some() {
            sent[usize::from(b.at[0].0 != 0)] += 1;
            b.stack.wake(now + Span::from_millis(40));
            b.collect();
            while !b.at.is_empty() {
                b.end(now + Span::from_millis(40), 0, Outcome::Done);
            }
        }
    }
    assert!(sent.iter().all(|n| (1..20).contains(n)), "{sent:?}");
    // The replica is well again.
    let steered = b.view(now, 0).steered;
    for _ in 0..600 {
        now += Span::from_secs(1);
        if b.offer(now, Op::Read, 0, Some(Span::from_millis(10))).is_some() {
            let took = Span::from_micros(if b.at[0].0 == 2 { 200 } else { 40_000 });
            b.end(now + took, 0, Outcome::Done);
        }
    }
    assert!(b.view(now, 0).steered - steered > 300, "{} reads were steered", b.view(now, 0).steered - steered);
}

impl Bench {
    /// Reads of an OSD each second, with a deadline or without, each done after 200 us; how many of the last ten were sent to it as the primary.
    fn sent_to_primary(&mut self, mut at: Time, osd: u16, seconds: u64, deadline: Option<Span>) -> usize {
        let (offset, mut sent) = (self.of(osd), Vec::new());
        for _ in 0..seconds {
            at += Span::from_secs(1);
            self.offer(at, Op::Read, offset, deadline).expect("a replica is in time");
            let nth = self.at.len() - 1;
            sent.push(self.at[nth].0 == 0);
            self.end(at + Span::from_micros(200), nth, Outcome::Done);
        }
        sent.iter().rev().take(10).filter(|is_primary| **is_primary).count()
    }
}

/// It was slow, and its replica serves its reads in time. All reads have deadlines: none but one that is sent to see shows that it is well again.
#[test]
fn a_primary_with_a_good_replica_is_asked_again() {
    let mut b = Bench::new();
    b.without_handles();
    let now = b.learn_slow(us(0), 0);
    b.tell(now, map(3));
    assert!(b.sent_to_primary(now, 0, 600, Some(Span::from_millis(10))) >= 9);
}

/// A read of the primary is lost, and its replica serves all later ones: none overtakes it.
#[test]
fn a_lost_read_does_not_keep_a_primary_with_a_replica_from_being_asked_again() {
    for deadline in [None, Some(Span::from_millis(10))] {
        let mut b = Bench::new();
        b.tell(us(0), map(2));
        let now = b.learn(us(0), 0, 100);
        let offset = b.of(0);
        b.offer(now, Op::Read, offset, None).expect("no deadline");
        let stalled = now + Span::from_millis(10);
        b.stack.wake(stalled);
        b.collect();
        b.end(stalled, 1, Outcome::Done);
        assert!(b.sent_to_primary(stalled, 0, 120, deadline) >= 9, "{deadline:?}");
    }
}
