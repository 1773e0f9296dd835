//! Switches: one assumption of an experiment changed, or one mechanism undone, to see which figure moves.
//!
//! A run without any is the experiment as it is. They are turned by name (`plimsoll-lab run MT-E17 --switch wait-only`), in builds with the
//! feature `switches` only; `crates/lab/switches.toml` says which row each one is to move, and `plimsoll-lab switches` measures that.

use serde::Deserialize;

/// An assumption changed or a mechanism undone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[cfg_attr(feature = "switches", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Switch {
    /// Clusters on disks: noise reads anywhere on the disk, not in 50 GiB of its own far from the gets'
    NoiseWholeDisk,
    /// Clusters on disks: gets and noise read anywhere on the disk
    AllWholeDisk,
    /// Clusters on disks: a get is refused for its wait alone, at admission only (MT-A2; MittOS §4.1)
    WaitOnly,
    /// Clusters on disks: nothing is known of a drive's costs at first (MT-M7, M8 undone)
    NoProfile,
    /// MT-E5, E6: each get goes to a replica drawn for it first, not to the noisy one
    GetsAnywhere,
    /// VF-E5: writes to the fenced disk end when its write cache has them, as those without a fence do
    VolatileFence,
    /// VF-*: the first request of a turn is treated by the published rules, by where the arm is
    PublishedFence,
    /// VF-*: the flash cache reads ahead, and doesn't keep what is read in order, as by default
    ReadAhead,
    /// ML-E7: what is read and written is spread over the whole disk, by the megabyte
    SpreadMixes,
    /// NI-E5 to E8: writes end when the cache has them (write-back)
    WriteBack,
    /// NI-E5 to E8: reads and writes come in runs, and have extents of their own, as in the recorded sample
    Runs,
    /// NI-E5 to E8: the plain array writes together what lies in one chunk
    Coalesce,
    /// NI-E5 to E8: the cache is larger by what headers take of its small units beyond what they take of the paper's
    LargeUnits,
    /// NI-E5 to E8: nothing is deduplicated (NI-M7 to M9 undone)
    NoDedup,
    /// NI-E5 to E8: nothing is compressed
    NoCompression,
    /// AP-*: threads inside a database don't crowd each other
    NoCrowding,
}

impl Switch {
    /// Its name on the command line and in lists.
    pub fn name(self) -> &'static str {
        match self {
            Switch::NoiseWholeDisk => "noise-whole-disk",
            Switch::AllWholeDisk => "all-whole-disk",
            Switch::WaitOnly => "wait-only",
            Switch::NoProfile => "no-profile",
            Switch::GetsAnywhere => "gets-anywhere",
            Switch::VolatileFence => "volatile-fence",
            Switch::PublishedFence => "published-fence",
            Switch::ReadAhead => "read-ahead",
            Switch::SpreadMixes => "spread-mixes",
            Switch::WriteBack => "write-back",
            Switch::Runs => "runs",
            Switch::Coalesce => "coalesce",
            Switch::LargeUnits => "large-units",
            Switch::NoDedup => "no-dedup",
            Switch::NoCompression => "no-compression",
            Switch::NoCrowding => "no-crowding",
        }
    }
}
