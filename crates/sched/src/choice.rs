//! Choice of a pool's scheduler: by name, and its view from outside.

use crate::auto::{Auto, AutoConfig};
use crate::blackbox::{BlackBox, BlackBoxConfig};
use crate::cfq::{Cfq, CfqConfig, Late};
use crate::deadline::{Deadline, DeadlineConfig};
use crate::device::Discipline;
use crate::disk::DiskModel;
use crate::noop::{Noop, NoopConfig};
use crate::osds::Osds;
use crate::ssd::SsdQueue;
use plimsoll_base::Span;
use plimsoll_stack::inside::Knowledge;
use plimsoll_stack::{Layer, Stack};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A scheduler by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SchedulerKind {
    /// First in, first out.
    #[default]
    Noop,
    /// By address in batches, unless a request has waited too long.
    Deadline,
    /// Groups and their processes in turn, each with a slice of time.
    Cfq,
    /// First in, first out, over a device whose inside is hidden: waits are learned from what reads took lately.
    BlackBox,
    /// First in, first out, by the predictor that chooses itself: by costs, a throttle's rate, or what reads took that looked alike.
    Auto,
    /// First in, first out, over flash whose inside is seen: the device's layer must have a
    /// [predictor](plimsoll_stack::inside::FlashPredictor).
    Ssd,
    /// No queue: a forecast for each OSD of a Ceph cluster, and replicas where the primary would be late.
    Osds,
}

/// Options that all schedulers have.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchedulerOptions {
    /// Requests at the device at once, at least 1.
    pub depth: u32,
    /// The device's own order of requests, for prediction.
    pub discipline: Discipline,
    /// A request that would be late by no more is kept (MittOS §3.3).
    pub failover_hop: Span,
    /// Treatment of accepted requests whose promise breaks, where the scheduler can detect it.
    pub late: Late,
    /// Time that CFQ keeps the device for a process's next request (OT-M11).
    pub slice_idle: Span,
    /// Admission above leaves room for the errors of forecasts. The pool's composition sets it by its admission.
    #[serde(skip)]
    pub has_room: bool,
}

impl Default for SchedulerOptions {
    fn default() -> SchedulerOptions {
        let c = CfqConfig::default();
        SchedulerOptions {
            depth: c.depth,
            discipline: c.discipline,
            failover_hop: c.failover_hop,
            late: c.late,
            slice_idle: c.slice_idle,
            has_room: false,
        }
    }
}

impl SchedulerKind {
    /// All of them.
    pub const ALL: [SchedulerKind; 7] = [
        SchedulerKind::Noop,
        SchedulerKind::Deadline,
        SchedulerKind::Cfq,
        SchedulerKind::BlackBox,
        SchedulerKind::Ssd,
        SchedulerKind::Auto,
        SchedulerKind::Osds,
    ];
    /// Those that know what a disk's requests cost.
    pub const FOR_DISKS: [SchedulerKind; 3] = [SchedulerKind::Noop, SchedulerKind::Deadline, SchedulerKind::Cfq];

    /// Its name in configurations and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            SchedulerKind::Noop => "noop",
            SchedulerKind::Deadline => "deadline",
            SchedulerKind::Cfq => "cfq",
            SchedulerKind::BlackBox => "blackbox",
            SchedulerKind::Auto => "auto",
            SchedulerKind::Ssd => "ssd",
            SchedulerKind::Osds => "osds",
        }
    }

    /// The layer, over a device that costs what `model` says (where it predicts by costs).
    ///
    /// # Panics
    /// If the depth is zero.
    pub fn layer(self, o: &SchedulerOptions, model: DiskModel) -> Box<dyn Layer> {
        let SchedulerOptions { depth, discipline, failover_hop, late, slice_idle, has_room } = *o;
        match self {
            SchedulerKind::Noop => Box::new(Noop::new(NoopConfig { depth, discipline }, model)),
            SchedulerKind::Deadline => {
                let config = DeadlineConfig { depth, discipline, ..DeadlineConfig::default() };
                Box::new(Deadline::new(config, model))
            }
            SchedulerKind::Cfq => {
                let config = CfqConfig { depth, discipline, failover_hop, late, slice_idle, ..CfqConfig::default() };
                Box::new(Cfq::new(config, model))
            }
            SchedulerKind::BlackBox => Box::new(BlackBox::new(BlackBoxConfig { depth, ..BlackBoxConfig::default() })),
            SchedulerKind::Auto => {
                Box::new(Auto::new(AutoConfig { depth, discipline, has_room, ..AutoConfig::default() }, model))
            }
            SchedulerKind::Ssd => Box::new(SsdQueue::new(depth)),
            SchedulerKind::Osds => Box::new(Osds::new()),
        }
    }
}

/// Not the name of a scheduler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownScheduler(String);

impl fmt::Display for UnknownScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = SchedulerKind::ALL.map(SchedulerKind::name).join(", ");
        write!(f, "`{}` is no scheduler: use one of {names}", self.0)
    }
}
impl std::error::Error for UnknownScheduler {}

impl FromStr for SchedulerKind {
    type Err = UnknownScheduler;
    fn from_str(text: &str) -> Result<SchedulerKind, UnknownScheduler> {
        let found = SchedulerKind::ALL.into_iter().find(|s| s.name() == text);
        found.ok_or_else(|| UnknownScheduler(text.to_string()))
    }
}

/// A stack's scheduler as seen from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SchedulerView {
    /// Its name.
    pub name: &'static str,
    /// Requests that wait in it.
    pub waiting: usize,
    /// Requests at the device.
    pub at_device: usize,
    /// Knowledge that its predictions rest on; `None` where another layer predicts.
    pub knowledge: Option<Knowledge>,
}

/// Looks at the scheduler of `stack`; `None` if it has none.
pub fn view(stack: &Stack) -> Option<SchedulerView> {
    let see =
        |name, (waiting, at_device): (usize, usize), knowledge| SchedulerView { name, waiting, at_device, knowledge };
    let of_model =
        |m: &DiskModel| Some(Knowledge { learned: m.samples(), profiled: m.is_profiled(), confidence: m.confidence() });
    if let Some(s) = stack.layer::<Noop>() {
        return Some(see("noop", s.depths(), of_model(s.model())));
    }
    if let Some(s) = stack.layer::<Deadline>() {
        return Some(see("deadline", s.depths(), of_model(s.model())));
    }
    if let Some(s) = stack.layer::<Cfq>() {
        return Some(see("cfq", s.depths(), of_model(s.model())));
    }
    if let Some(s) = stack.layer::<Auto>() {
        let (learned, profiled) = (s.predictor().reads(), s.model().is_profiled());
        let knowledge = Knowledge { learned, profiled, confidence: s.confidence() };
        return Some(see("auto", s.depths(), Some(knowledge)));
    }
    if let Some(s) = stack.layer::<BlackBox>() {
        let p = s.predictor();
        let knowledge = Knowledge { learned: p.reads(), profiled: false, confidence: p.confidence() };
        return Some(see("blackbox", s.depths(), Some(knowledge)));
    }
    if let Some(s) = stack.layer::<Osds>() {
        return Some(see("osds", (0, s.depth()), None));
    }
    stack.layer::<SsdQueue>().map(|s| see("ssd", s.depths(), None))
}
