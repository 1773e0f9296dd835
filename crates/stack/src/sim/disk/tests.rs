use super::*;
use plimsoll_base::{IoHead, TenantId, VolumeKey};

const BLOCK: u64 = 4096;

fn disk(seed: u64) -> SimDisk {
    SimDisk::new(1 << 20, (Span::ZERO, Span::ZERO), seed, DiskFaults::default()).with_blocks_of(BLOCK).with_history()
}

/// Writes a block of `value`s and leaves it unanswered.
fn write(d: &mut SimDisk, id: u64, value: u8, flags: IoFlags) -> IoId {
    let mut head = IoHead::new(Op::Write, VolumeKey::POOL, TenantId(1), 0, BLOCK, Time::ZERO);
    (head.id, head.flags) = (IoId(id), flags);
    let io = Io::new(head, Data::Bytes(Buf::copy_of(&[value; BLOCK as usize])));
    assert!(d.apply(io, Time::ZERO).outcome.is_done());
    IoId(id)
}

fn first_bytes(d: &SimDisk) -> Vec<u8> {
    d.peek(0, BLOCK).as_slice().iter().step_by(SECTOR_BYTES as usize).copied().collect()
}

#[test]
fn a_fua_write_is_durable_once_it_is_answered_and_may_tear_until_then() {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        let mut d = disk(seed);
        let one = write(&mut d, 1, 1, IoFlags::FUA);
        d.answered(one);
        write(&mut d, 2, 2, IoFlags::FUA);
        assert_eq!(first_bytes(&d), [2; 8], "visible at once");
        d.lose_power();
        let found = first_bytes(&d);
        assert!(found.iter().all(|b| [1, 2].contains(b)), "{found:?}");
        seen.insert(found);
    }
    assert!(seen.len() > 20, "it tears inside the block: {seen:?}");
}

#[test]
fn an_answered_fua_write_survives_whatever_overwrites_it_unanswered() {
    for seed in 0..40 {
        let mut d = disk(seed);
        let one = write(&mut d, 1, 1, IoFlags::FUA);
        write(&mut d, 2, 2, IoFlags::NONE);
        d.answered(one);
        d.lose_power();
        assert!(first_bytes(&d).iter().all(|b| [1, 2].contains(b)));
    }
}

#[test]
fn a_failed_flush_takes_no_fua_write_that_will_be_answered() {
    let faults = DiskFaults { flush_fails_at: Some(1), ..DiskFaults::default() };
    let mut d = disk(1);
    d.set_faults(faults);
    let one = write(&mut d, 1, 1, IoFlags::FUA);
    let mut flush = IoHead::new(Op::Flush, VolumeKey::POOL, TenantId(1), 0, 0, Time::ZERO);
    flush.id = IoId(2);
    assert!(!d.apply(Io::new(flush, Data::Absent), Time::ZERO).outcome.is_done());
    d.answered(one);
    d.lose_power();
    assert_eq!(first_bytes(&d), [1; 8]);
}

#[test]
fn a_sector_can_be_corrupted_in_every_way() {
    let mut d = disk(1);
    d.write_durably(0, &[1; 512]);
    d.write_durably(0, &[2; 512]);
    d.write_durably(512, &[3; 512]);
    let sector = |d: &SimDisk| d.peek(0, 512).as_slice().to_vec();
    let after = |how| {
        let mut d = d.clone();
        (d.corrupt(0, how), sector(&d))
    };
    let mut flipped = vec![2; 512];
    flipped[1] ^= 2;
    assert_eq!(after(Corruption::Bit(9)), (true, flipped));
    assert_eq!(after(Corruption::Zeroes), (true, vec![0; 512]));
    assert_eq!(after(Corruption::Older(1)), (true, vec![1; 512]));
    assert_eq!(after(Corruption::Older(2)), (true, vec![0; 512]));
    assert_eq!(after(Corruption::Older(3)), (false, vec![2; 512]), "it has no such version");
    assert_eq!(after(Corruption::Other(1)), (true, vec![3; 512]));
    assert_eq!(after(Corruption::Other(0)), (false, vec![2; 512]), "nothing changed");
    assert_eq!(d.written_sectors(0, 100), [0, 1]);
}

#[test]
fn a_lost_sector_is_unreadable_until_it_is_written() {
    let mut d = disk(1);
    let read = || Io::new(IoHead::new(Op::Read, VolumeKey::POOL, TenantId(1), 0, BLOCK, Time::ZERO), Data::Absent);
    d.lose_sector(3);
    assert!(!d.apply(read(), Time::ZERO).outcome.is_done());
    write(&mut d, 1, 1, IoFlags::NONE);
    assert!(d.apply(read(), Time::ZERO).outcome.is_done());
}

/// The first user's request has the number of one of the second user's that is in flight.
#[test]
fn a_flush_of_the_next_user_covers_what_the_last_one_wrote() {
    for seed in 0..20 {
        let mut d = disk(seed);
        write(&mut d, 5, 1, IoFlags::NONE);
        d.abandoned();
        let mut head = IoHead::new(Op::Write, VolumeKey::POOL, TenantId(1), BLOCK, BLOCK, Time::ZERO);
        head.id = IoId(5);
        assert!(d.apply(Io::new(head, Data::Zeroes), Time::ZERO).outcome.is_done());
        let mut flush = IoHead::new(Op::Flush, VolumeKey::POOL, TenantId(1), 0, 0, Time::ZERO);
        flush.id = IoId(6);
        assert!(d.apply(Io::new(flush, Data::Absent), Time::ZERO).outcome.is_done());
        d.lose_power();
        assert_eq!(first_bytes(&d), [1; 8], "seed {seed}");
    }
}
