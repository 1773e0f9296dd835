//! Models of storage devices: wait and service time of a request, without moving a byte.
//!
//! A model is a pure state machine behind [`Model`]: its inputs are requests and the time, and its outputs are completions at
//! exact instants. It reads no clock, starts no thread and draws no randomness of its own (a seed in its options fixes what
//! varies between two drives of one kind). The same model runs in the simulator's virtual time and behind a live volume in real
//! time.
//!
//! Each kind of device is a module: [`disk`] here; flash and shingled disks stand beside it. [`Raid0`] stripes any
//! of them.
//!
//! A disk is built from a [`DiskSpec`]: one of the embedded [`profile`]s, a TOML file of the user's, or a DiskSim-4 parameter
//! set ([`diskspec`]). [`flash`] drives and shingled disks ([`smr`]) have specifications and profiles of their own; [`any`]
//! finds each of them by name. No constant of a drive is in the code. The host's [`pagecache`] and a [`net`]work hop are
//! models, too. [`zones`] is none: it keeps a shingled drive's rules, and their pointers, over a device of any kind.
#![forbid(unsafe_code)]

pub mod any;
pub mod cached;
pub mod disk;
pub mod diskspec;
pub mod flash;
pub mod layer;
pub mod measured;
pub mod model;
pub mod net;
pub mod pagecache;
pub mod profile;
pub mod raid0;
pub mod smr;
pub mod zones;

pub use any::{AnyModel, DeviceOptions, DeviceSpec, name_from};
pub use cached::Cached;
pub use disk::{Disk, DiskOptions, DiskSpec, Mismatch, SpecError};
pub use flash::{BlackBox, Flash, FlashOptions, FlashSpec, History};
pub use layer::ModelLayer;
pub use model::{Done, Model, Op, Request};
pub use net::{Hop, HopSpec};
pub use pagecache::{CacheCounts, PageCache, PageCacheLayer, Residency};
pub use raid0::Raid0;
pub use smr::{SmrDisk, SmrSpec};
pub use zones::{Zones, ZonesLayout, ZonesSpec};
