//! An experiment that is defined by its subject and two functions: most are.

use super::{Experiment, Inputs, LabError, RowSpec, Sample};

/// See the module's documentation; the fields are [`Experiment`]'s methods.
#[derive(Clone, Copy)]
pub struct Study {
    pub id: &'static str,
    pub title: &'static str,
    pub source: &'static str,
    pub version: u32,
    pub device: &'static str,
    /// Notes of all of its kind, then its own.
    pub common: fn() -> Vec<String>,
    pub notes: &'static [&'static str],
    pub rows: fn() -> Vec<RowSpec>,
    pub sample: fn(u64, &Inputs) -> Result<Sample, LabError>,
    /// True if the product itself refuses what a seed asks for: that seed's rows are empty, and a note says why.
    pub refused: fn(&LabError) -> bool,
}

impl Experiment for Study {
    fn id(&self) -> &'static str {
        self.id
    }
    fn title(&self) -> &'static str {
        self.title
    }
    fn source(&self) -> &'static str {
        self.source
    }
    fn version(&self) -> u32 {
        self.version
    }
    fn device(&self) -> &'static str {
        self.device
    }
    fn notes(&self) -> Vec<String> {
        let own = self.notes.iter().map(|n| n.to_string());
        (self.common)().into_iter().chain(own).collect()
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        (self.rows)()
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        match (self.sample)(seed, inputs) {
            Err(e) if (self.refused)(&e) => {
                let values = vec![None; (self.rows)().len()];
                Ok(Sample { values, notes: vec![format!("seed {seed} has no figures: {e}")], ..Sample::default() })
            }
            other => other,
        }
    }
}
