//! `plimsoll shape top`.

use super::{Which, failed, lock};
use crate::table::{micros, table};
use anyhow::{Result, bail};
use clap::Args;
use plimsoll_shape::gate::{Head, P_UNLIMITED, User, UserClass};
use plimsoll_shape::segment::{Segment, monotonic};
use plimsoll_shape::tune::fairness::{Seen, UserWindow, unfairness_milli};
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Watch users, their shares and waits, once a second.
#[derive(Args)]
#[command(after_help = "Examples:\n  plimsoll shape top\n  plimsoll shape top --once --json | jq '.users[].rate'")]
pub struct Top {
    /// Print the figures of one second and exit.
    #[arg(long)]
    once: bool,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

const REFRESH: Duration = Duration::from_secs(1);

/// The gate as it was at one moment, and its users at about that one.
pub struct View {
    pub head: Head,
    pub users: Vec<User>,
    pub seen: Vec<Seen>,
    pub failed_open: u32,
    pub flags: u32,
    pub pressure_milli: u32,
}

/// Users copied under the lock at a time: requests wait for it.
const AT_A_TIME: usize = 32;

/// Looks at the gate.
///
/// # Errors
/// If whoever has the gate's lock was stopped.
pub fn view(segment: &Segment) -> Result<View> {
    let head = *lock(segment)?.gate().head;
    let mut users: Vec<User> = Vec::new();
    loop {
        let mut guard = lock(segment)?;
        let gate = guard.gate();
        let more = gate.known_users().iter().skip(users.len()).take(AT_A_TIME);
        let before = users.len();
        users.extend(more);
        if users.len() < before + AT_A_TIME {
            break;
        }
    }
    let control = segment.control();
    Ok(View {
        head,
        seen: users.iter().map(|u| u.seen(monotonic())).collect(),
        users,
        failed_open: control.failed_open.load(Ordering::Relaxed),
        flags: control.flags.load(Ordering::Relaxed),
        pressure_milli: match control.pressure_milli.load(Ordering::Relaxed) {
            0 => 1000,
            n => n.min(1000),
        },
    })
}

/// A user's name as a terminal may be shown it: it came from a client.
fn shown(u: &User) -> String {
    u.name().chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn p_text(p: u32) -> String {
    if p == P_UNLIMITED { "unlimited".into() } else { p.to_string() }
}

fn pressed(milli: u32) -> String {
    if milli == 1000 { String::new() } else { format!(" (pressed to {} %)", milli / 10) }
}

fn state(v: &View) -> &'static str {
    let asked = match (v.flags & 2 != 0, v.flags & 1 != 0) {
        (true, _) => "off: all pass",
        (_, true) => "frozen",
        _ => "shaping",
    };
    failed(v.failed_open).unwrap_or(asked)
}

fn text(a: &View, b: &View) -> String {
    let c = &b.head.counters;
    let mut out = format!(
        "{}; P {}{}, zeta {}; inside {} (+{} over, {} lent), waiting {}\n",
        state(b),
        p_text(b.head.knobs.p),
        pressed(b.pressure_milli),
        b.head.knobs.zeta,
        b.head.normal,
        b.head.over,
        b.head.lent,
        b.head.waiting
    );
    let _ = writeln!(
        out,
        "escapes: stall {}, hold {}, bypass {}; lent {}; undone {}; unparsed {}, reaped {}, panics {}, stuck {}\n",
        c.stall_escapes, c.hold_escapes, c.bypass, c.lent, c.undone, c.unparsed, c.reaped, c.panics, c.stuck
    );
    let row = |(i, u): (usize, &User)| {
        let before = u.earlier(&a.users, i).unwrap_or(u);
        let total = u.total_hist.since(&before.total_hist);
        let wait = u.wait_hist.since(&before.wait_hist);
        vec![
            shown(u),
            format!("{:.1}", f64::from(u.weight_milli) / 1000.0),
            if u.class() == UserClass::LatencySensitive { "LS" } else { "BE" }.into(),
            u.conns.to_string(),
            (u.finished - before.finished).to_string(),
            u.inside.to_string(),
            u.waiting.to_string(),
            micros(wait.quantile(990).as_micros()),
            micros(total.quantile(500).as_micros()),
            micros(total.quantile(990).as_micros()),
        ]
    };
    let rows: Vec<Vec<String>> = b.users.iter().enumerate().filter(|(_, u)| u.conns > 0).map(row).collect();
    out + &table(&["USER", "WEIGHT", "CLASS", "CONNS", "TX/S", "INSIDE", "WAITING", "WAIT P99", "P50", "P99"], &rows)
}

fn json(a: &View, b: &View) -> serde_json::Value {
    let window = |(i, s): (usize, &Seen)| UserWindow::between(s.earlier(&a.seen, i), s, REFRESH.as_nanos() as u64);
    let windows: Vec<UserWindow> = b.seen.iter().enumerate().map(window).collect();
    let p = if b.head.knobs.p == P_UNLIMITED { "unlimited".into() } else { serde_json::Value::from(b.head.knobs.p) };
    let user = |(i, u): (usize, &User)| {
        let before = u.earlier(&a.users, i).unwrap_or(u);
        let total = u.total_hist.since(&before.total_hist);
        serde_json::json!({
            "name": shown(u), "weight": f64::from(u.weight_milli) / 1000.0, "connections": u.conns,
            "rate": u.finished - before.finished, "inside": u.inside, "waiting": u.waiting,
            "p50_us": total.quantile(500).as_micros(), "p99_us": total.quantile(990).as_micros(),
        })
    };
    serde_json::json!({
        "state": state(b), "p": p, "zeta": b.head.knobs.zeta, "inside": b.head.normal, "over": b.head.over,
        "lent": b.head.lent, "pressure_milli": b.pressure_milli, "waiting": b.head.waiting, "finished": b.head.counters.finished,
        "undone": b.head.counters.undone,
        "unfairness_milli": unfairness_milli(&windows),
        "users": b.users.iter().enumerate().filter(|(_, u)| u.conns > 0).map(user).collect::<Vec<_>>(),
    })
}

/// Says that the shaped server, or the proxy, has ended. Processes of several pid namespaces can't be asked for.
fn ended(segment: &Segment) -> Option<String> {
    let of = |pid: &std::sync::atomic::AtomicU32| Some(pid.load(Ordering::Relaxed)).filter(|pid| *pid != 0);
    let control = segment.control();
    let (what, pid) = match (of(&control.server_pid), of(&control.controller_pid)) {
        (Some(pid), _) => ("server", pid),
        (None, pid) => ("proxy", pid?),
    };
    segment
        .is_dead(pid)
        .then(|| format!("the shaped {what} (process {pid}) has ended: start it again, then `plimsoll shape top`"))
}

impl Top {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        if self.json && !self.once {
            bail!("--json prints once: say `shape top --once --json`");
        }
        let segment = self.which.open()?;
        if let Some(ended) = ended(&segment) {
            bail!("{ended}");
        }
        let mut before = view(&segment)?;
        loop {
            std::thread::sleep(REFRESH);
            // A server that is started again has a segment of its own.
            if let Some(ended) = ended(&segment) {
                if self.once {
                    bail!("{ended}");
                }
                println!("{ended}");
                return Ok(());
            }
            let now = view(&segment)?;
            if self.json {
                println!("{}", serde_json::to_string_pretty(&json(&before, &now))?);
            } else {
                // Clears the screen and goes to its corner.
                print!("{}{}", if self.once { "" } else { "\x1b[2J\x1b[H" }, text(&before, &now));
            }
            if self.once {
                return Ok(());
            }
            before = now;
        }
    }
}
