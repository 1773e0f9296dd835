//! Power lost at each call of a restore: then the old metadata are there, or the new, or every start says that the restore isn't
//! finished. It goes on when it is asked for again. No volume is ever shown whose data are another's, or were zeroed. Another backup's
//! restore that follows shows no volume another's data, either.

#[allow(dead_code)]
mod disk;

use disk::Disk;
use plimsoll_base::{Class, Rng};
use plimsoll_store::{
    Age, Backup, CreateOptions, DeviceErrorKind, Expect, Medium, MetaError, MetaStore, NewVolume, RemoteDevice,
    RestoreError, RestoreOptions, TenantLimits, TenantRecord, Uuid,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const SIZE_BYTES: u64 = 11 * MIB;

/// The pages of a volume's granules that the test writes and looks at: one each.
const DATA_BYTES: usize = 512;

fn expect() -> Expect {
    Expect { pool_uuid: None, device_uuid: None, role: "main".into() }
}

fn name() -> &'static Path {
    Path::new("disk")
}

fn open(disk: &Disk) -> Result<(RemoteDevice, MetaStore), DeviceErrorKind> {
    let device = RemoteDevice::open(name(), Arc::new(disk.clone()), &expect()).map_err(|e| e.kind)?;
    let store = device.open_meta().map_err(DeviceErrorKind::Meta)?;
    Ok((device, store))
}

fn add(store: &mut MetaStore, name: &str, mib: u64) {
    let (name, tenant) = (name.to_string(), "t".to_string());
    let new = NewVolume { name, size_bytes: mib * MIB, tenant, read_only: false, description: None, cache: None };
    store.create_volume(new).expect("room");
}

/// Writes its name's first letter into each of a volume's granules, as its owner would.
fn fill(disk: &Disk, store: &MetaStore, name: &str) {
    for at in granules(store, name) {
        disk.write_at(&[letter(name); DATA_BYTES], at).expect("written");
    }
    disk.sync().expect("synced");
}

fn letter(name: &str) -> u8 {
    name.as_bytes()[0]
}

fn granules(store: &MetaStore, name: &str) -> Vec<u64> {
    let extents = &store.volume(name).expect("there").extents;
    extents.iter().flat_map(|e| (e.device_offset..e.device_offset + e.len).step_by(MIB as usize)).collect()
}

/// The volumes that are shown, with the places of their granules.
type Shown = BTreeMap<String, Vec<u64>>;

fn shown(store: &MetaStore) -> Shown {
    store.volumes().map(|v| (v.name.clone(), granules(store, &v.name))).collect()
}

fn first_byte(disk: &Disk, at: u64) -> u8 {
    let mut b = [0; DATA_BYTES];
    disk.read_at(&mut b, at).expect("read");
    assert!(b.iter().all(|byte| *byte == b[0]), "torn data at {at}");
    b[0]
}

/// A device before a restore, and the restore.
struct Case {
    disk: Disk,
    backup: Backup,
    older: bool,
    age: Age,
    /// Volumes that are shown before; `None` if nothing opens.
    before: Option<Shown>,
    /// Volumes that the backup has, and the first byte of each of their granules.
    after: Shown,
    data: BTreeMap<u64, u8>,
    /// Granules that the backup calls a volume's, and that have another's data.
    others: BTreeSet<u64>,
}

/// Changes of a device since its backup was taken.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Since {
    Nothing,
    /// A volume was made.
    Made,
    /// A volume was deleted, and another made in its place, with its number.
    Replaced,
    /// The same, and both superblocks were lost.
    ReplacedAndSuperblocksLost,
    /// The metadata store's pages were lost.
    PagesLost,
    /// Both superblocks were lost.
    SuperblocksLost,
    /// Superblocks, length slots and pages were lost.
    AllLost,
}

/// A pool's device, just made.
fn made(disk: &Disk) -> RemoteDevice {
    let (pool_uuid, role) = (Uuid::from_u128(7), "main".to_string());
    let options = CreateOptions { size_bytes: 0, pool_uuid, role, logs_bytes: 0, align_bytes: 0, main_uuid: None };
    RemoteDevice::create(name(), Arc::new(disk.clone()), &options).expect("created")
}

fn case(since: Since) -> Case {
    let disk = Disk::of(SIZE_BYTES);
    let device = made(&disk);
    let mut store = device.open_meta().expect("formatted");
    let (class, limits) = (Class::BestEffort { weight: 7 }, TenantLimits::default());
    store.set_tenant(TenantRecord { name: "t".into(), class, limits, change: 1, deadline: None }).expect("set");
    for (name, mib) in [("a", 1), ("gone", 1), ("b", 2)] {
        add(&mut store, name, mib);
        fill(&disk, &store, name);
    }
    store.begin_delete("gone").expect("there");
    let backup = Backup::parse(&Backup::of(device.superblock(), &store).text()).expect("a backup");
    let after = shown(&store);
    let mut others = BTreeSet::new();
    let is_replaced = matches!(since, Since::Replaced | Since::ReplacedAndSuperblocksLost);
    if is_replaced || since == Since::Made {
        if is_replaced {
            let id = store.begin_delete("b").expect("there").key.id;
            for at in &after["b"] {
                disk.write_at(&[0; DATA_BYTES], *at).expect("written");
            }
            store.finish_delete(id).expect("deleted");
        }
        add(&mut store, "later", if is_replaced { 2 } else { 1 });
        fill(&disk, &store, "later");
        let of_b = after["b"].iter().copied();
        others.extend(granules(&store, "later").into_iter().filter(|at| of_b.clone().any(|b| b == *at)));
        assert_eq!(others.len(), if is_replaced { 2 } else { 0 });
    }
    drop((store, device));
    let lose = |offset: u64, len: u64| disk.write_at(&vec![0; len as usize], offset).expect("written");
    match since {
        Since::Nothing | Since::Made | Since::Replaced => {}
        Since::PagesLost => lose(MIB + 8192, 64 << 10),
        Since::SuperblocksLost | Since::ReplacedAndSuperblocksLost => lose(0, 8192),
        Since::AllLost => lose(0, 2 * MIB),
    }
    disk.sync().expect("synced");
    let (older, age) = match since {
        Since::Made => (true, Age::Older(1)),
        Since::Replaced | Since::ReplacedAndSuperblocksLost => (true, Age::Older(3)),
        Since::AllLost => (true, Age::Unknown),
        _ => (false, Age::Current),
    };
    let before = open(&disk).ok().map(|(_, store)| shown(&store));
    assert_eq!(before.is_some(), matches!(since, Since::Nothing | Since::Made | Since::Replaced), "{since:?}");
    let data = after.values().flatten().map(|at| (*at, first_byte(&disk, *at))).collect();
    // Opening wrote, too.
    Case { disk: disk.copy(), backup, older, age, before, after, data, others }
}

/// After a power loss: `Ok(true)` if the new metadata are there, `Ok(false)` if a restore is to be finished or the old are there.
fn judge(case: &Case, disk: &Disk) -> Result<bool, String> {
    let store = match open(disk) {
        Ok((_, store)) => store,
        Err(DeviceErrorKind::Meta(MetaError::RestoreUnfinished)) => return Ok(false),
        // As before it began, and nothing was begun.
        Err(_) if case.before.is_none() => return untouched(case, disk),
        Err(e) => return Err(format!("it isn't opened, and not for the restore: {e:?}")),
    };
    let now = shown(&store);
    if now.is_empty() {
        return Err("the pool is shown without any volume".into());
    }
    let is_new = store.volumes().all(|v| v.replica.open);
    for (name, granules) in &now {
        for at in granules {
            match first_byte(disk, *at) {
                0 if is_new && case.others.contains(at) => {}
                own if own == letter(name) => {}
                0 => return Err(format!("{name} is shown, and its granule at {at} is zeroed")),
                other => return Err(format!("{name} is shown with data of {:?}", char::from(other))),
            }
        }
    }
    match (is_new, &case.before) {
        (true, _) if now == case.after => free_is_zero(case, disk, &store).map(|()| true),
        (false, Some(before)) if now == *before => Ok(false),
        _ => Err(format!("neither the old volumes nor the new ones are shown: {now:?}")),
    }
}

/// Nothing of the volumes was changed.
fn untouched(case: &Case, disk: &Disk) -> Result<bool, String> {
    let same = case.data.iter().all(|(at, byte)| first_byte(disk, *at) == *byte);
    if same { Ok(false) } else { Err("data were changed, and no note of the restore is there".into()) }
}

/// Unless the map was the pool's own, in which nothing was written there.
fn free_is_zero(case: &Case, disk: &Disk, store: &MetaStore) -> Result<(), String> {
    let owned: Vec<u64> = store
        .volumes()
        .chain(store.deleting())
        .flat_map(|v| v.extents.iter().flat_map(|e| (e.device_offset..e.device_offset + e.len).step_by(MIB as usize)))
        .collect();
    let free = (5 * MIB..SIZE_BYTES).step_by(MIB as usize).filter(|at| !owned.contains(at));
    match free.into_iter().find(|at| first_byte(disk, *at) != 0) {
        Some(at) => Err(format!("free space at {at} doesn't read as zeroes ({:?})", case.age)),
        None => Ok(()),
    }
}

fn restore(case: &Case, disk: &Disk, older: bool) -> Result<Age, RestoreError> {
    let options = RestoreOptions { older, blank: true, had_cache: Some(false), home_bytes: None };
    case.backup.restore_remote(name(), Arc::new(disk.clone()), options).map(|done| done.age)
}

/// Loses power at the call number `at` of a restore, and at a random call of the next try; then it's finished.
fn lose_power_at(case: &Case, at: u64, rng: &mut Rng) -> Result<(), String> {
    let disk = case.disk.copy();
    let mut older = case.older;
    for fails_after in [at, rng.below(at + 40)] {
        disk.fail_after(fails_after);
        let ended = restore(case, &disk, older);
        disk.lose_power(rng);
        let is_new = judge(case, &disk).map_err(|e| format!("after a restore that ended {ended:?}: {e}"))?;
        if is_new {
            // Whoever restores once more would restore what is there.
            return Ok(());
        }
        // A restore that has begun goes on without being asked to.
        let begun = matches!(open(&disk), Err(DeviceErrorKind::Meta(MetaError::RestoreUnfinished)));
        older = case.older && !begun;
    }
    let age = restore(case, &disk, older).map_err(|e| format!("it can't be finished: {e}"))?;
    disk.lose_power(rng);
    if age != case.age {
        return Err(format!("its age is {age:?} now, not {:?}", case.age));
    }
    if judge(case, &disk)? { Ok(()) } else { Err("it is finished, and the new metadata aren't there".into()) }
}

/// Each `step`th call of the restore is once the last before power is lost. Returns the number of calls, and the first finding.
fn lose_power_everywhere(case: &Case, step: usize, rng: &mut Rng) -> (u64, Result<(), String>) {
    let disk = case.disk.copy();
    let age = restore(case, &disk, case.older).expect("restored");
    assert_eq!(age, case.age);
    let calls = disk.calls();
    let all =
        (0..calls).step_by(step).try_for_each(|at| lose_power_at(case, at, rng).map_err(|e| format!("call {at}: {e}")));
    (calls, all)
}

const ALL: [Since; 7] = [
    Since::Nothing,
    Since::Made,
    Since::Replaced,
    Since::ReplacedAndSuperblocksLost,
    Since::PagesLost,
    Since::SuperblocksLost,
    Since::AllLost,
];

/// `PLIMSOLL_RESTORE_SEEDS` says how often each call is the last.
#[test]
fn power_lost_at_any_call_of_a_restore_leaves_old_new_or_an_unfinished_one() {
    let seeds = std::env::var("PLIMSOLL_RESTORE_SEEDS").map_or(1, |n| n.parse().expect("a number"));
    for since in ALL {
        let case = case(since);
        // What was lost before makes little difference: not every call, unless all seeds are run.
        let step = if seeds > 1 || matches!(since, Since::Nothing | Since::Made | Since::Replaced) { 1 } else { 4 };
        for seed in 0..seeds {
            let (calls, result) = lose_power_everywhere(&case, step, &mut Rng::new(seed, "restore"));
            assert!(calls > 20, "{calls} calls are too few to tell");
            println!("{since:?}, seed {seed}: power lost at every {step}. of {calls} calls");
            result.unwrap_or_else(|e| panic!("{since:?}, seed {seed}: {e}"));
        }
    }
}

/// The test of the test: a disk whose sync does nothing is noticed.
#[test]
fn a_disk_that_lies_about_sync_is_noticed() {
    let noticed = ALL.into_iter().find_map(|since| {
        let case = case(since);
        case.disk.lie_about_sync();
        let disk = case.disk.copy();
        lose_power_everywhere(&Case { disk, ..case }, 1, &mut Rng::new(1, "lie")).1.err()
    });
    println!("{}", noticed.expect("noticed"));
}

/// A power loss tears one note of the newest change at most. The rows tell the newest change then, and the next start writes both notes
/// anew. So an ordinary power loss never makes a backup's age unknown, even if the rows are lost after that start.
#[test]
fn power_lost_in_a_change_leaves_the_age_of_backups_known() {
    let disk = Disk::of(SIZE_BYTES);
    let mut store = made(&disk).open_meta().expect("formatted");
    add(&mut store, "a", 1);
    drop(store);
    disk.sync().expect("synced");
    let plain = RestoreOptions::default();
    let onto = |disk: &Disk, backup: &Backup| backup.restore_remote(name(), Arc::new(disk.clone()), plain);
    let (mut rng, mut torn) = (Rng::new(3, "a change"), 0);
    for at in (0..).flat_map(|at| [at; 4]) {
        let disk = disk.copy();
        let (device, mut store) = open(&disk).expect("opens");
        let before = Backup::of(device.superblock(), &store);
        disk.fail_after(at);
        let (name, tenant) = ("b".to_string(), "t".to_string());
        let new = NewVolume { name, size_bytes: MIB, tenant, read_only: false, description: None, cache: None };
        let is_done = store.create_volume(new).is_ok();
        drop((store, device));
        disk.lose_power(&mut rng);
        let slots = [MIB, MIB + 4096].map(|at| {
            let mut b = [0; 64];
            disk.read_at(&mut b, at).expect("read");
            xxhash_rust::xxh3::xxh3_64(&b[..56]).to_le_bytes() == b[56..]
        });
        torn += u32::from(slots != [true; 2]);
        assert!(slots != [false; 2]);
        let copy = disk.copy();
        match onto(&copy, &before) {
            Ok(done) => assert_eq!(done.age, Age::Current, "call {at}"),
            Err(RestoreError::Old(Age::Older(1))) => {}
            other => panic!("call {at}: {other:?}"),
        }
        let after = {
            let (device, store) = open(&disk).expect("opens");
            Backup::of(device.superblock(), &store)
        };
        disk.write_at(&vec![0; 64 << 10], MIB + 8192).expect("written");
        assert_eq!(onto(&disk, &after).expect("it is the newest").age, Age::Current, "call {at}");
        if is_done {
            break;
        }
    }
    assert!(torn > 0, "no note was ever torn");
}

/// While one backup's restore isn't finished, another's is a decision: it may show volumes in what the first has zeroed.
#[test]
fn another_backup_is_restored_after_an_unfinished_one_only_when_asked_to() {
    let case = case(Since::Made);
    let newer = {
        let (device, store) = open(&case.disk).expect("opens");
        Backup::of(device.superblock(), &store)
    };
    let mut unfinished = 0;
    for at in 0.. {
        let disk = case.disk.copy();
        disk.fail_after(at);
        let is_done = restore(&case, &disk, true).is_ok();
        disk.lose_power(&mut Rng::new(at, "another"));
        if is_done {
            break;
        }
        if !matches!(open(&disk), Err(DeviceErrorKind::Meta(MetaError::RestoreUnfinished))) {
            continue;
        }
        unfinished += 1;
        let asked = |older| RestoreOptions { older, ..Default::default() };
        let onto = |older| newer.restore_remote(name(), Arc::new(disk.clone()), asked(older));
        assert!(matches!(onto(false), Err(RestoreError::Old(Age::Unfinished))), "call {at}");
        let done = onto(true).expect("asked to");
        assert_eq!(done.age, Age::Unfinished);
        let (_, store) = open(&disk).expect("opens");
        assert_eq!(store.volumes().count(), 3);
        assert_eq!(done.zeroed_bytes, store.free_bytes());
    }
    assert!(unfinished > 10, "{unfinished} of the power losses left an unfinished restore");
}

/// The note's version is the eighth byte of its magic, whatever else a later program writes.
#[test]
fn a_restore_by_a_later_program_is_refused_by_name() {
    let case = case(Since::Made);
    for note_at in [MIB + 2048, MIB + 4096 + 2048] {
        let disk = case.disk.copy();
        disk.write_at(b"PLIMRESU and others", note_at).expect("written");
        let opened = open(&disk).map(drop);
        assert!(matches!(opened, Err(DeviceErrorKind::Meta(MetaError::LaterRestoreUnfinished))), "{opened:?}");
        match restore(&case, &disk, true) {
            Err(RestoreError::Device(e)) => assert!(e.to_string().contains("by a later version of Plimsoll"), "{e}"),
            done => panic!("{done:?}"),
        }
        disk.write_at(&[0; 8192], 0).expect("written");
        let opened = open(&disk).map(drop);
        assert!(matches!(opened, Err(DeviceErrorKind::Meta(MetaError::LaterRestoreUnfinished))), "{opened:?}");
    }
}

/// A pool in which space changes hands, with a backup before each change.
struct Hands {
    disk: Disk,
    backups: [Backup; 3],
    /// Space of each volume that the pool ever had.
    space: Shown,
    /// Since all backups, "a" gave up what its pool's cache had of it.
    given_up: Option<u32>,
}

impl Hands {
    /// "a" is there always. "x" is deleted after the first backup, "y" has its space after the second one, "z" is made after the third.
    fn new() -> Hands {
        let disk = Disk::of(SIZE_BYTES);
        let device = made(&disk);
        let mut store = device.open_meta().expect("formatted");
        store.outdate_cache().expect("noted");
        let mut space = Shown::new();
        let mut make = |store: &mut MetaStore, name: &str, mib| {
            add(store, name, mib);
            fill(&disk, store, name);
            space.insert(name.into(), granules(store, name));
        };
        make(&mut store, "a", 1);
        make(&mut store, "x", 2);
        let first = Backup::of(device.superblock(), &store);
        let id = store.begin_delete("x").expect("there").key.id;
        granules_of_deleting(&store).iter().for_each(|at| disk.write_at(&[0; DATA_BYTES], *at).expect("written"));
        store.finish_delete(id).expect("deleted");
        let second = Backup::of(device.superblock(), &store);
        make(&mut store, "y", 2);
        let third = Backup::of(device.superblock(), &store);
        make(&mut store, "z", 1);
        let given_up = store.give_up("a").expect("there").given_up;
        assert!(given_up.is_some() && space["x"] == space["y"]);
        drop((store, device));
        disk.sync().expect("synced");
        Hands { disk: disk.copy(), backups: [first, second, third], space, given_up }
    }

    /// After the restore of a backup: volumes have their own data or zeroes, "a" has its data, and free space is zeroes.
    fn judge(&self, backup: usize, disk: &Disk) -> Result<(), String> {
        let (_, store) = open(disk).map_err(|e| format!("it isn't opened: {e:?}"))?;
        let (now, expected) = (shown(&store), [vec!["a", "x"], vec!["a"], vec!["a", "y"]]);
        if !now.keys().eq(expected[backup].iter()) {
            return Err(format!("{now:?} are shown"));
        }
        for (name, granules) in &now {
            assert_eq!(*granules, self.space[name]);
            for at in granules {
                // The first restore may have zeroed a part.
                let mut bytes = [0; DATA_BYTES];
                disk.read_at(&mut bytes, *at).expect("read");
                let may_be = |byte: u8| byte == letter(name) || byte == 0 && name != "a";
                if let Some(other) = bytes.into_iter().find(|byte| !may_be(*byte)) {
                    return Err(format!("{name} is shown with data of {:?}", char::from(other)));
                }
            }
        }
        let owned: BTreeSet<u64> = now.values().flatten().copied().collect();
        if let Some(at) = self.space.values().flatten().find(|at| !owned.contains(at) && first_byte(disk, **at) != 0) {
            return Err(format!("free space at {at} doesn't read as zeroes"));
        }
        let given_up = store.volume("a").expect("shown").given_up;
        if given_up == self.given_up { Ok(()) } else { Err(format!("what was given up is {given_up:?}")) }
    }

    fn restore(&self, backup: usize, disk: &Disk) -> Result<Age, RestoreError> {
        let options = RestoreOptions { older: true, ..Default::default() };
        self.backups[backup].restore_remote(name(), Arc::new(disk.clone()), options).map(|done| done.age)
    }

    /// Loses power at the call number `at` of one backup's restore, and at a random call of another's; then that is finished. Returns false
    /// if the first one had no such call.
    fn one_after_another(&self, (one, other): (usize, usize), at: u64, rng: &mut Rng) -> Result<bool, String> {
        let disk = self.disk.copy();
        disk.fail_after(at);
        let is_done = self.restore(one, &disk).is_ok();
        disk.lose_power(rng);
        if is_done {
            return Ok(false);
        }
        disk.fail_after(rng.below(at + 40));
        let _ = self.restore(other, &disk);
        disk.lose_power(rng);
        self.restore(other, &disk).map_err(|e| format!("it can't be finished: {e}"))?;
        disk.lose_power(rng);
        self.judge(other, &disk).map(|()| true)
    }
}

fn granules_of_deleting(store: &MetaStore) -> Vec<u64> {
    let extents = store.deleting().flat_map(|v| &v.extents);
    extents.flat_map(|e| (e.device_offset..e.device_offset + e.len).step_by(MIB as usize)).collect()
}

/// Also of the same backup: then the restore goes on.
#[test]
fn power_lost_at_any_call_of_a_restore_and_any_backup_restored_then_shows_nobody_anothers_data() {
    let hands = Hands::new();
    // Each pair has calls of its own, unless all are tried.
    let step = if std::env::var_os("PLIMSOLL_RESTORE_SEEDS").is_some() { 1 } else { 3 };
    for one in 0..3 {
        for other in 0..3 {
            let mut rng = Rng::new(one as u64 * 3 + other as u64, "one after another");
            let mut calls = (one + other) as u64 % step;
            while hands
                .one_after_another((one, other), calls, &mut rng)
                .unwrap_or_else(|e| panic!("backup {one} lost power at call {calls}, then backup {other}: {e}"))
            {
                calls += step;
            }
            assert!(calls > 20, "{calls} calls are too few to tell");
        }
    }
}
