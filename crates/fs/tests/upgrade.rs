//! Disks of format version 1, which the code of commit d3755cc0 made (`fixtures/generate.sh`): their logs have content as it was written.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use flate2::read::GzDecoder;
use plimsoll_fs::crash::{CrashDisk, Image};
use plimsoll_fs::{BLOCK, Disk, Fs, MemDisk, Options, ROOT, fsck};

const BLOCKS: u64 = 2600;

/// Of one journal and of scattered logs.
fn old_images() -> Vec<Image> {
    let mut all = Vec::new();
    GzDecoder::new(&include_bytes!("fixtures/v1.bin.gz")[..]).read_to_end(&mut all).unwrap();
    let mut rest = &all[..];
    let mut take = |n: u32| {
        let (head, tail) = rest.split_at(n as usize);
        rest = tail;
        head.to_vec()
    };
    let number = |bytes: Vec<u8>| u32::from_le_bytes(bytes.try_into().unwrap());
    let mut images = Vec::new();
    for _ in 0..2 {
        let mut image = BTreeMap::new();
        for _ in 0..number(take(4)) {
            let (block, len) = (number(take(4)), number(take(4)));
            let mut data = take(len);
            data.resize(BLOCK, 0);
            image.insert(u64::from(block), data.into());
        }
        images.push(image);
    }
    images
}

fn version(image: &Image) -> u8 {
    image[&0][32]
}

/// Checks the content of all files, of which only logs have the last ones.
fn is_whole(fs: &mut Fs) {
    let ino = fs.lookup(ROOT, b"logged").unwrap().ino;
    let content = fs.read(ino, 0, 1 << 20).unwrap();
    assert!(content[..BLOCK] == [7; BLOCK] && content[BLOCK..].starts_with(b"PFSR"));
    assert_eq!(&content[2 * BLOCK..], b"PFSR and more");
    fs.lookup(ROOT, b"last").unwrap();
    for i in 0..60 {
        fs.lookup(ROOT, format!("{i:0100}").as_bytes()).unwrap();
    }
    assert_eq!(fs.readdir(ROOT, 0, usize::MAX).unwrap().len(), 62);
}

#[test]
fn an_old_disk_is_read_as_it_is_and_converted_by_a_mount() {
    for image in old_images() {
        assert_eq!(version(&image), 1);
        let disk = Arc::new(MemDisk::with(BLOCKS, image.clone()));
        let read_only = Options { read_only: true, ..Options::default() };
        is_whole(&mut Fs::mount(disk.clone(), read_only).unwrap());
        assert_eq!(fsck(disk.clone(), false).unwrap().problems, Vec::<String>::new());
        assert!(disk.content() == image);
        for _ in 0..3 {
            let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
            // What users wrote into the old logs is no record to anybody.
            assert_eq!((version(&disk.content()), fs.info().log_blocks_used), (2, 0));
            is_whole(&mut fs);
            fs.unmount().unwrap();
            drop(fs);
            assert_eq!(fsck(disk.clone(), false).unwrap().problems, Vec::<String>::new());
        }
    }
}

#[test]
fn power_lost_during_the_conversion_leaves_all_that_there_was() {
    let mut x = 3u64;
    let mut draw = |n: u64| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) % n
    };
    for image in old_images() {
        let disk = Arc::new(CrashDisk::new(BLOCKS, image));
        drop(Fs::mount(disk.clone(), Options::default()).unwrap());
        let (mut walk, mut versions) = (disk.crashes(), [0; 2]);
        for event in 0..=disk.events() {
            walk.advance(event);
            for _ in 0..20 {
                let image = walk.image(&mut draw);
                versions[usize::from(version(&image)) - 1] += 1;
                let disk = Arc::new(MemDisk::with(disk.blocks(), image));
                let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
                is_whole(&mut fs);
                fs.unmount().unwrap();
                drop(fs);
                assert_eq!(fsck(disk, false).unwrap().problems, Vec::<String>::new());
            }
        }
        assert!(versions.iter().all(|&n| n > 20), "{versions:?}");
    }
}
