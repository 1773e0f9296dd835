//! `plimsoll shape metrics`: Prometheus' text format. Every family is described in docs/reference/metrics.md.

use super::Which;
use super::top::{View, view};
use anyhow::Result;
use clap::Args;
use plimsoll_shape::gate::{P_UNLIMITED, User};
use std::fmt::Write as _;

/// Print metrics in Prometheus' text format.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll shape metrics > /var/lib/node_exporter/shape.prom")]
pub struct Metrics {
    #[command(flatten)]
    which: Which,
}

impl Metrics {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        print!("{}", metrics(&view(&self.which.open()?)?));
        Ok(())
    }
}

/// A label's value: a name comes from a client, and only three escapes are known.
fn label(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

fn metrics(v: &View) -> String {
    let mut out = String::new();
    let mut one = |name: &str, kind: &str, help: &str, lines: Vec<(String, f64)>| {
        let _ = writeln!(out, "# HELP plimsoll_shape_{name} {help}\n# TYPE plimsoll_shape_{name} {kind}");
        for (labels, value) in lines {
            let value = if value == f64::INFINITY { "+Inf".to_string() } else { value.to_string() };
            let _ = writeln!(out, "plimsoll_shape_{name}{labels} {value}");
        }
    };
    let alone = |n: u64| vec![(String::new(), n as f64)];
    let (h, c) = (&v.head, &v.head.counters);
    one("p", "gauge", "Delivered user parallelism (transactions inside at most).", {
        let p = if h.knobs.p == P_UNLIMITED { f64::INFINITY } else { f64::from(h.knobs.p) };
        vec![(String::new(), p)]
    });
    one("zeta", "gauge", "Scheduling-round quota.", alone(u64::from(h.knobs.zeta)));
    one(
        "pressure_ratio",
        "gauge",
        "Share of P that the storage's forecast, or an operator, leaves.",
        vec![(String::new(), f64::from(v.pressure_milli) / 1000.0)],
    );
    one("open", "gauge", "1 if everything passes.", alone(u64::from(h.knobs.open)));
    one(
        "failed_open",
        "gauge",
        "1 if that is because the controller was silent or the shim failed.",
        alone(u64::from(v.failed_open != 0)),
    );
    let places = [("ordinary", h.normal), ("over", h.over), ("lent", h.lent)];
    one(
        "inside",
        "gauge",
        "Transactions inside, by the place they hold.",
        places.iter().map(|(n, v)| (format!("{{place=\"{n}\"}}"), f64::from(*v))).collect(),
    );
    one("waiting", "gauge", "Connections that wait.", alone(u64::from(h.waiting)));
    one("rounds_total", "counter", "Scheduling rounds.", alone(h.round));
    for (name, help, value) in [
        ("admitted_total", "Transactions let in.", c.admitted),
        ("held_total", "Transactions let in after waiting.", c.held),
        ("finished_total", "Transactions that ended.", c.finished),
        ("undone_total", "Of these, undone: victims of deadlocks, rollbacks, errors.", c.undone),
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
        ("repairs_total", "Times the lock was taken from an owner that died or failed.", c.repairs),
        ("stuck_total", "Processes that went on without the gate, as the owner of its lock was stopped.", c.stuck),
    ] {
        one(name, "counter", help, alone(value));
    }
    let name = |u: &User| format!("{{user=\"{}\"}}", label(&u.name()));
    let users = |f: &dyn Fn(&User) -> f64| v.users.iter().map(|u| (name(u), f(u))).collect::<Vec<_>>();
    one("user_finished_total", "counter", "Transactions that ended.", users(&|u| u.finished as f64));
    one("user_waiting", "gauge", "Connections that wait.", users(&|u| f64::from(u.waiting)));
    one("user_inside", "gauge", "Transactions inside.", users(&|u| f64::from(u.inside)));
    one("user_weight", "gauge", "Weight.", users(&|u| f64::from(u.weight_milli) / 1000.0));
    let quantile = |u: &User, q: u64| u.total_hist.quantile(q).as_micros() as f64 / 1e6;
    one(
        "user_p99_seconds",
        "gauge",
        "99th percentile of times from arrival to end, since the start.",
        users(&|u| quantile(u, 990)),
    );
    one(
        "user_p999_seconds",
        "gauge",
        "99.9th percentile of response times of the last seconds, by user.",
        users(&|u| quantile(u, 999)),
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_shape::gate::Knobs;
    use plimsoll_shape::segment::{Segment, monotonic};

    fn said() -> String {
        let dir = tempfile::tempdir().unwrap();
        let segment = Segment::create(&dir.path().join("s"), Knobs::default(), monotonic()).unwrap();
        segment.lock(1, monotonic()).gate().user(monotonic(), "a\"b\\c\nd\x1b[2J").unwrap();
        metrics(&view(&segment).unwrap())
    }

    #[test]
    fn names_of_clients_are_escaped_and_no_limit_is_infinite() {
        let said = said();
        assert!(said.contains("plimsoll_shape_user_inside{user=\"a\\\"b\\\\c\\nd\u{fffd}[2J\"} 0"), "{said}");
        assert!(said.lines().any(|l| l == "plimsoll_shape_p +Inf"));
        assert!(!said.bytes().any(|b| b < b' ' && b != b'\n'));
    }

    #[test]
    fn every_family_is_documented() {
        let rows = include_str!("../../../../docs/reference/metrics.md")
            .lines()
            .filter_map(|l| l.strip_prefix("| `plimsoll_shape_"));
        let cells = |l: &str| {
            let mut cells = l.split(" | ");
            [cells.next().unwrap().trim_end_matches('`').to_string(), cells.next().unwrap().to_string()]
        };
        let mut documented: Vec<[String; 2]> = rows.map(cells).collect();
        let types = said()
            .lines()
            .filter_map(|l| l.strip_prefix("# TYPE plimsoll_shape_").map(String::from))
            .collect::<Vec<_>>();
        let mut said: Vec<[String; 2]> =
            types.iter().map(|l| l.split_once(' ').unwrap()).map(|(n, t)| [n.into(), t.into()]).collect();
        documented.sort();
        said.sort();
        assert_eq!(documented, said, "docs/reference/metrics.md");
    }
}
