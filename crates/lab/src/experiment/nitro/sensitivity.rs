//! NI-E9: random reads of working sets larger than the cache, more or less duplicated.

use super::EXTENT_BYTES;
use super::throughput::nitro;
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::nitro::machine::{Behind, Extents, Front, Setup, replay};
use crate::nitro::traces::Access;
use plimsoll_base::Rng;

const CACHE_BYTES: u64 = 16 << 20;
/// Working set over cache, and written contents per different one.
const SETS: [u64; 5] = [1, 2, 3, 5, 10];
const DEDUPS: [u64; 5] = [1, 2, 3, 5, 10];
const CLIENTS: usize = 8;

/// Mean read response time of uniformly random reads, milliseconds.
fn read_ms(front: Front, set: u64, dedup: u64, seed: u64, inputs: &Inputs) -> Result<f64, LabError> {
    let n = CACHE_BYTES * set / EXTENT_BYTES;
    // Each content is there `dedup` times, anywhere.
    let mut contents: Vec<u128> = (0..n).map(|e| u128::from(e / dedup) + (1 << 80)).collect();
    Rng::new(seed, "places of duplicates").shuffle(&mut contents);
    let mut rng = Rng::new(seed, "random reads");
    let reads = (n as f64 * inputs.length(6.0, 2.0, 0.3)) as u64;
    let of = |e: u64| Access { extent: e, content: contents[e as usize], write: false };
    let accesses: Vec<Access> = (0..reads).map(|_| of(rng.below(n))).collect();
    let setup = Setup {
        front,
        // What is needed for headers comes on top: a set of 1 fits.
        cache_bytes: CACHE_BYTES + CACHE_BYTES / 16,
        behind: Behind::Dedup,
        nvram_bytes: 1 << 20,
        free_writes: false,
        coalesces: false,
        clients: CLIENTS,
        rate: None,
        write_back: false,
        seed,
    };
    let extents = Extents { address: &|e| e * EXTENT_BYTES, contents: &contents, bytes: EXTENT_BYTES };
    Ok(replay(&setup, &extents, accesses.into_iter(), reads * 2 / 3)?.read_ms)
}

/// See the module's documentation.
pub struct Sensitivity;

impl Experiment for Sensitivity {
    fn id(&self) -> &'static str {
        "NI-E9"
    }
    fn title(&self) -> &'static str {
        "Read response time over that of all-in-SSD, by working set and deduplication ratio"
    }
    fn source(&self) -> &'static str {
        "Nitro §3.6.2, Fig 3.7"
    }
    fn device(&self) -> &'static str {
        "vf-sata-60g, raid0:10:64K:constellation-es3-1tb"
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "uniformly random reads by 8 clients over cos, a cache of 16 MiB; the last third is measured. The paper has a contour of \
             1 to 10 by 1 to 10"
                .into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for variant in ["(D, NC)", "(D, C)"] {
            for set in SETS {
                for dedup in DEDUPS {
                    let row = RowSpec::new(format!("{variant}: set {set}x, dedup {dedup}x"), "1");
                    rows.push(match (set, dedup) {
                        (1..=5, 5..) => {
                            row.paper_says(Check::AtMost(1.5), "near that of SSD (Fig 3.7)").note("taken as 1.5 times")
                        }
                        (10, 1..=2) => row.paper_says(Check::AtLeast(8.0), "over 8 times (Fig 3.7)"),
                        _ => row,
                    });
                }
            }
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut values = Vec::new();
        for compress in [false, true] {
            for set in SETS {
                let all = read_ms(Front::AllFast, set, 1, seed, inputs)?;
                for dedup in DEDUPS {
                    let ours = read_ms(nitro(true, compress), set, dedup, seed, inputs)?;
                    values.push(Some(ours / all));
                }
            }
        }
        Ok(Sample { values, ..Sample::default() })
    }
}
