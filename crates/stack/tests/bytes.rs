//! Bytes: concurrent overlapping requests of any alignment against a plain array, and what survives lost power.

mod common;
use common::*;
use plimsoll_base::Rng;
use plimsoll_base::*;
use plimsoll_stack::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Act {
    Write {
        offset: u64,
        len: u64,
        fua: bool,
    },
    Zero {
        offset: u64,
        len: u64,
    },
    Trim {
        offset: u64,
        len: u64,
    },
    Read {
        offset: u64,
        len: u64,
    },
    Status {
        offset: u64,
        len: u64,
    },
    Flush,
    /// Let some events happen.
    Pause(u8),
}

const SIZE: u64 = 40_000; // not a multiple of the block

fn act() -> impl Strategy<Value = Act> {
    let range = (0..SIZE, 1u64..6000).prop_map(|(o, l)| (o, l.min(SIZE - o)));
    prop_oneof![
        4 => (range.clone(), any::<bool>()).prop_map(|((offset, len), fua)| Act::Write { offset, len, fua }),
        1 => range.clone().prop_map(|(offset, len)| Act::Zero { offset, len }),
        1 => range.clone().prop_map(|(offset, len)| Act::Trim { offset, len }),
        3 => range.clone().prop_map(|(offset, len)| Act::Read { offset, len }),
        1 => range.prop_map(|(offset, len)| Act::Status { offset, len }),
        1 => Just(Act::Flush),
        2 => (0u8..6).prop_map(Act::Pause),
    ]
}

fn fill(n: u64, len: u64) -> Vec<u8> {
    (0..len).map(|i| (n * 31 + i * 7 + 1) as u8).collect()
}

fn request(n: u64, act: &Act, now: Time) -> Option<Io> {
    Some(match *act {
        Act::Write { offset, len, fua } => {
            let mut w = write(offset, &fill(n, len), now);
            w.head.flags = if fua { IoFlags::FUA } else { IoFlags::NONE };
            w
        }
        Act::Zero { offset, len } => io(Op::WriteZeroes, offset, len, now),
        Act::Trim { offset, len } => io(Op::Trim, offset, len, now),
        Act::Read { offset, len } => io(Op::Read, offset, len, now),
        Act::Status { offset, len } => io(Op::BlockStatus, offset, len, now),
        Act::Flush => io(Op::Flush, 0, 0, now),
        Act::Pause(_) => return None,
    })
}

/// The naive model: an array, changed in the order of submission.
fn apply(model: &mut [u8], n: u64, act: &Act) {
    match *act {
        Act::Write { offset, len, .. } => {
            model[offset as usize..(offset + len) as usize].copy_from_slice(&fill(n, len))
        }
        Act::Zero { offset, len } => model[offset as usize..(offset + len) as usize].fill(0),
        Act::Trim { offset, len } => {
            let (from, to) = (offset.next_multiple_of(512), (offset + len) / 512 * 512);
            if from < to {
                model[from as usize..to as usize].fill(0);
            }
        }
        _ => {}
    }
}

/// Bytes of a range that are reported as zero; the answer must begin with the range and stay inside.
fn said_zero(data: &Data, len: u64) -> Result<Vec<bool>, String> {
    let Data::Status(extents) = data else { return Err("the answer to a block status has no extents".into()) };
    let said: Vec<bool> = extents.iter().flat_map(|e| std::iter::repeat_n(e.zero, e.len as usize)).collect();
    if said.is_empty() || said.len() as u64 > len || extents.iter().any(|e| e.len == 0) {
        return Err(format!("{extents:?} is no answer for {len} bytes"));
    }
    Ok(said)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Overlap: whatever is in flight together, a read sees exactly the writes submitted before it.
    #[test]
    fn reads_see_what_was_submitted_before(acts in prop::collection::vec(act(), 1..80), seed in any::<u64>()) {
        let disk = sim::SimDisk::new(1 << 20, (us(1), us(200)), seed, Default::default());
        let mut pool = over_disk(SIZE, disk);
        let mut model = vec![0u8; SIZE as usize];
        let mut expected: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let check = |pool: &mut sim::SimPool, expected: &mut BTreeMap<u64, Vec<u8>>| {
            while let Some(c) = pool.next_done() {
                prop_assert_eq!(c.outcome, Outcome::Done);
                if c.io.op == Op::Read {
                    let mut got = vec![0; c.io.len as usize];
                    c.io.data.copy_to(&mut got);
                    prop_assert!(expected.remove(&c.io.tag) == Some(got), "read {:?}", c.io.head);
                }
                if c.io.op == Op::BlockStatus {
                    let is = expected.remove(&c.io.tag).expect("asked once");
                    let said = said_zero(&c.io.data, c.io.len).map_err(TestCaseError::fail)?;
                    let lies = said.iter().zip(&is).position(|(zero, byte)| *zero && *byte != 0);
                    prop_assert_eq!(lies, None, "said to be zero: {:?}", c.io.head);
                }
            }
            Ok(())
        };
        for (n, a) in acts.iter().enumerate() {
            if let Act::Pause(steps) = a {
                for _ in 0..*steps { pool.step(); }
            }
            if let Act::Read { offset, len } | Act::Status { offset, len } = *a {
                expected.insert(n as u64, model[offset as usize..(offset + len) as usize].to_vec());
            }
            apply(&mut model, n as u64, a);
            if let Some(mut r) = request(n as u64, a, pool.now()) {
                r.head.tag = n as u64;
                let now = pool.now();
                pool.offer(now, r);
            }
            check(&mut pool, &mut expected)?;
        }
        while pool.step().is_some() { check(&mut pool, &mut expected)?; }
        check(&mut pool, &mut expected)?;
        prop_assert!(expected.is_empty() && pool.stack().is_idle());
    }
}

/// Runs `acts` until `events` have happened (or to the end), loses power, and says what a checker of durability finds
/// wrong; also how many events there were.
fn crash_run(acts: &[Act], seed: u64, events: u64, faults: sim::DiskFaults) -> (u64, Option<String>) {
    let disk = sim::SimDisk::new(1 << 20, (us(1), us(200)), seed, faults);
    let mut pool = over_disk(SIZE, disk);
    // Per byte: the values that may be found after a crash. A change adds its value; once it is known durable and no
    // later change is under way, it's the only one.
    let mut possible: Vec<Vec<(u64, u8)>> = vec![vec![(0, 0)]; SIZE as usize];
    let mut acknowledged: Vec<u64> = vec![0]; // ids of changes answered
    let mut flush_covers: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut durable: Vec<u64> = vec![0];
    for n in 1..=acts.len() as u64 {
        let a = &acts[n as usize - 1];
        if let Some(mut r) = request(n, a, pool.now()) {
            let mut after = vec![0u8; SIZE as usize];
            apply(&mut after, n, a);
            let (from, to) = match *a {
                Act::Write { offset, len, .. } | Act::Zero { offset, len } => (offset, offset + len),
                Act::Trim { offset, len } => {
                    (offset.next_multiple_of(512), ((offset + len) / 512 * 512).max(offset.next_multiple_of(512)))
                }
                _ => (0, 0),
            };
            for b in from..to {
                possible[b as usize].push((n, after[b as usize]));
            }
            r.head.tag = n;
            if matches!(a, Act::Flush) {
                flush_covers.insert(n, acknowledged.clone());
            }
            let now = pool.now();
            pool.offer(now, r);
        }
        let steps = if let Act::Pause(s) = a { u64::from(*s) } else { 0 };
        for _ in 0..steps {
            if pool.events() < events {
                pool.step();
            }
        }
        while let Some(c) = pool.next_done() {
            let id = c.io.tag;
            if c.outcome.is_done() {
                if c.io.op.is_change() {
                    acknowledged.push(id);
                    if c.io.flags.has(IoFlags::FUA) {
                        durable.push(id);
                    }
                }
                if let Some(covered) = flush_covers.remove(&id) {
                    durable.extend(covered);
                }
            }
        }
        if pool.events() >= events {
            break;
        }
    }
    let happened = pool.events();
    let mut disks = pool.lose_power();
    let mut pool = over_disk(SIZE, disks.remove(0));
    pool.offer(Time::ZERO, io(Op::Read, 0, SIZE, Time::ZERO));
    pool.run();
    let mut found = vec![0; SIZE as usize];
    pool.next_done().expect("the read ends").io.data.copy_to(&mut found);
    let wrong = (0..SIZE as usize).find_map(|b| {
        let last_durable = possible[b].iter().rposition(|(id, _)| durable.contains(id)).unwrap_or(0);
        let allowed: Vec<u8> = possible[b][last_durable..].iter().map(|p| p.1).collect();
        (!allowed.contains(&found[b])).then(|| format!("byte {b} is {}, may be {allowed:?}", found[b]))
    });
    (happened, wrong)
}

fn some_acts(seed: u64) -> Vec<Act> {
    let mut rng = Rng::new(seed, "crash workload");
    (0..60)
        .map(|_| {
            let offset = rng.below(SIZE - 1);
            let len = 1 + rng.below((SIZE - offset).min(3000));
            match rng.below(10) {
                0..4 => Act::Write { offset, len, fua: rng.chance(0.3) },
                4 => Act::Zero { offset, len },
                5 => Act::Trim { offset, len },
                6..8 => Act::Flush,
                _ => Act::Pause(rng.below(8) as u8 + 1),
            }
        })
        .collect()
}

/// FLUSH and FUA: power is lost at every step of many runs; whatever was promised durable is found.
#[test]
fn what_was_promised_durable_survives_power_loss_at_every_step() {
    let mut cuts = 0;
    for seed in 0..25 {
        let acts = some_acts(seed);
        let (events, wrong) = crash_run(&acts, seed, u64::MAX, Default::default());
        assert_eq!(wrong, None, "seed {seed} at the end");
        for cut in 0..events {
            let (_, wrong) = crash_run(&acts, seed, cut, Default::default());
            assert_eq!(wrong, None, "seed {seed}, cut after {cut} of {events} events");
            cuts += 1;
        }
    }
    assert!(cuts > 500, "only {cuts} cuts");
    println!("{cuts} power losses, nothing promised was lost");
}

/// The checker itself: a disk that lies about flushes, or ignores FUA, is found out.
#[test]
fn a_lying_disk_is_found_out() {
    for faults in [
        sim::DiskFaults { flush_lies: true, ..Default::default() },
        sim::DiskFaults { fua_lies: true, ..Default::default() },
    ] {
        let found = (0..10).any(|seed| crash_run(&some_acts(seed), seed, u64::MAX, faults.clone()).1.is_some());
        assert!(found, "not found: {faults:?}");
    }
}

/// Space between two owners is zeroed and flushed before it's reported.
#[test]
fn zeroing_is_durable_before_it_is_reported() {
    for seed in 0..20 {
        let mut pool = over_disk(SIZE, sim::SimDisk::new(1 << 20, (us(1), us(200)), seed, Default::default()));
        pool.offer(Time::ZERO, write(0, &fill(1, SIZE), Time::ZERO));
        pool.offer(Time::ZERO, io(Op::Flush, 0, 0, Time::ZERO));
        pool.run();
        let now = pool.now();
        let all = vec![Extent { device_offset: 0, len: 512 * 40 }, Extent { device_offset: 512 * 50, len: 512 * 30 }];
        pool.with_layer(|m: &mut Map, out| m.zero(now, 7, all.clone(), out));
        let mut reported = None;
        while reported.is_none() && pool.step().is_some() {
            reported = pool.with_layer(|m: &mut Map, _| m.next_zeroed()).flatten();
        }
        assert_eq!(reported, Some((7, Ok(()))));
        let disks = pool.lose_power();
        for e in all {
            assert!(disks[0].peek(e.device_offset, e.len).as_slice().iter().all(|&b| b == 0), "seed {seed}");
        }
    }
}

/// A client's flush fails while space is zeroed, and takes acknowledged zeroes with it. The device reports that once: the job's own flush
/// succeeds, and the space still has its former owner's data.
#[test]
fn zeroes_that_another_flush_may_have_lost_are_not_reported_durable() {
    let mut failed = 0;
    for (seed, steps) in (0..10).flat_map(|seed| (0..12).map(move |steps| (seed, steps))) {
        let mut pool = over_disk(SIZE, sim::SimDisk::new(1 << 20, (us(1), us(200)), seed, Default::default()));
        pool.offer(Time::ZERO, write(0, &fill(1, SIZE), Time::ZERO));
        pool.offer(Time::ZERO, io(Op::Flush, 0, 0, Time::ZERO));
        pool.run();
        let now = pool.now();
        let flushes = pool.disk(0).counts().0;
        pool.disk(0).set_faults(sim::DiskFaults { flush_fails_at: Some(flushes + 1), ..Default::default() });
        let all = vec![Extent { device_offset: 0, len: 512 * 20 }, Extent { device_offset: 512 * 20, len: 512 * 20 }];
        pool.with_layer(|m: &mut Map, out| m.zero(now, 7, all.clone(), out));
        let mut reported = None;
        for step in 0.. {
            if step == steps {
                let now = pool.now();
                pool.offer(now, io(Op::Flush, 0, 0, now));
            }
            let stepped = pool.step().is_some();
            reported = reported.or(pool.with_layer(|m: &mut Map, _| m.next_zeroed()).flatten());
            if !stepped && step >= steps {
                break;
            }
        }
        let (job, result) = reported.expect("it ends");
        let has_zeroes =
            |e: &Extent, disk: &sim::SimDisk| disk.peek(e.device_offset, e.len).as_slice().iter().all(|&b| b == 0);
        failed += u32::from(result == Err(IoError::Device));
        let disks = pool.lose_power();
        let zeroed = all.iter().all(|e| has_zeroes(e, &disks[0]));
        assert!(job == 7 && (result.is_err() || zeroed), "seed {seed}, flush after {steps} steps");
        // A job that begins after the loss is as good as any.
        let mut pool = over_disk(SIZE, disks.into_iter().next().expect("there is one"));
        pool.with_layer(|m: &mut Map, out| m.zero(Time::ZERO, 8, all.clone(), out));
        pool.run();
        assert_eq!(pool.with_layer(|m: &mut Map, _| m.next_zeroed()).flatten(), Some((8, Ok(()))));
    }
    assert!(failed > 20, "{failed}");
}
