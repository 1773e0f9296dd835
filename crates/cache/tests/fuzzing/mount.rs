//! A used cache whose page, journal, headers, extents and NVRAM are mutated before it starts: whatever they are, also with checksums
//! that are right, it starts or says why not, and every read ends.
//!
//! The input: the first byte chooses the image; then six bytes a mutation: what, where (three bytes), and two operands.

use crate::common::*;
use plimsoll_base::*;
use plimsoll_cache::*;
use plimsoll_stack::LayerState;
use plimsoll_stack::sim::SimDisk;
use plimsoll_stack::sim::oracle::Oracle;
use std::cell::RefCell;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// Mutations of one input at most.
const MUTATIONS_MAX: usize = 64;
/// Events that a read of everything may take.
const EVENTS_MAX: u64 = 200_000;

/// A used cache after a power loss.
type Image = (Vec<SimDisk>, Setup, Oracle);

thread_local! {
    static IMAGES: RefCell<BTreeMap<u8, Image>> = const { RefCell::new(BTreeMap::new()) };
}

fn image(which: u8) -> Image {
    let make = || {
        let known = Some([which & 1 == 1; 2]);
        let config = CacheConfig { codec: [Codec::None, Codec::Lz4][usize::from(which >> 3 & 1)], ..config() };
        let block = if which & 4 == 4 { 4096 } else { 512 };
        let modes = if which & 1 == 1 { [Mode::Back; 2] } else { [Mode::Through; 2] };
        let setup = Setup { config, nvram: which & 2 == 2, known, block, ..Setup::of(modes) };
        let mut life = Life::begin(u64::from(which), setup);
        let acts: Vec<Act> =
            some_acts(u64::from(which), 90).into_iter().filter(|a| !matches!(a, Act::Delete | Act::Mode(_))).collect();
        life.run(&acts, &mut |_| Ok(true)).unwrap();
        (life.cut(), setup, life.oracle.clone())
    };
    IMAGES.with_borrow_mut(|all| all.entry(which).or_insert_with(make).clone())
}

/// Makes the checksum right of what begins at `at`, if that is something that has one.
fn resum(disk: &mut SimDisk, at: u64, block: u64) {
    let at = at / block * block;
    let mut b = disk.peek(at, (32 << 10).min(disk.size_bytes() - at)).as_slice().to_vec();
    let u32_at = |b: &[u8], at: usize| u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"));
    let (len, sum_at, zeroed) = match &b[..4] {
        b"PLIM" => (504, 504, false),
        b"JRN2" | b"JRN1" => (block as usize, 40, true),
        b"WEU1" => ((64 + u32_at(&b, 20) as usize * 40).next_multiple_of(block as usize), 56, true),
        b"NVR2" | b"NVR1" => (64usize.saturating_add(u32_at(&b, 4) as usize), 40, true),
        _ => return,
    };
    if len > b.len() {
        return;
    }
    if zeroed {
        b[sum_at..sum_at + 8].fill(0);
    }
    let sum = xxh3_64(&b[..len]);
    b[sum_at..sum_at + 8].copy_from_slice(&sum.to_le_bytes());
    disk.write_durably(at, &b[..len.next_multiple_of(512).max(512)]);
}

/// Checks one input.
pub fn fuzz_one(data: &[u8]) {
    let Some((which, rest)) = data.split_first() else { return };
    let (mut disks, setup, oracle) = image(which & 15);
    let block = u64::from(setup.block);
    for m in rest.chunks_exact(6).take(MUTATIONS_MAX) {
        let disk = &mut disks[if setup.nvram && m[0] & 64 == 64 { 2 } else { 1 }];
        let sectors = disk.written_sectors(0, disk.size_bytes() / SECTOR);
        if sectors.is_empty() {
            continue;
        }
        let n = usize::from(u16::from_le_bytes([m[1], m[2]]));
        let sector = sectors[n % sectors.len()];
        let mut bytes = disk.peek(sector * SECTOR, SECTOR).as_slice().to_vec();
        let at = usize::from(m[3]) * 2 % bytes.len();
        match m[0] & 7 {
            0 => bytes[at] ^= 1 << (m[4] & 7),
            1 => bytes[at] = m[4],
            2 => bytes.fill(0),
            3 => bytes.fill(m[4]),
            // The beginning is where what matters stands.
            4 => bytes[at % 64] = m[4],
            5 => bytes[at % 64..at % 64 + 2].copy_from_slice(&m[4..6]),
            6 => {
                let other = sectors[usize::from(u16::from_le_bytes([m[4], m[5]])) % sectors.len()];
                bytes = disk.peek(other * SECTOR, SECTOR).as_slice().to_vec();
            }
            _ => bytes[at % 256..at % 256 + 8].fill(m[4]),
        }
        disk.write_durably(sector * SECTOR, &bytes);
        if m[0] & 128 == 128 {
            resum(disk, sector * SECTOR, block);
        }
    }
    let mut p = pool(disks, &setup, &oracle);
    let state = p.start();
    assert_ne!(state, LayerState::Recovering, "a start ends");
    if state == LayerState::Failed {
        return;
    }
    for v in 0..VOLUMES {
        for from in (0..SECTORS).step_by(40) {
            let len = (SECTORS - from).min(40) * SECTOR;
            let head = IoHead::new(Op::Read, oracle.key(v), TenantId(1), from * SECTOR, len, p.now());
            p.offer(p.now(), Io::new(head, Data::Absent));
        }
    }
    let mut left = u64::from(VOLUMES) * SECTORS.div_ceil(40);
    for _ in 0..EVENTS_MAX {
        if left == 0 || p.step().is_none() {
            break;
        }
        while p.next_done().is_some() {
            left -= 1;
        }
    }
    assert_eq!(left, 0, "every read ends");
    let now = p.now();
    p.with_layer(|c: &mut Cache, out| {
        plimsoll_stack::Layer::told(c, now, &plimsoll_stack::Message::encode(&plimsoll_cache::CacheControl::Flush), out)
    });
    // What is lost is tried again and again: it never rests.
    for _ in 0..2000 {
        if p.step().is_none() {
            break;
        }
    }
}
