//! Experiments: the papers' figures beside ours, by the ids of the checklist.
//!
//! An experiment names the rows that it fills (name, unit, the paper's figure, the kind of statement and its bound), and fills
//! them once for each seed. The [`runner`] does that on all cores, puts an interval around the mean and judges the interval. A
//! seed varies the same things as a repetition of the experiment would: the platters' angle, the mismatch between a device and
//! its profile, the alignment of noise, the start of the run in a trace. All compared policies have the same arrivals and the
//! same device under one seed, and the report has their difference under that seed.

pub mod accuracy;
pub mod apples;
pub mod auto;
pub mod composed;
pub mod decisions;
mod even;
pub mod fence;
pub mod flash_accuracy;
pub mod injected;
mod judged;
pub mod kept;
pub mod manylogs;
pub mod manylogs_clean;
pub mod manylogs_recovery;
pub mod manylogs_spread;
pub mod manylogs_stream;
pub mod mlfs;
pub mod nitro;
pub mod noise;
pub mod osds;
pub mod predictors;
pub mod qwin;
pub mod replicas;
mod row;
pub mod runner;
pub mod scattered;
pub mod schedulers;
pub mod shingled;
mod slowed;
pub mod stats;
mod study;
mod switch;
mod traces;
pub mod tuning;

use plimsoll_figure::plot::Plot;
use plimsoll_pool::BadPlan;
use plimsoll_replay::pool::BadPool;
use plimsoll_replay::workload::BadWorkload;
use plimsoll_trace::error::TraceError;
use std::fmt;
use std::path::{Path, PathBuf};

pub use row::{Check, Kind, RowSpec, Verdict};
pub use runner::{ExperimentReport, RowReport, RunOptions, run};
pub use switch::Switch;

/// Inputs of an experiment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inputs {
    /// The folder of recorded data, if there is one.
    pub data: Option<PathBuf>,
    /// Traces to use instead of the experiment's own, where it takes any.
    pub traces: Vec<PathBuf>,
    /// A smaller run: shorter, with the same rows.
    pub quick: bool,
    /// The smallest run that still fills the rows, for `make test`: where a quick one takes too long there. It is quick, too.
    pub brief: bool,
    /// Assumptions changed and mechanisms undone; usually none.
    pub switches: Vec<Switch>,
}

impl Inputs {
    /// Returns whether this one is turned.
    pub fn has(&self, switch: Switch) -> bool {
        self.switches.contains(&switch)
    }

    /// The length of a run: full, quick or brief.
    pub fn length<T>(&self, full: T, quick: T, brief: T) -> T {
        match (self.quick, self.brief) {
            (_, true) => brief,
            (true, false) => quick,
            (false, false) => full,
        }
    }

    /// A file of the data folder, if it's there.
    pub fn file(&self, name: &str) -> Option<PathBuf> {
        let path = self.data.as_ref()?.join(name);
        path.is_file().then_some(path)
    }
}

/// Results of one seed.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sample {
    /// One value per row, in their order; `None` where this run could not tell.
    pub values: Vec<Option<f64>>,
    /// Distributions; those of the first seed are shown.
    pub plots: Vec<Plot>,
    /// Things to know that came up while running.
    pub notes: Vec<String>,
}

/// Reason why an experiment could not be run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabError(pub String);

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for LabError {}

impl From<TraceError> for LabError {
    fn from(e: TraceError) -> LabError {
        LabError(e.to_string())
    }
}
impl From<BadPool> for LabError {
    fn from(e: BadPool) -> LabError {
        LabError(e.to_string())
    }
}
impl From<BadPlan> for LabError {
    fn from(e: BadPlan) -> LabError {
        LabError(e.to_string())
    }
}
impl From<plimsoll_fs::Error> for LabError {
    fn from(e: plimsoll_fs::Error) -> LabError {
        LabError(e.to_string())
    }
}
impl From<BadWorkload> for LabError {
    fn from(e: BadWorkload) -> LabError {
        LabError(e.to_string())
    }
}

/// An experiment.
pub trait Experiment: Sync {
    /// Its id in the checklist: `MT-E2`.
    fn id(&self) -> &'static str;
    /// Returns its subject, in a few words.
    fn title(&self) -> &'static str;
    /// Returns its place in the paper.
    fn source(&self) -> &'static str;
    /// Raised whenever its meaning changes.
    fn version(&self) -> u32 {
        1
    }
    /// The modelled devices it runs on; `none` if there is none.
    fn device(&self) -> &'static str;
    /// Files of the data folder that it reads, where they are.
    fn files(&self) -> Vec<&'static str> {
        Vec::new()
    }
    /// True if its figures are wall-clock time of this machine: two runs differ.
    fn is_timed(&self) -> bool {
        false
    }
    /// True if the experiment can use named traces instead of its own.
    fn takes_traces(&self) -> bool {
        false
    }
    /// Returns facts that a reader must know about all of it: the differences from the paper's experiment.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// Its rows.
    fn rows(&self, inputs: &Inputs) -> Vec<RowSpec>;
    /// Fills the rows under one seed. The same seed and inputs give the same sample.
    ///
    /// # Errors
    /// If data can't be read or a model can't be built.
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError>;
}

/// All experiments, in the order of their ids.
pub fn all() -> Vec<Box<dyn Experiment>> {
    let mut all: Vec<Box<dyn Experiment>> = vec![
        Box::new(scattered::RandomAgainstStream),
        Box::new(manylogs_stream::StreamBesideBatches),
        Box::new(manylogs::TraceMixes),
        Box::new(manylogs_clean::LazyCheckpoint),
        Box::new(manylogs::GroupSizes),
        Box::new(manylogs_recovery::RecoveryTime),
        Box::new(manylogs_clean::EightHours),
        Box::new(manylogs_spread::SpreadTraces),
        Box::new(manylogs_spread::TwoArms),
        Box::new(shingled::mixes::ShingledMixes),
        Box::new(shingled::clean::BandCleaning),
        Box::new(shingled::stalls::Stalls),
        Box::new(shingled::mitt::CleaningRefused),
        Box::new(replicas::failover::TimeOuts),
        Box::new(noise::NoiseTails),
        Box::new(noise::NoiseIntervals),
        Box::new(noise::BusyNodes),
        Box::new(replicas::micro::OneNoisyReplica::LowerLevel),
        Box::new(replicas::micro::OneNoisyReplica::Idle),
        Box::new(replicas::micro::OneNoisyReplica::HigherLevel),
        Box::new(replicas::micro::OneNoisyReplica::RealTime),
        Box::new(replicas::flash::ReadsBehindWrites),
        Box::new(replicas::memory::DroppedPages),
        Box::new(replicas::strategies::Strategies),
        Box::new(replicas::scale::ScaleFactors),
        Box::new(replicas::memory::MemoryScale),
        Box::new(replicas::one_host::OneHost),
        Box::new(replicas::mix::WorkloadMix),
        Box::new(replicas::adaptive::Adaptivity),
        Box::new(replicas::two_levels::TwoLevels),
        Box::new(replicas::tiers::AllInOne),
        Box::new(replicas::writes::Writes),
        Box::new(accuracy::DiskAccuracy::of(accuracy::Depth::One, accuracy::Speed::HalfBusy)),
        Box::new(accuracy::DiskAccuracy::of(accuracy::Depth::Four, accuracy::Speed::HalfBusy)),
        Box::new(accuracy::DiskAccuracy::of(accuracy::Depth::One, accuracy::Speed::TensOfMs)),
        Box::new(accuracy::DiskAccuracy::of(accuracy::Depth::Four, accuracy::Speed::TensOfMs)),
        Box::new(accuracy::DiskAccuracy::held_out()),
        Box::new(flash_accuracy::FlashAccuracy::default()),
        Box::new(injected::InjectedErrors),
        Box::new(kept::Kept::Settled),
        Box::new(kept::Kept::HeldOut),
        Box::new(kept::Kept::Start),
        Box::new(osds::Clusters),
        Box::new(decisions::DecisionCosts),
        Box::new(composed::ComposedForecasts),
        Box::new(schedulers::SchedulerComparison),
        Box::new(predictors::BatchPredictors),
        Box::new(tuning::web::SizeExponents),
        Box::new(tuning::web::IdleTimes),
        Box::new(tuning::web::Independence),
        Box::new(tuning::web::FullTarget),
        Box::new(tuning::web::SinglePoint),
        Box::new(tuning::web::Bounded),
        Box::new(tuning::conflict::Conflict),
        Box::new(tuning::web::TwoBounds),
        Box::new(tuning::web::Load),
        Box::new(tuning::jobs::LoadLevels),
        Box::new(tuning::work::FileSystem),
        Box::new(tuning::jobs::MapReduce),
        Box::new(tuning::solver::SolverOverhead),
        Box::new(tuning::web::Noise),
        Box::new(tuning::traced::Traced),
        Box::new(tuning::node::TunedNode),
        Box::new(tuning::carry::CarryOver),
        Box::new(tuning::screening::Screening),
    ];
    all.extend(mlfs::all());
    all.extend(qwin::all());
    all.extend(nitro::all());
    all.extend(fence::all());
    all.extend(auto::all());
    all.extend(apples::all().into_iter().map(|e| Box::new(e) as Box<dyn Experiment>));
    all
}

/// The experiment with this id, in any case.
pub fn by_id(id: &str) -> Option<Box<dyn Experiment>> {
    all().into_iter().find(|e| e.id().eq_ignore_ascii_case(id))
}

/// The data folder to use: `named` if given, else `../shared/data` from the working directory where it exists.
pub fn data_folder(named: Option<&Path>) -> Option<PathBuf> {
    let folder = named.unwrap_or(Path::new("../shared/data"));
    folder.is_dir().then(|| folder.to_path_buf())
}
