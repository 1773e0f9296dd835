//! Policies by name.

use crate::base::Base;
use crate::c3::{C3, SHADOW_PERMILLE};
use crate::clone::Cloned;
use crate::hedged::Hedged;
use crate::learn::{Limit, Quantile};
use crate::mitt::Mitt;
use crate::policy::{Preference, ReplicaPolicy};
use crate::prequal::Prequal;
use crate::snitch::{Snitch, SnitchConfig};
use crate::tied::Tied;
use crate::timeout::Timeout;
use plimsoll_base::Span;
use std::fmt;
use std::str::FromStr;

/// A policy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PolicyKind {
    /// [`crate::base`].
    Base,
    /// [`crate::timeout`].
    Timeout,
    /// [`crate::clone`] with two copies, not cancelled.
    Clone,
    /// [`crate::hedged`], not cancelled, as MittOS has it.
    Hedged,
    /// [`crate::hedged`], cancelled.
    HedgedCancel,
    /// [`crate::tied`].
    Tied,
    /// [`crate::snitch`].
    Snitch,
    /// [`crate::c3`].
    C3,
    /// [`crate::prequal`].
    Prequal,
    /// [`crate::mitt`], the paper's.
    Mitt,
    /// [`crate::mitt`] that waits where the wait is least.
    MittWait,
    /// The same with hedges from a budget.
    MittBudget,
}

/// Settings that policies are built with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PolicySettings {
    /// The deadline, time-out or delay; MittOS takes the p95 of the base policy for all of them.
    pub limit: Span,
    /// `limit` is only where it begins; it then follows the p95 of answers. A time-out is always as given.
    pub learns: bool,
    /// In which order replicas are taken.
    pub order: Preference,
    /// Number of clients.
    pub clients: u16,
    /// Time of a message: tied requests go out three times as far apart, probes are waited for five times as long.
    pub hop: Span,
    /// Hedges of `mitt+budget` for a thousand gets.
    pub budget_permille: u64,
}

impl Default for PolicySettings {
    fn default() -> PolicySettings {
        PolicySettings {
            limit: Span::from_millis(20),
            learns: false,
            order: Preference::Drawn,
            clients: 1,
            hop: Span::from_micros(300),
            budget_permille: 20,
        }
    }
}

/// Settings that no policy can work with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadPolicy(String);

impl fmt::Display for BadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for BadPolicy {}

impl PolicyKind {
    /// All of them.
    pub const ALL: [PolicyKind; 12] = [
        PolicyKind::Base,
        PolicyKind::Timeout,
        PolicyKind::Clone,
        PolicyKind::Hedged,
        PolicyKind::HedgedCancel,
        PolicyKind::Tied,
        PolicyKind::Snitch,
        PolicyKind::C3,
        PolicyKind::Prequal,
        PolicyKind::Mitt,
        PolicyKind::MittWait,
        PolicyKind::MittBudget,
    ];

    /// Its name in configurations and reports.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyKind::Base => "base",
            PolicyKind::Timeout => "timeout",
            PolicyKind::Clone => "clone",
            PolicyKind::Hedged => "hedged",
            PolicyKind::HedgedCancel => "hedged+cancel",
            PolicyKind::Tied => "tied",
            PolicyKind::Snitch => "snitch",
            PolicyKind::C3 => "c3",
            PolicyKind::Prequal => "prequal",
            PolicyKind::Mitt => "mitt",
            PolicyKind::MittWait => "mitt+wait",
            PolicyKind::MittBudget => "mitt+budget",
        }
    }

    /// True if the policy uses `limit`.
    const fn has_limit(self) -> bool {
        use PolicyKind::{Base, C3, Clone, Prequal, Snitch, Tied};
        !matches!(self, Base | Clone | Tied | Snitch | C3 | Prequal)
    }

    /// True if the policy sends reads with a deadline, so that nodes refuse reads that would be late.
    pub const fn has_deadline(self) -> bool {
        matches!(self, PolicyKind::Mitt | PolicyKind::MittWait | PolicyKind::MittBudget)
    }

    /// The policy of one client.
    ///
    /// # Errors
    /// If it needs a limit and that is zero or longer than an hour, or the budget is more than a hedge for every get.
    pub fn build(self, s: &PolicySettings) -> Result<Box<dyn ReplicaPolicy + Send>, BadPolicy> {
        if self.has_limit() && (s.limit == Span::ZERO || s.limit > Span::from_secs(3600)) {
            let what = format!("{}: a limit of {}: nothing can be kept to it; use 1us to 1h", self.name(), s.limit);
            return Err(BadPolicy(what));
        }
        if s.budget_permille > 1000 {
            return Err(BadPolicy(format!(
                "{}: a budget of {} hedges for 1000 gets: use 0 to 1000",
                self.name(),
                s.budget_permille
            )));
        }
        let order = s.order;
        let limit = if s.learns { Limit::Learned(Quantile::new(s.limit, 950)) } else { Limit::Given(s.limit) };
        let hedged = |cancels| Box::new(Hedged { delay: limit, cancels, order });
        Ok(match self {
            PolicyKind::Base => Box::new(Base { order }),
            PolicyKind::Timeout => Box::new(Timeout { after: s.limit, fails_over: true, order }),
            PolicyKind::Clone => Box::new(Cloned { copies: 2, cancels: false, order }),
            PolicyKind::Hedged => hedged(false),
            PolicyKind::HedgedCancel => hedged(true),
            PolicyKind::Tied => Box::new(Tied { delay: s.hop * 3, order }),
            PolicyKind::Snitch => Box::new(Snitch::new(SnitchConfig { order, ..SnitchConfig::default() })),
            PolicyKind::C3 => Box::new(C3::new(s.clients, order, SHADOW_PERMILLE)),
            PolicyKind::Prequal => Box::new(Prequal::new(s.hop * 5, order)),
            PolicyKind::Mitt => Box::new(Mitt::new(limit, order)),
            PolicyKind::MittWait => Box::new(Mitt::with_wait(limit, order)),
            PolicyKind::MittBudget => Box::new(Mitt::with_budget(limit, order, s.budget_permille)),
        })
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = BadPolicy;
    fn from_str(text: &str) -> Result<PolicyKind, BadPolicy> {
        let found = PolicyKind::ALL.into_iter().find(|k| k.name() == text);
        found.ok_or_else(|| {
            let names = PolicyKind::ALL.map(PolicyKind::name).join(", ");
            BadPolicy(format!("`{text}` is no policy: use one of {names}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_mistakes_name_what_there_is() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let e = "fastest".parse::<PolicyKind>().unwrap_err().to_string();
        assert!(e.starts_with("`fastest` is no policy: use one of base, timeout"), "{e}");
    }

    #[test]
    fn a_deadline_of_zero_is_an_error_where_there_is_one() {
        let zero = PolicySettings { limit: Span::ZERO, ..PolicySettings::default() };
        let e = PolicyKind::Mitt.build(&zero).err().expect("no deadline can be kept").to_string();
        assert!(e.contains("mitt: a limit of 0ns"), "{e}");
        assert!(PolicyKind::Base.build(&zero).is_ok());
        let much = PolicySettings { budget_permille: 1001, ..PolicySettings::default() };
        assert!(PolicyKind::MittBudget.build(&much).is_err());
    }
}
