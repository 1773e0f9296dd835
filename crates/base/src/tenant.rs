//! Tenants and what they were promised.

use crate::time::Span;

/// A tenant's number in its pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct TenantId(pub u16);

/// A scheduling class, as the kernel's I/O priorities have it; real time first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PriorityClass {
    /// Served before all others.
    RealTime,
    /// The usual class.
    BestEffort,
    /// Served when nobody else wants the device.
    Idle,
}

/// A class and, within it, a level 0 (first) to 7 (last).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Priority {
    /// The class.
    pub class: PriorityClass,
    /// 0..=7, 0 first.
    pub level: u8,
}

impl Priority {
    /// Best effort, level 4: what the kernel gives a process that said nothing.
    pub const DEFAULT: Priority = Priority { class: PriorityClass::BestEffort, level: 4 };
}

/// One bound on a tenant's latency distribution: `percentile` % of its requests within `bound`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Objective {
    /// In hundredths of a percent: 9990 is p99.9. In 1..=9999.
    pub percentile_bp: u16,
    /// The response time that the percentile must not exceed.
    pub bound: Span,
}

/// What kind of promise a tenant has.
#[derive(Clone, PartialEq, Debug)]
pub enum Class {
    /// A tail-latency objective (QWin); several percentiles may be bounded at once.
    LatencyCritical {
        /// At least one.
        objectives: Vec<Objective>,
    },
    /// A share of what is left.
    BestEffort {
        /// Relative to the other best-effort tenants, 1..=10000.
        weight: u32,
    },
    /// Time slots of its own (VirtualFence).
    Fenced {
        /// How many, at least 1.
        slots: u32,
    },
}

impl Class {
    /// The word used in configurations.
    pub const fn name(&self) -> &'static str {
        match self {
            Class::LatencyCritical { .. } => "latency-critical",
            Class::BestEffort { .. } => "best-effort",
            Class::Fenced { .. } => "fenced",
        }
    }
}
