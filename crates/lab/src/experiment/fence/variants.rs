//! VF-E6: all variants of Table 4.1, and ours: what each part contributes.

use crate::experiment::fence::FENCE;
use crate::experiment::fence::deviation::curves;
use crate::experiment::fence::machines::{HETEROGENEOUS, Times, cache_bytes, compare};
use crate::experiment::fence::system::{Devices, Rules, System};
use crate::experiment::study::Study;
use crate::experiment::{Check, Inputs, LabError, RowSpec, Sample};
use plimsoll_cache::Sharing;
use plimsoll_figure::plot::Plot;
use plimsoll_replay::workload::filebench::Personality;

const SHARED: Devices = Devices::Hybrid(Sharing::Shared);
const OWN: Devices = Devices::Hybrid(Sharing::PerVolume);

struct Variant {
    name: &'static str,
    devices: Devices,
    fence: Option<Rules>,
    /// Throughput and response deviation where the paper's text gives them.
    paper: Option<(f64, f64)>,
}

const fn variant(name: &'static str, devices: Devices, fence: Option<Rules>, paper: Option<(f64, f64)>) -> Variant {
    Variant { name, devices, fence, paper }
}

const NWC: Option<Rules> = Some(Rules::Steady);
const ALL: [Variant; 10] = [
    variant("HDD", Devices::Hdd, None, None),
    variant("SSD", Devices::Ssd, None, None),
    variant("HDD+NWC", Devices::Hdd, NWC, Some((13.0, 33.0))),
    variant("SSD+NWC", Devices::Ssd, NWC, Some((3.0, 10.0))),
    variant("Hybrid/Shared", SHARED, None, None),
    variant("Hybrid/Shared+NWC", SHARED, NWC, None),
    variant("Hybrid/Partitioned", OWN, None, None),
    variant("VirtualFence", OWN, NWC, Some((6.0, 12.0))),
    variant("VirtualFence as published", OWN, Some(Rules::Published), Some((6.0, 12.0))),
    variant("VirtualFence, not steady", OWN, Some(Rules::Ahead), None),
];

/// See the module's documentation.
pub const VARIANTS: Study = Study {
    id: "VF-E6",
    title: "Mailserver's deviation by variant: what each part contributes",
    source: "VirtualFence §4.6.1, Fig 4.5, Table 4.1",
    notes: &[
        "the shared cache is as large as the four together; no cost of another process is added to it (VF-M6)",
        "as published: what is sent first in a turn depends on where a neighbour left the arm; the others are steady: what the arm's \
         way back would have cost is waited for where it was spared (docs/papers/virtualfence.md)",
    ],
    rows,
    sample,
    ..FENCE
};

fn rows() -> Vec<RowSpec> {
    let mut rows = Vec::new();
    for v in &ALL {
        let row = |what| RowSpec::new(format!("{}: {what}", v.name), "%");
        let (throughput, response) = (row("throughput deviation"), row("response deviation"));
        match (v.name, v.paper) {
            ("VirtualFence", Some((t, r))) => {
                rows.push(throughput.beside(t).goal(Check::AtMost(6.0)));
                rows.push(response.beside(r).goal(Check::AtMost(12.0)));
            }
            (_, Some((t, r))) => rows.extend([throughput.reproduces(t), response.reproduces(r)]),
            _ => rows.extend([throughput, response]),
        }
        rows.push(row("p99 deviation"));
        if matches!(v.devices, Devices::Hybrid(_)) {
            rows.push(row("hit ratio of reads"));
        }
    }
    let order = |what: &str| {
        RowSpec::new(format!("response deviation: {what}"), "%")
            .paper_says(Check::AtLeast(0.0), "the order of Fig 4.5's bars")
    };
    rows.push(order("Hybrid/Shared less HDD+NWC"));
    rows.push(order("Hybrid/Partitioned less HDD+NWC"));
    rows.push(order("Hybrid/Shared+NWC less HDD+NWC"));
    rows.push(order("Hybrid/Shared less Hybrid/Partitioned"));
    rows.push(order("HDD+NWC less VirtualFence"));
    rows.push(order("VirtualFence less SSD+NWC"));
    rows
}

fn sample(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let p = Personality::Varmail;
    let (mut values, mut responses, mut shown) = (Vec::new(), Vec::new(), Vec::new());
    for v in &ALL {
        let system = System { rules: v.fence, ..System::new(v.devices, v.fence.is_some(), cache_bytes(p, 50), seed) };
        let c = compare(&system, p, &HETEROGENEOUS, false, Times::of(inputs))?;
        values.extend([c.low.throughput, c.low.response, c.low.p99].map(Some));
        values.extend(matches!(v.devices, Devices::Hybrid(_)).then_some(Some(c.shared.hit_percent)));
        responses.push(c.low.response);
        shown.extend(curves(&c, v.name));
    }
    let r = responses;
    let orders = [r[4] - r[2], r[6] - r[2], r[5] - r[2], r[4] - r[6], r[2] - r[7], r[7] - r[3]];
    values.extend(orders.map(Some));
    let plots = vec![Plot::of_times("Mailserver's low-intensity machine beside others, response times", shown)];
    Ok(Sample { values, plots, ..Sample::default() })
}
