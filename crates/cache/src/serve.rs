//! The layer: the course of each request, and the order of the layer's own work.
//!
//! ```text
//!  read ──► per extent: WEU (memory or fast device, checked and unpacked by a worker) │ read ahead │ slow device, then fill
//!  write through ──► cached copies dead, in the journal if a start trusts them ──► slow device ──► done ──► fill
//!  write back ──► fingerprint, pack (workers) ──► open WEU ──► done;  flush: chunk, journal, flush of both devices
//!  fill ──► fingerprint ──► duplicate │ pack ──► open WEU ──► full: written whole
//! ```
//! Recovery, the gate, durability, residency, packing, inserts and dirty extents own their state, and know nothing of this module. The rest
//! is kept here. Each course is a file in `serve/`; only these files see all parts. After each event [`Cache::progress`] continues the work
//! that the event allows.

mod allocation;
mod broken;
mod destage;
mod durable;
mod evict;
mod insert;
mod layer;
mod parts;
mod read;
mod recipes;
mod refused;
mod relearn;
mod route;
mod start;
mod status;
mod truth;
mod volumes;
mod write;

use crate::ahead::Ahead;
use crate::batch::{DirtyPart, WriteBack};
use crate::config::{CacheConfig, Planted, Sharing};
use crate::dirty::Dirty;
use crate::durability::Durability;
use crate::fetch::Fetch;
use crate::gate::Gate;
use crate::index::Key;
use crate::inserts::Inserts;
use crate::layout::Layout;
use crate::packing::Packing;
use crate::parts::WEUS_MIN;
use crate::policy::admission::Admissions;
use crate::recipes::Recipes;
use crate::recover::Recovery;
use crate::refusals::{Diverted, Refusals};
use crate::relearn::Relearn;
use crate::request::{ClientOp, Pending, WorkFor};
use crate::residency::Residency;
use crate::state::State;
use crate::status::{AtRisk, Counters, LostRange, StartReport};
use crate::streams::Streams;
use crate::volumes::Volumes;
use plimsoll_base::{Io, VolumeKey};
use plimsoll_stack::Port;
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// The port to the slow device, whose addresses are the volumes'.
pub const SLOW: Port = 0;
/// The port to the fast device, all of which is the cache's.
pub const FAST: Port = 1;
/// See the module's documentation.
pub struct Cache {
    config: CacheConfig,
    layout: Layout,
    state: State,
    /// The reason for which the fast device isn't there at all, until the start.
    absent: Option<String>,
    residency: Residency,
    durability: Durability,
    packing: Packing,
    volumes: Volumes,
    pending: Slab<Pending>,
    ops: Slab<ClientOp>,
    fetches: Slab<Fetch>,
    /// Places of the fast device that are being read, and the fetch that others of the same may join.
    reading: BTreeMap<u64, usize>,
    admissions: Admissions,
    inserts: Inserts,
    works: Slab<WorkFor>,
    gate: Gate,
    /// Requests that came while recovering.
    early: Vec<Io>,
    dirty: Dirty,
    /// All that was dirty is to be written back.
    flush_asked: bool,
    refusals: Refusals,
    diverted: Vec<Diverted>,
    /// By partition.
    write_backs: Vec<WriteBack>,
    /// Empty. Every event fills it while anything is dirty: its memory is used again.
    dirty_parts: Vec<DirtyPart>,
    /// On their way to the slow device.
    destaging: BTreeSet<Key>,
    /// The slow device has lost what it had acknowledged, and tells only once: what was changed and not flushed before that may be gone,
    /// whatever a later flush says.
    slow_lost: bool,
    streams: Streams,
    ahead: Ahead,
    recipes: Recipes,
    stopping: bool,
    /// The last write-out of everything that must survive was ordered.
    draining: bool,
    relearn: Relearn,
    counters: Counters,
    start_report: StartReport,
    lost: Vec<LostRange>,
    /// Data at risk, and [`Dirty::changes`] when they were found out: every question for the status needs them.
    risks: Mutex<(u64, Arc<Vec<AtRisk>>)>,
}

impl Cache {
    /// A cache on a fast device that was formatted as `layout` says (its salt is read from there).
    pub fn new(layout: Layout, config: CacheConfig) -> Cache {
        let extents = layout.extents();
        let fps_max = (extents * u64::from(config.fingerprints_percent) / 100) as usize;
        let mut residency = Residency::new(layout.weus, fps_max, extents as usize, config.eviction, config.planted);
        if config.sharing == Sharing::Shared {
            residency.add_partition(config.weus_max.max(WEUS_MIN).min(layout.weus));
        }
        Cache {
            config,
            layout,
            state: State::Recovering(Box::new(Recovery::new(layout, config.planted))),
            absent: None,
            residency,
            durability: Durability::new(layout, config.generation, config.planted),
            packing: Packing::new(layout, config.codec, config.planted),
            volumes: Volumes::default(),
            pending: Slab::new(),
            ops: Slab::new(),
            fetches: Slab::new(),
            reading: BTreeMap::new(),
            admissions: Admissions::new(config.admission),
            inserts: Inserts::default(),
            works: Slab::new(),
            gate: Gate::new(config.planted),
            early: Vec::new(),
            dirty: Dirty::new(config.planted),
            flush_asked: false,
            refusals: Refusals::default(),
            diverted: Vec::new(),
            write_backs: Vec::new(),
            dirty_parts: Vec::new(),
            destaging: BTreeSet::new(),
            slow_lost: false,
            streams: Streams::default(),
            ahead: Ahead::default(),
            recipes: Recipes::default(),
            stopping: false,
            draining: false,
            relearn: Relearn::default(),
            counters: Counters::default(),
            start_report: StartReport::default(),
            lost: Vec::new(),
            risks: Mutex::default(),
        }
    }

    /// Gives the cache the list of volumes at its start, and for each whether it may have dirty extents in the cache. Extents
    /// found of any other volume belong to a deleted one.
    #[must_use]
    pub fn with_known(mut self, known: impl IntoIterator<Item = (VolumeKey, bool)>) -> Cache {
        self.volumes.set_known(known);
        self
    }

    /// Gives the cache the list of volumes whose extents were given up. For each, dirty extents are valid again from that generation
    /// of [`CacheConfig::generation`] on.
    #[must_use]
    pub fn with_given_up(mut self, since: impl IntoIterator<Item = (VolumeKey, u16)>) -> Cache {
        self.volumes.set_given_up(since);
        self
    }

    /// The cache starts without its fast device, for this reason: nothing is ever read from it or written to it. If no volume may be
    /// behind ([`Cache::with_known`]) the volumes go on without a cache; otherwise the start fails. The owner has to record that the
    /// device's content is out of date, as after [`crate::CacheReport::DeviceFailed`].
    #[must_use]
    pub fn with_absent(mut self, why: Option<String>) -> Cache {
        self.absent = why;
        self
    }

    fn planted(&self, p: Planted) -> bool {
        p.is_in(self.config.planted)
    }

    fn extent_bytes(&self) -> u64 {
        u64::from(self.layout.shape.extent_bytes)
    }

    fn is_ready(&self) -> bool {
        matches!(self.state, State::Serving)
    }
}
