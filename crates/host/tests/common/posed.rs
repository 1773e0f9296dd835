//! An agent that says what a test wants, in place of one with BPF programs: needs no privilege.

use plimsoll_host::agent::{Access, Handout};
use plimsoll_host::disk;
use plimsoll_host::layout::{MAGIC, Notice, States, VERSION, slots};
use plimsoll_host::shared::{Mapped, memory_file, now_ns, seal};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

/// Says that each disk under a folder takes long for a read, until the process ends.
pub struct Posed {
    notice: Mapped<Notice>,
    later: u64,
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
        // Fixed, as a thread that keeps them up may be late: an hour from now.
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
        notice.heartbeat_ns.store(later, Relaxed);
        notice.version.store(VERSION, Relaxed);
        notice.magic.store(MAGIC, Relaxed);
        let handout = Handout::listen(socket, Access::Owner, states_file.as_fd(), notice_file.as_fd()).unwrap();
        Posed { notice, later, _files: [states_file, notice_file], _handout: handout }
    }

    /// Says that its last heartbeat was at a time; `None`: it's alive until the end.
    #[allow(dead_code)] // each test file uses its own part
    pub fn heartbeat(&self, at_ns: Option<u64>) {
        self.notice.heartbeat_ns.store(at_ns.unwrap_or(self.later), Relaxed);
    }
}
