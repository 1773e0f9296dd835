//! Options of a controller: the same for every command that starts one.

use super::lock;
use anyhow::{Result, bail};
use clap::Args;
use plimsoll_shape::control::{ControlConfig, Controller, PMode};
use plimsoll_shape::gate::{Knobs, P_UNLIMITED};
use plimsoll_shape::segment::{P_WANTED_AUTO, Segment};
use plimsoll_shape::tend::{Tender, p_wanted, zeta_wanted};
use plimsoll_shape::tune::parallelism::TunerConfig;
use std::sync::atomic::Ordering;

/// Method that finds P and ζ.
#[derive(Args, Clone)]
pub struct Tuning {
    /// Transactions inside at a time: a number, `auto`, or `unlimited` [default: auto].
    #[arg(long, value_parser = p_mode)]
    p: Option<PMode>,
    /// Never fewer than this by the tuner [default: 2].
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    p_floor: Option<u32>,
    /// Never more than this by the tuner [default: 1024].
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    p_ceiling: Option<u32>,
    /// Transactions of a user in a row: a number, or `auto` within the bounds below [default: auto].
    #[arg(long, value_parser = zeta_mode)]
    zeta: Option<u32>,
    /// Bound of unfairness between users who wait [default: 10].
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    unfairness_max: Option<u32>,
    /// Bound of the coefficient of variation of users' latencies [default: none].
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    cv_max: Option<u32>,
    /// Nobody is held for longer [default: 10000].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    hold_max_ms: Option<u64>,
}

impl Tuning {
    /// P, as asked for or as usual.
    pub fn p(&self) -> PMode {
        self.p.unwrap_or(PMode::Auto(TunerConfig::default()))
    }

    /// Knobs of a new gate.
    pub fn knobs(&self) -> Knobs {
        let usual = Knobs::default();
        Knobs { hold_max_ns: self.hold_max_ms.map_or(usual.hold_max_ns, |ms| ms * 1_000_000), ..usual }
    }

    /// Writes the options that were given into the segment, from which the controller reads them; others stay.
    ///
    /// # Errors
    /// If it contradicts itself, or what is there, or whoever has the gate's lock was stopped.
    pub fn store(&self, segment: &Segment) -> Result<()> {
        let control = segment.control();
        let limits = TunerConfig::default();
        let now = |given: Option<u32>, there: u32, usual: u32| given.unwrap_or(if there == 0 { usual } else { there });
        let floor = now(self.p_floor, control.p_floor.load(Ordering::Relaxed), limits.floor);
        let ceiling = now(self.p_ceiling, control.p_ceiling.load(Ordering::Relaxed), limits.ceiling);
        check_range(floor, ceiling)?;
        // Nothing is stored if the lock can't be had.
        let mut guard = lock(segment)?;
        if let Some(ms) = self.hold_max_ms {
            guard.gate().head.knobs.hold_max_ns = ms * 1_000_000;
        }
        control.p_floor.store(floor, Ordering::Relaxed);
        control.p_ceiling.store(ceiling, Ordering::Relaxed);
        if let Some(p) = self.p {
            control.p_wanted.store(p_code(p), Ordering::Relaxed);
        }
        for (given, to) in [
            (self.zeta, &control.zeta_wanted),
            (self.unfairness_max, &control.unfairness_max_milli),
            (self.cv_max, &control.variability_max_milli),
        ] {
            given.into_iter().for_each(|n| to.store(n, Ordering::Relaxed));
        }
        Ok(())
    }

    /// The same for a new segment, where P isn't asked for yet.
    ///
    /// # Errors
    /// As [`Tuning::store`].
    pub fn store_all(&self, segment: &Segment) -> Result<()> {
        Tuning { p: Some(self.p()), ..self.clone() }.store(segment)
    }
}

/// Builds the controller that the segment's settings ask for.
///
/// # Errors
/// If whoever has the gate's lock was stopped.
pub fn tender(segment: &Segment) -> Result<Tender> {
    let zeta = lock(segment)?.gate().head.knobs.zeta;
    let config = ControlConfig { zeta: zeta_wanted(segment), ..ControlConfig::new(p_wanted(segment)) };
    Ok(Tender::new(segment, Controller::new(config, zeta)))
}

/// P as the segment has it.
pub fn p_code(p: PMode) -> u32 {
    match p {
        PMode::Auto(_) => P_WANTED_AUTO,
        PMode::Fixed(P_UNLIMITED) => P_UNLIMITED,
        // Larger ones would mean the tuner; there are no so many connections.
        PMode::Fixed(n) => n.min(P_WANTED_AUTO - 1),
    }
}

/// # Errors
/// If there is no P between them.
pub fn check_range(floor: u32, ceiling: u32) -> Result<()> {
    if floor > ceiling {
        bail!("the tuner's floor of {floor} is above its ceiling of {ceiling}");
    }
    Ok(())
}

/// `auto`, `unlimited`, or a number.
pub fn p_mode(text: &str) -> Result<PMode, String> {
    match text {
        "auto" => Ok(PMode::Auto(TunerConfig::default())),
        "unlimited" => Ok(PMode::Fixed(P_UNLIMITED)),
        "0" => Err("P = 0 would let nobody in: 1 is the least".into()),
        n => n
            .parse()
            .map(PMode::Fixed)
            .map_err(|_| format!("`{n}` is neither auto, unlimited nor a number of transactions")),
    }
}

/// `auto` (0), or a number.
pub fn zeta_mode(text: &str) -> Result<u32, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(0),
        (_, Ok(n @ 1..=1024)) => Ok(n),
        _ => Err(format!("`{text}` is neither auto nor within 1 to 1024")),
    }
}

/// Percent, in thousandths.
pub fn percent(text: &str) -> Result<u32, String> {
    match text.parse::<f64>() {
        Ok(n) if (1.0..=1000.0).contains(&n) => Ok((n * 10.0).round() as u32),
        _ => Err(format!("`{text}` is not within 1 to 1000 percent")),
    }
}
