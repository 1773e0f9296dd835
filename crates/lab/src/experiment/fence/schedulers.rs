//! VF-E1: how bad it is without fences, under different schedulers and backings.
//!
//! The paper compares four VMMs; ours are what those differ in as far as storage sees it: the host's scheduler, whether a virtual disk
//! is a partition or a file, and whether writes go through to the device (KVM's default).

use crate::experiment::fence::common_notes;
use crate::experiment::fence::machines::{ALL, HETEROGENEOUS, Times, compare, name};
use crate::experiment::fence::system::{Backing, Devices, System};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_sched::SchedulerKind;

/// See the module's documentation.
pub struct Schedulers;

const BACKINGS: [(&str, SchedulerKind, Backing); 5] = [
    ("CFQ, partition", SchedulerKind::Cfq, Backing::Partition),
    ("deadline, partition", SchedulerKind::Deadline, Backing::Partition),
    ("noop, partition", SchedulerKind::Noop, Backing::Partition),
    ("CFQ, file", SchedulerKind::Cfq, Backing::File),
    ("CFQ, file, writes through", SchedulerKind::Cfq, Backing::FileThrough),
];

impl Experiment for Schedulers {
    fn id(&self) -> &'static str {
        "VF-E1"
    }
    fn title(&self) -> &'static str {
        "Deviation without fences at 80 % of saturation, by scheduler and backing"
    }
    fn source(&self) -> &'static str {
        "VirtualFence §4.4, Fig 4.1"
    }
    fn device(&self) -> &'static str {
        "hdd-160g-7200, vf-sata-60g"
    }
    fn notes(&self) -> Vec<String> {
        let mut notes = common_notes();
        notes.push(
            "instead of the paper's four VMMs and bare Linux: schedulers of the host, and a partition or a file as the virtual disk. A file \
             lies in pieces of 128 MiB spread over its partition, and every eighth write is followed by one of a block of the host's file \
             system's metadata; writes through are all durable when they end, as KVM's were. The paper's ranges are Xen's"
                .into(),
        );
        notes
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for (device, t, r) in [("HDD", 17.0, 327.0), ("SSD", 9.0, 166.0)] {
            for (backing, ..) in BACKINGS {
                for p in ALL {
                    let row = |what| RowSpec::new(format!("{device}: {backing}: {}: {what}", name(p)), "%");
                    rows.push(row("throughput deviation").paper(t, Check::None).note("the paper's least"));
                    rows.push(
                        row("response deviation")
                            .paper(r, Check::AtLeast(19.0))
                            .note("the paper's least; the check is only that it's worse than behind fences"),
                    );
                }
            }
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut values = Vec::new();
        for devices in [Devices::Hdd, Devices::Ssd] {
            for (_, sched, backing) in BACKINGS {
                for p in ALL {
                    let system = System { sched, backing, ..System::new(devices, false, 0, seed) };
                    let c = compare(&system, p, &HETEROGENEOUS, false, Times::of(inputs.quick))?;
                    values.extend([Some(c.low.throughput), Some(c.low.response)]);
                }
            }
        }
        Ok(Sample { values, ..Sample::default() })
    }
}
