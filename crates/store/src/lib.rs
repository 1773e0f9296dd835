//! Metadata that Plimsoll keeps on a device besides clients' data.
//!
//! * [`superblock`]: identity and owner of a device and places of its regions; encoded and decoded without I/O.
//! * [`device`]: creating, opening and exclusively locking a file or block device.
//! * `remote`: the same for a device behind a protocol, such as an RBD image.
//! * [`region`]: a part of the device in which the metadata store keeps its pages.
//! * [`meta`]: the metadata store: volumes, their extents, tenants; every change is one durable transaction.
//! * [`record`]: the records of the metadata store.
//! * [`space`]: the free space of the home region, the part of the device that holds clients' data.
//! * [`backup`]: the metadata in a file, and back.
//!
//! All of this is the control path: calls block. Data never passes here; the engine takes
//! [`DeviceFile::data_fd`](device::DeviceFile::data_fd) and [`DeviceFile::home`](device::DeviceFile::home).
//! The layout and the crash argument are in docs/design/on-device.md.
#![forbid(unsafe_code)]

pub mod backup;
mod db;
pub mod device;
mod earlier;
mod lock;
pub mod meta;
mod older;
mod overlay;
mod probe;
pub mod record;
pub mod region;
mod remote;
pub mod space;
mod state;
pub mod superblock;
mod unfinished;

pub use backup::{Age, Backup, RestoreError, RestoreOptions, Restored};
pub use device::{CreateOptions, DeviceError, DeviceErrorKind, DeviceFile, Expect, GrowError, Look, ROLE_MAIN};
pub use meta::{MetaError, MetaReader, MetaStore, MetaView};
pub use record::{
    CacheRecord, DeadlineRecord, NewVolume, RecordError, ReplicaRecord, SettingsRecord, TenantLimits, TenantRecord,
    VolumeRecord, VolumeState, check_name,
};
pub use region::{Medium, MetaStorage, Owner, RegionBackend};
pub use remote::{Remote, RemoteDevice};
pub use space::GRANULE_BYTES;
pub use superblock::{DEVICE_BYTES_MIN, Region, RegionKind, Superblock, SuperblockError};
pub use uuid::Uuid;
