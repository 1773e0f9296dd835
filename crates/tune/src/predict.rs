//! The distribution of every setting, from which the solver chooses.

use crate::adapter::SETTLING;
use crate::cdf::Cdf;
use crate::compose::convolve::{BINS_COARSE, BINS_FINE};
use crate::compose::{Composer, DRAWS_DEFAULT};
use crate::profile::{Missing, Observation, Profile, times};
use crate::solve::{Candidate, Settling};
use crate::space::{Setting, Space};
use plimsoll_base::Rng;
use rayon::prelude::*;

/// Method of composing distributions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// By convolution, unless components are declared correlated.
    Convolved,
    /// By drawing requests, with this seed.
    Sampled(u64),
}

/// Settings above which grids are coarser and distributions thinner, so that all fit into memory.
const MANY: usize = 2_048;
/// Settings that one thread composes at a time: neighbours share their parts.
const CHUNK: usize = 64;

/// Composes every setting. `progress` hears of each chunk from whichever thread made it.
pub fn candidates(
    composer: &Composer<'_>,
    space: &Space,
    how: How,
    progress: &(dyn Fn(usize) + Sync),
) -> Vec<Candidate> {
    let settings: Vec<Setting> = space.settings().collect();
    let (bins, step) = if settings.len() > MANY { (BINS_COARSE, 5e-3) } else { (BINS_FINE, 2e-4) };
    let chunk = |(n, part): (usize, &[Setting])| -> Vec<Candidate> {
        let mut convolver = if how == How::Convolved { composer.convolved(bins) } else { None };
        let seed = if let How::Sampled(seed) = how { seed } else { 1 };
        let one = |(i, setting): (usize, &Setting)| {
            let cdf = match &mut convolver {
                Some(c) => c.cdf(setting),
                None => {
                    // A stream for each setting: the answer doesn't depend on who draws when.
                    let mut rng = Rng::new(seed, "draws").split(&(n * CHUNK + i).to_string());
                    composer.sampled(setting, DRAWS_DEFAULT, &mut rng)
                }
            };
            let mean_ms = cdf.mean_ms();
            let requests = composer.requests(setting);
            Candidate { setting: setting.clone(), cdf: cdf.thinned(step), mean_ms, requests, settling: None }
        };
        let made = part.iter().enumerate().map(one).collect();
        progress(part.len());
        made
    };
    settings.par_chunks(CHUNK).enumerate().flat_map_iter(chunk).collect()
}

/// Adds what switching costs, where the profile has recorded it: requests right after a switch to a setting; to one that
/// was not switched to, those after all switches together. `share` is the settling time's share of the period's time.
///
/// # Errors
/// If recorded times are none.
pub fn add_settling(candidates: &mut [Candidate], profile: &Profile, share: f64) -> Result<(), Missing> {
    let all: Vec<Observation> = profile.of_node(SETTLING).flat_map(|(_, o)| o.iter().copied()).collect();
    if all.is_empty() || share <= 0.0 {
        return Ok(());
    }
    let pooled = times(SETTLING, &all)?;
    for c in candidates {
        let own = profile.of_node(SETTLING).find(|(s, _)| **s == c.setting);
        let cdf: Cdf = own.map_or(Ok(pooled.clone()), |(_, o)| times(SETTLING, o))?;
        c.settling = Some(Settling { cdf, share });
    }
    Ok(())
}
