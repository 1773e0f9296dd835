//! OT-E6-CONFLICT: OT-E6 where the settings conflict, so that a mix can gain.
//!
//! In OT-E6's server fewer than half of the requests hit the cache under every setting: the median is a disk read's time, and what is best for
//! it is best for p99, too. The paper's least median is 0.1 ms (Table 5.1), so more than half of its requests hit under `Size = |f|^2`, and its
//! least p99 is with `|f|^0.1`, whose median is a disk read's. The cache here is as large as that needs, nothing else differs.

use super::web::{bounded_of, bounded_rows, config, under};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::system::web::WebConfig;

/// The cache: with it more than half of the requests hit under `|f|^2` and fewer under `|f|^0.1`. Other sizes weren't tried.
const CACHE_BYTES: u64 = 128 << 20;

/// See the module's documentation.
pub struct Conflict;

impl Experiment for Conflict {
    fn id(&self) -> &'static str {
        "OT-E6-CONFLICT"
    }
    fn title(&self) -> &'static str {
        "Web server whose settings conflict: a point under a bound on another"
    }
    fn source(&self) -> &'static str {
        "OpTune Fig. 5.12b, c, Table 5.1"
    }
    fn device(&self) -> &'static str {
        "hdd-160g-7200"
    }
    fn notes(&self) -> Vec<String> {
        vec![format!(
            "as OT-E6, with {} MiB of cache: more than half of the requests hit with Size = |f|^2, as the paper's least median of 0.1 ms says of \
             its server, and fewer with |f|^0.1; other sizes weren't tried",
            CACHE_BYTES >> 20
        )]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = bounded_rows();
        let hits = |exponent: &str| RowSpec::new(format!("hit ratio, Size = |f|^{exponent}"), "%");
        rows.push(hits("0.1").given(Check::AtMost(50.0)).note("the cache's size was chosen for it"));
        rows.push(hits("2").given(Check::AtLeast(50.0)).note("the cache's size was chosen for it"));
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let server = WebConfig { cache_bytes: CACHE_BYTES, ..config(seed) };
        let mut sample = bounded_of(&server, inputs)?;
        for exponent in [0, 3] {
            let (_, s) = under(2, exponent, server.clone(), inputs)?;
            sample.values.push(Some(100.0 * s.hit_ratio()));
        }
        Ok(sample)
    }
}
