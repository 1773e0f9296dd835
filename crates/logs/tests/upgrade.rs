//! Devices of format version 1, with flushed data that only a log has, open and are converted; a crash at any instant of that
//! leaves one that opens again. The devices were made by the code of commit 7b1e008 (`fixtures/generate.sh`).

mod common;
use common::*;
use flate2::read::GzDecoder;
use plimsoll_base::*;
use plimsoll_logs::*;
use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
use plimsoll_stack::*;
use std::io::Read;

/// A device as version 1 left it at a power loss, and the 16 bytes that each sector of each volume repeats.
struct Old {
    capacitor: bool,
    disk: SimDisk,
    expected: Vec<Vec<[u8; 16]>>,
}

fn fixtures() -> Vec<Old> {
    let packed = include_bytes!("fixtures/v1.bin.gz");
    let mut all = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut all).expect("it is a whole gzip file");
    let mut rest = &all[..];
    let mut take = |n: usize| {
        let (head, tail) = rest.split_at(n);
        rest = tail;
        head.to_vec()
    };
    let mut found = Vec::new();
    for seed in 0..8 {
        let capacitor = take(1) == [1];
        let mut disk = SimDisk::new(DEVICE_BYTES, (us(1), us(200)), seed, DiskFaults::default());
        loop {
            let kind = take(1)[0];
            if kind == 0 {
                break;
            }
            let sector = u64::from(u32::from_le_bytes(take(4).try_into().expect("four bytes")));
            let bytes = if kind == 1 { take(16).repeat(32) } else { take(SECTOR as usize) };
            disk.write_durably(sector * SECTOR, &bytes);
        }
        let mut volume = || (0..SECTORS).map(|_| take(16).try_into().expect("sixteen bytes")).collect();
        let expected = (0..VOLUMES).map(|_| volume()).collect();
        found.push(Old { capacitor, disk, expected });
    }
    assert!(take(0).is_empty() && rest.is_empty(), "all of the file is used");
    found
}

fn config_of(old: &Old) -> LogsConfig {
    let capacitor = Capacitor { lasts: Span::from_millis(200), bytes_per_s: 100_000_000 };
    LogsConfig { capacitor: old.capacitor.then_some(capacitor), ..config() }
}

fn is_as_expected(old: &Old, found: &[Vec<u8>]) {
    for (v, (found, expected)) in found.iter().zip(&old.expected).enumerate() {
        for (s, (found, expected)) in found.chunks(SECTOR as usize).zip(expected).enumerate() {
            assert!(found.chunks(16).all(|c| c == expected), "volume {v} sector {s}");
        }
    }
}

#[test]
fn an_old_device_opens_is_converted_and_stays_so() {
    let mut only_in_logs = 0;
    for (n, old) in fixtures().into_iter().enumerate() {
        let config = config_of(&old);
        let (mut p, found) = recovered(old.disk.clone(), config, None).unwrap_or_else(|e| panic!("device {n}: {e}"));
        is_as_expected(&old, &found);
        let s = logs(&mut p);
        assert!(s.counters.recovery.converted, "device {n}");
        only_in_logs += s.valid_bytes;
        // What it had, and what is written now, is there after the next power loss, by the new rules.
        assert!(ask(&mut p, Op::Write, 0, 1024, 9).outcome.is_done());
        assert!(ask(&mut p, Op::Flush, 0, 0, 0).outcome.is_done());
        let (mut p, mut found) = recovered(p.lose_power().remove(0), config, None).unwrap();
        assert!(!logs(&mut p).counters.recovery.converted, "device {n}");
        assert_eq!(found[0][..1024], [9; 1024]);
        for (s, expected) in old.expected[0][..2].iter().enumerate() {
            found[0][s * SECTOR as usize..][..SECTOR as usize].copy_from_slice(&expected.repeat(32));
        }
        is_as_expected(&old, &found);
        // All of it can be brought home.
        let now = p.now();
        p.with_layer(|l: &mut Logs, out| {
            plimsoll_stack::Layer::told(
                l,
                now,
                &plimsoll_stack::Message::encode(&plimsoll_logs::LogsControl::Checkpoint),
                out,
            )
        });
        p.run_until(now + Span::from_secs(1));
        assert_eq!(logs(&mut p).valid_bytes, 0);
        let (_, mut found) = recovered(p.lose_power().remove(0), config, None).unwrap();
        for (s, expected) in old.expected[0][..2].iter().enumerate() {
            found[0][s * SECTOR as usize..][..SECTOR as usize].copy_from_slice(&expected.repeat(32));
        }
        is_as_expected(&old, &found);
    }
    assert!(only_in_logs > 100_000, "the devices have data in logs: {only_in_logs}");
}

/// Carries out so many changes and flushes, and then nothing more.
struct Crash {
    left: u64,
}

impl Layer for Crash {
    fn name(&self) -> &'static str {
        "crash"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, _now: Time, io: Io, out: &mut Actions) {
        if io.op.is_change() || io.op == Op::Flush {
            if self.left == 0 {
                return out.end(io, Outcome::Failed(IoError::Unavailable));
            }
            self.left -= 1;
        }
        out.submit(0, io);
    }
    fn is_idle(&self) -> bool {
        true
    }
}

#[test]
fn a_crash_at_any_instant_of_the_conversion_loses_nothing() {
    let mut crashes = 0;
    for old in fixtures() {
        let config = config_of(&old);
        for left in 0.. {
            // The last request before the crash may have reached the device without its answer: a few draws of that.
            let mut done = false;
            for draw in 0..4 {
                let mut disk = old.disk.clone();
                let layers: Vec<Box<dyn Layer>> = vec![Box::new(Logs::new(layout(), config)), Box::new(Crash { left })];
                let mut reseeded =
                    SimDisk::new(DEVICE_BYTES, (us(1), us(200)), 100 * left + draw, DiskFaults::default());
                for s in disk.written_sectors(0, DEVICE_BYTES / SECTOR) {
                    reseeded.write_durably(s * SECTOR, disk.peek(s * SECTOR, SECTOR).as_slice());
                }
                disk = reseeded;
                let mut p = SimPool::chain(StackConfig::default(), layers, vec![disk]);
                done = p.start() == LayerState::Ready;
                let disk = p.lose_power().remove(0);
                let version =
                    |at| format::decode_layout(disk.peek(at, layout::PAGE_BYTES).as_slice()).ok().map(|l| l.1);
                let [first, second] = layout::LAYOUTS_AT.map(version);
                assert!(first == Some(1) || second.is_some(), "after {left}: the only layout page was written over");
                let (_, found) = recovered(disk, config, None).unwrap_or_else(|e| panic!("after {left}: {e}"));
                is_as_expected(&old, &found);
                crashes += 1;
            }
            if done {
                break;
            }
        }
    }
    println!("{crashes} crashes while old devices were converted");
    assert!(crashes > 8 * 4 * 6);
}
