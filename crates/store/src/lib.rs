//! What Plimsoll keeps on a device besides clients' data.
//!
//! * [`superblock`]: what a device is, whose, and where its regions lie; encoded and decoded without I/O.
//! * [`device`]: creating, opening and exclusively locking a file or block device.
//! * [`region`]: the metadata region as storage for the metadata store.
//! * [`meta`]: the metadata store: volumes, their extents, tenants; every change is one durable transaction.
//! * [`record`] and [`space`]: the records in it, and which space of the home region is free.
//!
//! All of this is the control path: calls block. Data never passes here; the engine takes
//! [`DeviceFile::data_fd`](device::DeviceFile::data_fd) and [`DeviceFile::home`](device::DeviceFile::home).
//! The layout and the crash argument are in docs/design/on-device.md.
#![forbid(unsafe_code)]

mod db;
pub mod device;
mod earlier;
pub mod meta;
mod probe;
pub mod record;
pub mod region;
pub mod space;
mod state;
pub mod superblock;

pub use device::{CreateOptions, DeviceError, DeviceErrorKind, DeviceFile, Expect, Look, ROLE_MAIN};
pub use meta::{MetaError, MetaReader, MetaStore, MetaView};
pub use record::{
    CacheRecord, DeadlineRecord, NewVolume, RecordError, ReplicaRecord, SettingsRecord, TenantLimits, TenantRecord,
    VolumeRecord, VolumeState,
};
pub use region::{Medium, MetaStorage, Owner, RegionBackend};
pub use space::GRANULE_BYTES;
pub use superblock::{DEVICE_BYTES_MIN, Region, RegionKind, Superblock, SuperblockError};
pub use uuid::Uuid;
