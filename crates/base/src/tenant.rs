//! Tenants and what they were promised.

use crate::time::Span;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

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
    /// Best effort, level 4: the kernel's default for a process without a priority.
    pub const DEFAULT: Priority = Priority { class: PriorityClass::BestEffort, level: 4 };
}

/// Not a priority.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadPriority(String);

impl std::fmt::Display for BadPriority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "`{}` is no priority: write a class and a level, `rt:0` to `rt:7` or `be:0` to `be:7`, or `idle`",
            self.0
        )
    }
}
impl std::error::Error for BadPriority {}

impl std::str::FromStr for Priority {
    type Err = BadPriority;
    /// `rt:2`, `be:4`, `idle`, as ionice has them.
    fn from_str(text: &str) -> Result<Priority, BadPriority> {
        let bad = || BadPriority(text.to_string());
        if text == "idle" {
            return Ok(Priority { class: PriorityClass::Idle, level: 7 });
        }
        let (class, level) = text.split_once(':').ok_or_else(bad)?;
        let class = match class {
            "rt" => PriorityClass::RealTime,
            "be" => PriorityClass::BestEffort,
            _ => return Err(bad()),
        };
        match level.parse() {
            Ok(level @ 0..=7) => Ok(Priority { class, level }),
            _ => Err(bad()),
        }
    }
}

/// One bound on a tenant's latency distribution: `percentile` % of its requests within `bound`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Objective {
    /// In hundredths of a percent: 9990 is p99.9. In 1..=9999.
    pub percentile_bp: u16,
    /// The response time that the percentile must not exceed.
    pub bound: Span,
}

/// Kind of promise that a tenant has.
#[derive(Clone, PartialEq, Debug)]
pub enum Class {
    /// A tail-latency objective (QWin); several percentiles may be bounded at once.
    LatencyCritical {
        /// At least one.
        objectives: Vec<Objective>,
        /// Its share relative to others where not all objectives can be met, 1..=10000.
        weight: u32,
    },
    /// A share of what is left.
    BestEffort {
        /// Relative to the other best-effort tenants, 1..=10000.
        weight: u32,
    },
    /// Time slots of its own (VirtualFence).
    Fenced {
        /// Number of slots, at least 1.
        slots: u32,
    },
}

impl Class {
    /// Default weight of a latency-critical tenant: ten times that of a best-effort one.
    pub const CRITICAL_WEIGHT: u32 = 1000;

    /// Its share relative to others'. A fenced tenant's is its slots: elsewhere it weighs as one of best effort.
    pub const fn weight(&self) -> u32 {
        match self {
            Class::LatencyCritical { weight, .. } | Class::BestEffort { weight } => *weight,
            Class::Fenced { .. } => 100,
        }
    }

    /// The word used in configurations.
    pub const fn name(&self) -> &'static str {
        match self {
            Class::LatencyCritical { .. } => "latency-critical",
            Class::BestEffort { .. } => "best-effort",
            Class::Fenced { .. } => "fenced",
        }
    }
}

/// Treatment of a volume's requests by a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheMode {
    /// They pass by.
    Off,
    /// A write is done when the slow device has it (NI-M15).
    Through,
    /// A write is done when the cache has it, durable at the next flush; the slow device gets it later.
    Back,
}

/// Answer to a read that would miss the deadline of its export, for a client that didn't negotiate promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnBusy {
    /// It is served late.
    #[default]
    Wait,
    /// It fails at once with an I/O error.
    Error,
}

impl OnBusy {
    /// The word for configurations, export names and the API.
    pub const fn name(self) -> &'static str {
        match self {
            OnBusy::Wait => "wait",
            OnBusy::Error => "error",
        }
    }
}

impl FromStr for OnBusy {
    type Err = String;
    fn from_str(text: &str) -> Result<OnBusy, String> {
        [OnBusy::Wait, OnBusy::Error]
            .into_iter()
            .find(|b| b.name() == text)
            .ok_or_else(|| format!("`busy={text}` is unknown: wait or error"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_read_as_ionice_has_them() {
        assert_eq!("be:4".parse(), Ok(Priority::DEFAULT));
        assert_eq!("rt:0".parse(), Ok(Priority { class: PriorityClass::RealTime, level: 0 }));
        assert_eq!("idle".parse(), Ok(Priority { class: PriorityClass::Idle, level: 7 }));
        for bad in ["", "be", "be:8", "be:-1", "rt:", "xx:1", "4"] {
            assert!(bad.parse::<Priority>().is_err(), "{bad}");
        }
    }
}
