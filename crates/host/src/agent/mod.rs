//! The agent: attaches the BPF programs, watches disks, learns their costs, and hands the state to readers.

mod bpf;
mod handout;
mod requests;
mod watched;

pub use bpf::StartError;
pub use handout::{Access, Handout};
pub use requests::{Requests, cgroup_of};
pub use watched::{Judged, Watched};

use crate::disk::{self, Disk};
use crate::forecast::{Costs, Load};
use crate::layout::{AllOrders, AllSamples, DROP_ALL, Known, MAGIC, Notice, Orders, States, VERSION, slots};
use crate::shared::{Mapped, memory_file, now_ns, seal};
use bpf::Programs;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

/// The interval at which [`Agent::tick`] should run. Readers take a heartbeat older than five of it for a dead agent's.
pub const TICK: Duration = Duration::from_millis(20);
/// Ticks between takings of timed reads, and between searches for disks.
const TAKE_EVERY: u64 = 2;
const LOOK_EVERY: u64 = 25;

/// Disks to watch, and their known costs.
#[derive(Clone, Default)]
pub struct Wanted {
    /// By name, path or partition; empty: all there are.
    pub disks: Vec<String>,
    /// Costs that were measured, by the disk's name.
    pub costs: BTreeMap<String, Costs>,
}

/// A change of the watched disks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A disk is watched from now on.
    Came(String),
    /// It's gone.
    Went(String),
    /// It can't be watched: all slots that it may have are taken.
    NoRoom(String),
    /// The kernel doesn't count its requests (`queue/iostats` is 0), so errors of the agent's count aren't corrected.
    Uncounted(String),
    /// The kernel counts its requests again.
    Counted(String),
}

/// Attached programs, until it's dropped.
pub struct Agent {
    programs: Programs,
    states: Mapped<States>,
    orders: Mapped<AllOrders>,
    samples: Mapped<AllSamples>,
    notice: Mapped<Notice>,
    notice_file: File,
    wanted: Wanted,
    watched: BTreeMap<u32, Watched>,
    refused: Vec<String>,
    uncounted: Vec<String>,
    ticks: u64,
    dropped: u64,
    /// Changes that the first look found, for the first tick.
    first: Vec<Change>,
}

/// Orders the BPF programs to drop requests that the kernel doesn't have.
fn order_drop(orders: &Orders, known: &Known, drop: [u32; 2]) {
    orders.drop_reads.store(drop[0], Relaxed);
    orders.drop_writes.store(drop[1], Relaxed);
    let epoch = orders.epoch.load(Relaxed).wrapping_add(1);
    orders.epoch.store(epoch, Release);
    if drop == [DROP_ALL; 2] {
        known.reset_epoch.store(epoch, Release);
    }
}

impl Agent {
    /// Loads and attaches the programs, and begins to watch disks.
    pub fn start(wanted: Wanted) -> Result<Agent, StartError> {
        for name in &wanted.disks {
            if disk::named(name).is_none() {
                return Err(StartError::no_disk(name));
            }
        }
        let programs = Programs::load(bpf::OBJECT, &bpf::ATTACHED)?;
        Agent::with(programs, wanted).map_err(StartError::Maps)
    }

    /// The same with another object: a fresh compilation of the same source, in tests.
    #[doc(hidden)]
    pub fn start_object(object: &[u8], wanted: Wanted) -> Result<Agent, StartError> {
        Agent::with(Programs::load(object, &bpf::ATTACHED)?, wanted).map_err(StartError::Maps)
    }

    fn with(programs: Programs, wanted: Wanted) -> io::Result<Agent> {
        bpf::freeze(programs.map("states")?)?;
        let states = Mapped::read_only(programs.map("states")?)?;
        let orders = Mapped::writable(programs.map("costs")?)?;
        let samples = Mapped::writable(programs.map("samples")?)?;
        let notice_file = memory_file::<Notice>("plimsoll-host")?;
        let notice: Mapped<Notice> = Mapped::writable(notice_file.as_fd())?;
        seal(&notice_file)?;
        notice.version.store(VERSION, Relaxed);
        let mut agent = Agent {
            states,
            orders,
            samples,
            notice,
            notice_file,
            wanted,
            watched: BTreeMap::new(),
            refused: Vec::new(),
            uncounted: Vec::new(),
            ticks: 0,
            dropped: 0,
            first: Vec::new(),
            programs,
        };
        agent.first = agent.look();
        agent.notice.heartbeat_ns.store(now_ns(), Relaxed);
        agent.notice.magic.store(MAGIC, Release);
        agent.programs.attach(&bpf::ATTACHED)?;
        Ok(agent)
    }

    /// Returns the descriptors that readers get: the frozen map of states, and the notice.
    pub fn shared(&self) -> io::Result<(BorrowedFd<'_>, BorrowedFd<'_>)> {
        Ok((self.programs.map("states")?, self.notice_file.as_fd()))
    }

    /// Performs the agent's periodic work. Call it every [`TICK`].
    pub fn tick(&mut self) -> Vec<Change> {
        self.notice.heartbeat_ns.store(now_ns(), Release);
        self.ticks += 1;
        for w in self.watched.values_mut() {
            let (slot, dev) = (w.slot(), w.disk().dev);
            // An earlier order hasn't been carried out yet.
            let is_idle = self.states.of[slot].epoch.load(Relaxed) != self.orders.of[slot].epoch.load(Relaxed);
            if !is_idle && let Some(drop) = w.compare(&self.states.of[slot], || disk::in_flight(dev)) {
                self.dropped += 1;
                order_drop(&self.orders.of[slot], &self.notice.of[slot], drop);
            }
        }
        if self.ticks.is_multiple_of(TAKE_EVERY) {
            for w in self.watched.values_mut() {
                // Learning takes time, with many disks.
                self.notice.heartbeat_ns.store(now_ns(), Release);
                w.take(&self.samples.of[w.slot()], &self.orders.of[w.slot()], &self.notice.of[w.slot()]);
            }
        }
        let mut changes = std::mem::take(&mut self.first);
        // They were there from the start.
        changes.retain(|change| !matches!(change, Change::Came(_)));
        if self.ticks.is_multiple_of(LOOK_EVERY) {
            changes.extend(self.look());
        }
        changes
    }

    /// Corrections of the count after a comparison with the kernel's.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The disks that are watched, by device number.
    pub fn watched(&self) -> impl Iterator<Item = &Watched> {
        self.watched.values()
    }

    /// One of them.
    pub fn disk_mut(&mut self, dev: u32) -> Option<&mut Watched> {
        self.watched.get_mut(&dev)
    }

    /// A disk's load now.
    pub fn load(&self, w: &Watched) -> Load {
        Load::of(&self.states.of[w.slot()])
    }

    /// Requests of a disk that completed since it's watched.
    pub fn completed(&self, w: &Watched) -> u64 {
        self.states.of[w.slot()].completed.load(Relaxed)
    }

    fn look(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut disks = disk::all();
        if !self.wanted.disks.is_empty() {
            let named: Vec<Disk> = self.wanted.disks.iter().filter_map(|n| disk::named(n)).collect();
            disks.retain(|d| named.contains(d));
        }
        let gone: Vec<u32> = self.watched.keys().copied().filter(|dev| !disks.iter().any(|d| d.dev == *dev)).collect();
        for dev in gone {
            let w = self.watched.remove(&dev).expect("it was just there");
            self.orders.of[w.slot()].dev.store(0, Release);
            self.notice.of[w.slot()].dev.store(0, Release);
            changes.push(Change::Went(w.disk().name.clone()));
        }
        self.refused.retain(|name| disks.iter().any(|d| d.name == *name));
        let mut uncounted: Vec<String> = Vec::new();
        for disk in disks.iter().filter(|d| !disk::is_counted(d.dev)) {
            uncounted.push(disk.name.clone());
            if !self.uncounted.contains(&disk.name) {
                changes.push(Change::Uncounted(disk.name.clone()));
            }
        }
        let again = disks.iter().filter(|d| self.uncounted.contains(&d.name) && !uncounted.contains(&d.name));
        changes.extend(again.map(|d| Change::Counted(d.name.clone())));
        self.uncounted = uncounted;
        for disk in disks {
            if !self.watched.contains_key(&disk.dev) {
                changes.extend(self.watch(disk));
            }
        }
        changes
    }

    fn watch(&mut self, disk: Disk) -> Option<Change> {
        let Some(slot) = slots(disk.dev).find(|i| self.orders.of[*i].dev.load(Relaxed) == 0) else {
            if self.refused.contains(&disk.name) {
                return None;
            }
            self.refused.push(disk.name.clone());
            return Some(Change::NoRoom(disk.name));
        };
        let name = disk.name.clone();
        let costs = self.wanted.costs.get(&name).copied();
        let w = Watched::new(disk, slot, costs);
        let orders = &self.orders.of[slot];
        order_drop(orders, &self.notice.of[slot], [DROP_ALL; 2]);
        let _ = w.publish(orders, &self.notice.of[slot]);
        orders.dev.store(w.disk().dev, Release);
        self.notice.of[slot].dev.store(w.disk().dev, Release);
        self.watched.insert(w.disk().dev, w);
        Some(Change::Came(name))
    }
}
