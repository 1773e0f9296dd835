//! NI-E10: what the cache costs when it has nothing, and when it has everything: sixty machines boot from nearly equal images.

use super::EXTENT_BYTES;
use super::throughput::nitro;
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::nitro::machine::{Behind, Extents, Front, Measured, Setup, replay};
use crate::nitro::traces::Access;
use plimsoll_base::Rng;
use plimsoll_cache::CacheConfig;

/// Machines, and the extents that each reads to boot: 18 MB (§3.5.2).
const MACHINES: u64 = 60;
const EXTENTS: u64 = 18_000_000 / EXTENT_BYTES;
/// Of a machine's extents, those that all have, percent.
const COMMON: u64 = 90;
/// One read in seven is random; one request in a hundred writes.
const RANDOM: f64 = 0.14;
const WRITES: f64 = 0.01;

/// The storm: machines take turns; all contents by extent, and the accesses.
fn storm(seed: u64, machines: u64) -> (Vec<u128>, Vec<Access>) {
    let mut rng = Rng::new(seed, "boot storm");
    // 1.2 contents for each different one inside an image.
    let image: Vec<u128> = (0..EXTENTS).map(|e| u128::from(if e % 6 == 5 { e - 1 } else { e }) + (1 << 80)).collect();
    let mut contents = Vec::new();
    for m in 0..machines {
        // Duplicates lie elsewhere by up to 15 % of the addresses.
        let shift = rng.below(EXTENTS * 15 / 100 + 1);
        for e in 0..EXTENTS {
            let own = rng.below(100) >= COMMON;
            contents.push(if own {
                u128::from(m * EXTENTS + e) + (2 << 80)
            } else {
                image[((e + shift) % EXTENTS) as usize]
            });
        }
    }
    let mut accesses = Vec::new();
    let mut changed = 3u128 << 80;
    for e in 0..EXTENTS {
        for m in 0..machines {
            let within = if rng.chance(RANDOM) { rng.below(EXTENTS) } else { e };
            let extent = m * EXTENTS + within;
            let write = rng.chance(WRITES);
            changed += u128::from(write);
            let content = if write { changed } else { contents[extent as usize] };
            accesses.push(Access { extent, content, write });
        }
    }
    (contents, accesses)
}

/// Returns the measurements; with `again`, of the second time that all boot.
fn boot(
    front: Front,
    behind: Behind,
    cache_bytes: u64,
    again: bool,
    seed: u64,
    quick: bool,
) -> Result<Measured, LabError> {
    boot_of(front, behind, cache_bytes, again, EXTENT_BYTES, seed, quick)
}

/// Returns the same with requests of `bytes`, one after the other on the drive.
fn boot_of(
    front: Front,
    behind: Behind,
    cache_bytes: u64,
    again: bool,
    bytes: u64,
    seed: u64,
    quick: bool,
) -> Result<Measured, LabError> {
    let (contents, accesses) = storm(seed, if quick { MACHINES / 10 } else { MACHINES });
    let setup = Setup {
        front,
        cache_bytes,
        behind,
        nvram_bytes: 16 << 20,
        free_writes: false,
        coalesces: false,
        clients: 8,
        rate: None,
        write_back: false,
        seed,
    };
    let extents = Extents { address: &|e| e * bytes, contents: &contents, bytes };
    let n = accesses.len() as u64;
    let all = accesses.iter().chain(if again { &accesses[..] } else { &[] }).copied();
    replay(&setup, &extents, all, if again { n } else { 0 })
}

const VARIANTS: [(&str, bool, bool); 4] =
    [("ND, NC", false, false), ("ND, C", false, true), ("D, NC", true, false), ("D, C", true, true)];

const IMPOSED: &str = "WEU (ND, NC) imposes a 2% increase in response time. […] (ND, C) and […] (D, NC) impose 11% and 6.2% overhead […] \
                       WEU (D, C) overhead (≤ 18%)";

/// See the module's documentation.
pub struct BootStorm;

impl Experiment for BootStorm {
    fn id(&self) -> &'static str {
        "NI-E10"
    }
    fn title(&self) -> &'static str {
        "Read response time of a boot storm over that without a cache (0 % hits), or all in SSD (100 %)"
    }
    fn source(&self) -> &'static str {
        "Nitro §3.6.2, Fig 3.8"
    }
    fn version(&self) -> u32 {
        2
    }
    fn device(&self) -> &'static str {
        "vf-sata-60g, raid0:10:64K:constellation-es3-1tb"
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "60 generated images of 18 MB, 90 % of each common to all, shifted by up to 15 %, 1 % writes, 14 % random reads (§3.5.2); 8 \
             clients; hashing and packing take two modelled cores at the speeds of BLAKE3 and LZ4"
                .into(),
            "0 %: a cache of four WEUs, which never has what is read; 100 %: one that has room for all, the second time that all boot, \
             against a drive that holds everything. The read-ahead of the cache is off: the drive without one has none either"
                .into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for behind in ["cos", "tps"] {
            for (v, ..) in VARIANTS {
                let row = RowSpec::new(format!("{behind}, 0 % hits, {v}: more"), "%");
                rows.push(row.paper_says(Check::AtMost(7.0), "at 0 % hits at most 7 % more (Fig 3.8)"));
            }
        }
        for behind in ["cos", "tps"] {
            for ((v, ..), paper) in VARIANTS.iter().zip([2.0, 11.0, 6.2, 18.0]) {
                let row = |what: &str| RowSpec::new(format!("{behind}, 100 % hits, {v}: {what}"), "%");
                rows.push(row("more").beside(paper).paper_says(Check::AtMost(paper), IMPOSED));
                rows.push(row("reads that hit"));
            }
        }
        let headed =
            RowSpec::new("100 % hits, no cache: the drive alone, each extent with a head of 32 bytes: more", "%");
        rows.push(headed.note("what (ND, NC) would cost if its own work cost nothing: an extent with its head lies on three flash pages, not two"));
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let quick = inputs.quick;
        let without_ahead = |dedup, compress| match nitro(dedup, compress) {
            Front::Nitro(config, shape, mode) => {
                let config = CacheConfig { prefetch_bytes_max: 0, sequential_bytes: u64::MAX, ..config };
                Front::Nitro(config, shape, mode)
            }
            other => other,
        };
        let mut values = Vec::new();
        let more = |ours: f64, base: f64| Some(100.0 * (ours / base - 1.0));
        for behind in [Behind::Dedup, Behind::Plain] {
            let none = boot(Front::None, behind, 0, false, seed, quick)?.read_ms;
            for (_, dedup, compress) in VARIANTS {
                // Five WEUs of 64 KiB and the journal.
                let ours = boot(without_ahead(dedup, compress), behind, 512 << 10, false, seed, quick)?;
                values.push(more(ours.read_ms, none));
            }
        }
        let room = 1_300_000_000;
        let all = boot(Front::AllFast, Behind::Plain, 0, true, seed, quick)?.read_ms;
        for behind in [Behind::Dedup, Behind::Plain] {
            for (_, dedup, compress) in VARIANTS {
                let ours = boot(without_ahead(dedup, compress), behind, room, true, seed, quick)?;
                values.extend([more(ours.read_ms, all), Some(ours.hit_percent)]);
            }
        }
        let headed = boot_of(Front::AllFast, Behind::Plain, 0, true, EXTENT_BYTES + 512, seed, quick)?;
        values.push(more(headed.read_ms, all));
        Ok(Sample { values, ..Sample::default() })
    }
}
