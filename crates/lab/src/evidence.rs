//! Evidence: what every experiment gave on one commit, kept in files that can be read again, compared and made into pages.
//!
//! `results/<id>.json` is one [`Evidence`]: the report with all of its rows, its plan, the machine and the duration. It names
//! its commit. The next run of the experiment replaces it.
//!
//! * [`misses`]: the list of rows that are known to fall short. A test runs the experiments shortened, and fails if other rows do.
//! * [`switches`]: the list of mechanisms and of suspected causes of misses. Each is tested by runs with it and without it.
//! * [`audit`]: reviewers' findings on the experiments, and the state of each.
//! * [`pages`]: the pages of `docs/results`, made from all of these.

pub mod audit;
pub mod misses;
pub mod pages;
pub mod switches;

use crate::experiment::{ExperimentReport, LabError};
use crate::report::Machine;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Number of seeds, and the length of each run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Seeds 1 to N at first.
    pub seeds: u64,
    /// While judged rows are undecided, seeds are added up to this one.
    pub seeds_max: u64,
    /// True if runs are shortened.
    pub quick: bool,
}

/// One experiment's result, as `results/<id>.json` has it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Evidence {
    /// The plan of the run.
    pub plan: Plan,
    /// The machine that ran it.
    pub machine: Machine,
    /// Duration of the run, in seconds.
    pub duration_s: f64,
    /// The result, with its commit.
    #[serde(flatten)]
    pub report: ExperimentReport,
}

impl Evidence {
    /// Its file in `folder`.
    pub fn path(folder: &Path, id: &str) -> PathBuf {
        folder.join(format!("{id}.json"))
    }

    /// Reads the result of `id`; `None` if there is none.
    ///
    /// # Errors
    /// If there is a file that isn't one.
    pub fn read(folder: &Path, id: &str) -> Result<Option<Evidence>, LabError> {
        let path = Evidence::path(folder, id);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(LabError(format!("cannot read {}: {e}", path.display()))),
        };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|e| LabError(format!("{}: not a result: {e}; delete it and run again", path.display())))
    }

    /// Writes it. The file is renamed into place, so that a broken-off run leaves no half result.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn write(&self, folder: &Path) -> Result<(), LabError> {
        let path = Evidence::path(folder, &self.report.id);
        let failed = |e: &dyn std::fmt::Display| LabError(format!("cannot write {}: {e}", path.display()));
        std::fs::create_dir_all(folder).map_err(|e| failed(&e))?;
        let text = self.text().map_err(|e| failed(&e))?;
        let partial = path.with_extension("partial");
        std::fs::write(&partial, text).and_then(|()| std::fs::rename(&partial, &path)).map_err(|e| failed(&e))
    }

    /// Its JSON with a line per row and per figure, so that two results can be compared line by line.
    fn text(&self) -> Result<String, serde_json::Error> {
        use serde_json::{Value, to_string};
        let Value::Object(fields) = serde_json::to_value(self)? else { unreachable!("a struct is an object") };
        let mut lines = Vec::new();
        for (key, value) in fields {
            let value = match value {
                Value::Array(items) if items.iter().any(Value::is_object) => {
                    let items: Result<Vec<_>, _> = items.iter().map(to_string).collect();
                    format!("[\n    {}\n  ]", items?.join(",\n    "))
                }
                other => to_string(&other)?,
            };
            lines.push(format!("  {}: {value}", to_string(&key)?));
        }
        Ok(format!("{{\n{}\n}}\n", lines.join(",\n")))
    }

    /// True if a run of this program by this plan would give the same.
    pub fn is_of(&self, program: &str, plan: &Plan) -> bool {
        self.report.program == program && self.plan == *plan
    }
}
