//! NI-E11: how densely gzip, zstd and LZ4 pack extents of 8 KiB, and what reading them takes. (zstd with a context made anew for
//! each extent, unlike in the cache, as LZ4 and gzip here.)
//!
//! `cargo run --release -p plimsoll-cache --example codecs [FILE...]`: without files, the sources of this repository.

use flate2::Compression;
use flate2::read::{DeflateDecoder, DeflateEncoder};
use rustix::time::{ClockId, clock_gettime};
use std::io::Read;
use std::path::{Path, PathBuf};

const EXTENT: usize = 8192;
const ROUNDS: usize = 5;

/// Nanoseconds that this thread has had of a core.
fn cpu_ns() -> u64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut entries: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "md" || e == "toml") {
            into.push(path);
        }
    }
}

/// One codec: a name, packing and unpacking.
type Codec = (&'static str, fn(&[u8]) -> Vec<u8>, fn(&[u8]) -> Vec<u8>);

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    DeflateEncoder::new(bytes, Compression::default()).read_to_end(&mut packed).expect("memory to memory");
    packed
}

fn gunzip(packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(EXTENT);
    DeflateDecoder::new(packed).read_to_end(&mut bytes).expect("what was packed");
    bytes
}

const CODECS: [Codec; 3] = [
    ("LZ4", lz4_flex::block::compress, |p| lz4_flex::block::decompress(p, EXTENT).expect("what was packed")),
    ("gzip (level 6)", gzip, gunzip),
    (
        "zstd (1, anew)",
        |b| zstd::bulk::compress(b, 1).expect("memory to memory"),
        |p| zstd::bulk::decompress(p, EXTENT).expect("what was packed"),
    ),
];

fn main() {
    let mut files: Vec<PathBuf> = std::env::args().skip(1).map(PathBuf::from).collect();
    if files.is_empty() {
        for folder in ["crates", "docs"] {
            sources(Path::new(folder), &mut files);
        }
    }
    let all: Vec<u8> = files.iter().flat_map(|f| std::fs::read(f).unwrap_or_default()).collect();
    let extents: Vec<&[u8]> = all.chunks_exact(EXTENT).collect();
    println!(
        "{} extents of 8 KiB from {} files; times of one core, median of {ROUNDS} rounds",
        extents.len(),
        files.len()
    );
    for (name, pack, unpack) in CODECS {
        let packed: Vec<Vec<u8>> = extents.iter().map(|e| pack(e)).collect();
        let bytes: usize = packed.iter().map(Vec::len).sum();
        let mut rounds: Vec<u64> = (0..ROUNDS)
            .map(|_| {
                let began = cpu_ns();
                let out: usize = packed.iter().map(|p| unpack(p).len()).sum();
                assert_eq!(out, extents.len() * EXTENT);
                (cpu_ns() - began) / extents.len().max(1) as u64
            })
            .collect();
        rounds.sort_unstable();
        let ratio = (extents.len() * EXTENT) as f64 / bytes.max(1) as f64;
        println!("{name:15} ratio {ratio:.2}, unpacking an extent {:.1} us", rounds[ROUNDS / 2] as f64 / 1000.0);
    }
}
