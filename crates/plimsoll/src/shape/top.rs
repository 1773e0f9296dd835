//! `plimsoll shape top` and `metrics`.

use super::{Which, tid};
use crate::table::{micros, table};
use anyhow::{Result, bail};
use clap::Args;
use plimsoll_shape::gate::{Head, P_UNLIMITED, User, UserClass};
use plimsoll_shape::segment::{Segment, monotonic};
use plimsoll_shape::tune::fairness::{UserWindow, unfairness_milli};
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Watch users, their shares and waits, once a second.
#[derive(Args)]
#[command(after_help = "Examples:\n  plimsoll shape top\n  plimsoll shape top --once --json | jq '.users[].rate'")]
pub struct Top {
    /// Print one second's figures and end.
    #[arg(long)]
    once: bool,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

/// Print metrics in Prometheus' text format.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll shape metrics > /var/lib/node_exporter/shape.prom")]
pub struct Metrics {
    #[command(flatten)]
    which: Which,
}

const REFRESH: Duration = Duration::from_secs(1);

struct View {
    head: Head,
    users: Vec<User>,
    failed_open: bool,
    flags: u32,
    pressure_milli: u32,
}

fn view(segment: &Segment) -> View {
    let mut guard = segment.lock(tid(), monotonic());
    let gate = guard.gate();
    let control = segment.control();
    View {
        head: *gate.head,
        users: gate.known_users().iter().map(|u| u.as_of(monotonic())).collect(),
        failed_open: control.failed_open.load(Ordering::Relaxed) != 0,
        flags: control.flags.load(Ordering::Relaxed),
        pressure_milli: match control.pressure_milli.load(Ordering::Relaxed) {
            0 => 1000,
            n => n.min(1000),
        },
    }
}

fn p_text(p: u32) -> String {
    if p == P_UNLIMITED { "unlimited".into() } else { p.to_string() }
}

fn pressed(milli: u32) -> String {
    if milli == 1000 { String::new() } else { format!(" (pressed to {} %)", milli / 10) }
}

fn state(v: &View) -> &'static str {
    match (v.failed_open, v.flags & 2 != 0, v.flags & 1 != 0) {
        (true, ..) => "FAILED OPEN: the controller is silent, all pass",
        (_, true, _) => "off: all pass",
        (_, _, true) => "frozen",
        _ => "shaping",
    }
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
        "escapes: stall {}, hold {}, bypass {}; lent {}; unparsed {}, reaped {}, panics {}\n",
        c.stall_escapes, c.hold_escapes, c.bypass, c.lent, c.unparsed, c.reaped, c.panics
    );
    let row = |(i, u): (usize, &User)| {
        let before = u.earlier(&a.users, i).unwrap_or(u);
        let total = u.total_hist.since(&before.total_hist);
        let wait = u.wait_hist.since(&before.wait_hist);
        vec![
            u.name().into_owned(),
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
    let windows: Vec<UserWindow> = b
        .users
        .iter()
        .enumerate()
        .map(|(i, u)| {
            UserWindow::between(u.earlier(&a.users, i).unwrap_or(u), u, REFRESH.as_nanos() as u64, monotonic())
        })
        .collect();
    let user = |(i, u): (usize, &User)| {
        let before = u.earlier(&a.users, i).unwrap_or(u);
        let total = u.total_hist.since(&before.total_hist);
        serde_json::json!({
            "name": u.name(), "weight": f64::from(u.weight_milli) / 1000.0, "connections": u.conns,
            "rate": u.finished - before.finished, "inside": u.inside, "waiting": u.waiting,
            "p50_us": total.quantile(500).as_micros(), "p99_us": total.quantile(990).as_micros(),
        })
    };
    serde_json::json!({
        "state": state(b), "p": b.head.knobs.p, "zeta": b.head.knobs.zeta, "inside": b.head.normal, "over": b.head.over,
        "lent": b.head.lent, "pressure_milli": b.pressure_milli, "waiting": b.head.waiting, "finished": b.head.counters.finished,
        "unfairness_milli": unfairness_milli(&windows),
        "users": b.users.iter().enumerate().filter(|(_, u)| u.conns > 0).map(user).collect::<Vec<_>>(),
    })
}

impl Top {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        if self.json && !self.once {
            bail!("--json prints once: say `shape top --once --json`");
        }
        let segment = self.which.open()?;
        let mut before = view(&segment);
        loop {
            std::thread::sleep(REFRESH);
            let now = view(&segment);
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

impl Metrics {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        print!("{}", metrics(&view(&self.which.open()?)));
        Ok(())
    }
}

fn metrics(v: &View) -> String {
    let mut out = String::new();
    let mut one = |name: &str, kind: &str, help: &str, lines: Vec<(String, u64)>| {
        let _ = writeln!(out, "# HELP plimsoll_shape_{name} {help}\n# TYPE plimsoll_shape_{name} {kind}");
        for (labels, value) in lines {
            let _ = writeln!(out, "plimsoll_shape_{name}{labels} {value}");
        }
    };
    let alone = |n: u64| vec![(String::new(), n)];
    let (h, c) = (&v.head, &v.head.counters);
    one("p", "gauge", "Delivered user parallelism (transactions inside at most).", alone(u64::from(h.knobs.p)));
    one("zeta", "gauge", "Scheduling-round quota.", alone(u64::from(h.knobs.zeta)));
    one(
        "pressure_milli",
        "gauge",
        "Thousandths of P that the storage's forecast, or an operator, leaves.",
        alone(u64::from(v.pressure_milli)),
    );
    one("open", "gauge", "1 if everything passes.", alone(u64::from(h.knobs.open)));
    one(
        "failed_open",
        "gauge",
        "1 if that is because the controller was silent or the shim failed.",
        alone(u64::from(v.failed_open)),
    );
    let places = [("ordinary", h.normal), ("over", h.over), ("lent", h.lent)];
    one(
        "inside",
        "gauge",
        "Transactions inside, by the place they hold.",
        places.iter().map(|(n, v)| (format!("{{place=\"{n}\"}}"), u64::from(*v))).collect(),
    );
    one("waiting", "gauge", "Connections that wait.", alone(u64::from(h.waiting)));
    one("rounds_total", "counter", "Scheduling rounds.", alone(h.round));
    for (name, help, value) in [
        ("admitted_total", "Transactions let in.", c.admitted),
        ("held_total", "Transactions let in after waiting.", c.held),
        ("finished_total", "Transactions that ended.", c.finished),
        ("requests_total", "Requests answered.", c.requests),
        ("lent_total", "Places lent by silent transactions.", c.lent),
        ("bypass_total", "Lenders that came back to a full house.", c.bypass),
        ("stall_escapes_total", "Let in because nothing moved.", c.stall_escapes),
        ("hold_escapes_total", "Let in because they had waited for the bound.", c.hold_escapes),
        ("opened_total", "Let in because the gate was opened.", c.opened),
        ("reaped_total", "Connections taken back from dead processes.", c.reaped),
        ("unparsed_total", "Connections that could not be followed.", c.unparsed),
        ("overflow_total", "Connections or users beyond the tables.", c.overflow),
        ("users_given_back_total", "Entries of unused users that others got.", c.given_back),
        ("panics_total", "Panics caught at the shim's boundary.", c.panics),
        ("repairs_total", "Times the lock was taken from a dead owner.", c.repairs),
    ] {
        one(name, "counter", help, alone(value));
    }
    // A name comes from a client: quotes, backslashes and line ends are escaped.
    let name = |u: &User| format!("{{user={:?}}}", u.name());
    let users = |f: &dyn Fn(&User) -> u64| v.users.iter().map(|u| (name(u), f(u))).collect::<Vec<_>>();
    one("user_finished_total", "counter", "Transactions that ended.", users(&|u| u.finished));
    one("user_waiting", "gauge", "Connections that wait.", users(&|u| u64::from(u.waiting)));
    one("user_inside", "gauge", "Transactions inside.", users(&|u| u64::from(u.inside)));
    one("user_weight_milli", "gauge", "Weight in thousandths.", users(&|u| u64::from(u.weight_milli)));
    let quantile = |u: &User, q: u64| u.total_hist.quantile(q).as_micros();
    one(
        "user_p99_us",
        "gauge",
        "99th percentile of times from arrival to end, since the start.",
        users(&|u| quantile(u, 990)),
    );
    one("user_p999_us", "gauge", "99.9th percentile, likewise.", users(&|u| quantile(u, 999)));
    out
}
