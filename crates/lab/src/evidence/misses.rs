//! Known misses: every judged row that falls short, with its reason.
//!
//! The list is a ratchet: a row that falls short and isn't listed fails, and so does a listed one that is met, or doesn't exist.

use crate::experiment::{Experiment, ExperimentReport, Inputs, LabError, Verdict};
use serde::Deserialize;
use std::path::Path;

/// The runs that an entry is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Runs of full length.
    Full,
    /// Shortened ones.
    Quick,
    /// Either.
    #[default]
    Both,
}

impl Form {
    fn has(self, quick: bool) -> bool {
        match self {
            Form::Both => true,
            Form::Full => !quick,
            Form::Quick => quick,
        }
    }
}

/// Rows of one experiment that fall short for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Miss {
    /// The experiment.
    pub id: String,
    /// Its rows.
    pub rows: Vec<String>,
    /// The runs in which they do.
    #[serde(default)]
    pub form: Form,
    /// The cause, as far as it is known.
    pub reason: String,
}

/// The list.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Misses {
    /// By experiment.
    #[serde(default)]
    miss: Vec<Miss>,
}

impl Misses {
    /// Reads the list.
    ///
    /// # Errors
    /// If it can't be read, with the line.
    pub fn read(path: &Path) -> Result<Misses, LabError> {
        let failed = |e: &dyn std::fmt::Display| LabError(format!("{}: {e}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| failed(&e))?;
        toml::from_str(&text).map_err(|e| failed(&e))
    }

    /// The entry that has this row.
    pub fn of(&self, id: &str, row: &str, quick: bool) -> Option<&Miss> {
        self.miss.iter().find(|m| m.id == id && m.form.has(quick) && m.rows.iter().any(|r| r == row))
    }

    /// Each way in which `report` and the list disagree, as a sentence.
    pub fn disagreements(&self, report: &ExperimentReport) -> Vec<String> {
        let about = |row: &crate::experiment::RowReport| {
            let known = self.of(&report.id, &row.name, report.quick);
            let at = format!("{}: {}: {}", report.id, row.name, row.ours.map_or("–".into(), crate::report::figure));
            match (row.judged(), known) {
                (Some(Verdict::Missed), None) => Some(format!("{at}: misses “{}” and isn't listed", row.check)),
                (Some(Verdict::Met), Some(_)) => Some(format!("{at}: meets “{}” but is listed: delete it", row.check)),
                _ => None,
            }
        };
        report.rows.iter().filter_map(about).collect()
    }

    /// Entries of experiments and rows that don't exist, or are listed twice.
    pub fn stale(&self, all: &[Box<dyn Experiment>], inputs: &Inputs) -> Vec<String> {
        let mut found = Vec::new();
        let mut seen: Vec<(&str, &str, bool)> = Vec::new();
        for m in &self.miss {
            let Some(e) = all.iter().find(|e| e.id() == m.id) else {
                found.push(format!("{}: there is no such experiment", m.id));
                continue;
            };
            let rows = e.rows(inputs);
            for row in &m.rows {
                if !rows.iter().any(|r| r.name == *row && r.kind.is_judged()) {
                    found.push(format!("{}: {row}: there is no such row, or it isn't judged", m.id));
                }
                for quick in [false, true].into_iter().filter(|q| m.form.has(*q)) {
                    if seen.contains(&(&m.id, row, quick)) {
                        found.push(format!("{}: {row}: listed twice", m.id));
                    }
                    seen.push((&m.id, row, quick));
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Check, Kind, RowReport};

    fn report(verdict: Verdict, kind: Kind) -> ExperimentReport {
        let row = RowReport {
            name: "a row".into(),
            unit: "%".into(),
            paper: None,
            ours: Some(3.0),
            lo: Some(3.0),
            hi: Some(3.0),
            n: 1,
            kind,
            verdict: Some(verdict),
            check: Check::AtMost(1.0).to_string(),
            quote: String::new(),
            note: String::new(),
        };
        ExperimentReport {
            id: "XX-E1".into(),
            pass: false,
            rows: vec![row],
            seeds: 2,
            commit: "test".into(),
            program: "test".into(),
            device: "none".into(),
            title: "a test".into(),
            source: "nowhere".into(),
            quick: true,
            notes: Vec::new(),
            decisions: String::new(),
            plots: Vec::new(),
        }
    }

    #[test]
    fn an_unlisted_miss_and_a_listed_row_that_is_met_disagree() {
        let none = Misses::default();
        let one: Misses =
            toml::from_str("[[miss]]\nid = \"XX-E1\"\nrows = [\"a row\"]\nreason = \"a test\"\n").expect("a list");
        let full: Misses =
            toml::from_str("[[miss]]\nid = \"XX-E1\"\nrows = [\"a row\"]\nform = \"full\"\nreason = \"a test\"\n")
                .expect("a list");
        let missed = report(Verdict::Missed, Kind::Reproduction);
        assert_eq!(none.disagreements(&missed).len(), 1);
        assert_eq!(one.disagreements(&missed), Vec::<String>::new());
        assert_eq!(full.disagreements(&missed).len(), 1, "the entry is of full runs");
        let met = report(Verdict::Met, Kind::Goal);
        assert_eq!((none.disagreements(&met).len(), one.disagreements(&met).len()), (0, 1));
        let undecided = report(Verdict::Undecided, Kind::Goal);
        assert_eq!((none.disagreements(&undecided).len(), one.disagreements(&undecided).len()), (0, 0));
        let given = report(Verdict::Missed, Kind::Generator);
        assert_eq!(none.disagreements(&given).len(), 0, "not judged");
        assert_eq!(one.stale(&[], &Inputs::default()).len(), 1);
    }
}
