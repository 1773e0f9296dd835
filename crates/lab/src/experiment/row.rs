//! Rows of an experiment: the figure that is measured, the kind of statement that it makes, and when it is met.
//!
//! A bound is part of the statement, so a row gets both by one call: [`RowSpec::reproduces`] and the others below. The kinds
//! decide what is judged, as a tautology or a figure that was put in proves nothing; the interval over seeds decides how.

use crate::report::figure;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The kind of statement that a row makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The paper's figure, or its words, on our substrate.
    Reproduction,
    /// A goal of ours that the paper doesn't have.
    Goal,
    /// The input was given the figure: the row shows that the generator has it, nothing else.
    Generator,
    /// An invariant, which a planted mistake breaks.
    Property,
    /// Reported only.
    Information,
}

impl Kind {
    /// True if an experiment's `pass` depends on rows of this kind.
    pub fn is_judged(self) -> bool {
        matches!(self, Kind::Reproduction | Kind::Goal | Kind::Property)
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Reproduction => "reproduction",
            Kind::Goal => "goal",
            Kind::Generator => "generator",
            Kind::Property => "property",
            Kind::Information => "information",
        }
    }
}

/// Position of a row's interval relative to its bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The whole interval is within the bound.
    Met,
    /// The whole interval is outside.
    Missed,
    /// The interval spans the bound: more seeds would tell.
    Undecided,
}

impl Verdict {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::Missed => "missed",
            Verdict::Undecided => "undecided",
        }
    }

    /// True if met, false if missed; `None` if undecided.
    pub fn decided(self) -> Option<bool> {
        match self {
            Verdict::Met => Some(true),
            Verdict::Missed => Some(false),
            Verdict::Undecided => None,
        }
    }
}

/// The bound of a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Check {
    /// No bound.
    None,
    /// This range, ends included.
    Within(f64, f64),
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

/// Wide enough for a sum's rounding, narrower than any bound.
const ROUNDING: f64 = 1e-9;

impl Check {
    /// The verdict on an interval; `None` without a bound.
    pub fn judge(self, low: f64, high: f64) -> Option<Verdict> {
        let (least, most) = match self {
            Check::None => return None,
            Check::Within(least, most) => (least, most),
            Check::AtLeast(least) => (least, f64::INFINITY),
            Check::AtMost(most) => (f64::NEG_INFINITY, most),
        };
        let (least, most) = (least - ROUNDING, most + ROUNDING);
        Some(match (low >= least && high <= most, high < least || low > most) {
            (true, _) => Verdict::Met,
            (_, true) => Verdict::Missed,
            _ => Verdict::Undecided,
        })
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Check::None => f.write_str("reported only"),
            Check::Within(low, high) => write!(f, "{} to {}", figure(*low), figure(*high)),
            Check::AtLeast(low) => write!(f, "at least {}", figure(*low)),
            Check::AtMost(high) => write!(f, "at most {}", figure(*high)),
        }
    }
}

/// Greatest distance of a reproduction from a figure that the paper gives without a spread.
const TOLERANCE: f64 = 0.2;

fn around(figure: f64) -> Check {
    let (a, b) = (figure * (1.0 - TOLERANCE), figure * (1.0 + TOLERANCE));
    Check::Within(a.min(b), a.max(b))
}

/// One row before it is filled.
#[derive(Clone, PartialEq, Debug)]
pub struct RowSpec {
    /// The measured quantity.
    pub name: String,
    /// Its unit; `%`, `ms`, `1` for a bare number.
    pub unit: &'static str,
    /// The paper's figure, where it gives a number.
    pub paper: Option<f64>,
    /// The statement's kind.
    pub kind: Kind,
    /// Its bound.
    pub check: Check,
    /// The paper's words that a bound rests on.
    pub quote: &'static str,
    /// Hints for the reader.
    pub note: &'static str,
    /// True if the value follows from other rows' values: it isn't part of the decisions' hash.
    pub is_derived: bool,
}

impl RowSpec {
    /// A row that is reported only.
    pub fn new(name: impl Into<String>, unit: &'static str) -> RowSpec {
        RowSpec {
            name: name.into(),
            unit,
            paper: None,
            kind: Kind::Information,
            check: Check::None,
            quote: "",
            note: "",
            is_derived: false,
        }
    }

    /// The paper's figure beside ours, not judged: the substrates differ in what it depends on.
    #[must_use]
    pub fn beside(mut self, figure: f64) -> RowSpec {
        self.paper = Some(figure);
        self
    }

    fn states(mut self, kind: Kind, check: Check) -> RowSpec {
        assert!(self.kind == Kind::Information, "{}: states two things", self.name);
        (self.kind, self.check) = (kind, check);
        self
    }

    /// The paper's figure, to be reached within 20 % either way.
    #[must_use]
    pub fn reproduces(self, figure: f64) -> RowSpec {
        self.beside(figure).states(Kind::Reproduction, around(figure))
    }

    /// The paper gives a range over its own cases: to be reached by each of ours.
    #[must_use]
    pub fn reproduces_range(self, low: f64, high: f64) -> RowSpec {
        self.states(Kind::Reproduction, Check::Within(low, high))
    }

    /// The paper states a bound, or an order, in these words.
    #[must_use]
    pub fn paper_says(mut self, check: Check, quote: &'static str) -> RowSpec {
        self.quote = quote;
        self.states(Kind::Reproduction, check)
    }

    /// A goal of ours.
    #[must_use]
    pub fn goal(self, check: Check) -> RowSpec {
        self.states(Kind::Goal, check)
    }

    /// A figure or a shape that the input was given.
    #[must_use]
    pub fn given(self, check: Check) -> RowSpec {
        self.states(Kind::Generator, check)
    }

    /// An invariant.
    #[must_use]
    pub fn property(self, check: Check) -> RowSpec {
        self.states(Kind::Property, check)
    }

    /// Computed from other rows' values.
    #[must_use]
    pub fn derived(mut self) -> RowSpec {
        self.is_derived = true;
        self
    }

    /// With a note.
    #[must_use]
    pub fn note(mut self, note: &'static str) -> RowSpec {
        self.note = note;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_within_its_bound_outside_or_across_it() {
        use Verdict::{Met, Missed, Undecided};
        for (check, low, high, verdict) in [
            (Check::Within(1.0, 2.0), 1.0, 2.0, Met),
            (Check::Within(1.0, 2.0), 0.9, 1.5, Undecided),
            (Check::Within(1.0, 2.0), 0.5, 0.9, Missed),
            (Check::Within(1.0, 2.0), 2.1, 9.0, Missed),
            (Check::Within(1.0, 2.0), 0.0, 9.0, Undecided),
            (Check::AtLeast(3.0), 3.0, 3.0, Met),
            (Check::AtLeast(3.0), 2.0, 3.5, Undecided),
            (Check::AtMost(3.0), 3.1, 4.0, Missed),
        ] {
            assert_eq!(check.judge(low, high), Some(verdict), "{check}: {low} … {high}");
        }
        assert_eq!(Check::None.judge(0.0, 1.0), None);
    }

    #[test]
    fn a_reproduction_is_bounded_on_both_sides() {
        assert_eq!(RowSpec::new("a", "%").reproduces(50.0).check, Check::Within(40.0, 60.0));
        assert_eq!(RowSpec::new("a", "%").reproduces(-50.0).check, Check::Within(-60.0, -40.0));
    }
}
