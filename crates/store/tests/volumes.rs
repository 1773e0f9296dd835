//! Tests of the metadata store's promises about volumes and tenants, over a disk in memory.

// The disk's faults are the crash tests' business.
#[allow(dead_code)]
mod disk;

use disk::Disk;
use plimsoll_base::{Class, Objective, OnBusy, Span, VolumeKey};
use plimsoll_store::{
    DeadlineRecord, Medium, MetaError, MetaStore, NewVolume, RecordError, Region, RegionBackend, RegionKind,
    SettingsRecord, TenantLimits, TenantRecord, VolumeRecord,
};
use std::sync::{Arc, Condvar, Mutex};

const MIB: u64 = 1 << 20;
const HOME: Region = Region { kind: RegionKind::Home, offset: 5 * MIB, len: 20 * MIB };

fn tenant(name: &str) -> TenantRecord {
    let objectives = vec![Objective { percentile_bp: 9990, bound: Span::from_millis(3) }];
    let limits = TenantLimits { in_flight_requests_max: Some(64), ..TenantLimits::default() };
    TenantRecord {
        name: name.into(),
        class: Class::LatencyCritical { objectives, weight: 100 },
        limits,
        change: 0,
        deadline: None,
    }
}

fn store() -> (Disk, MetaStore) {
    let disk = Disk::new();
    let mut store = MetaStore::format(disk.format(), HOME).expect("formats");
    store.set_tenant(tenant("t")).expect("set");
    (disk, store)
}

fn reopen(disk: &Disk, store: MetaStore) -> MetaStore {
    drop(store);
    disk.open(HOME).expect("opens")
}

fn new(name: &str, size_bytes: u64) -> NewVolume {
    NewVolume { name: name.into(), size_bytes, tenant: "t".into(), read_only: false, description: None, cache: None }
}

fn places(v: &VolumeRecord) -> Vec<(u64, u64)> {
    v.extents.iter().map(|e| (e.device_offset / MIB, e.len / MIB)).collect()
}

#[test]
fn a_growing_volume_keeps_its_places() {
    let (disk, mut store) = store();
    store.create_volume(new("a", 2 * MIB)).expect("room");
    store.create_volume(new("b", 3 * MIB - 512)).expect("room");
    assert_eq!(places(&store.grow_volume("b", 3 * MIB).expect("within its granule")), [(7, 3)]);
    assert_eq!(places(&store.grow_volume("b", 4 * MIB).expect("room behind")), [(7, 4)]);
    let a = store.grow_volume("a", 5 * MIB).expect("room elsewhere");
    assert_eq!(places(&a), [(5, 2), (11, 3)]);
    let shrink = store.grow_volume("a", 4 * MIB).expect_err("smaller");
    assert!(matches!(shrink, MetaError::Shrink { size_bytes: 5_242_880, .. }), "{shrink}");
    let store = reopen(&disk, store);
    assert_eq!(store.volume("a"), Some(&a));
    assert_eq!(store.free_bytes(), 11 * MIB);
}

#[test]
fn deleting_frees_the_name_at_once_and_the_space_when_finished() {
    let (disk, mut store) = store();
    let first = store.create_volume(new("a", 15 * MIB)).expect("room");
    assert_eq!(first.key, VolumeKey { id: 1, generation: 2 }, "the number of the change: a tenant was declared before");
    store.begin_delete("a").expect("begins");
    assert!(store.volume("a").is_none() && store.volumes().next().is_none());
    assert!(matches!(store.begin_delete("a"), Err(MetaError::UnknownVolume { .. })));
    let mut store = reopen(&disk, store);
    assert_eq!(store.deleting().map(|v| (v.key, v.extents.clone())).collect::<Vec<_>>(), [(first.key, first.extents)]);
    let e = store.create_volume(new("a", 6 * MIB)).expect_err("its space isn't free yet");
    assert!(e.to_string().contains("6291456 bytes are needed, 5242880 are free"), "{e}");
    let second = store.create_volume(new("a", 5 * MIB)).expect("the name is free");
    assert_eq!((second.key, places(&second)), (VolumeKey { id: 2, generation: 4 }, vec![(20, 5)]));
    assert!(matches!(store.finish_delete(2), Err(MetaError::NotDeleting { id: 2 })));
    store.finish_delete(1).expect("zeroed");
    let mut store = reopen(&disk, store);
    let third = store.create_volume(new("b", 15 * MIB)).expect("free now");
    assert_eq!(third.key, VolumeKey { id: 1, generation: 6 });
}

#[test]
fn refusals_say_why_and_change_nothing() {
    let (_, mut store) = store();
    store.create_volume(new("a", MIB)).expect("room");
    assert!(matches!(store.create_volume(new("a", MIB)), Err(MetaError::NameTaken { .. })));
    let bad_name = store.create_volume(new("a?b", MIB)).expect_err("unlawful");
    assert!(bad_name.to_string().contains("contains '?'"), "{bad_name}");
    for size in [0, 511, 1 << 63, u64::MAX] {
        let e = store.create_volume(new("b", size)).expect_err("unlawful");
        assert!(matches!(e, MetaError::Record(RecordError::Size { .. })), "{e}");
    }
    assert!(matches!(store.remove_tenant("t"), Err(MetaError::TenantInUse { .. })));
    assert!(matches!(store.remove_tenant("x"), Err(MetaError::UnknownTenant { .. })));
    assert_eq!((store.volumes().count(), store.free_bytes()), (1, 19 * MIB));
}

#[test]
fn tenants_are_kept() {
    let (disk, mut store) = store();
    store.set_tenant(tenant("u")).expect("set");
    store.set_tenant(TenantRecord { class: Class::Fenced { slots: 3 }, ..tenant("t") }).expect("changed");
    store.remove_tenant("u").expect("it has no volumes");
    let store = reopen(&disk, store);
    let tenants: Vec<_> = store.tenants().cloned().collect();
    assert_eq!(tenants, [TenantRecord { class: Class::Fenced { slots: 3 }, ..tenant("t") }]);
}

#[test]
fn what_was_set_live_is_kept() {
    let (disk, mut store) = store();
    store.create_volume(new("a", MIB)).expect("room");
    assert_eq!((store.settings(), store.volume("a").expect("made").deadline), (SettingsRecord::default(), None));
    let of = |idle_us| [("idle_us".to_owned(), idle_us)].into();
    let settings = SettingsRecord { set: of(0), configured: of(8) };
    store.set_settings(settings.clone()).expect("set");
    let (busy, configured_busy) = (OnBusy::Error, OnBusy::Wait);
    let deadline = DeadlineRecord { deadline_ns: Some(20), configured_ns: None, busy, configured_busy };
    store.set_volume_deadline("a", deadline).expect("set");
    assert!(matches!(store.set_volume_deadline("b", deadline), Err(MetaError::UnknownVolume { .. })));
    let store = reopen(&disk, store);
    assert_eq!((store.settings(), store.volume("a").expect("made").deadline), (settings, Some(deadline)));
}

/// A disk whose sync waits until it is let go.
#[derive(Clone, Debug)]
struct Held {
    disk: Disk,
    holds: Arc<(Mutex<(bool, bool)>, Condvar)>,
}

impl Held {
    fn hold(&self, holds: bool) {
        self.holds.0.lock().expect("no panic").0 = holds;
        self.holds.1.notify_all();
    }

    fn wait_until_held(&self) {
        let state = self.holds.0.lock().expect("no panic");
        drop(self.holds.1.wait_while(state, |(_, is_held)| !*is_held).expect("no panic"));
    }
}

impl Medium for Held {
    fn read_at(&self, out: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.disk.read_at(out, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> std::io::Result<()> {
        self.disk.write_at(data, offset)
    }

    fn sync(&self) -> std::io::Result<()> {
        let mut state = self.holds.0.lock().expect("no panic");
        state.1 = state.0;
        self.holds.1.notify_all();
        state = self.holds.1.wait_while(state, |(holds, _)| *holds).expect("no panic");
        state.1 = false;
        self.disk.sync()
    }
}

/// Readers of the store (status, metrics) go on while a change waits for a slow device.
#[test]
fn readers_dont_wait_for_the_device() {
    let held = Held { disk: Disk::new(), holds: Arc::default() };
    let backend = RegionBackend::format(held.clone(), disk::REGION, disk::OWNER).expect("formats");
    let mut store = MetaStore::format(backend, HOME).expect("formats");
    store.create_volume(new("a", MIB)).expect("room");
    let reader = store.reader();
    held.hold(true);
    let changing = std::thread::spawn(move || {
        store.create_volume(new("b", 2 * MIB)).expect("room");
        store
    });
    held.wait_until_held();
    for _ in 0..100 {
        let view = reader.view();
        assert_eq!((view.volumes().count(), view.free_bytes()), (1, 19 * MIB), "the change isn't durable yet");
    }
    held.hold(false);
    let store = changing.join().expect("no panic");
    assert_eq!((reader.view().volumes().count(), reader.view().free_bytes()), (2, 17 * MIB));
    assert_eq!(reader.view().volume("b"), store.volume("b"));
}

/// Prints the cost of a change by the number of volumes; `make bench` runs it.
#[test]
#[ignore = "measures and judges nothing: `make bench` runs it"]
fn a_change_costs_what_it_touches() {
    let home = Region { len: 70_000 * MIB, ..HOME };
    for volumes in [10, 100, 1000, 6000] {
        let disk = Disk::new();
        let mut store = MetaStore::format(disk.format(), home).expect("formats");
        for n in 0..volumes {
            store.create_volume(new(&format!("v{n}"), MIB)).expect("room");
        }
        let begun = std::time::Instant::now();
        for n in 0..200 {
            store.set_volume_owner("v5", "t".into(), n % 2 == 0).expect("changed");
        }
        println!("{volumes} volumes: {:?} a change", begun.elapsed() / 200);
    }
}
