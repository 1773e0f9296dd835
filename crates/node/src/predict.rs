//! Configured sources of a pool's forecasts: costs or a profile for the scheduler, a predictor in visible flash, a page cache
//! in memory, tenants' terms.

use crate::config::{BadConfig, ByteSize, PoolConfig, TenantConfig};
use crate::engine::AutoTerms;
use plimsoll_base::{Class, Span};
use plimsoll_cores::Allotment;
use plimsoll_device::{DeviceSpec, FlashSpec};
use plimsoll_pool::{Costs, MemoryPlan, ModelPlan};
use plimsoll_sched::{Discipline, Profile, SchedulerKind};
use plimsoll_stack::{OwnTerms, Terms};
use std::collections::BTreeMap;
use std::path::Path;

/// Bytes of a page in memory.
const PAGE: u64 = 4096;
/// Slow reads that a budget's window is long enough for: with fewer, whether a read is slow would be luck.
const SLOW_READS_IN_WINDOW: u64 = 100;

/// A device's profile, and the file that it is from.
#[derive(Clone, Debug)]
pub struct Measured {
    /// For messages.
    pub file: String,
    /// Measured by `plimsoll profile`.
    pub profile: Profile,
}

impl Measured {
    /// Reads a profile.
    ///
    /// # Errors
    /// If it can't be read or is none.
    pub fn read(path: &Path) -> Result<Measured, BadConfig> {
        let file = path.display().to_string();
        let unread = |e| BadConfig::of_file(path, format!("cannot be read: {e}"));
        let text = std::fs::read_to_string(path).map_err(unread)?;
        let profile = Profile::parse(&file, &text).map_err(BadConfig::found)?;
        Ok(Measured { file, profile })
    }
}

/// Checks that a profile is of this model. A file's name may differ, as files are moved: that is only logged.
fn check_name(config: &PoolConfig, file: &str, profile: &Profile) -> Result<(), BadConfig> {
    if let Some(model) = &config.device.model {
        // Flash was once named by its title.
        if FlashSpec::by_name(model).is_ok_and(|spec| spec.name == profile.device.name) {
            return Ok(());
        }
        return profile.check_model(file, model).map_err(BadConfig::found);
    }
    let device = config.device.file.as_deref().unwrap_or(Path::new(""));
    let measured = &profile.device.name;
    if Path::new(measured).file_name() != device.file_name() {
        tracing::warn!(profile = file, measured, device = %device.display(), "the profile is of a device of another name");
    }
    Ok(())
}

/// Returns a scheduler's initial costs, from the device's profile if there is one, and the order of the device's queue.
///
/// # Errors
/// If the profile is none, or another device's.
pub fn costs(
    config: &PoolConfig,
    measured: Option<&Measured>,
    kind: SchedulerKind,
    size_bytes: u64,
    model: Option<&ModelPlan>,
) -> Result<(Costs, Discipline), BadConfig> {
    let Some(Measured { file, profile }) = measured else {
        // Only of a modelled disk is it known that it takes the nearest first.
        let rotational = kind != SchedulerKind::Ssd && model.is_some_and(|m| m.spec.is_rotational());
        let discipline = if rotational { Discipline::Sstf } else { Discipline::Fifo };
        return Ok((Costs::Unknown, discipline));
    };
    let (part, needed_by) = match kind {
        SchedulerKind::Ssd => ("flash", "sched `ssd`"),
        _ => ("disk", "this pool"),
    };
    let has_part = if kind == SchedulerKind::Ssd { profile.flash.is_some() } else { profile.disk.is_some() };
    if kind != SchedulerKind::Ssd {
        profile.check_device(file, size_bytes).map_err(BadConfig::found)?;
        check_name(config, file, profile)?;
    }
    if !has_part {
        return Err(BadConfig::new(format!("{file}: has no `{part}` part, which {needed_by} needs")));
    }
    if kind == SchedulerKind::Ssd {
        check_pages(file, profile, model)?;
        check_name(config, file, profile)?;
        return Ok((Costs::Profile(Box::new(profile.clone())), Discipline::Fifo));
    }
    let discipline = profile.discipline();
    Ok((Costs::Profile(Box::new(profile.clone())), discipline))
}

/// Checks that the profile's pages are the modelled drive's.
fn check_pages(file: &str, profile: &Profile, model: Option<&ModelPlan>) -> Result<(), BadConfig> {
    let (Some(flash), Some(DeviceSpec::Flash { spec, .. })) = (&profile.flash, model.map(|m| &m.spec)) else {
        return Ok(());
    };
    if u64::from(flash.page_bytes) == spec.page_bytes() {
        return Ok(());
    }
    let (name, theirs, ours) = (&profile.device.name, flash.page_bytes, spec.page_bytes());
    let what = format!("`{name}` with pages of {theirs} bytes, and this one's have {ours}");
    Err(BadConfig::new(format!("{file}: is the profile of another device: {what}: measure this one")))
}

/// The plan of a page cache of this size (MittCache).
///
/// # Errors
/// If it has less than a page, or more than can be counted.
pub fn memory(memory: ByteSize) -> Result<MemoryPlan, BadConfig> {
    let pages = u32::try_from(memory.0 / PAGE).ok().filter(|n| (1..u32::MAX).contains(n));
    let pages =
        pages.ok_or_else(|| BadConfig::new(format!("memory of {} bytes: 4 KiB to 16 TiB make sense", memory.0)))?;
    Ok(MemoryPlan { pages, hit: Span::ZERO })
}

/// In blocks of how many bytes clients' requests reach a pool's layers: memory's pages, or the device's.
pub fn block_bytes(config: &PoolConfig, device: u32) -> u32 {
    if config.memory.is_some() { device.max(PAGE as u32) } else { device }
}

/// Configuration of tenants beside their classes, by name: the percentile of their deadlines, and their allotments.
#[derive(Clone, Debug, Default)]
pub struct Particulars(BTreeMap<String, (Option<u16>, Allotment)>);

impl Particulars {
    /// Those of configured tenants.
    pub fn of(tenants: &[TenantConfig]) -> Particulars {
        let of = |t: &TenantConfig| {
            let percentile = t.deadline_percentile.and_then(|p| percentile_bp(p).ok());
            (t.name.get_ref().clone(), (percentile, t.allotment()))
        };
        Particulars(tenants.iter().map(of).collect())
    }

    /// Returns whether a tenant has the same ones in another configuration.
    pub fn are_alike(&self, other: &Particulars, name: &str) -> bool {
        self.0.get(name).copied().unwrap_or_default() == other.0.get(name).copied().unwrap_or_default()
    }

    /// Thousandths of a tenant's accepted reads that may miss their deadlines, by its percentile.
    pub fn late_permille(&self, name: &str) -> u64 {
        let percentile = self.0.get(name).and_then(|(percentile, _)| *percentile);
        percentile.map_or(0, |bp| (10_000 - u64::from(bp)).div_ceil(10))
    }

    /// A tenant's terms, as the layers get them.
    pub fn terms(&self, name: &str, class: &Class, in_flight_max: u32) -> Terms {
        let window = |bp: u16| (SLOW_READS_IN_WINDOW * 10_000).div_ceil(10_000 - u64::from(bp)) as u32;
        let (percentile, allotment) = self.0.get(name).copied().unwrap_or_default();
        let budget = percentile.map(|bp| (bp, window(bp)));
        Terms { budget, own: OwnTerms::of(&allotment), ..Terms::of(class.clone(), in_flight_max) }
    }
}

/// A percentile in hundredths of a percent.
///
/// # Errors
/// If it's none that a deadline can be of.
pub fn percentile_bp(percentile: f64) -> Result<u16, BadConfig> {
    let bp = (percentile * 100.0).round();
    if (5000.0..=9999.0).contains(&bp) {
        return Ok(bp as u16);
    }
    Err(BadConfig::new(format!("deadline_percentile {percentile} is not between 50 and 99.99")))
}

/// A tenant's automatic deadline, if it was configured one.
///
/// # Errors
/// If the share or the bounds make no sense.
pub fn auto_terms(t: &TenantConfig) -> Result<Option<AutoTerms>, BadConfig> {
    let Some(auto) = &t.auto_deadline else { return Ok(None) };
    if t.deadline.is_some() {
        return Err(BadConfig::new("has both `deadline` and `auto_deadline`: keep one"));
    }
    let permille = (auto.refuse_percent * 10.0).round();
    if !(1.0..=500.0).contains(&permille) {
        return Err(BadConfig::new(format!("refuse_percent {} is not between 0.1 and 50", auto.refuse_percent)));
    }
    for bound in [auto.least.0, auto.most.0] {
        crate::config::check_deadline(bound)?;
    }
    if auto.least.0 > auto.most.0 {
        return Err(BadConfig::new("`least` is longer than `most`"));
    }
    Ok(Some(AutoTerms { refuse_permille: permille as u64, least: auto.least.0, most: auto.most.0 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn config(rest: &str) -> Result<Config, String> {
        let text = format!("[[pool]]\nname = \"p\"\ndevice = {{ null = true, size = \"1GiB\" }}\n{rest}");
        Config::parse(&text, std::path::Path::new("node.toml")).map_err(|e| e.to_string())
    }

    fn tenant(keys: &str) -> String {
        format!("[[tenant]]\nname = \"t\"\nclass = \"best-effort\"\nweight = 300\n{keys}\n")
    }

    #[test]
    fn terms_are_a_weight_and_a_budget() {
        let c = config(&tenant("deadline = \"20ms\"\ndeadline_percentile = 99")).unwrap();
        let p = Particulars::of(&c.tenant);
        let class = Class::BestEffort { weight: 300 };
        let terms = p.terms("t", &class, 8);
        assert_eq!((terms.weight, terms.budget, terms.in_flight_max), (300, Some((9900, 10_000)), 8));
        assert_eq!(p.terms("other", &class, 8).budget, None);
    }

    #[test]
    fn absurd_promises_are_refused_with_a_line() {
        for (keys, says) in [
            (
                "deadline_percentile = 100",
                "node.toml:5: tenant `t`: deadline_percentile 100 is not between 50 and 99.99",
            ),
            ("deadline = \"0ms\"", "a deadline of 0 can't be kept"),
            ("deadline = \"2h\"", "is no promise: at most an hour"),
            ("deadline = \"-5ms\"", "is not a time"),
            ("priority = \"fast\"", "`fast` is no priority"),
            ("auto_deadline = { refuse_percent = 80, least = \"1ms\", most = \"1s\" }", "not between 0.1 and 50"),
            ("auto_deadline = { refuse_percent = 5, least = \"2s\", most = \"1s\" }", "`least` is longer than `most`"),
            ("auto_deadline = { refuse_percent = 5, least = \"0ms\", most = \"1s\" }", "a deadline of 0"),
            ("deadline = \"1s\"\nauto_deadline = { refuse_percent = 5 }", "has both `deadline` and `auto_deadline`"),
        ] {
            let e = config(&tenant(keys)).expect_err(keys);
            assert!(e.contains(says) && e.starts_with("node.toml:"), "{keys}: {e}");
        }
        let e = config("[[pool]]\nname = \"q\"\ndevice = { null = true, size = \"1GiB\" }\nsched = \"fast\"\n");
        assert!(e.as_ref().is_err_and(|e| e.contains("cfq, blackbox, ssd")), "{e:?}");
    }
}
