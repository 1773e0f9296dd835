//! NI-E6-WRITES: why requests per second gain less than in the paper: what a write costs behind the cache decides it.

use super::gain;
use super::throughput::{NVRAM_BYTES, Over, nitro, notes, run_over};
use crate::experiment::study::Study;
use crate::experiment::{Inputs, LabError, RowSpec, Sample};
use crate::nitro::machine::{Behind, Front};
use crate::nitro::traces::TRACES;

/// The paper's `tps` has 8 GB of memory with a battery (§3.5.4).
const BATTERY_BYTES: u64 = 8_000_000_000;

const fn over(behind: Behind, nvram_bytes: u64, free_writes: bool) -> Over {
    Over { behind, nvram_bytes, free_writes }
}

/// Compared variants: the name, the device behind, and the paper's gains for the three traces.
const BACKENDS: [(&str, Over, [f64; 3]); 5] = [
    ("tps, NVRAM of 960 MB", over(Behind::Plain, NVRAM_BYTES, false), [264.0, 287.0, 165.0]),
    ("tps, NVRAM of 8 GB", over(Behind::Plain, BATTERY_BYTES, false), [264.0, 287.0, 165.0]),
    ("tps, writes free", over(Behind::Plain, NVRAM_BYTES, true), [264.0, 287.0, 165.0]),
    ("cos, NVRAM of 960 MB", over(Behind::Dedup, NVRAM_BYTES, false), [661.0, 673.0, 450.0]),
    ("cos, writes free", over(Behind::Dedup, NVRAM_BYTES, true), [661.0, 673.0, 450.0]),
];

/// See the module's documentation.
pub const WRITE_COST: Study = Study {
    id: "NI-E6-WRITES",
    title: "IOPS gained by WEU (D, C), by what writes cost behind it, warm, 2 % cache",
    source: "Nitro §3.6.2, Table 3.2",
    version: 2,
    device: "vf-sata-60g, raid0:10:64K:constellation-es3-1tb",
    common: notes,
    notes: &[
        "free: what leaves the NVRAM costs the disks nothing, so that only reads are left to gain from. 8 GB: the paper's tps has as much memory \
         with a battery; NI-E6 gives both backends the NVRAM of its cos",
    ],
    rows,
    sample,
    refused: |_| false,
};

fn rows() -> Vec<RowSpec> {
    let mut rows = Vec::new();
    for (i, t) in TRACES.iter().enumerate() {
        for (name, _, paper) in BACKENDS {
            let row = |what: &str, unit| RowSpec::new(format!("{}, {name}: {what}", t.name), unit);
            rows.push(row("no cache, IOPS", "1/s"));
            rows.push(
                row("IOPS", "%").beside(paper[i]).note("the assumption under test is ours, so nothing is judged"),
            );
            rows.push(row("read hits", "%"));
        }
    }
    rows
}

fn sample(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let mut values = Vec::new();
    for t in &TRACES {
        for (_, over, _) in BACKENDS {
            let of = |front| run_over(t, front, over, true, seed, inputs);
            let (none, ours) = (of(Front::None)?, of(nitro(true, true))?);
            values.extend([Some(none.iops), gain(ours.iops, none.iops), Some(ours.hit_percent)]);
        }
    }
    Ok(Sample { values, ..Sample::default() })
}
