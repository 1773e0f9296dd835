//! A replay's settings as a file: TOML, unknown keys refused.

use crate::pool::PoolConfig;
use plimsoll_base::Span;
use plimsoll_sched::choice::UnknownScheduler;
use serde::Deserialize;
use std::fmt;

/// Settings of a replay. Each key of the file has a flag of the same meaning.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ReplaySettings {
    /// `device`: a profile's name or file.
    pub device: Option<String>,
    /// `deadline`: of every read.
    pub deadline: Option<Span>,
    /// `sched`, `depth`, `hop`, `mismatch`, `seed`.
    pub pool: PoolConfig,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    device: Option<String>,
    sched: Option<toml::Spanned<String>>,
    depth: Option<u32>,
    deadline: Option<toml::Spanned<String>>,
    hop: Option<toml::Spanned<String>>,
    mismatch: Option<toml::Spanned<f64>>,
    seed: Option<u64>,
}

/// Problem of a settings file, and its line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadSettings {
    line: usize,
    what: String,
}

impl BadSettings {
    fn new(text: &str, at: Option<std::ops::Range<usize>>, what: impl Into<String>) -> BadSettings {
        let until = at.map_or(0, |r| r.start).min(text.len());
        let line = 1 + text.as_bytes()[..until].iter().filter(|&&b| b == b'\n').count();
        BadSettings { line, what: what.into() }
    }

    /// The error with the file's name.
    #[must_use]
    pub fn at(mut self, file: &str) -> BadSettingsFile {
        let what = std::mem::take(&mut self.what);
        BadSettingsFile(format!("{file}:{}: {what}", self.line))
    }
}

/// A settings file that can't be used: `FILE:LINE: what`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadSettingsFile(String);

impl fmt::Display for BadSettingsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for BadSettingsFile {}

impl ReplaySettings {
    /// Reads the text of a settings file.
    ///
    /// # Errors
    /// If it isn't TOML, has a key that there isn't, or a value that makes no sense.
    pub fn parse(text: &str) -> Result<ReplaySettings, BadSettings> {
        let w: Written = toml::from_str(text).map_err(|e| BadSettings::new(text, e.span(), e.message()))?;
        let span = |v: Option<toml::Spanned<String>>| {
            let parse = |s: toml::Spanned<String>| {
                s.get_ref()
                    .parse()
                    .map_err(|e: plimsoll_base::time::BadSpan| BadSettings::new(text, Some(s.span()), e.to_string()))
            };
            v.map(parse).transpose()
        };
        let mut pool = PoolConfig::default();
        if let Some(s) = w.sched {
            let unknown = |e: UnknownScheduler| BadSettings::new(text, Some(s.span()), e.to_string());
            pool.sched = s.get_ref().parse().map_err(unknown)?;
        }
        pool.depth = w.depth.unwrap_or(pool.depth);
        pool.seed = w.seed.unwrap_or(pool.seed);
        pool.failover_hop = span(w.hop)?.unwrap_or(pool.failover_hop);
        if let Some(m) = w.mismatch {
            if !(0.0..=0.5).contains(m.get_ref()) {
                return Err(BadSettings::new(text, Some(m.span()), "mismatch: a share between 0 and 0.5"));
            }
            pool.mismatch = *m.get_ref();
        }
        Ok(ReplaySettings { device: w.device, deadline: span(w.deadline)?, pool })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_mistakes_have_a_line() {
        let s = ReplaySettings::parse("device = \"cheetah-15k5\"\ndepth = 8\ndeadline = \"20ms\"\n").unwrap();
        assert_eq!((s.pool.depth, s.deadline), (8, Some(Span::from_millis(20))));
        for (text, says) in [
            ("depth = 1\ncolour = 2\n", "f.toml:2: unknown field `colour`"),
            ("\n\ndeadline = \"20\"\n", "f.toml:3: `20` is not a time"),
            ("mismatch = 0.9", "f.toml:1: mismatch"),
            ("sched = \"fastest\"", "f.toml:1: `fastest` is no scheduler: use one of noop, deadline, cfq"),
            ("depth = ", "f.toml:1: "),
        ] {
            let e = ReplaySettings::parse(text).expect_err(text).at("f.toml").to_string();
            assert!(e.starts_with(says), "{e}");
        }
    }
}
