//! VF-E1 to VF-E9: how much a virtual machine's performance depends on the others on its disk (VirtualFence §4.3 to §4.6), and
//! the hybrid service of §4.7.
//!
//! A machine is a filebench personality on a volume of its own, in a quarter of the modelled disk. Deviation is measured as the
//! paper does: the mean of what one machine gets alone against what it gets beside the others, under the same seed.

mod deviation;
mod file;
mod hybrid;
mod machines;
mod schedulers;
mod slots;
pub(crate) mod system;

use crate::experiment::Experiment;

/// All of them.
pub fn all() -> Vec<Box<dyn Experiment>> {
    vec![
        Box::new(schedulers::Schedulers),
        Box::new(deviation::LowLoad),
        Box::new(deviation::Fenced),
        Box::new(deviation::HitRates),
        Box::new(deviation::Raw),
        Box::new(deviation::Variants),
        Box::new(deviation::Homogeneous),
        Box::new(slots::Numbers),
        Box::new(slots::Lengths),
        Box::new(hybrid::Lending),
    ]
}

/// What a reader must know about all of these.
fn common_notes() -> Vec<String> {
    vec![
        "modelled devices, ±15 % from their profiles by the seed: the 160 GB disk, and the 60 GB SSD shrunk to 3 GB and overwritten three \
         times over; fences' predictors are fitted on the very drives, as the paper's are"
            .into(),
        "a virtual machine is filebench's personality on a quarter of the disk (its files spread over 4 GiB there), without a VMM, \
         guest or page cache between; one thread for every 8 % of saturation, each machine's rate capped (the paper doesn't give its \
         numbers of threads); saturation is four machines of 16 threads without caps"
            .into(),
        "the cache is the flash cache with blocks of 16 KiB (the paper: 4) in write-evict units of 256 KiB, without deduplication and \
         compression, write-through (the paper's writes back: ours isn't trusted yet with so many writers), so every write needs the disk; its size is chosen per personality, the same for all seeds, and the hit ratio of reads is a row (VF-A4)"
            .into(),
        "deviation of means as §4.3.1 has it: alone and shared under one seed; p99's deviation is not in the paper".into(),
    ]
}
