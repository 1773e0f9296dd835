//! Power loss, corruption and a full region under the metadata store.

#[allow(dead_code)]
mod disk;

use disk::Disk;
use plimsoll_base::{Class, Rng};
use plimsoll_store::{MetaError, MetaStore, NewVolume, Region, RegionKind, TenantLimits, TenantRecord, VolumeRecord};
use redb::StorageBackend;

const GRANULE: u64 = 1 << 20;
const HOME: Region = Region { kind: RegionKind::Home, offset: 5 * GRANULE, len: 24 * GRANULE };
const CAPACITY_BYTES: u64 = disk::REGION.len - 8192;

#[derive(Clone, Debug)]
enum Step {
    Create(u64, u64),
    Grow(u64, u64),
    BeginDelete(u64),
    FinishDelete,
    SetTenant(u32),
}

fn steps(rng: &mut Rng, n: usize) -> Vec<Step> {
    let granules = |rng: &mut Rng| (1 + rng.below(8)) * GRANULE - rng.below(2) * 512;
    let one = |rng: &mut Rng| match rng.below(10) {
        0..4 => Step::Create(rng.below(6), granules(rng)),
        4..6 => Step::Grow(rng.below(6), granules(rng)),
        6..8 => Step::BeginDelete(rng.below(6)),
        8 => Step::FinishDelete,
        _ => Step::SetTenant(1 + rng.below(100) as u32),
    };
    (0..n).map(|_| one(rng)).collect()
}

fn tenant(weight: u32) -> TenantRecord {
    TenantRecord {
        name: "t".into(),
        class: Class::BestEffort { weight },
        limits: TenantLimits::default(),
        change: 0,
        deadline: None,
    }
}

fn volume(name: String, size_bytes: u64) -> NewVolume {
    NewVolume { name, size_bytes, tenant: "t".into(), read_only: false, description: None, cache: None }
}

fn perform(store: &mut MetaStore, step: &Step) -> Result<(), MetaError> {
    match step {
        Step::Create(n, size) => store.create_volume(volume(format!("v{n}"), *size)).map(drop),
        Step::Grow(n, size) => store.grow_volume(&format!("v{n}"), *size).map(drop),
        Step::BeginDelete(n) => store.begin_delete(&format!("v{n}")).map(drop),
        Step::FinishDelete => {
            let id = store.deleting().next().map(|v| v.key.id);
            id.map_or(Ok(()), |id| store.finish_delete(id))
        }
        Step::SetTenant(weight) => store.set_tenant(tenant(*weight)),
    }
}

/// True if the storage failed, rather than the step being refused.
fn is_broken(e: &MetaError) -> bool {
    matches!(e, MetaError::Io(_) | MetaError::Failed | MetaError::Corrupt { .. } | MetaError::Full { .. })
}

type Contents = (Vec<VolumeRecord>, Vec<VolumeRecord>, Vec<TenantRecord>, u64);

fn contents(store: &MetaStore) -> Contents {
    // The number that each volume has is another one in each run.
    let has_birth = |v: &VolumeRecord| VolumeRecord { birth: v.birth.map(|_| 0), ..v.clone() };
    let (ready, deleting) = (store.volumes().map(has_birth).collect(), store.deleting().map(has_birth).collect());
    (ready, deleting, store.tenants().cloned().collect(), store.free_bytes())
}

/// No granule has two owners, those of volumes being deleted included; none is lost.
fn check_owners(store: &MetaStore) -> Result<(), String> {
    let mut owner = [0; 29];
    for v in store.volumes().chain(store.deleting()) {
        for g in v.extents.iter().flat_map(|e| e.device_offset / GRANULE..(e.device_offset + e.len) / GRANULE) {
            if g < 5 || owner[g as usize] != 0 {
                return Err(format!("granule {g} of {:?} belongs to {}", v.name, owner[g as usize]));
            }
            owner[g as usize] = v.key.id;
        }
    }
    let free = owner[5..].iter().filter(|o| **o == 0).count() as u64 * GRANULE;
    if free == store.free_bytes() { Ok(()) } else { Err(format!("{free} bytes are free, not {}", store.free_bytes())) }
}

fn formatted() -> Disk {
    let disk = Disk::new();
    let mut store = MetaStore::format(disk.format(), HOME).expect("formats");
    store.set_tenant(tenant(1)).expect("set");
    drop(store);
    disk
}

fn open(disk: &Disk) -> Result<MetaStore, MetaError> {
    disk.open(HOME)
}

/// Loses power at the disk's call number `at`, opens again (losing power once more in the middle of that, half of the
/// times), compares, and performs the rest.
fn crash_at(base: &Disk, at: u64, steps: &[Step], expected: &[Contents], rng: &mut Rng) -> Result<(), String> {
    let disk = base.copy();
    disk.fail_after(at);
    let mut done = 0;
    if let Ok(mut store) = open(&disk) {
        while done < steps.len() && !perform(&mut store, &steps[done]).is_err_and(|e| is_broken(&e)) {
            done += 1;
        }
    }
    disk.lose_power(rng);
    if rng.below(2) == 0 {
        disk.fail_after(rng.below(20));
        drop(open(&disk));
        disk.lose_power(rng);
    }
    let mut store = open(&disk).map_err(|e| format!("it doesn't open: {e}"))?;
    check_owners(&store)?;
    let found = contents(&store);
    let in_flight = (done + 1).min(steps.len());
    let at_step = [in_flight, done].into_iter().find(|n| expected[*n] == found);
    let at_step = at_step.ok_or(format!("after step {done} {:?} it holds {found:?}", steps.get(done)))?;
    for step in &steps[at_step..] {
        if let Err(e) = perform(&mut store, step)
            && is_broken(&e)
        {
            return Err(format!("{step:?} after recovery: {e}"));
        }
        check_owners(&store)?;
    }
    if contents(&store) == expected[steps.len()] { Ok(()) } else { Err("it ends elsewhere".into()) }
}

/// Every call of a seeded run of `n` steps is once the last before power is lost. Returns how many calls those were, and what
/// was wrong after the first that went wrong.
fn crash_everywhere(seed: u64, n: usize, base: &Disk) -> (u64, Result<(), String>) {
    let mut rng = Rng::new(seed, "crash");
    let steps = steps(&mut rng, n);
    let disk = base.copy();
    let mut store = open(&disk).expect("opens");
    let mut expected = vec![contents(&store)];
    for step in &steps {
        let _ = perform(&mut store, step);
        expected.push(contents(&store));
    }
    drop(store);
    let calls = disk.calls();
    let crash = |at| crash_at(base, at, &steps, &expected, &mut rng).map_err(|e| format!("seed {seed} call {at}: {e}"));
    (calls, (0..calls).try_for_each(crash))
}

#[test]
fn power_lost_at_any_call_leaves_the_last_state_or_the_next() {
    let base = formatted();
    for seed in 0..4 {
        let (calls, result) = crash_everywhere(seed, 24, &base);
        assert!(calls > 100, "{calls} calls are too few to tell");
        println!("seed {seed}: power lost at each of {calls} calls");
        result.unwrap();
    }
}

#[test]
fn after_a_failed_sync_nothing_is_changed_until_it_is_opened_again() {
    let disk = formatted();
    let mut store = open(&disk).expect("opens");
    store.create_volume(volume("a".into(), GRANULE)).expect("room");
    let before = contents(&store);
    disk.fail_after(0);
    assert!(matches!(store.begin_delete("a"), Err(MetaError::Io(_))));
    disk.lose_power(&mut Rng::new(1, "failed sync"));
    assert!(matches!(store.begin_delete("a"), Err(MetaError::Failed)), "though the disk is well again");
    assert_eq!(contents(&store), before);
    drop(store);
    open(&disk).expect("opens").begin_delete("a").expect("works again");
}

/// The test of the test: a disk whose sync does nothing must be caught.
#[test]
fn a_disk_that_lies_about_sync_is_noticed() {
    let base = formatted();
    base.lie_about_sync();
    let noticed = (0..4).find_map(|seed| crash_everywhere(seed, 24, &base).1.err());
    println!("{}", noticed.expect("noticed"));
}

#[test]
fn a_corrupt_store_is_an_error_or_unharmed() {
    let disk = formatted();
    let mut store = open(&disk).expect("opens");
    let mut rng = Rng::new(1, "flip");
    for step in steps(&mut rng, 40) {
        let _ = perform(&mut store, &step);
    }
    let expected = contents(&store);
    drop(store);
    let used = disk.used_bytes();
    let (mut refused, n) = (0, 400);
    for case in 0..n {
        let broken = disk.copy();
        for _ in 0..1 + rng.below(8) {
            // Half of them in the header page, whose every byte matters.
            let at = if case % 2 == 0 {
                8192 + rng.below(320) as usize
            } else {
                used[rng.below(used.len() as u64) as usize]
            };
            broken.flip(at, 1 << rng.below(8));
        }
        match open(&broken) {
            Ok(store) => assert_eq!(contents(&store), expected, "case {case} is corrupt and not noticed"),
            Err(e) => {
                assert!(!e.to_string().is_empty());
                refused += 1;
            }
        }
    }
    println!("{refused} of {n} corruptions refused, the others harmed nothing");
    assert!(refused > n / 4, "{refused} of {n} were noticed");
}

#[test]
fn an_empty_or_cut_store_is_refused() {
    assert!(matches!(open(&Disk::new()), Err(MetaError::Corrupt { .. })));
    let disk = formatted();
    let len = disk.backend().expect("opens").len().expect("known");
    for cut in [len - 4096, len / 2, 4096, 100, 5, 0] {
        let cut_disk = disk.copy();
        cut_disk.backend().expect("opens").set_len(cut).expect("cut");
        assert!(open(&cut_disk).is_err(), "{cut} of {len} bytes");
    }
}

/// Full is clear, changes nothing, and leaves room to delete.
#[test]
fn a_full_region_refuses_and_can_be_cleared() {
    let home = Region { len: 8192 * GRANULE, ..HOME };
    let disk = Disk::new();
    let mut store = MetaStore::format(disk.format(), home).expect("formats");
    store.set_tenant(tenant(1)).expect("set");
    let new = |n| NewVolume { description: Some("d".repeat(1000)), ..volume(format!("v{n}"), GRANULE) };
    let mut n = 0;
    let e = loop {
        match store.create_volume(new(n)) {
            Ok(_) => n += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(e, MetaError::Full { .. }), "{e}");
    let held = n * 1000 * 100 / CAPACITY_BYTES as usize;
    println!("{n} volumes, {held} % of the region are their descriptions");
    assert!(held >= 25, "{n} volumes fill the region");
    assert_eq!(store.volumes().count(), n);
    store.begin_delete("v0").expect("there is a reserve for this");
    let id = store.deleting().next().expect("one").key.id;
    store.finish_delete(id).expect("and for this");
    let before = contents(&store);
    drop(store);
    let store = disk.open(home).expect("opens");
    assert_eq!(contents(&store), before);
}
