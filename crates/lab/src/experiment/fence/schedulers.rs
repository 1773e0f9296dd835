//! VF-E1: how bad it is without fences, under different schedulers and backings.
//!
//! The paper compares four VMMs. Ours are their differences as far as storage sees them: the host's scheduler, a partition or a
//! file as virtual disk, and writes that go through to the device or not (KVM's default is through).

use crate::experiment::fence::FENCE;
use crate::experiment::fence::machines::{ALL, HETEROGENEOUS, Times, compare, name};
use crate::experiment::fence::system::{Backing, Devices, System};
use crate::experiment::study::Study;
use crate::experiment::{Check, Inputs, LabError, RowSpec, Sample};
use plimsoll_sched::SchedulerKind;

const BACKINGS: [(&str, SchedulerKind, Backing); 5] = [
    ("CFQ, partition", SchedulerKind::Cfq, Backing::Partition),
    ("deadline, partition", SchedulerKind::Deadline, Backing::Partition),
    ("noop, partition", SchedulerKind::Noop, Backing::Partition),
    ("CFQ, file", SchedulerKind::Cfq, Backing::File),
    ("CFQ, file, writes through", SchedulerKind::Cfq, Backing::FileThrough),
];

/// VF-E1.
pub const SCHEDULERS: Study = Study {
    id: "VF-E1",
    title: "Deviation without fences at 80 % of saturation, by scheduler and backing",
    source: "VirtualFence §4.4, Fig 4.1",
    notes: &[
        "instead of the paper's four VMMs and bare Linux: schedulers of the host, and a partition or a file as the virtual disk. A file \
             lies in pieces of 128 MiB spread over its partition, and every eighth write is followed by one of a block of the host's file \
             system's metadata; writes through are all durable when they end, as KVM's were. The paper's ranges are Xen's",
    ],
    rows: schedulers_rows,
    sample: schedulers_sample,
    ..FENCE
};

fn schedulers_rows() -> Vec<RowSpec> {
    let mut rows = Vec::new();
    for (device, t, r) in [("HDD", (17.0, 32.0), (327.0, 433.0)), ("SSD", (9.0, 28.0), (166.0, 479.0))] {
        for (backing, ..) in BACKINGS {
            for p in ALL {
                let row = |what| RowSpec::new(format!("{device}: {backing}: {}: {what}", name(p)), "%");
                let (throughput, response) = (row("throughput deviation"), row("response deviation"));
                // The paper's ranges are Xen's, which is nearest to this.
                if backing == BACKINGS[0].0 {
                    rows.push(throughput.reproduces_range(t.0, t.1));
                    rows.push(response.reproduces_range(r.0, r.1));
                } else {
                    rows.push(throughput);
                    rows.push(response.goal(Check::AtLeast(19.0)).note("worse than behind fences"));
                }
            }
        }
    }
    rows
}

fn schedulers_sample(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let mut values = Vec::new();
    for devices in [Devices::Hdd, Devices::Ssd] {
        for (_, sched, backing) in BACKINGS {
            for p in ALL {
                let system = System { sched, backing, ..System::new(devices, false, 0, seed) };
                let c = compare(&system, p, &HETEROGENEOUS, false, Times::of(inputs))?;
                values.extend([Some(c.low.throughput), Some(c.low.response)]);
            }
        }
    }
    Ok(Sample { values, ..Sample::default() })
}
