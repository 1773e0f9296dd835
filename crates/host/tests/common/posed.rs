//! An agent that says what a test wants, in place of one with BPF programs: needs no privilege.

use plimsoll_host::agent::{Access, Handout};
use plimsoll_host::disk;
use plimsoll_host::layout::{MAGIC, Notice, States, VERSION, slots};
use plimsoll_host::shared::{Mapped, memory_file, now_ns, seal};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// As far ahead as a reader believes, nearly: the thread that beats may be late by that.
const AHEAD_NS: u64 = 900_000_000;

/// Says that each disk under a folder takes long for a read, until it's dropped.
pub struct Posed {
    notice: Arc<Mapped<Notice>>,
    /// Fixed heartbeat; 0: it's alive.
    fixed_ns: Arc<AtomicU64>,
    _files: [File; 2],
    _handout: Handout,
}

impl Posed {
    /// With reads in flight that end in an hour: pages that a refused read ordered aren't overdue before. Or idle, and with costs of a second.
    pub fn start(folder: &Path, socket: &Path, is_idle: bool) -> Posed {
        let (states_file, notice_file) =
            (memory_file::<States>("states").unwrap(), memory_file::<Notice>("notice").unwrap());
        let states: Mapped<States> = Mapped::writable(states_file.as_fd()).unwrap();
        let notice: Mapped<Notice> = Mapped::writable(notice_file.as_fd()).unwrap();
        seal(&states_file).unwrap();
        seal(&notice_file).unwrap();
        let later = now_ns() + 3_600_000_000_000;
        let disks = disk::under(disk::from_libc(folder.metadata().unwrap().dev()));
        assert!(!disks.is_empty(), "{}: the test needs a file system on a disk", folder.display());
        for dev in disks {
            let slot = slots(dev).find(|i| notice.of[*i].dev.load(Relaxed) == 0).unwrap();
            let known = &notice.of[slot];
            let cost = if is_idle { 1_000_000_000 } else { 100_000 };
            for to in [&known.alone_ns, &known.read_ns] {
                to.store(cost, Relaxed);
            }
            known.ratio_permille.iter().flatten().for_each(|r| r.store(1000, Relaxed));
            known.samples.store(100, Relaxed);
            known.dev.store(dev, Relaxed);
            states.of[slot].dev.store(dev, Relaxed);
            if !is_idle {
                states.of[slot].reads.store(1 << 40 | 4096, Relaxed);
                states.of[slot].next_free_ns.store(later, Relaxed);
            }
        }
        notice.version.store(VERSION, Relaxed);
        notice.magic.store(MAGIC, Relaxed);
        let handout = Handout::listen(socket, Access::Owner, states_file.as_fd(), notice_file.as_fd()).unwrap();
        let (notice, fixed_ns) = (Arc::new(notice), Arc::new(AtomicU64::new(0)));
        let posed = Posed {
            notice: notice.clone(),
            fixed_ns: fixed_ns.clone(),
            _files: [states_file, notice_file],
            _handout: handout,
        };
        posed.heartbeat(None);
        std::thread::spawn(move || {
            // The last one to have it is this thread.
            while Arc::strong_count(&notice) > 1 {
                beat(&notice, &fixed_ns);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        posed
    }

    /// Says that its last heartbeat was at a time; `None`: it's alive.
    pub fn heartbeat(&self, at_ns: Option<u64>) {
        self.fixed_ns.store(at_ns.unwrap_or(0), Relaxed);
        beat(&self.notice, &self.fixed_ns);
    }
}

fn beat(notice: &Mapped<Notice>, fixed_ns: &AtomicU64) {
    let at_ns = match fixed_ns.load(Relaxed) {
        0 => now_ns() + AHEAD_NS,
        fixed => fixed,
    };
    notice.heartbeat_ns.store(at_ns, Relaxed);
}
