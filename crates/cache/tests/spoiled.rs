//! Bytes that went bad at rest: they are never returned, and nothing that only the cache has ever relies on them, in later lives
//! neither.

mod common;
use common::*;
use plimsoll_base::*;
use plimsoll_cache::format::{ChunkHeader, Slot, chunk_header_bytes};
use plimsoll_cache::*;

const EXTENT_SECTORS: u64 = EXTENT / SECTOR;

fn ask(life: &mut Life, op: Op, volume: u32, extent: u64, data: Data) -> Vec<u8> {
    let now = life.pool.now();
    let len = if op == Op::Flush { 0 } else { EXTENT };
    let head = IoHead::new(op, life.oracle.key(volume), TenantId(1), extent * EXTENT, len, now);
    life.pool.offer(now, Io::new(head, data));
    let c = loop {
        match life.pool.next_done() {
            Some(c) => break c,
            None => assert!(life.pool.step().is_some(), "it never ends"),
        }
    };
    assert!(c.outcome.is_done(), "{op:?} of extent {extent}: {:?}", c.outcome);
    let mut bytes = vec![0; len as usize];
    if op == Op::Read {
        c.io.data.copy_to(&mut bytes);
    }
    bytes
}

fn bytes(n: u64) -> Vec<u8> {
    (0..EXTENT_SECTORS).flat_map(|s| content(0, s, 10 * n + 8)).collect()
}

/// Returns the place of an extent of volume 0 on the fast disk.
fn place(life: &mut Life, extent: u64) -> u64 {
    let l = layout();
    for weu in 0..l.weus {
        let all = life.pool.disk(1).peek(l.weu_at(weu), u64::from(l.shape.weu_bytes));
        let mut at = 0;
        while let Some(h) = ChunkHeader::decode(&all.as_slice()[at..], l.salt, 512, false) {
            at += chunk_header_bytes(h.entries.len(), 512) as usize;
            let is = |e: &&format::ChunkEntry| matches!(e.what, Slot::Base(_)) && !e.dead && e.name.extent == extent;
            if let Some(e) = h.entries.iter().find(is) {
                return l.weu_at(weu) + u64::from(e.at_unit) * 64;
            }
        }
    }
    panic!("extent {extent} isn't there");
}

#[test]
fn what_was_found_spoiled_once_is_never_relied_on() {
    let config = CacheConfig { codec: Codec::None, ..config() };
    let setup = Setup { config, ..Setup::of([Mode::Through, Mode::Back]) };
    let mut life = Life::begin(1, setup);
    for n in 0..20 {
        ask(&mut life, Op::Write, 0, n, Data::Bytes(Buf::copy_of(&bytes(n))));
    }
    life.settle().unwrap();
    // The journal comes to say that those WEUs are durable: nobody suspects them.
    for n in 0..2 {
        ask(&mut life, Op::Write, 0, n, Data::Bytes(Buf::copy_of(&bytes(n + 50))));
    }
    life.settle().unwrap();
    let at = place(&mut life, 3);
    let mut disks = life.cut();
    disks[1].write_durably((at + 2048) / SECTOR * SECTOR, &[0xee; SECTOR as usize]);
    // It is read, and found spoiled.
    let mut life = Life::start(disks, setup, life.oracle.clone()).unwrap();
    assert_eq!(ask(&mut life, Op::Read, 0, 3, Data::Absent), bytes(3), "from the slow disk");
    assert_eq!(life.cache().status().counters.corrupt, 1);
    life.settle().unwrap();
    // After a start the header still has the fingerprint. The same content is written to another volume, and flushed.
    let (disks, oracle) = (life.cut(), life.oracle.clone());
    let mut life = Life::start(disks, setup, oracle).unwrap();
    ask(&mut life, Op::Write, 1, 7, Data::Bytes(Buf::copy_of(&bytes(3))));
    ask(&mut life, Op::Flush, 1, 0, Data::Absent);
    let (disks, oracle) = (life.cut(), life.oracle.clone());
    let mut life = Life::start(disks, setup, oracle).unwrap();
    assert_eq!(ask(&mut life, Op::Read, 1, 7, Data::Absent), bytes(3));
    assert_eq!(life.cache().status().lost, vec![]);
}
