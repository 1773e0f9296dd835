//! Content that a sync acknowledged, on a copy of the disk after each sync: random operations, most of whole blocks, in each mode.
//!
//! `PLIMSOLL_FS_SEEDS=400` asks for that many seeds (`make fs-soak`).

use std::sync::Arc;

use plimsoll_fs::{Error, Fallocate, Format, Fs, MemDisk, Mode, Options, ROOT, Rename, Result, fsck, mkfs};
use rustix::io::Errno;

const FILE: u32 = 0o100_644;
const FILES: usize = 3;
/// More than any file has.
const ALL: usize = 1 << 20;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Performs a change as a mount does.
fn change<T>(fs: &mut Fs, mut f: impl FnMut(&mut Fs) -> Result<T>) -> Result<T> {
    if fs.must_commit() {
        fs.sync(None)?;
    }
    match f(fs) {
        Err(Error::Os(Errno::NOSPC)) => {
            fs.sync(None)?;
            f(fs)
        }
        result => result,
    }
}

fn name(i: usize) -> Vec<u8> {
    format!("{i}").into_bytes()
}

fn file(fs: &mut Fs, name: &[u8]) -> Result<u64> {
    change(fs, |fs| fs.create(ROOT, name, FILE, (0, 0), 0)).map(|a| a.ino)
}

fn run(mode: Mode, seed: u64, steps: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | mode as u64);
    // Every other disk becomes full.
    let blocks = if rng.below(2) == 0 { 2048 } else { 900 };
    let disk = Arc::new(MemDisk::new(blocks));
    let format = Format {
        group_blocks: 256,
        log_blocks: 24,
        journal_blocks: 100,
        inodes_per_group: 32,
        ..Format::new(9, mode, blocks)
    };
    mkfs(disk.clone(), format, (0, 0)).unwrap();
    let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
    let mut inos: Vec<u64> = (0..FILES).map(|i| file(&mut fs, &name(i)).unwrap()).collect();
    if rng.below(2) == 0 {
        fs.setxattr(inos[0], b"user.plimsoll.durability", b"anywhere", false, false).unwrap();
    }
    let mut contents: Vec<Vec<u8>> = vec![Vec::new(); FILES];
    for step in 0..steps {
        let case = format!("mode {}, seed {seed}, step {step}", mode.name());
        let i = rng.below(FILES as u64) as usize;
        let ino = inos[i];
        let (mut at, mut len) = (rng.below(90_000), 1 + rng.below(60_000));
        if rng.below(3) > 0 {
            (at, len) = (at / 4096 * 4096, (len / 4096).max(1) * 4096);
        }
        let fill = step as u8 | 1;
        let content = &mut contents[i];
        match rng.below(12) {
            0..=3 => {
                let mut data = vec![fill; len as usize];
                if rng.below(4) == 0 {
                    // Blocks like a record's header.
                    let skip = (at.next_multiple_of(4096) - at) as usize;
                    data.chunks_mut(4).skip(skip / 4).step_by(1024).filter(|_| skip.is_multiple_of(4)).for_each(|w| {
                        w.copy_from_slice(&b"PFSR"[..w.len()]);
                    });
                }
                if let Ok(done) = change(&mut fs, |fs| fs.write(ino, at, &data)) {
                    let (at, end) = (at as usize, at as usize + done);
                    content.resize(content.len().max(end), 0);
                    content[at..end].copy_from_slice(&data[..done]);
                }
            }
            4 => {
                if change(&mut fs, |fs| fs.truncate(ino, at)).is_ok() {
                    content.resize(at as usize, 0);
                }
            }
            5..=7 => {
                let how = [Fallocate::Allocate, Fallocate::Punch, Fallocate::Zero][rng.below(3) as usize];
                let keep = how == Fallocate::Punch || rng.below(2) == 0;
                match change(&mut fs, |fs| fs.fallocate(ino, how, at, len, keep)) {
                    Ok(()) => {
                        let end = (at + len) as usize;
                        if !keep {
                            content.resize(content.len().max(end), 0);
                        }
                        let end = end.min(content.len());
                        if how != Fallocate::Allocate && (at as usize) < end {
                            content[at as usize..end].fill(0);
                        }
                    }
                    Err(e) => {
                        // Some of the range may be zeroes.
                        assert_eq!(e, Error::Os(Errno::NOSPC), "{case}");
                        *content = fs.read(ino, 0, ALL).unwrap();
                    }
                }
            }
            8 => fs.checkpoint().unwrap(),
            9 if rng.below(4) == 0 => {
                let j = (i + 1) % FILES;
                let Ok(new) = file(&mut fs, b"new") else { continue };
                let done = change(&mut fs, |fs| fs.write(new, 0, &vec![fill; len as usize])).unwrap_or(0);
                let to = name(j);
                if change(&mut fs, |fs| fs.rename((ROOT, b"new"), (ROOT, &to), Rename::default())).is_ok() {
                    (inos[j], contents[j]) = (new, vec![fill; done]);
                } else {
                    fs.unlink(ROOT, b"new").unwrap();
                }
            }
            9 => {
                fs.unmount().unwrap();
                fs = Fs::mount(disk.clone(), Options::default()).unwrap();
            }
            _ => {
                let all = rng.below(4) == 0;
                fs.sync((!all).then_some(ino)).unwrap();
                let copy = Arc::new(MemDisk::with(blocks, disk.content()));
                if rng.below(5) == 0 {
                    assert_eq!(fsck(copy.clone(), false).unwrap().problems, Vec::<String>::new(), "{case}");
                }
                let read_only = Options { read_only: true, ..Options::default() };
                let mut copy = Fs::mount(copy, read_only).unwrap();
                for f in (0..FILES).filter(|&f| all || f == i) {
                    assert_eq!(copy.lookup(ROOT, &name(f)).unwrap().ino, inos[f], "{case}");
                    let durable = copy.read(inos[f], 0, ALL).unwrap();
                    let sizes = (durable.len(), contents[f].len());
                    assert!(durable == contents[f], "{case}: durable and acknowledged have sizes {sizes:?}");
                }
            }
        }
        let live = fs.read(inos[i], 0, ALL).unwrap();
        assert!(live == contents[i], "{case}: sizes {} and {}", live.len(), contents[i].len());
    }
}

#[test]
fn what_a_sync_acknowledged_is_on_the_disk() {
    let seeds: u64 = std::env::var("PLIMSOLL_FS_SEEDS").map_or(15, |v| v.parse().expect("a number"));
    for (seed, mode) in (0..seeds).flat_map(|s| Mode::ALL.map(|m| (s, m))) {
        run(mode, seed, 300);
    }
}
