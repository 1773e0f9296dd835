//! Recovery alone, over devices made by hand. Each mistake that this part once made, or that is planted in it, is found here.

use super::*;
use crate::chunk::Chunk;
use crate::config::Shape;
use crate::format::{ExtentHead, ExtentName, Packing, Record};
use crate::index::UNIT_BYTES;
use plimsoll_base::{Data, Span};
use std::collections::VecDeque;
use xxhash_rust::xxh3::xxh3_64;

const BLOCK: u32 = 512;
const EXTENT: u64 = 4096;
const VOLUME: VolumeKey = VolumeKey { id: 3, generation: 1 };
/// The start that wrote the device: its numbers begin here.
const LIFE: u64 = 1 << LIFE_SHIFT;

/// A fast device as an earlier start left it.
struct Device {
    layout: Layout,
    bytes: Vec<u8>,
    /// Offsets of blocks that can't be read.
    unreadable: BTreeSet<u64>,
    volumes: Volumes,
}

impl Device {
    /// Formatted, with an empty journal of epoch 2.
    fn new() -> Device {
        let shape = Shape { extent_bytes: EXTENT as u32, weu_bytes: 32 << 10 };
        let layout = Layout::new(1 << 20, BLOCK, shape, 7).unwrap();
        let mut volumes = Volumes::default();
        volumes.set_known([(VOLUME, true)]);
        let mut d = Device { layout, bytes: vec![0; 1 << 20], unreadable: BTreeSet::new(), volumes };
        d.put(0, &layout.encode());
        d.journal(2, &[&[]]);
        d
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        self.bytes[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn spoil(&mut self, at: u64) {
        self.bytes[at as usize] ^= 1;
    }

    /// An epoch of the journal: its snapshot is the first block, and each block was sent when those before were durable.
    fn journal(&mut self, epoch: u64, blocks: &[&[Record]]) {
        for (i, records) in (0u32..).zip(blocks) {
            let block = JournalBlock {
                salt: self.layout.salt,
                epoch,
                index: i,
                since: i,
                snapshot: if i == 0 { 2 } else { 0 },
                generation: 0,
                durable: LIFE,
                records: records.to_vec(),
            };
            for at in self.layout.copies_at(epoch) {
                self.put(at + u64::from(i * BLOCK), &block.encode(BLOCK));
            }
        }
    }

    /// The only chunk of a WEU, with these extents or, if a target is given, dirty duplicates of what is there under that number.
    fn chunk(&mut self, weu: u32, number: u64, dirty: bool, extents: &[u64], target: Option<(Loc, u64)>) -> Vec<Loc> {
        let mut chunk = Chunk::first(weu, 0, LIFE + number, dirty, &self.layout);
        let mut at = Vec::new();
        for &extent in extents {
            let name = ExtentName { volume: VOLUME, extent };
            match target {
                Some((target, sequence)) => {
                    let slot = chunk.add_reference(name, target, sequence, self.sum_of(target));
                    at.push(Loc::new(weu, 0, 0, slot));
                }
                None => {
                    let bytes = vec![extent as u8 + 1; EXTENT as usize];
                    let head =
                        ExtentHead { payload_bytes: EXTENT as u32, packing: Packing::Raw, name, sum: xxh3_64(&bytes) };
                    at.push(chunk.add(head, Data::Bytes(Buf::copy_of(&bytes)), None));
                }
            }
        }
        for (from, len, parts) in chunk.close(self.layout.salt, LIFE + number, true) {
            let mut bytes = vec![0; len as usize];
            Data::Parts(parts.into()).copy_to(&mut bytes);
            self.put(self.layout.weu_at(weu) + u64::from(from), &bytes);
        }
        at
    }

    /// The checksum of what is in a place.
    fn sum_of(&self, at: Loc) -> u32 {
        let from = self.layout.weu_at(at.weu()) as usize + at.at_bytes() as usize;
        xxh3_64(&self.bytes[from..from + at.len_bytes() as usize]) as u32
    }

    /// Starts over a copy of the device.
    fn recover(&self, planted: Option<Planted>) -> Started {
        self.recover_while(planted, |_| ())
    }

    /// The same; `then` happens once the journal is read.
    fn recover_while(&self, planted: Option<Planted>, then: impl Fn(&mut Recovery)) -> Started {
        let (mut index, mut volumes) = (self.empty_index(), Volumes::default());
        volumes.set_known(self.volumes.known().unwrap().iter().map(|(k, b)| (*k, *b)));
        let config = CacheConfig::default();
        let mut world = World { config: &config, index: &mut index, volumes: &mut volumes };
        let (mut now, mut todo) = (Time::ZERO, VecDeque::new());
        let mut r = Recovery::new(self.layout, planted);
        let mut step = r.begin(now, self.bytes.len() as u64, BLOCK);
        let found = loop {
            match step {
                Err(why) => break Err(why),
                Ok(Some(found)) => break Ok(*found),
                Ok(None) => {}
            }
            todo.extend(r.take_orders());
            now += Span::from_micros(1);
            step = match todo.pop_front().expect("it goes on or ends") {
                Order::Layout(_) => Ok(None),
                Order::Wake(at) => {
                    now = now.max(at);
                    r.handle_wake(now);
                    Ok(None)
                }
                Order::Read { what, range: (at, len) } => {
                    if r.stage == Stage::Headers {
                        then(&mut r);
                    }
                    let can = self.unreadable.range(at..at + len).next().is_none();
                    let bytes = can.then(|| Buf::copy_of(&self.bytes[at as usize..(at + len) as usize]));
                    r.handle_read(now, what, (at, len), bytes, &mut world)
                }
            };
        };
        Started { found, index, volumes }
    }

    fn empty_index(&self) -> Index {
        let mut index = Index::new(self.layout.weus, 0, self.layout.extents() as usize);
        index.add_partition(self.layout.weus);
        index
    }
}

struct Started {
    found: Result<Recovered, Failure>,
    index: Index,
    volumes: Volumes,
}

impl Started {
    fn at(&self, extent: u64) -> Option<Loc> {
        self.index.look(Key::new(self.volumes.slot(&VOLUME)?, extent))
    }

    fn report(&self) -> StartReport {
        self.found.as_ref().map(|f| f.report).unwrap_or_else(|why| panic!("{why:?}"))
    }
}

/// `holds` is true of a start over a device, and isn't if a mistake is planted.
fn found_by(device: &Device, mistake: Planted, holds: impl Fn(&Started) -> bool) {
    assert!(holds(&device.recover(None)), "without a mistake");
    assert!(!holds(&device.recover(Some(mistake))), "{mistake:?} isn't found");
}

fn confirmed(weu: u32, number: u64) -> Record {
    Record::Least { weu, sequence: LIFE + number, suspect: false, confirmed: true }
}

fn held(weu: u32, number: u64, slots: u32) -> Record {
    Record::Held { weu, sequence: LIFE + number, slots }
}

fn dead(weu: u32, number: u64, slot: u32) -> Record {
    Record::Dead { weu, sequence: LIFE + number, slot }
}

#[test]
fn clean_extents_count_once_the_journal_confirms_their_weu() {
    let mut d = Device::new();
    let at = d.chunk(4, 1, false, &[10, 11], None);
    found_by(&d, Planted::BelieveTrials, |s| s.at(10).is_none() && s.report().unconfirmed == 1);
    d.journal(2, &[&[confirmed(4, 1)]]);
    let s = d.recover(None);
    assert_eq!((s.at(10), s.at(11)), (Some(at[0]), Some(at[1])));
    assert_eq!((s.report().weus, s.report().extents, s.report().damaged), (1, 2, 0));
}

#[test]
fn a_chunk_that_a_power_loss_tore_is_as_if_it_had_never_been_written() {
    let mut d = Device::new();
    let whole = d.chunk(2, 1, true, &[5], None);
    let at = d.chunk(3, 2, true, &[5, 6], None);
    let s = d.recover(None);
    assert_eq!((s.at(5), s.at(6)), (Some(at[0]), Some(at[1])), "the later chunk counts");
    assert!(s.found.unwrap().suspect.contains(&3), "no flush is known to have covered it");
    d.spoil(d.layout.weu_at(3) + u64::from(at[1].at_bytes()));
    found_by(&d, Planted::BelieveTornChunks, |s| s.at(5) == Some(whole[0]) && s.at(6).is_none());
    assert_eq!(d.recover(None).report().torn, 1);
}

/// Two chunks were under way. Of the first one all but the header is there, and of the second one a duplicate that relies on it.
#[test]
fn what_a_duplicate_relies_on_is_known_though_its_own_header_was_lost() {
    let mut d = Device::new();
    let listed = d.chunk(2, 1, true, &[5], None)[0];
    let units = listed.len_bytes() / UNIT_BYTES;
    let place = Loc::new(2, listed.at_bytes() / UNIT_BYTES - units, units, 1);
    d.put(d.layout.weu_at(2) + u64::from(place.at_bytes()), &[9; EXTENT as usize]);
    d.chunk(3, 2, true, &[7], Some((place, LIFE + 1)));
    let sum = d.sum_of(place);
    found_by(&d, Planted::UnlistedUnsummed, |s| {
        s.at(7).is_some_and(|l| l.same_place(place)) && s.index.weu(2).sum(1) == sum && s.report().torn == 0
    });
    // Nor is anything else's taken for it.
    d.chunk(3, 2, true, &[7], Some((place, LIFE + 77)));
    assert_eq!(d.recover(None).index.weu(2).sum(1), 0);
}

/// Not if the journal says that the chunk was durable: then it is corrupt, and nothing older may stand for what it names.
#[test]
fn a_durable_chunk_that_is_corrupt_is_not_taken_for_torn() {
    let mut d = Device::new();
    d.chunk(2, 1, true, &[5], None);
    let at = d.chunk(3, 2, true, &[5], None);
    d.journal(2, &[&[held(2, 1, 1), held(3, 2, 1)]]);
    d.spoil(d.layout.weu_at(3) + u64::from(at[0].at_bytes()));
    found_by(&d, Planted::TornIfCorrupt, |s| s.at(5) == Some(at[0]) && s.report().torn == 0);
}

#[test]
fn a_corrupt_header_of_dirty_extents_is_read_from_its_copy() {
    let mut d = Device::new();
    let at = d.chunk(3, 1, true, &[5], None);
    d.journal(2, &[&[held(3, 1, 1)]]);
    d.spoil(d.layout.weu_at(3) + 60);
    found_by(&d, Planted::HeaderReadOnce, |s| s.at(5) == Some(at[0]) && s.report().damaged == 0);
    // In both places: it is missed, and said so.
    d.put(d.layout.weu_at(3), &[0; 32 << 10]);
    let s = d.recover(None);
    assert_eq!((s.report().damaged_dirty, s.found.unwrap().missed), (1, BTreeSet::from([VOLUME])));
}

#[test]
fn a_corrupt_header_of_clean_extents_is_not_trusted() {
    let mut d = Device::new();
    d.chunk(3, 1, false, &[5], None);
    d.journal(2, &[&[confirmed(3, 1)]]);
    // The name of its only entry: another extent.
    let header = crate::format::chunk_header_bytes(1, BLOCK);
    let at = d.layout.weu_at(3);
    let before = d.bytes[at as usize..][..header as usize].to_vec();
    let place = before.windows(8).position(|w| w == 5u64.to_le_bytes()).expect("the extent's number");
    d.spoil(at + place as u64);
    found_by(&d, Planted::IgnoreHeaderChecksum, |s| s.at(4).is_none() && s.report().extents == 0);
}

#[test]
fn the_newest_epoch_of_the_journal_counts_from_either_copy() {
    let mut d = Device::new();
    d.chunk(3, 1, false, &[5], None);
    d.journal(2, &[&[confirmed(3, 1)]]);
    assert!(d.recover(None).at(5).is_some());
    d.journal(3, &[&[confirmed(3, 1), dead(3, 1, 0)]]);
    found_by(&d, Planted::OldJournal, |s| s.at(5).is_none());
    d.spoil(d.layout.copies_at(3)[0] + 99);
    found_by(&d, Planted::JournalReadOnce, |s| s.at(5).is_none());
}

#[test]
fn a_journal_that_lost_a_durable_block_is_corrupt_not_short() {
    let mut d = Device::new();
    d.chunk(3, 1, false, &[5], None);
    d.journal(2, &[&[confirmed(3, 1)], &[dead(3, 1, 0)], &[]]);
    assert!(d.recover(None).at(5).is_none());
    for at in d.layout.copies_at(2) {
        d.spoil(at + u64::from(BLOCK) + 99);
    }
    found_by(&d, Planted::JournalEndsAtCorruption, |s| matches!(s.found, Err(Failure::Device(_))));
    found_by(&d, Planted::JournalUnchecked, |s| matches!(s.found, Err(Failure::Device(_))));
    // If nobody misses anything the cache begins anew, empty: also for later starts.
    d.volumes.set_known([(VOLUME, false)]);
    let s = d.recover(None);
    assert!(s.report().journal_lost && s.at(5).is_none());
    let above = s.found.unwrap().first.0;
    assert!(s.index.weus().iter().all(|w| w.sequence + 1 >= above), "no header of before ever counts again");
}

#[test]
fn what_an_unreadable_header_may_name_is_sealed() {
    let mut d = Device::new();
    d.chunk(3, 1, true, &[5], None);
    d.unreadable.insert(d.layout.weu_at(3));
    let over = (2 << LIFE_SHIFT) - 1;
    found_by(&d, Planted::UnreadableUnsealed, |s| s.at(5).is_none() && s.index.weu(3).sequence == over);
    assert_eq!(d.recover(None).report().unreadable, 1);
}

#[test]
fn a_dirty_duplicate_whose_bytes_are_gone_is_lost_and_nothing_older_stands_for_it() {
    let mut d = Device::new();
    d.chunk(2, 1, true, &[5], None);
    let target = Loc::new(6, 100, 64, 0);
    d.chunk(3, 2, true, &[5], Some((target, LIFE + 77)));
    d.journal(2, &[&[held(2, 1, 1), held(3, 2, 1)]]);
    found_by(&d, Planted::LostDuplicateForgotten, |s| s.found.as_ref().is_ok_and(|f| f.lost.len() == 1));
}

#[test]
fn a_start_gives_numbers_above_all_that_were_ever_given() {
    let mut d = Device::new();
    d.chunk(3, 9, true, &[5], None);
    found_by(&d, Planted::ReuseSequence, |s| {
        s.found.as_ref().is_ok_and(|f| f.first == (2 << LIFE_SHIFT, 2 << LIFE_SHIFT))
    });
    // One of a start that the journal doesn't know: it lost that.
    let mut chunk = Chunk::first(5, 0, 7 << LIFE_SHIFT, true, &d.layout);
    let name = ExtentName { volume: VOLUME, extent: 1 };
    chunk.add_reference(name, Loc::new(3, 64, 64, 0), LIFE + 9, 0);
    for (from, len, parts) in chunk.close(d.layout.salt, 7 << LIFE_SHIFT, true) {
        let mut bytes = vec![0; len as usize];
        Data::Parts(parts.into()).copy_to(&mut bytes);
        d.put(d.layout.weu_at(5) + u64::from(from), &bytes);
    }
    found_by(&d, Planted::JournalEndsAtCorruption, |s| matches!(s.found, Err(Failure::Device(_))));
}

#[test]
fn nothing_of_a_deleted_volume_is_found_whenever_it_was_deleted() {
    let mut d = Device::new();
    d.chunk(3, 1, true, &[5], None);
    assert!(d.recover(None).at(5).is_some());
    let meanwhile = d.recover_while(None, |r| r.forget(VOLUME));
    assert!(meanwhile.at(5).is_none());
    assert_eq!(meanwhile.found.unwrap().gone.first().map(|g| g.0), Some(VOLUME), "the next snapshot says so");
    d.journal(2, &[&[Record::Gone(VOLUME)]]);
    assert!(d.recover(None).at(5).is_none());
}

#[test]
fn a_device_of_another_cache_is_refused_with_the_reason() {
    let mut d = Device::new();
    let other = Shape { extent_bytes: EXTENT as u32, weu_bytes: 64 << 10 };
    d.put(0, &Layout::new(1 << 20, BLOCK, other, 7).unwrap().encode());
    let Err(Failure::Foreign(why)) = d.recover(None).found else { panic!("it is refused") };
    assert!(why.contains("WEUs of 65536 bytes"), "{why}");
    d.put(0, &[0; PAGE_BYTES as usize]);
    assert!(matches!(d.recover(None).found, Err(Failure::Foreign(_))));
    d.unreadable.insert(0);
    assert!(matches!(d.recover(None).found, Err(Failure::Device(_))));
}
