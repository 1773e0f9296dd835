//! Corruption of the metadata region: one sector is flipped, zeroed, taken back to an older state, or replaced by another
//! place's. The verdict is always the same: the right volumes, or an error that names the metadata. Never an older store,
//! never one with a volume less, never another's extents.
//!
//! `PLIMSOLL_ROT_SEEDS` sets how many histories are tried; 1 by default.

#[allow(dead_code)]
mod disk;

use disk::{Disk, OWNER, REGION, SECTOR_BYTES};
use plimsoll_base::{Class, Rng};
use plimsoll_store::{
    MetaError, MetaStorage, MetaStore, NewVolume, Owner, Region, RegionBackend, RegionKind, TenantLimits, TenantRecord,
    Uuid, VolumeRecord,
};
use redb::StorageBackend;

const MIB: u64 = 1 << 20;
const HOME: Region = Region { kind: RegionKind::Home, offset: 5 * MIB, len: 64 * MIB };
const SLOT_SECTORS: usize = 8192 / SECTOR_BYTES;

type Contents = (Vec<VolumeRecord>, Vec<VolumeRecord>, Vec<TenantRecord>, u64);

fn contents(store: &MetaStore) -> Contents {
    let (ready, deleting) = (store.volumes().cloned().collect(), store.deleting().cloned().collect());
    (ready, deleting, store.tenants().cloned().collect(), store.free_bytes())
}

fn tenant(name: &str, weight: u32) -> TenantRecord {
    TenantRecord {
        name: name.into(),
        class: Class::BestEffort { weight },
        limits: TenantLimits::default(),
        change: 0,
        deadline: None,
    }
}

/// Volumes of three tenants, made, grown, given to another tenant, deleted; the disk after each change and at the end, with
/// the store closed in an orderly way or not.
fn history(seed: u64, disk: &Disk) -> Vec<Disk> {
    let mut rng = Rng::new(seed, "rot");
    let mut store = MetaStore::format(disk.format(), HOME).expect("formats");
    for name in ["a", "b", "c"] {
        store.set_tenant(tenant(name, 100)).expect("set");
    }
    let mut states = vec![];
    for n in 0..24 + rng.below(16) {
        let name = format!("v{}", rng.below(8));
        let owner = ["a", "b", "c"][rng.below(3) as usize];
        let exists = store.volume(&name).is_some();
        let done = match (exists, rng.below(6)) {
            (false, _) => {
                let new = NewVolume {
                    name: name.clone(),
                    size_bytes: (1 + rng.below(6)) * MIB,
                    tenant: owner.into(),
                    read_only: false,
                    description: Some("d".repeat(rng.below(300) as usize)),
                    cache: None,
                };
                store.create_volume(new).map(drop)
            }
            (true, 0..3) => store.begin_delete(&name).map(drop),
            (true, 3) => store.set_volume_owner(&name, owner.into(), n % 2 == 0).map(drop),
            (true, _) => {
                let size_bytes = store.volume(&name).expect("there").size_bytes + MIB;
                store.grow_volume(&name, size_bytes).map(drop)
            }
        };
        done.expect("room");
        let deleting = store.deleting().next().map(|v| v.key.id);
        if let Some(id) = deleting.filter(|_| rng.below(2) == 0) {
            store.finish_delete(id).expect("finishes");
        }
        states.push(disk.copy());
        if rng.below(8) == 0 {
            drop(store);
            store = disk.open(HOME).expect("opens");
        }
    }
    if seed.is_multiple_of(2) {
        drop(store);
    } else {
        std::mem::forget(store); // as a process that is killed
    }
    states.push(disk.copy());
    states
}

/// A change of a sector.
#[derive(Clone, Copy, Debug)]
enum Rot {
    Bit,
    Zeroes,
    /// As it was that many states ago.
    Older(usize),
    /// Another used sector's bytes.
    Misplaced,
    /// The same sector of another device.
    Other,
}

struct Case<'a> {
    states: &'a [Disk],
    used: &'a [usize],
    other: &'a Disk,
}

impl Case<'_> {
    /// A copy of the last state with one sector changed; `None` if that changes nothing.
    fn rotted(&self, sector: usize, rot: Rot, rng: &mut Rng) -> Option<Disk> {
        let last = self.states.last().expect("there are states");
        let before = last.sector(sector);
        let after = match rot {
            Rot::Bit => {
                let mut b = before;
                b[rng.below(SECTOR_BYTES as u64) as usize] ^= 1 << rng.below(8);
                b
            }
            Rot::Zeroes => [0; SECTOR_BYTES],
            Rot::Older(n) => self.states[self.states.len().saturating_sub(1 + n)].sector(sector),
            Rot::Misplaced => last.sector(self.used[rng.below(self.used.len() as u64) as usize]),
            Rot::Other => self.other.sector(sector),
        };
        (after != before).then(|| {
            let disk = last.copy();
            disk.put_sector(sector, &after);
            disk
        })
    }
}

/// Opens by `open`; says whether it was refused.
fn judge(
    disk: &Disk,
    expected: &Contents,
    open: &dyn Fn(&Disk) -> Result<MetaStore, MetaError>,
) -> Result<bool, String> {
    match open(disk) {
        Err(MetaError::Corrupt { what }) if !what.is_empty() => Ok(true),
        Err(e) => Err(format!("refused, but not as corrupt: {e}")),
        Ok(store) if contents(&store) != *expected => Err(format!("opens with {:?}", contents(&store))),
        Ok(mut store) => {
            // Damage where nothing is stored yet must not harm what is stored there next.
            store.set_tenant(tenant("late", 7)).map_err(|e| format!("a change fails: {e}"))?;
            let expected = contents(&store);
            drop(store);
            match open(disk) {
                Ok(store) if contents(&store) == expected => Ok(false),
                Ok(_) => Err("a change after it is lost".into()),
                Err(e) => Err(format!("after a change it doesn't open: {e}")),
            }
        }
    }
}

/// redb panics on some corrupt bytes, which the store catches: thousands of these would hide what a test says.
fn quiet_redb() {
    std::panic::set_hook(Box::new(|panic| {
        if !panic.location().is_some_and(|l| l.file().contains("redb")) {
            eprintln!("{panic}");
        }
    }));
}

/// Rots every sector of a history's last state in every way. Returns how many cases there were and how many were refused.
fn rot_everywhere(seed: u64, open: &dyn Fn(&Disk) -> Result<MetaStore, MetaError>) -> Result<(usize, usize), String> {
    quiet_redb();
    let mut rng = Rng::new(seed, "rot everywhere");
    let disk = Disk::new();
    let states = history(seed, &disk);
    let other = Disk::new();
    history(seed + 1000, &other);
    let last = states.last().expect("there are states");
    let expected = contents(&last.copy().open(HOME).expect("opens"));
    let used = last.used_sectors();
    let case = Case { states: &states, used: &used, other: &other };
    // Every sector that was ever written; the rest reads as zeroes and is nobody's.
    let mut sectors = used.clone();
    states.iter().for_each(|state| sectors.extend(state.used_sectors()));
    sectors.extend(0..SLOT_SECTORS);
    sectors.sort_unstable();
    sectors.dedup();
    let (mut cases, mut refused) = (0, 0);
    for sector in sectors {
        let header = sector <= SLOT_SECTORS;
        let bits = if header { 24 } else { 1 };
        let rots = (0..bits).map(|_| Rot::Bit).chain([Rot::Zeroes, Rot::Misplaced, Rot::Other]);
        let rots = rots.chain((1..if header { 12 } else { 4 }).map(Rot::Older));
        for rot in rots {
            let Some(disk) = case.rotted(sector, rot, &mut rng) else { continue };
            let verdict =
                judge(&disk, &expected, open).map_err(|e| format!("seed {seed} sector {sector} {rot:?}: {e}"))?;
            cases += 1;
            refused += usize::from(verdict);
        }
    }
    Ok((cases, refused))
}

fn seeds() -> u64 {
    std::env::var("PLIMSOLL_ROT_SEEDS").ok().map_or(1, |n| n.parse().expect("PLIMSOLL_ROT_SEEDS is a number"))
}

#[test]
fn a_sector_that_rots_is_noticed_or_harmless() {
    // A killed process' image as well as a closed one's.
    for seed in 0..2 * seeds() {
        let (cases, refused) = rot_everywhere(seed, &|disk| disk.open(HOME)).unwrap();
        println!("seed {seed}: {refused} of {cases} refused, the others right");
        assert!(refused > 20, "{refused} of {cases}: the rot isn't where the store looks");
    }
}

/// Everything that redb wrote is whole, and old.
#[test]
fn an_older_database_beside_newer_slots_is_refused() {
    for seed in 0..2 {
        let disk = Disk::new();
        let states = history(seed, &disk);
        let last = states.last().expect("there are states");
        let expected = contents(&last.copy().open(HOME).expect("opens"));
        let mut refused = 0;
        for old in &states[..states.len() - 1] {
            let mixed = old.copy();
            (0..SLOT_SECTORS).for_each(|n| mixed.put_sector(n, &last.sector(n)));
            refused += usize::from(judge(&mixed, &expected, &|disk| disk.open(HOME)).unwrap());
            let mixed = last.copy();
            (0..SLOT_SECTORS).for_each(|n| mixed.put_sector(n, &old.sector(n)));
            judge(&mixed, &expected, &|disk| disk.open(HOME)).unwrap();
        }
        assert!(refused + 2 >= states.len() - 1, "{refused} of {} older databases", states.len() - 1);
    }
}

#[test]
fn the_metadata_of_another_device_is_refused() {
    let disk = Disk::new();
    drop(MetaStore::format(disk.format(), HOME).expect("formats"));
    let owner = Owner { device_uuid: Uuid::from_u128(1), ..OWNER };
    assert!(RegionBackend::open(disk.clone(), REGION, owner).is_err());
    disk.open(HOME).expect("its own is right");
}

/// Storage that forgets which commit it noted.
#[derive(Debug)]
struct Forgetful(RegionBackend<Disk>);

impl MetaStorage for Forgetful {
    fn capacity_bytes(&self) -> u64 {
        self.0.capacity_bytes()
    }
    fn witnessed(&self) -> Option<u64> {
        Some(0)
    }
    fn witness(&self, commit: u64) -> std::io::Result<()> {
        self.0.witness(commit)
    }
}

impl StorageBackend for Forgetful {
    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read(offset, out)
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> std::io::Result<()> {
        self.0.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.write(offset, data)
    }
}

/// The test of the test: without the witness a lost volume goes unnoticed, and the oracle finds that.
#[test]
fn a_store_without_the_witness_is_found() {
    let open = |disk: &Disk| MetaStore::open(Forgetful(disk.backend()?), HOME);
    let found = (0..4).find_map(|seed| rot_everywhere(seed, &open).err());
    println!("{}", found.expect("found"));
}
