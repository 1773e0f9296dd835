//! VF-E1 to VF-E9, and what limits them: how much a virtual machine's performance depends on the others on its disk (VirtualFence §4.3 to §4.6), and
//! the hybrid service of §4.7.
//!
//! A machine is a filebench personality on a volume of its own, in a quarter of the modelled disk. Deviation is measured as in
//! the paper: one machine's mean alone against its mean beside the others, under the same seed.

mod deviation;
mod file;
mod hybrid;
mod limits;
mod machines;
mod planned;
mod schedulers;
mod slots;
pub(crate) mod system;
mod variants;

use crate::experiment::study::Study;
use crate::experiment::{Experiment, LabError, Sample};
use plimsoll_pool::PoolPlan;
pub(crate) use system::{Blank, formatted, offer_of};

/// Common part of the studies.
const FENCE: Study = Study {
    id: "",
    title: "",
    source: "",
    version: 6,
    device: "hdd-160g-7200, vf-sata-60g",
    common: common_notes,
    notes: &[],
    rows: Vec::new,
    sample: |_, _| Ok(Sample::default()),
    // A drive that is slower than its kind may need more than the paper's 20 ms for one request.
    refused: |e| e.0.contains("is shorter than one request"),
};

/// The plan of VirtualFence: a disk and a flash cache of this size for each of four machines, behind fences.
///
/// # Errors
/// If a model can't be built.
pub fn plan(cache_bytes: u64, seed: u64) -> Result<PoolPlan, LabError> {
    system::System::virtual_fence(cache_bytes, seed).plan()
}

/// All of them.
pub fn all() -> Vec<Box<dyn Experiment>> {
    let all = [
        schedulers::SCHEDULERS,
        deviation::LOW_LOAD,
        deviation::FENCED,
        deviation::HIT_RATES,
        deviation::RAW,
        variants::VARIANTS,
        deviation::HOMOGENEOUS,
        slots::NUMBERS,
        slots::LENGTHS,
        hybrid::LENDING,
        limits::LIMITS,
        planned::PLANNED,
    ];
    all.into_iter().map(|s| Box::new(s) as Box<dyn Experiment>).collect()
}

/// Returns facts that a reader must know about all of these.
fn common_notes() -> Vec<String> {
    let notes = [
        "modelled devices, ±15 % from their profiles by the seed: the 160 GB disk, and the 60 GB SSD shrunk to 3 GB and overwritten three \
         times over; fences' predictors are fitted on the very drives, as the paper's are",
        "a virtual machine is filebench's personality on a quarter of the disk (its files spread over 4 GiB there), without a VMM, \
         guest or page cache between; one thread for every 8 % of saturation, each machine's rate capped, its operations coming at random \
         (the paper gives neither threads nor gaps); saturation is four machines of 16 threads without caps",
        "the cache is the flash cache with blocks of 4 KiB in write-evict units of 256 KiB, without deduplication and compression, \
         write-back, without read-ahead, as the paper's (the switch read-ahead has ours); its size is chosen per personality, the same for \
         all seeds, and the hit ratio of reads is a row (VF-A4)",
        "a fence deals slots there and back over the disk: who follows in the rotation is at most two quarters of it away (half of it is \
         what a turn's first batch is predicted with)",
        "deviation of means as §4.3.1 has it: alone and shared under one seed; p99's deviation is not in the paper",
    ];
    notes.map(str::to_string).to_vec()
}
