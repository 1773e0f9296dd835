//! `plimsoll shape set`, `freeze`, `off`: write the control segment; the controller acts within one look (20 ms).

use super::tuning::{check_range, p_code, p_mode, percent, zeta_mode};
use super::{Which, group_by, lock, read_rules};
use anyhow::{Context, Error, Result, bail};
use clap::Args;
use plimsoll_shape::gate::{Gate, Knobs, USER_OTHERS, UserClass};
use plimsoll_shape::segment::{Control, Segment};
use plimsoll_shape::users::Rule;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// Change knobs: all that are named, or none if one is wrong.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  plimsoll shape set p=16\n  plimsoll shape set p=auto p_floor=4 weight:web=3 objective:web=60 lend_ms=50"
)]
pub struct Set {
    /// KNOB=VALUE: p (number, auto, unlimited), p_floor, p_ceiling, zeta (number, auto), unfairness and cv (bounds in percent; cv=none),
    /// lend_ms, stall_ms, hold_ms, charge (count or time), pressure (thousandths of P), weight:USER, objective:USER (p99.9 in ms, which makes it
    /// latency-sensitive; none), group_by and rules (FILE; both for connections to come).
    #[arg(required = true, value_name = "KNOB=VALUE")]
    changes: Vec<String>,
    #[command(flatten)]
    which: Which,
}

/// One change, found to be right.
enum Change {
    /// A word of the segment.
    Word(fn(&Control) -> &AtomicU32, u32),
    Knob(fn(&mut Knobs, u64), u64),
    Weight(usize, u32),
    /// In µs; 0 for none.
    Objective(usize, u64),
    Rules(Vec<Rule>),
}

impl Set {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        set(&self.which.open()?, &self.changes)
    }
}

fn set(segment: &Segment, changes: &[String]) -> Result<()> {
    let read = |change: &String| {
        let (knob, value) = change.split_once('=').with_context(|| format!("`{change}` is no KNOB=VALUE"))?;
        read(segment, knob, value).with_context(|| change.clone())
    };
    let changes: Vec<Change> = changes.iter().map(read).collect::<Result<_>>()?;
    check_range(limit(segment, &changes, |c| &c.p_floor, 2), limit(segment, &changes, |c| &c.p_ceiling, 1024))?;
    let mut guard = lock(segment)?;
    for change in changes {
        if let Change::Rules(rules) = &change {
            guard.set_rules(rules);
        }
        apply(segment.control(), &mut guard.gate(), &change);
    }
    Ok(())
}

/// A bound of P as it will be.
fn limit(segment: &Segment, changes: &[Change], which: fn(&Control) -> &AtomicU32, usual: u32) -> u32 {
    let control = segment.control();
    let asked = |c: &Change| match c {
        Change::Word(word, n) if std::ptr::eq(word(control), which(control)) => Some(*n),
        _ => None,
    };
    let there = Some(which(control).load(Ordering::Relaxed)).filter(|n| *n != 0);
    changes.iter().rev().find_map(asked).or(there).unwrap_or(usual)
}

fn apply(control: &Control, gate: &mut Gate<'_>, change: &Change) {
    match change {
        Change::Word(word, n) => word(control).store(*n, Ordering::Relaxed),
        Change::Knob(set, n) => set(&mut gate.head.knobs, *n),
        Change::Weight(user, milli) => gate.users[*user].weight_milli = *milli,
        Change::Objective(user, us) => {
            let u = &mut gate.users[*user];
            u.objective_us = *us;
            u.set_class(if *us == 0 { UserClass::BestEffort } else { UserClass::LatencySensitive });
        }
        Change::Rules(_) => {}
    }
}

fn number(value: &str, low: u64, high: u64) -> Result<u64> {
    let n: u64 = value.parse().with_context(|| format!("`{value}` is no whole number"))?;
    if !(low..=high).contains(&n) {
        bail!("{n} is not within {low} to {high}");
    }
    Ok(n)
}

fn fraction(value: &str, low: f64, high: f64) -> Result<f64> {
    let n: f64 = value.parse().with_context(|| format!("`{value}` is no number"))?;
    if !(low..=high).contains(&n) {
        bail!("{n} is not within {low} to {high}");
    }
    Ok(n)
}

/// A user's entry by its name.
fn user(segment: &Segment, name: &str) -> Result<usize> {
    let mut guard = lock(segment)?;
    let known = guard.gate().known_users().iter().position(|u| u.name() == name);
    known.with_context(|| format!("no user `{name}` has been here; `plimsoll shape top` lists them"))
}

fn read(segment: &Segment, knob: &str, value: &str) -> Result<Change> {
    let word =
        |word: fn(&Control) -> &AtomicU32, n: Result<u32, String>| Ok(Change::Word(word, n.map_err(Error::msg)?));
    let p_bound = || number(value, 2, 1_000_000).map(|n| n as u32).map_err(|e| e.to_string());
    let ms = |set: fn(&mut Knobs, u64)| Ok(Change::Knob(set, number(value, 1, 3_600_000)? * 1_000_000));
    if let Some(name) = knob.strip_prefix("weight:") {
        let weight = fraction(value, 1.0, 1000.0)?;
        return Ok(Change::Weight(user(segment, name)?, (weight * 1000.0).round() as u32));
    }
    if let Some(name) = knob.strip_prefix("objective:") {
        let ms = if value == "none" { 0.0 } else { fraction(value, 0.001, 3_600_000.0)? };
        let user = user(segment, name)?;
        if user == USER_OTHERS as usize {
            bail!("`others` are many users: no objective is theirs");
        }
        return Ok(Change::Objective(user, (ms * 1000.0).round() as u64));
    }
    match knob {
        "p" => word(|c| &c.p_wanted, p_mode(value).map(p_code)),
        "p_floor" => word(|c| &c.p_floor, p_bound()),
        "p_ceiling" => word(|c| &c.p_ceiling, p_bound()),
        "zeta" => word(|c| &c.zeta_wanted, zeta_mode(value)),
        "unfairness" => word(|c| &c.unfairness_max_milli, percent(value)),
        "cv" => word(|c| &c.variability_max_milli, if value == "none" { Ok(0) } else { percent(value) }),
        "pressure" => Ok(Change::Word(|c| &c.pressure_milli, number(value, 1, 1000)? as u32)),
        "group_by" => word(|c| &c.group_by, group_by(value).map(|g| g.code())),
        "rules" => Ok(Change::Rules(read_rules(Some(Path::new(value)))?)),
        "lend_ms" => ms(|k, n| k.lend_ns = n),
        "stall_ms" => ms(|k, n| k.stall_ns = n),
        "hold_ms" => ms(|k, n| k.hold_max_ns = n),
        "charge" => {
            let time = match value {
                "count" => 0,
                "time" => 1,
                other => bail!("`{other}` is neither count nor time"),
            };
            Ok(Change::Knob(|k, n| k.charge_time = n as u32, time))
        }
        _ => bail!("there is no knob `{knob}`; see `plimsoll shape set --help`"),
    }
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
    use super::super::tid;
    use super::*;
    use plimsoll_shape::control::PMode;
    use plimsoll_shape::segment::monotonic;
    use plimsoll_shape::tend::p_wanted;

    fn fresh() -> (tempfile::TempDir, Segment) {
        let dir = tempfile::tempdir().unwrap();
        let segment = Segment::create(&dir.path().join("segment"), Knobs::default(), monotonic()).unwrap();
        (dir, segment)
    }

    fn one(segment: &Segment, change: &str) -> Result<()> {
        set(segment, &[change.to_string()])
    }

    #[test]
    fn knobs_that_are_right_are_set() {
        let (dir, segment) = fresh();
        segment.lock(tid(), monotonic()).gate().user(monotonic(), "web").unwrap();
        let rules = dir.path().join("rules.toml");
        std::fs::write(&rules, "[[user]]\nname = 'a'\naccount = 'b'").unwrap();
        let changes = ["zeta=8", "lend_ms=30", "stall_ms=70", "hold_ms=5000", "charge=time", "weight:web=2.5", "p=16"];
        let more = [
            "objective:web=60",
            "p_floor=4",
            "p_ceiling=40",
            "unfairness=15",
            "cv=90",
            "group_by=peer",
            "pressure=500",
        ];
        let mut all: Vec<String> = changes.iter().chain(&more).map(|c| c.to_string()).collect();
        all.push(format!("rules={}", rules.display()));
        set(&segment, &all).unwrap();
        let control = segment.control();
        let of = |a: &AtomicU32| a.load(Ordering::Relaxed);
        assert_eq!((of(&control.p_wanted), of(&control.zeta_wanted), of(&control.pressure_milli)), (16, 8, 500));
        assert_eq!((of(&control.p_floor), of(&control.p_ceiling), of(&control.group_by)), (4, 40, 2));
        assert_eq!((of(&control.unfairness_max_milli), of(&control.variability_max_milli)), (150, 900));
        let mut guard = segment.lock(tid(), monotonic());
        assert_eq!(guard.rules().len(), 1);
        let gate = guard.gate();
        let k = gate.head.knobs;
        assert_eq!((k.lend_ns, k.stall_ns, k.hold_max_ns, k.charge_time), (30_000_000, 70_000_000, 5_000_000_000, 1));
        let web = gate.users[1];
        assert_eq!((web.weight_milli, web.objective_us, web.class()), (2500, 60_000, UserClass::LatencySensitive));
        drop(guard);
        set(&segment, &["p=auto".into(), "zeta=auto".into(), "cv=none".into(), "objective:web=none".into()]).unwrap();
        assert_eq!((of(&control.zeta_wanted), of(&control.variability_max_milli)), (0, 0));
        assert_eq!(segment.lock(tid(), monotonic()).gate().users[1].class(), UserClass::BestEffort);
        let PMode::Auto(limits) = p_wanted(&segment) else { panic!("auto was asked for") };
        assert_eq!((limits.floor, limits.ceiling), (4, 40), "its bounds stay");
    }

    #[test]
    fn knobs_that_are_wrong_say_how_and_nothing_is_changed() {
        let (_dir, segment) = fresh();
        for (change, want) in [
            ("p=many", "`many` is neither auto, unlimited nor a number of transactions"),
            ("p=0", "P = 0 would let nobody in"),
            ("p_floor=1", "1 is not within 2 to 1000000"),
            ("p_floor=2000", "the tuner's floor of 2000 is above its ceiling of 1024"),
            ("zeta=0", "`0` is neither auto nor within 1 to 1024"),
            ("unfairness=0.5", "`0.5` is not within 1 to 1000 percent"),
            ("lend_ms=x", "`x` is no whole number"),
            ("hold_ms=3600001", "3600001 is not within 1 to 3600000"),
            ("pressure=1001", "1001 is not within 1 to 1000"),
            ("charge=bytes", "`bytes` is neither count nor time"),
            ("weight:nobody=3", "no user `nobody` has been here"),
            ("weight:others=0.5", "0.5 is not within 1 to 1000"),
            ("weight:others=NaN", "NaN is not within 1 to 1000"),
            ("objective:others=60", "`others` are many users"),
            ("group_by=colour", "`colour` is none of account, database, peer, connection"),
            ("rules=no-such-file", "cannot read no-such-file"),
            ("colour=1", "there is no knob `colour`"),
            ("colour", "`colour` is no KNOB=VALUE"),
        ] {
            let e = format!("{:#}", set(&segment, &["lend_ms=99".into(), change.into()]).unwrap_err());
            assert!(e.contains(want), "{e}");
        }
        let lend_ns = segment.lock(tid(), monotonic()).gate().head.knobs.lend_ns;
        assert_eq!(lend_ns, Knobs::default().lend_ns, "the first of two isn't done without the second");
        one(&segment, "p_ceiling=3000").unwrap();
        one(&segment, "p_floor=2000").unwrap();
        assert!(one(&segment, "p_ceiling=1999").is_err());
    }
}
