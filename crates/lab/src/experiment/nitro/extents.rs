//! NI-E7 and E8: against plain extents, and on a cold cache.

use super::gain;
use super::throughput::{CLIENTS, COLUMNS, REPLAYED, fronts, nitro, run};
use crate::experiment::study::Study;
use crate::experiment::{Check, Inputs, LabError, RowSpec, Sample};
use crate::nitro::EXTENT_BYTES;
use crate::nitro::machine::{Behind, Extents, Front, Setup, replay};
use crate::nitro::traces::{Access, TRACES, Trace};
use plimsoll_base::Rng;

const BACKENDS: [(Behind, &str); 2] = [(Behind::Dedup, "cos"), (Behind::Plain, "tps")];

/// NI-E7: WEUs over plain extents.
pub const OVER_EXTENTS: Study = Study {
    id: "NI-E7",
    title: "Nitro over a plain extent cache",
    source: "Nitro §3.6.2",
    notes: &["random writes: the drive alone, filled, 16 at once, the same number of bytes in requests of either size"],
    rows: over_extents_rows,
    sample: over_extents_sample,
    ..REPLAYED
};

const UP_TO: &str = "WEU (D, C) improves non-normalized IOPS up to 120% and reduces read response time up to 55%";

fn over_extents_rows() -> Vec<RowSpec> {
    let of = |t: &Trace, behind: &str| {
        let row = |what: &str| RowSpec::new(format!("{}, {behind}: {what}", t.name), "%");
        [
            row("IOPS of WEU (D, C) over extents").paper_says(Check::Within(0.0, 120.0), UP_TO),
            row("read response time less by").paper_says(Check::Within(0.0, 55.0), UP_TO),
            row("IOPS of WEU (ND, NC) over extents")
                .reproduces_range(14.9, 28.2)
                .note("paper: extents are 13 to 22 % below"),
            row("read response time less by, WEU (ND, NC)")
                .reproduces_range(3.8, 6.5)
                .note("paper: extents take 4 to 7 % longer"),
        ]
    };
    let mut rows: Vec<RowSpec> =
        TRACES.iter().flat_map(|t| BACKENDS.map(|(_, behind)| of(t, behind))).flatten().collect();
    let writes = RowSpec::new("random writes of 2 MiB over those of 8 KiB, bytes per second: more", "%");
    rows.push(writes.reproduces(60.0));
    let alone =
        |what: &str| RowSpec::new(format!("the drive alone, filled: random {what} of 8 KiB"), "1/s").note(MEASURED);
    rows.extend([alone("reads").reproduces(18_700.0), alone("writes").reproduces(4_200.0)]);
    rows
}

const MEASURED: &str =
    "the paper's own measurement of its drive, a Samsung of 256 GB; the modelled one is VirtualFence's of 60 GB";

fn over_extents_sample(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let mut values = Vec::new();
    for t in &TRACES {
        for (behind, _) in BACKENDS {
            let of = |front| run(t, front, behind, true, seed, inputs);
            let extents = of(Front::Extents)?;
            for m in [of(nitro(true, true))?, of(nitro(false, false))?] {
                values.extend([gain(m.iops, extents.iops), Some(100.0 * (1.0 - m.read_ms / extents.read_ms))]);
            }
        }
    }
    let of = |bytes, write| random(bytes, write, seed, inputs.quick);
    let small = of(EXTENT_BYTES, true)?;
    values.push(gain(of(2 << 20, true)? * (2 << 20) as f64, small * EXTENT_BYTES as f64));
    values.extend([of(EXTENT_BYTES, false)?, small].map(Some));
    Ok(Sample { values, ..Sample::default() })
}

/// Random requests of `bytes` each that the drive alone does in a second, once it was filled by the same number of writes.
fn random(bytes: u64, write: bool, seed: u64, quick: bool) -> Result<f64, LabError> {
    let region = if quick { 128 << 20 } else { 1 << 30 };
    let n = region / bytes;
    let contents: Vec<u128> = (0..u128::from(n)).collect();
    let setup = Setup {
        front: Front::AllFast,
        cache_bytes: 0,
        behind: Behind::Plain,
        nvram_bytes: 0,
        free_writes: false,
        coalesces: false,
        clients: CLIENTS,
        rate: None,
        write_back: false,
        seed,
    };
    let mut rng = Rng::new(seed, "random writes");
    let of = |i: u64| Access { extent: rng.below(n), content: u128::from(n + i), write: write || i < n };
    let m = replay(&setup, &Extents { address: &|e| e * bytes, contents: &contents, bytes }, (0..2 * n).map(of), n)?;
    Ok(m.iops)
}

/// NI-E8: the last third on a cold cache.
pub const COLD_CACHE: Study = Study {
    id: "NI-E8",
    title: "IOPS and read response time with a cold cache, all variants",
    source: "Nitro §3.6.2",
    rows: cold_cache_rows,
    sample: cold_cache_sample,
    ..REPLAYED
};

fn cold_cache_rows() -> Vec<RowSpec> {
    let mut rows = Vec::new();
    for t in &TRACES {
        for (behind, name) in BACKENDS {
            for column in COLUMNS {
                let row = |what: &str| RowSpec::new(format!("{}, {name}: {what}, {column}", t.name), "%");
                let (iops, less) = (row("IOPS"), row("read response time reduced"));
                match (behind, column.starts_with("WEU")) {
                    (Behind::Dedup, true) => {
                        rows.push(iops.paper_says(Check::Within(0.0, 520.0), "Nitro still improves IOPS up to 520%"));
                        rows.push(less.reproduces_range(2.0, 29.0));
                    }
                    (Behind::Plain, true) => {
                        rows.push(iops.note("paper: consistent with a warm cache"));
                        rows.push(less.note("paper: consistent with a warm cache"));
                    }
                    (_, false) => rows.extend([iops, less]),
                }
            }
        }
    }
    rows
}

fn cold_cache_sample(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let mut values = Vec::new();
    for t in &TRACES {
        for (behind, _) in BACKENDS {
            let of = |front| run(t, front, behind, false, seed, inputs);
            let none = of(Front::None)?;
            for front in fronts() {
                let cold = of(front)?;
                values.extend([gain(cold.iops, none.iops), Some(100.0 * (1.0 - cold.read_ms / none.read_ms))]);
            }
        }
    }
    Ok(Sample { values, ..Sample::default() })
}
