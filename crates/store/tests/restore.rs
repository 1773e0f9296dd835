//! Power lost at each call of a restore: then the old metadata are there, or the new, or every start says that the restore isn't
//! finished. It goes on when it is asked for again. No volume is ever shown whose data are another's, or were zeroed.

#[allow(dead_code)]
mod disk;

use disk::Disk;
use plimsoll_base::{Class, Rng};
use plimsoll_store::{
    Age, Backup, CreateOptions, DeviceErrorKind, Expect, Medium, MetaError, MetaStore, NewVolume, RemoteDevice,
    RestoreError, TenantLimits, TenantRecord, Uuid,
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
    /// The metadata store's pages were lost.
    PagesLost,
    /// Both superblocks were lost.
    SuperblocksLost,
    /// Superblocks, length slots and pages were lost.
    AllLost,
}

fn case(since: Since) -> Case {
    let disk = Disk::of(SIZE_BYTES);
    let options = CreateOptions {
        size_bytes: 0,
        pool_uuid: Uuid::from_u128(7),
        role: "main".into(),
        logs_bytes: 0,
        main_uuid: None,
    };
    let device = RemoteDevice::create(name(), Arc::new(disk.clone()), &options).expect("created");
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
    if matches!(since, Since::Made | Since::Replaced) {
        if since == Since::Replaced {
            let id = store.begin_delete("b").expect("there").key.id;
            for at in &after["b"] {
                disk.write_at(&[0; DATA_BYTES], *at).expect("written");
            }
            store.finish_delete(id).expect("deleted");
        }
        add(&mut store, "later", if since == Since::Replaced { 2 } else { 1 });
        fill(&disk, &store, "later");
        let of_b = after["b"].iter().copied();
        others.extend(granules(&store, "later").into_iter().filter(|at| of_b.clone().any(|b| b == *at)));
        assert_eq!(others.len(), if since == Since::Replaced { 2 } else { 0 });
    }
    drop((store, device));
    let lose = |offset: u64, len: u64| disk.write_at(&vec![0; len as usize], offset).expect("written");
    match since {
        Since::Nothing | Since::Made | Since::Replaced => {}
        Since::PagesLost => lose(MIB + 8192, 64 << 10),
        Since::SuperblocksLost => lose(0, 8192),
        Since::AllLost => lose(0, 2 * MIB),
    }
    disk.sync().expect("synced");
    let (older, age) = match since {
        Since::Made => (true, Age::Older(1)),
        Since::Replaced => (true, Age::Older(3)),
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
    case.backup.restore_remote(name(), Arc::new(disk.clone()), older).map(|done| done.age)
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

const ALL: [Since; 6] =
    [Since::Nothing, Since::Made, Since::Replaced, Since::PagesLost, Since::SuperblocksLost, Since::AllLost];

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
        let onto = |older| newer.restore_remote(name(), Arc::new(disk.clone()), older);
        assert!(matches!(onto(false), Err(RestoreError::Old(Age::Unfinished))), "call {at}");
        let done = onto(true).expect("asked to");
        assert_eq!(done.age, Age::Unfinished);
        let (_, store) = open(&disk).expect("opens");
        assert_eq!(store.volumes().count(), 3);
        assert_eq!(done.zeroed_bytes, store.free_bytes());
    }
    assert!(unfinished > 10, "{unfinished} of the power losses left an unfinished restore");
}
