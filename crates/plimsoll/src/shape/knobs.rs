//! `plimsoll shape set`, `freeze`, `off`: write the control segment; the controller acts within one look (20 ms).

use super::{Which, p_mode, tid};
use anyhow::{Context, Result, bail};
use clap::Args;
use plimsoll_shape::control::PMode;
use plimsoll_shape::gate::P_UNLIMITED;
use plimsoll_shape::segment::{P_WANTED_AUTO, Segment, monotonic};
use std::sync::atomic::Ordering;

/// Change knobs.
#[derive(Args)]
#[command(after_help = "Examples:\n  plimsoll shape set p=16\n  plimsoll shape set p=auto weight:web=3 lend_ms=50")]
pub struct Set {
    /// KNOB=VALUE: p (number, auto, unlimited), zeta, lend_ms, stall_ms, hold_ms, charge (count or time), pressure (thousandths of P), weight:USER.
    #[arg(required = true, value_name = "KNOB=VALUE")]
    changes: Vec<String>,
    #[command(flatten)]
    which: Which,
}

impl Set {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let segment = self.which.open()?;
        for change in &self.changes {
            let (knob, value) = change.split_once('=').with_context(|| format!("`{change}` is no KNOB=VALUE"))?;
            set(&segment, knob, value).with_context(|| change.clone())?;
        }
        Ok(())
    }
}

fn number(value: &str, low: u64, high: u64) -> Result<u64> {
    let n: u64 = value.parse().with_context(|| format!("`{value}` is no whole number"))?;
    if !(low..=high).contains(&n) {
        bail!("{n} is not within {low} to {high}");
    }
    Ok(n)
}

fn set(segment: &Segment, knob: &str, value: &str) -> Result<()> {
    let control = segment.control();
    match knob {
        "p" => {
            let wanted = match p_mode(value).map_err(anyhow::Error::msg)? {
                PMode::Auto(_) => P_WANTED_AUTO,
                PMode::Fixed(P_UNLIMITED) => P_UNLIMITED,
                // Larger ones would mean the tuner; there are no so many connections.
                PMode::Fixed(n) => n.saturating_add(1).min(P_WANTED_AUTO - 1),
            };
            control.p_wanted.store(wanted, Ordering::Relaxed);
            return Ok(());
        }
        "pressure" => {
            control.pressure_milli.store(number(value, 1, 1000)? as u32, Ordering::Relaxed);
            return Ok(());
        }
        _ => {}
    }
    let mut guard = segment.lock(tid(), monotonic());
    let gate = guard.gate();
    let ms = |low| number(value, low, 3_600_000).map(|n| n * 1_000_000);
    if let Some(name) = knob.strip_prefix("weight:") {
        let weight: f64 = value.parse().with_context(|| format!("`{value}` is no number"))?;
        if !(1.0..=1000.0).contains(&weight) {
            bail!("{weight} is not within 1 to 1000");
        }
        let known = gate.known_users().iter().position(|u| u.name() == name);
        let i = known.with_context(|| format!("no user `{name}` has been here; `plimsoll shape top` lists them"))?;
        gate.users[i].weight_milli = (weight * 1000.0).round() as u32;
        return Ok(());
    }
    let knobs = &mut gate.head.knobs;
    match knob {
        "zeta" => knobs.zeta = number(value, 1, 1024)? as u32,
        "lend_ms" => knobs.lend_ns = ms(1)?,
        "stall_ms" => knobs.stall_ns = ms(1)?,
        "hold_ms" => knobs.hold_max_ns = ms(1)?,
        "charge" => {
            knobs.charge_time = match value {
                "count" => 0,
                "time" => 1,
                other => bail!("`{other}` is neither count nor time"),
            }
        }
        _ => bail!("there is no knob `{knob}`; see `plimsoll shape set --help`"),
    }
    Ok(())
}

/// Hold all knobs where they are.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll shape freeze")]
pub struct Freeze {
    /// Let them move again.
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    which: Which,
}

/// Let everything pass.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll shape off")]
pub struct Off {
    /// Shape again.
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    which: Which,
}

fn flag(which: &Which, bit: u32, undo: bool) -> Result<()> {
    let segment = which.open()?;
    let flags = &segment.control().flags;
    if undo {
        flags.fetch_and(!bit, Ordering::Relaxed)
    } else {
        flags.fetch_or(bit, Ordering::Relaxed)
    };
    Ok(())
}

impl Freeze {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        flag(&self.which, 1, self.undo)
    }
}

impl Off {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        flag(&self.which, 2, self.undo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_shape::gate::Knobs;

    fn fresh() -> (tempfile::TempDir, Segment) {
        let dir = tempfile::tempdir().unwrap();
        let segment = Segment::create(&dir.path().join("segment"), Knobs::default(), monotonic()).unwrap();
        (dir, segment)
    }

    #[test]
    fn knobs_that_are_right_are_set() {
        let (_dir, segment) = fresh();
        segment.lock(tid(), monotonic()).gate().user(monotonic(), "web").unwrap();
        for (knob, value) in [
            ("zeta", "8"),
            ("lend_ms", "30"),
            ("stall_ms", "70"),
            ("hold_ms", "5000"),
            ("charge", "time"),
            ("weight:web", "2.5"),
            ("p", "16"),
            ("pressure", "500"),
        ] {
            set(&segment, knob, value).unwrap();
        }
        let mut guard = segment.lock(tid(), monotonic());
        let gate = guard.gate();
        let k = gate.head.knobs;
        assert_eq!((k.zeta, k.lend_ns, k.stall_ns), (8, 30_000_000, 70_000_000));
        assert_eq!((k.hold_max_ns, k.charge_time, gate.users[1].weight_milli), (5_000_000_000, 1, 2500));
        let control = segment.control();
        assert_eq!(control.p_wanted.load(Ordering::Relaxed), 17, "one more than P");
        set(&segment, "p", "auto").unwrap();
        assert_eq!(control.p_wanted.load(Ordering::Relaxed), P_WANTED_AUTO);
        assert_eq!(control.pressure_milli.load(Ordering::Relaxed), 500);
    }

    #[test]
    fn knobs_that_are_wrong_say_how() {
        let (_dir, segment) = fresh();
        for (knob, value, want) in [
            ("p", "many", "`many` is neither auto, unlimited nor a number of transactions"),
            ("zeta", "0", "0 is not within 1 to 1024"),
            ("lend_ms", "x", "`x` is no whole number"),
            ("hold_ms", "3600001", "3600001 is not within 1 to 3600000"),
            ("pressure", "1001", "1001 is not within 1 to 1000"),
            ("charge", "bytes", "`bytes` is neither count nor time"),
            ("weight:nobody", "3", "no user `nobody` has been here"),
            ("weight:others", "0.5", "0.5 is not within 1 to 1000"),
            ("weight:others", "NaN", "NaN is not within 1 to 1000"),
            ("colour", "1", "there is no knob `colour`"),
        ] {
            let e = format!("{:#}", set(&segment, knob, value).unwrap_err());
            assert!(e.contains(want), "{e}");
        }
    }
}
