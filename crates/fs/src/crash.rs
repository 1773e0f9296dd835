//! A disk that remembers every write and flush, and makes the images that a loss of power may leave.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use crate::disk::{BLOCK, Disk, MemDisk, Write};

/// Blocks by address.
pub type Image = BTreeMap<u64, Arc<[u8]>>;

#[derive(Clone, Debug)]
enum Event {
    Write(u64, Arc<[u8]>),
    Flush,
}

/// The disk.
#[derive(Debug)]
pub struct CrashDisk {
    inner: MemDisk,
    before: Image,
    events: Mutex<Vec<Event>>,
}

impl CrashDisk {
    /// A disk whose content is durable.
    pub fn new(blocks: u64, content: Image) -> CrashDisk {
        CrashDisk { inner: MemDisk::with(blocks, content.clone()), before: content, events: Mutex::default() }
    }

    /// Number of writes of a block and of flushes until now: each number is a point at which power may be lost.
    pub fn events(&self) -> usize {
        self.events.lock().expect("no panic under the lock").len()
    }

    /// Goes through the events in order.
    pub fn crashes(&self) -> Crashes {
        let events = self.events.lock().expect("no panic under the lock").clone();
        Crashes { durable: self.before.clone(), pending: Vec::new(), events, at: 0 }
    }
}

impl Disk for CrashDisk {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, block: u64, into: &mut [u8]) -> io::Result<()> {
        self.inner.read(block, into)
    }

    fn write(&self, writes: &[Write]) -> io::Result<()> {
        self.inner.write(writes)?;
        let mut events = self.events.lock().expect("no panic under the lock");
        for w in writes {
            events.extend((w.block..).zip(&w.data).map(|(at, d)| Event::Write(at, d.clone())));
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.events.lock().expect("no panic under the lock").push(Event::Flush);
        Ok(())
    }
}

/// Images at points of a run.
#[derive(Debug)]
pub struct Crashes {
    durable: Image,
    pending: Vec<(u64, Arc<[u8]>)>,
    events: Vec<Event>,
    at: usize,
}

impl Crashes {
    /// Goes on to an event's end. Points only increase.
    pub fn advance(&mut self, to: usize) {
        while self.at < to {
            match &self.events[self.at] {
                Event::Write(block, data) => self.pending.push((*block, data.clone())),
                Event::Flush => self.durable.extend(self.pending.drain(..)),
            }
            self.at += 1;
        }
    }

    /// An image that a loss of power here may leave: each write since the last flush is there, is lost, or is torn by sectors, as
    /// `draw` (numbers below its argument) decides.
    pub fn image(&self, mut draw: impl FnMut(u64) -> u64) -> Image {
        let mut image = self.durable.clone();
        // Some drives keep nearly all, some nearly nothing, some the later writes only.
        let (style, cut) = (draw(4), draw(self.pending.len() as u64 + 1) as usize);
        for (i, (block, data)) in self.pending.iter().enumerate() {
            let keep = match style {
                0 => draw(2) == 0,
                1 => draw(8) != 0,
                2 => i >= cut,
                _ => i < cut,
            };
            if !keep {
                continue;
            }
            let mut data = data.clone();
            if draw(12) == 0 {
                let mut torn: Vec<u8> = image.get(block).map_or(vec![0; BLOCK], |d| d.to_vec());
                for (old, new) in torn.chunks_mut(512).zip(data.chunks(512)) {
                    if draw(2) == 0 {
                        old.copy_from_slice(new);
                    }
                }
                data = torn.into();
            }
            image.insert(*block, data);
        }
        image
    }
}

/// Gives a changed metadata block, or a record's header, a checksum that fits: damage by software, which a checksum doesn't show.
pub fn reseal(b: &mut [u8]) {
    crate::format::reseal(b);
}
