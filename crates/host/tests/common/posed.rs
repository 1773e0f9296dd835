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
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Says that each disk under a folder takes a second for a read.
pub struct Posed {
    stop: Arc<AtomicBool>,
    _files: [File; 2],
    _handout: Handout,
}

impl Posed {
    /// With reads in flight that end in a second, or idle and with costs that are as wrong.
    pub fn start(folder: &Path, socket: &Path, is_idle: bool) -> Posed {
        let (states_file, notice_file) =
            (memory_file::<States>("states").unwrap(), memory_file::<Notice>("notice").unwrap());
        let states: Mapped<States> = Mapped::writable(states_file.as_fd()).unwrap();
        let notice: Mapped<Notice> = Mapped::writable(notice_file.as_fd()).unwrap();
        seal(&states_file).unwrap();
        seal(&notice_file).unwrap();
        let mut of = Vec::new();
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
            }
            of.push(slot);
        }
        notice.version.store(VERSION, Relaxed);
        notice.magic.store(MAGIC, Relaxed);
        let handout = Handout::listen(socket, Access::Owner, states_file.as_fd(), notice_file.as_fd()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let ended = stop.clone();
        let beat = move || {
            let now = now_ns();
            for slot in &of {
                states.of[*slot].next_free_ns.store(if is_idle { 0 } else { now + 1_000_000_000 }, Relaxed);
            }
            notice.heartbeat_ns.store(now, Relaxed);
        };
        beat();
        std::thread::spawn(move || {
            while !ended.load(Relaxed) {
                beat();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Posed { stop, _files: [states_file, notice_file], _handout: handout }
    }
}

impl Drop for Posed {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}
