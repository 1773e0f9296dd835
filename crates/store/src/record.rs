//! The records of the metadata store, how they are written as JSON, and which of them are lawful.

use crate::space::GRANULE_BYTES;
use plimsoll_base::{CacheMode, Class, Objective, OnBusy, Span, VolumeKey};
use plimsoll_stack::map::Extent;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use uuid::Uuid;

/// The most extents a volume may have.
pub const EXTENTS_MAX: usize = 65_536;
/// Volume sizes are multiples of this.
pub const SIZE_UNIT_BYTES: u64 = 512;

/// Properties of a new volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewVolume {
    /// Unique among the pool's usable volumes; see [`check_name`].
    pub name: String,
    /// A multiple of [`SIZE_UNIT_BYTES`], not zero.
    pub size_bytes: u64,
    /// The name of an existing tenant.
    pub tenant: String,
    /// Clients may only read.
    pub read_only: bool,
    /// For people; at most 1024 bytes.
    pub description: Option<String>,
    /// Mode of the pool's cache for this volume; `None`: the pool's own mode.
    pub cache: Option<CacheMode>,
}

/// Usability of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// In use.
    Ready,
    /// Being deleted: not usable, its space still its own, to be zeroed and given back.
    Deleting,
}

/// A volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeRecord {
    /// Its number, and the generation of that: no other volume of the pool ever has both.
    pub key: VolumeKey,
    /// Its name.
    pub name: String,
    /// Size that clients see.
    pub size_bytes: u64,
    /// Owner.
    pub tenant: String,
    /// Clients may only read.
    pub read_only: bool,
    /// For people.
    pub description: Option<String>,
    /// Mode of the pool's cache for this volume; `None`: the pool's own mode.
    pub cache: Option<CacheMode>,
    /// Places of its bytes, in the order of its addresses. They are whole granules, so their sum is `size_bytes` rounded up.
    pub extents: Vec<Extent>,
    /// Usability.
    pub state: VolumeState,
    /// State as one of several replicas.
    pub replica: ReplicaRecord,
    /// Its deadline, if it was ever changed live.
    pub deadline: Option<DeadlineRecord>,
    /// If true, the newest data may be in the pool's cache only: the volume is write-back, or was and isn't written back yet.
    /// `None` if it was never recorded.
    pub behind: Option<bool>,
    /// Generation of the cache at which the volume's dirty data was given up. Of the volume's data on the cache's device,
    /// everything older is invalid.
    pub given_up: Option<u32>,
    /// A number that is drawn when the volume is made: in two histories of a pool, as after a copy of its device was put back, two volumes may have
    /// one key. `None` if an earlier program made the volume. It isn't part of the row's JSON, which earlier programs read.
    pub birth: Option<u64>,
}

/// Record of a volume's state as one of several replicas.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct ReplicaRecord {
    /// Changes that it has acknowledged since it was made, as of when this was written.
    pub changes: u64,
    /// More changes may have followed: a client could change it since, and no orderly end was recorded.
    pub open: bool,
    /// Reason why it may lack writes that other replicas have, by the node's numbers. 0: it lacks none.
    pub behind: u8,
}

/// A pool's settings as they were last changed live, each by its key, with the unit in the key.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct SettingsRecord {
    /// Their values.
    pub set: BTreeMap<String, u64>,
    /// The values that were configured then. A setting that is configured otherwise by now is meant as configured.
    pub configured: BTreeMap<String, u64>,
}

/// State of a pool's cache. Earlier programs wrote further fields, which [`SettingsRecord`] has today.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
pub struct CacheRecord {
    /// The pool was served without it since: what it holds may be older than the pool's own device.
    pub absent: bool,
    /// The UUID of its device, which names the pool's main device: no other one is the pool's cache. `None` if an earlier program made
    /// the device, or if a restore doesn't know it. Earlier programs don't know the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Uuid>,
    /// The UUID of the NVRAM that belongs to that device's cache. `None` if there is none, if a program wrote the record that doesn't know the
    /// field, or if a restore doesn't know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvram: Option<Uuid>,
}

/// A volume's or tenant's deadline as it was last changed live.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct DeadlineRecord {
    /// In nanoseconds; none: a volume has its tenant's, a tenant has none.
    pub deadline_ns: Option<u64>,
    /// Configured deadline at the time of that change. If the configuration has another value now, the configured value
    /// applies.
    pub configured_ns: Option<u64>,
    /// Answer to a read that would miss the deadline.
    #[serde(default, skip_serializing_if = "waits")]
    pub busy: OnBusy,
    /// The same as it was configured then.
    #[serde(default, skip_serializing_if = "waits")]
    pub configured_busy: OnBusy,
}

/// Earlier programs don't know the field: only its other value is written.
fn waits(busy: &OnBusy) -> bool {
    *busy == OnBusy::Wait
}

impl ReplicaRecord {
    /// A value of [`behind`](Self::behind): it lost writes that it had acknowledged, or a writer's end was not orderly.
    pub const WRITES_LOST: u8 = 2;

    fn is_new(&self) -> bool {
        *self == ReplicaRecord::default()
    }
}

impl VolumeRecord {
    /// Returns whether two volumes with one key were made in different histories of the pool. `None` if that isn't known of one of them.
    pub(crate) fn is_of_another_history(&self, other: &VolumeRecord) -> Option<bool> {
        Some(self.birth? != other.birth?)
    }

    /// The extents cut to what clients see: `size_bytes` rounded up to `block_bytes`.
    pub fn visible_extents(&self, block_bytes: u32) -> Vec<Extent> {
        let mut left = self.size_bytes.next_multiple_of(u64::from(block_bytes));
        let cut = |e: &Extent| {
            let len = e.len.min(left);
            left -= len;
            Extent { device_offset: e.device_offset, len }
        };
        self.extents.iter().map(cut).filter(|e| e.len > 0).collect()
    }
}

/// A tenant.
#[derive(Clone, PartialEq, Debug)]
pub struct TenantRecord {
    /// Unique; see [`check_name`].
    pub name: String,
    /// Promise.
    pub class: Class,
    /// Limits.
    pub limits: TenantLimits,
    /// Number of this change among all changes of tenants in the node. Of two pools' records the one with the higher number is
    /// valid.
    pub change: u64,
    /// Its deadline, if it was ever changed live.
    pub deadline: Option<DeadlineRecord>,
}

/// Bounds on a tenant; `None` is no bound of its own.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct TenantLimits {
    /// Requests in flight.
    pub in_flight_requests_max: Option<u32>,
    /// Bytes of the requests in flight.
    pub in_flight_bytes_max: Option<u64>,
    /// Requests a second.
    pub requests_per_s_max: Option<u64>,
    /// Bytes a second.
    pub bytes_per_s_max: Option<u64>,
}

/// Problem of a name, a size, a class.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecordError {
    /// Not a lawful name.
    Name {
        /// As given.
        name: String,
        /// Rule that it breaks.
        why: &'static str,
    },
    /// Not a lawful size.
    Size {
        /// As given.
        size_bytes: u64,
    },
    /// A description of more than 1024 bytes.
    Description,
    /// A promise that is none.
    Class {
        /// Rule that it breaks.
        why: &'static str,
    },
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::Name { name, why } => write!(
                f,
                "{name:?} can't be a name: it {why}. Names have 1 to 255 bytes, no control characters, no '?' (an export's promise follows it), no '/', and don't begin with '.'"
            ),
            RecordError::Size { size_bytes } => {
                write!(f, "a volume can't have {size_bytes} bytes: give a multiple of {SIZE_UNIT_BYTES}, not zero")
            }
            RecordError::Description => write!(f, "the description has more than 1024 bytes: shorten it"),
            RecordError::Class { why } => write!(f, "this is not a promise: {why}"),
        }
    }
}

impl std::error::Error for RecordError {}

/// Checks that `name` can name a volume or a tenant.
///
/// # Errors
/// Names the rule that it breaks.
pub fn check_name(name: &str) -> Result<(), RecordError> {
    let why = match name {
        "" => "is empty",
        _ if name.len() > 255 => "is longer than 255 bytes",
        _ if name.starts_with('.') => "begins with '.'",
        _ if name.contains('?') => "contains '?'",
        _ if name.contains('/') => "contains '/'",
        _ if name.chars().any(char::is_control) => "contains a control character",
        _ => return Ok(()),
    };
    Err(RecordError::Name { name: name.chars().take(64).collect(), why })
}

/// Checks that a volume can have `size_bytes` bytes.
///
/// # Errors
/// If it can't.
pub fn check_size(size_bytes: u64) -> Result<(), RecordError> {
    let lawful = size_bytes > 0 && size_bytes.is_multiple_of(SIZE_UNIT_BYTES) && size_bytes < 1 << 62;
    if lawful { Ok(()) } else { Err(RecordError::Size { size_bytes }) }
}

impl NewVolume {
    /// Checks that the volume could be created, given space.
    ///
    /// # Errors
    /// Names the problem.
    pub fn check(&self) -> Result<(), RecordError> {
        check_name(&self.name)?;
        check_size(self.size_bytes)?;
        if self.description.as_ref().is_some_and(|d| d.len() > 1024) {
            return Err(RecordError::Description);
        }
        Ok(())
    }
}

impl TenantRecord {
    /// Checks that it is a valid tenant.
    ///
    /// # Errors
    /// Names the problem.
    pub fn check(&self) -> Result<(), RecordError> {
        check_name(&self.name)?;
        let why = match &self.class {
            Class::LatencyCritical { objectives, .. } if objectives.is_empty() || objectives.len() > 16 => {
                "latency-critical needs 1 to 16 objectives"
            }
            Class::LatencyCritical { objectives, .. }
                if objectives.iter().any(|o| !(1..=9999).contains(&o.percentile_bp) || o.bound == Span::ZERO) =>
            {
                "an objective needs a percentile above 0 and below 100 and a bound above 0"
            }
            Class::BestEffort { weight } | Class::LatencyCritical { weight, .. } if !(1..=10_000).contains(weight) => {
                "a weight is 1 to 10000"
            }
            Class::Fenced { slots: 0 } => "fenced needs at least one slot",
            _ => return Ok(()),
        };
        Err(RecordError::Class { why })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumeJson {
    generation: u32,
    name: String,
    size_bytes: u64,
    tenant: String,
    read_only: bool,
    description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cache: Option<CacheMode>,
    /// First granule of the device and how many, by extent.
    extents: Vec<(u64, u64)>,
    state: VolumeState,
    #[serde(default, skip_serializing_if = "ReplicaRecord::is_new")]
    replica: ReplicaRecord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deadline: Option<DeadlineRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    behind: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    given_up: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantJson {
    class: ClassJson,
    limits: TenantLimits,
    /// Absent in what earlier versions wrote.
    #[serde(default)]
    change: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deadline: Option<DeadlineRecord>,
}

fn critical_weight() -> u32 {
    Class::CRITICAL_WEIGHT
}

/// Returns whether the weight is the default, which isn't written: nodes older than the key can then read the record.
fn is_critical_weight(weight: &u32) -> bool {
    *weight == critical_weight()
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum ClassJson {
    LatencyCritical {
        objectives: Vec<ObjectiveJson>,
        #[serde(default = "critical_weight", skip_serializing_if = "is_critical_weight")]
        weight: u32,
    },
    BestEffort {
        weight: u32,
    },
    Fenced {
        slots: u32,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ObjectiveJson {
    percentile_bp: u16,
    bound_ns: u64,
}

/// `volume` as stored under its id.
pub(crate) fn volume_to_json(volume: &VolumeRecord) -> Vec<u8> {
    let granules = |e: &Extent| (e.device_offset / GRANULE_BYTES, e.len / GRANULE_BYTES);
    let json = VolumeJson {
        generation: volume.key.generation,
        name: volume.name.clone(),
        size_bytes: volume.size_bytes,
        tenant: volume.tenant.clone(),
        read_only: volume.read_only,
        description: volume.description.clone(),
        cache: volume.cache,
        extents: volume.extents.iter().map(granules).collect(),
        state: volume.state,
        replica: volume.replica,
        deadline: volume.deadline,
        behind: volume.behind,
        given_up: volume.given_up,
    };
    serde_json::to_vec(&json).expect("plain data has a JSON form")
}

/// The volume stored under `id`.
pub(crate) fn volume_from_json(id: u32, json: &[u8]) -> Result<VolumeRecord, String> {
    let v: VolumeJson = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    let bytes = |(at, len): &(u64, u64)| {
        let (device_offset, len) = (at.checked_mul(GRANULE_BYTES)?, len.checked_mul(GRANULE_BYTES)?);
        Some(Extent { device_offset, len })
    };
    let extents: Option<Vec<Extent>> = v.extents.iter().map(bytes).collect();
    let extents = extents.ok_or("an extent lies beyond 2^64")?;
    let held_bytes: u128 = extents.iter().map(|e| u128::from(e.len)).sum();
    check_name(&v.name).and_then(|()| check_size(v.size_bytes)).map_err(|e| e.to_string())?;
    if held_bytes != u128::from(v.size_bytes.next_multiple_of(GRANULE_BYTES)) || extents.len() > EXTENTS_MAX {
        return Err(format!("{} extents hold {held_bytes} bytes of a volume of {}", extents.len(), v.size_bytes));
    }
    Ok(VolumeRecord {
        key: VolumeKey { id, generation: v.generation },
        name: v.name,
        size_bytes: v.size_bytes,
        tenant: v.tenant,
        read_only: v.read_only,
        description: v.description,
        cache: v.cache,
        extents,
        state: v.state,
        replica: v.replica,
        deadline: v.deadline,
        behind: v.behind,
        given_up: v.given_up,
        birth: None,
    })
}

/// `tenant` as stored under its name.
pub(crate) fn tenant_to_json(tenant: &TenantRecord) -> Vec<u8> {
    let objective = |o: &Objective| ObjectiveJson { percentile_bp: o.percentile_bp, bound_ns: o.bound.as_nanos() };
    let class = match &tenant.class {
        Class::LatencyCritical { objectives, weight } => {
            let objectives = objectives.iter().map(objective).collect();
            ClassJson::LatencyCritical { objectives, weight: *weight }
        }
        Class::BestEffort { weight } => ClassJson::BestEffort { weight: *weight },
        Class::Fenced { slots } => ClassJson::Fenced { slots: *slots },
    };
    let &TenantRecord { limits, change, deadline, .. } = tenant;
    serde_json::to_vec(&TenantJson { class, limits, change, deadline }).expect("plain data has a JSON form")
}

/// The tenant stored under `name`.
pub(crate) fn tenant_from_json(name: &str, json: &[u8]) -> Result<TenantRecord, String> {
    let t: TenantJson = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    let objective =
        |o: ObjectiveJson| Objective { percentile_bp: o.percentile_bp, bound: Span::from_nanos(o.bound_ns) };
    let class = match t.class {
        ClassJson::LatencyCritical { objectives, weight } => {
            Class::LatencyCritical { objectives: objectives.into_iter().map(objective).collect(), weight }
        }
        ClassJson::BestEffort { weight } => Class::BestEffort { weight },
        ClassJson::Fenced { slots } => Class::Fenced { slots },
    };
    let tenant =
        TenantRecord { name: name.to_owned(), class, limits: t.limits, change: t.change, deadline: t.deadline };
    tenant.check().map_err(|e| e.to_string())?;
    Ok(tenant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_refused_with_the_rule_they_break() {
        for (name, rule) in [("", "empty"), (".x", "begins"), ("a?b", "'?'"), ("a/b", "'/'"), ("a\nb", "control")] {
            let RecordError::Name { why, .. } = check_name(name).expect_err("refused") else {
                panic!("a name's error")
            };
            assert!(why.contains(rule), "{name:?}: {why}");
        }
        assert!(check_name(&"é".repeat(128)).is_err() && check_name(&"é".repeat(127)).is_ok());
        assert_eq!(check_name("web-data 1.2"), Ok(()));
    }

    #[test]
    fn records_survive_their_json() {
        let extents =
            vec![Extent { device_offset: 9 << 20, len: 2 << 20 }, Extent { device_offset: 5 << 20, len: 1 << 20 }];
        let volume = VolumeRecord {
            key: VolumeKey { id: 3, generation: 2 },
            name: "web".into(),
            size_bytes: (2 << 20) + 512,
            tenant: "t".into(),
            read_only: true,
            description: Some("…".into()),
            cache: None,
            extents,
            state: VolumeState::Deleting,
            replica: ReplicaRecord { changes: 7, open: true, behind: 2 },
            deadline: Some(DeadlineRecord {
                deadline_ns: Some(5),
                configured_ns: None,
                busy: OnBusy::Error,
                configured_busy: OnBusy::Wait,
            }),
            behind: Some(true),
            given_up: Some(3),
            birth: None,
        };
        assert_eq!(volume_from_json(3, &volume_to_json(&volume)), Ok(volume.clone()));
        let visible: Vec<u64> = volume.visible_extents(4096).iter().map(|e| e.len).collect();
        assert_eq!(visible, [2 << 20, 4096]);
        let objectives = vec![Objective { percentile_bp: 9990, bound: Span::from_millis(3) }];
        for class in [
            Class::LatencyCritical { objectives, weight: 9 },
            Class::BestEffort { weight: 7 },
            Class::Fenced { slots: 2 },
        ] {
            let limits = TenantLimits { in_flight_requests_max: Some(4), ..Default::default() };
            let (busy, configured_busy) = (OnBusy::Error, OnBusy::Wait);
            let deadline = DeadlineRecord { deadline_ns: None, configured_ns: Some(7), busy, configured_busy };
            for deadline in [None, Some(deadline)] {
                let tenant = TenantRecord { name: "t".into(), class: class.clone(), limits, change: 3, deadline };
                assert_eq!(tenant_from_json("t", &tenant_to_json(&tenant)), Ok(tenant));
            }
        }
        assert!(tenant_from_json("t", br#"{"class":{"best-effort":{"weight":0}},"limits":{}}"#).is_err());
        assert!(volume_from_json(3, b"{}").is_err());
    }
}
