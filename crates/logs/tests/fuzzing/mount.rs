//! Mount after mutation: a used device with anything changed in its tables and logs, with or without right sums. It starts or says why
//! not; then reads, writes, a flush and a checkpoint all end.

use crate::common::*;
use plimsoll_base::*;
use plimsoll_logs::*;
use plimsoll_stack::sim::SimDisk;
use plimsoll_stack::*;
use std::cell::RefCell;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

thread_local! {
    /// Used devices: one that has mostly records, one that has mostly an image.
    static USED: RefCell<Vec<SimDisk>> = RefCell::new((0..2).map(used).collect());
}

fn used(seed: u64) -> SimDisk {
    let rare = Span::from_secs(1);
    let config = LogsConfig { image_every: if seed == 0 { rare } else { config().image_every }, ..config() };
    let mut life = Life { pool: pool(formatted_with(seed, SECTOR), config, None), oracle: Oracle::new() };
    life.pool.start();
    let mut left = 150;
    let run = life.run(&some_acts(7 + seed, 120), &mut |_| {
        left -= 1;
        Ok(left > 0)
    });
    run.expect("nothing is wrong yet");
    life.pool.lose_power().remove(0)
}

/// Writes right sums into the structure that begins with the sector, whatever it is.
fn sum_again(disk: &mut SimDisk, at: u64) {
    let salt = layout().salt;
    let len = (64 << 10).min(DEVICE_BYTES - at);
    let mut b = disk.peek(at, len).as_slice().to_vec();
    let put = |b: &mut [u8], at: usize, sum: u64| b[at..at + 8].copy_from_slice(&sum.to_le_bytes());
    let word = |b: &[u8], at: usize| u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes")) as usize;
    let (logs, extents, header) = (word(&b, 24), word(&b, 28), word(&b, 4));
    match &b[..4] {
        b"PLIM" => {
            let sum = xxh3_64(&b[..56]);
            put(&mut b, 56, sum);
        }
        b"PLN2" | b"PLLN" => {
            let sum = xxh3_64_with_seed(&b[..504], salt);
            put(&mut b, 504, sum);
        }
        b"PLI2" | b"PLLI" => {
            let body = logs.saturating_mul(16).saturating_add(extents.saturating_mul(32));
            if let Some(body) = b.get(4096..4096_usize.saturating_add(body)) {
                let sum = xxh3_64_with_seed(body, salt);
                put(&mut b, 32, sum);
            }
            let sum = xxh3_64_with_seed(&b[..40], salt);
            put(&mut b, 40, sum);
        }
        b"PLR2" | b"PLLR" if header >= 64 && header <= b.len() => {
            put(&mut b, 48, 0);
            let sum = xxh3_64_with_seed(&b[..header], salt);
            put(&mut b, 48, sum);
        }
        _ => return,
    }
    disk.write_durably(at, &b[..4096.min(b.len())]);
}

/// Eight bytes are one mutation: a sector among those in use, what to do, where in it, and a value.
pub fn fuzz_one(data: &[u8]) {
    let which = usize::from(data.first().copied().unwrap_or(0)) % 2;
    let mut disk = USED.with_borrow(|used| used[which].clone());
    let in_use: Vec<u64> = disk.written_sectors(0, DEVICE_BYTES / SECTOR);
    for m in data.get(1..).unwrap_or(&[]).chunks_exact(8).take(16) {
        let pick = |a: u8, b: u8| in_use[usize::from(u16::from_le_bytes([a, b])) % in_use.len()] * SECTOR;
        let at = pick(m[0], m[1]);
        let mut sector = disk.peek(at, SECTOR).as_slice().to_vec();
        let byte = usize::from(u16::from_le_bytes([m[3], m[4]])) % SECTOR as usize;
        match m[2] % 5 {
            0 => sector[byte] ^= m[5],
            1 => sector[byte] = m[5],
            2 => {
                let byte = byte / 8 * 8;
                sector[byte..byte + 8].copy_from_slice(&(u64::from(m[5]) << (m[6] % 64)).wrapping_sub(1).to_le_bytes());
            }
            3 => sector.fill(m[5]),
            _ => sector = disk.peek(pick(m[5], m[6]), SECTOR).as_slice().to_vec(),
        }
        disk.write_durably(at, &sector);
        // Of a structure's later sectors the sum is in an earlier one.
        match m[7] % 4 {
            0 => {}
            1 => sum_again(&mut disk, at),
            _ => (0..2).for_each(|slot| sum_again(&mut disk, layout().image_at(slot))),
        }
    }
    let (mut p, state, _) = started(disk, config()).expect("all reads end");
    if state == LayerState::Failed {
        assert!(problem(&mut p).is_some(), "it says why");
        return;
    }
    for (i, op) in [Op::Write, Op::Flush, Op::Write, Op::WriteZeroes, Op::Flush, Op::Read].into_iter().enumerate() {
        let len = if op == Op::Flush { 0 } else { 1024 << (i % 3) };
        ask(&mut p, op, 4096 * i as u64, len, 3);
    }
    let now = p.now();
    p.with_layer(|l: &mut Logs, out| {
        plimsoll_stack::Layer::told(
            l,
            now,
            &plimsoll_stack::Message::encode(&plimsoll_logs::LogsControl::Checkpoint),
            out,
        )
    });
    p.run_until(now + Span::from_millis(200));
    p.with_layer(|l: &mut Logs, out| l.drain(now, out));
    p.run_until(now + Span::from_secs(100));
}
