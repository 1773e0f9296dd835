//! A shingled disk as it is written down.

use serde::{Deserialize, Serialize};

use crate::disk::{DiskSpec, Mapping, Sparing, SpecError};
use crate::flash::in_range;

/// Everything about one kind of shingled disk.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SmrSpec {
    /// Name in reports.
    pub name: String,
    /// Sources of the figures.
    pub source: Vec<String>,
    /// Figures that no source gives, and the assumptions in their place.
    #[serde(default)]
    pub assumed: Vec<String>,
    /// Tracks of a band: so bands are larger at the outer edge.
    pub band_tracks: u32,
    /// The last surface isn't shingled and has addresses of its own, behind the bands' (Manylogs §III-I3: MLSMR).
    #[serde(default)]
    pub unshingled_surface: bool,
    /// The persistent cache.
    pub cache: SmrCache,
    /// Cleaning of bands.
    pub clean: SmrClean,
    /// The mechanics.
    pub disk: DiskSpec,
}

/// The persistent cache: a log on the outermost tracks.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SmrCache {
    /// Its size; rounded up to pairs of cylinders.
    pub mib: u64,
    /// Runs of blocks that the drive's map of the cache can hold.
    pub entries_max: u32,
}

/// In which order a band's cached runs are read when it's cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CleanOrder {
    /// As the merge comes to them: by address in the band.
    Band,
    /// As they lie in the cache.
    Log,
}

/// Cleaning of bands.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SmrClean {
    /// Order of the cached runs.
    pub order: CleanOrder,
    /// The merged band is written aside before it's written over itself, so that loss of power can't tear it.
    pub aside_first: bool,
    /// Longest single transfer of the cleaner; requests of the host go in between.
    pub io_kib: u32,
    /// Cleaning begins when the host has been silent for so long; 0 for never. A full cache is cleaned at once.
    pub idle_ms: f64,
}

/// Name and text of each embedded profile.
const PROFILES: [(&str, &str); 1] =
    [("seagate-archive-8tb", include_str!("../../profiles/smr/seagate-archive-8tb.toml"))];

impl SmrSpec {
    /// Names of the embedded profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.iter().map(|p| p.0)
    }

    /// The embedded profile called `name`; the error lists those there are.
    pub fn by_name(name: &str) -> Result<SmrSpec, SpecError> {
        let Some((_, text)) = PROFILES.iter().find(|p| p.0 == name) else {
            let known: Vec<_> = SmrSpec::names().collect();
            return Err(SpecError::new("profile", format!("`{name}` is unknown; there are {}", known.join(", "))));
        };
        SmrSpec::from_toml(text)
    }

    /// Reads a specification in TOML; the error names line and key.
    pub fn from_toml(text: &str) -> Result<SmrSpec, SpecError> {
        let spec: SmrSpec = toml::from_str(text)
            .map_err(|e| SpecError::new("shingled disk profile", e.to_string().trim_end().to_string()))?;
        spec.check()?;
        Ok(spec)
    }

    /// The specification as a profile.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a specification is tables, numbers and strings")
    }

    /// Refuses what no shingled disk can be; the error names the key.
    pub fn check(&self) -> Result<(), SpecError> {
        self.disk.check().map_err(|e| SpecError::new(format!("disk.{}", e.key()), e.to_string()))?;
        let g = &self.disk.geometry;
        in_range("band_tracks", f64::from(self.band_tracks), 1.0, 1e6)?;
        in_range("cache.mib", self.cache.mib as f64, 1.0, 1e9)?;
        in_range("cache.entries_max", f64::from(self.cache.entries_max), 1.0, 1e8)?;
        in_range("clean.io_kib", f64::from(self.clean.io_kib), 4.0, 1_048_576.0)?;
        in_range("clean.idle_ms", self.clean.idle_ms, 0.0, 1e9)?;
        if self.disk.mechanics.actuators != 1 {
            return Err(SpecError::new("disk.mechanics.actuators", "a shingled disk has one here"));
        }
        if !matches!(g.mapping, Mapping::Cylinder | Mapping::Serpentine) {
            return Err(SpecError::new("disk.geometry.mapping", "must be `cylinder` or `serpentine`"));
        }
        let plain = |z: &crate::disk::Zone| z.front_sectors == 0 && z.slips.is_empty();
        if !matches!(g.sparing, Sparing::None | Sparing::SectorsPerZone) || !g.zones.iter().all(plain) {
            return Err(SpecError::new("disk.geometry", "bands need tracks without slipped or spared sectors"));
        }
        if self.unshingled_surface && g.surfaces < 2 {
            return Err(SpecError::new("unshingled_surface", "leaves no surface for the bands"));
        }
        Ok(())
    }
}
