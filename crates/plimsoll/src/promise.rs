//! Promises as text: deadlines with their source, shares of reads, forecasts against actual times, waits by layer.

use crate::table::micros;
use plimsoll_base::OnBusy;
use plimsoll_node::http::api::{
    ForecastStatus, ObjectiveStatus, PromiseStatus, PromisedReads, Shares, TenantStatus, Traffic, VolumeStatus, Waits,
    WithinBound,
};

/// `20.0ms (volume)`, or `-`.
pub fn deadline(p: Option<&PromiseStatus>) -> String {
    p.map_or("-".into(), |p| format!("{} ({})", micros(p.deadline_us), p.from))
}

/// `97.0/1.2/1.1/0.7 %`, or `-` without reads.
pub fn shares(s: &Shares) -> String {
    if s.all() == 0 {
        return "-".into();
    }
    percents(s).join("/") + " %"
}

/// Shares that were kept, missed, waited, refused.
fn percents(s: &Shares) -> [String; 4] {
    [s.kept, s.missed, s.waited, s.refused].map(|n| percent(n, s.all()))
}

/// A share in per cent: one decimal, and more than nothing is never 0.0.
fn percent(part: u64, all: u64) -> String {
    let share = part as f64 * 100.0 / all.max(1) as f64;
    if part > 0 && share < 0.05 { "<0.1".into() } else { format!("{share:.1}") }
}

/// Lines of the windows of `reads`, each with its name.
fn windows(reads: &PromisedReads) -> Vec<String> {
    let line = |(name, s): (&str, &Shares)| {
        let [kept, missed, waited, refused] = percents(s);
        let reads = s.all();
        format!(
            "{kept} % kept, {missed} % missed, {waited} % waited, {refused} % refused, of {reads} reads in the last {name}"
        )
    };
    let all = [("minute", &reads.last_minute), ("hour", &reads.last_hour), ("day", &reads.last_day)];
    all.into_iter().filter(|(_, s)| s.all() > 0).map(line).collect()
}

/// A signed time: `+1.20ms`.
pub fn signed(us: i64) -> String {
    format!("{}{}", if us < 0 { "-" } else { "+" }, micros(us.unsigned_abs()))
}

/// Actual times against forecast ones; `None` without reads.
pub fn forecast(f: &ForecastStatus) -> Option<String> {
    (f.samples > 0).then(|| {
        let [p10, p50, p90, p99] = [f.p10_us, f.p50_us, f.p90_us, f.p99_us].map(signed);
        format!("actual - forecast: p10 {p10}, p50 {p50}, p90 {p90}, p99 {p99} ({} reads)", f.samples)
    })
}

/// Shares of times, the largest first: `cores 61 %, device 9 %`.
fn parts<'a>(all: impl Iterator<Item = (&'a String, &'a u64)>) -> Option<String> {
    let mut all: Vec<(&String, u64)> = all.map(|(name, us)| (name, *us)).filter(|(_, us)| *us > 0).collect();
    let sum: u64 = all.iter().map(|(_, us)| us).sum();
    all.sort_by_key(|(_, us)| std::cmp::Reverse(*us));
    let part = |(name, us): &(&String, u64)| format!("{name} {} %", percent(*us, sum));
    (sum > 0).then(|| all.iter().map(part).collect::<Vec<_>>().join(", "))
}

/// Time by place, and the tenants whose requests were at the device meanwhile.
fn waits(w: &Waits) -> Vec<(&'static str, String)> {
    let where_to = parts(w.by_layer_us.iter()).map(|text| ("time", format!("{text} (last one to two minutes)")));
    let who = parts(w.at_device_by_tenant_us.iter()).map(|text| ("device", format!("{text} of the time, by tenant")));
    where_to.into_iter().chain(who).collect()
}

fn of_traffic(t: &Traffic) -> Vec<(&'static str, String)> {
    let reads = windows(&t.promised).into_iter().map(|line| ("", line));
    reads.chain(forecast(&t.forecast).map(|text| ("forecast", text))).collect()
}

/// Answer to a read that would miss a deadline, of a client that didn't negotiate promises.
fn late(p: &PromiseStatus) -> &'static str {
    match p.busy {
        OnBusy::Wait => "late reads wait (busy=wait)",
        OnBusy::Error => "late reads fail at once (busy=error)",
    }
}

/// Labelled lines of a volume's promise.
pub fn of_volume(v: &VolumeStatus) -> Vec<(&'static str, String)> {
    let text = match &v.promise {
        None => {
            "no deadline of the volume or its tenant; `plimsoll connections` shows those of connections".to_string()
        }
        Some(p) => match p.from.as_str() {
            "volume" => format!("reads within {}: the volume's deadline; {}", micros(p.deadline_us), late(p)),
            "tenant" => format!("reads within {}: tenant {}'s deadline; {}", micros(p.deadline_us), v.tenant, late(p)),
            _ => format!(
                "reads within {} now: tenant {}'s automatic deadline; {}",
                micros(p.deadline_us),
                v.tenant,
                late(p)
            ),
        },
    };
    let mut lines = vec![("promise", text)];
    lines.extend(of_traffic(&v.traffic));
    lines.extend(waits(&v.waits));
    lines
}

/// Labelled lines of a tenant's promises.
pub fn of_tenant(t: &TenantStatus) -> Vec<(&'static str, String)> {
    let text = match &t.promise {
        None => "no deadline; a volume or a connection may have one".to_string(),
        Some(p) if p.from == "automatic" => {
            format!("reads within {} now: an automatic deadline; {}", micros(p.deadline_us), late(p))
        }
        Some(p) => format!(
            "reads within {}, unless the volume or the connection says otherwise; {}",
            micros(p.deadline_us),
            late(p)
        ),
    };
    let mut lines = vec![("promise", text)];
    lines.extend(of_traffic(&t.traffic));
    lines.extend(t.objectives.iter().flat_map(objective));
    lines
}

fn objective(o: &ObjectiveStatus) -> Vec<(&'static str, String)> {
    let seen = o.measured_us.map_or(String::new(), |us| format!(", is {}", micros(us)));
    let head = format!("p{} ≤ {}{seen}", o.percentile, micros(o.within_us));
    let all = [("minute", &o.last_minute), ("hour", &o.last_hour), ("day", &o.last_day)];
    let line = |(name, w): (&str, &WithinBound)| {
        let kept = if w.kept == Some(false) { "BROKEN" } else { "kept" };
        let share = w.within as f64 * 100.0 / w.requests as f64;
        ("", format!("{kept}: {share:.2} % of {} requests within it in the last {name}", w.requests))
    };
    let lines = all.into_iter().filter(|(_, w)| w.requests > 0).map(line);
    std::iter::once(("objective", head)).chain(lines).collect()
}

/// Prints labelled lines below a headline.
pub fn print(lines: &[(&str, String)]) {
    lines.iter().for_each(|(label, text)| println!("  {label:<9} {text}"));
}

/// A tenant's promises, in short.
pub fn promise(t: &TenantStatus) -> String {
    let objective = |o: &ObjectiveStatus| {
        let seen = o.measured_us.map_or("no requests yet".to_string(), |us| format!("is {}", micros(us)));
        format!("p{} ≤ {} ({seen})", o.percentile, micros(o.within_us))
    };
    let mut all: Vec<String> = t.objectives.iter().map(objective).collect();
    if let Some(p) = &t.promise {
        all.push(format!(
            "reads ≤ {}{}",
            micros(p.deadline_us),
            if p.from == "automatic" { " (automatic)" } else { "" }
        ));
    }
    match (t.weight, t.slots) {
        (_, Some(slots)) => all.push(format!("{slots} slots")),
        (Some(weight), _) if t.objectives.is_empty() => all.push(format!("weight {weight}")),
        _ => {}
    }
    all.join(", ")
}

/// State of its objectives, in a word.
pub fn kept(t: &TenantStatus) -> String {
    match t.kept {
        Some(true) if t.enforced => "kept",
        Some(true) => "met",
        Some(false) => "BROKEN",
        None => "-",
    }
    .to_string()
}

/// Tenants in the order of lists: broken promises first.
pub fn tenants(all: &[TenantStatus]) -> Vec<&TenantStatus> {
    let mut all: Vec<&TenantStatus> = all.iter().collect();
    all.sort_by_key(|t| std::cmp::Reverse(brokenness(t.kept, &t.traffic.promised.last_minute)));
    all
}

/// Volumes in the order of lists: broken promises first.
pub fn volumes(all: &[VolumeStatus]) -> Vec<&VolumeStatus> {
    let mut all: Vec<&VolumeStatus> = all.iter().collect();
    all.sort_by_key(|v| std::cmp::Reverse(brokenness(None, &v.traffic.promised.last_minute)));
    all
}

/// Order of broken promises: objectives first, then the larger share of missed deadlines.
pub fn brokenness(kept: Option<bool>, reads: &Shares) -> (bool, u64) {
    (kept == Some(false), (reads.missed_percent() * 1000.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_per_cent_of_all() {
        let s = Shares { kept: 9_969, missed: 1, waited: 20, refused: 10 };
        assert_eq!(shares(&s), "99.7/<0.1/0.2/0.1 %");
        assert_eq!(shares(&Shares::default()), "-");
        let reads = PromisedReads { last_hour: s, ..PromisedReads::default() };
        assert_eq!(
            windows(&reads),
            ["99.7 % kept, <0.1 % missed, 0.2 % waited, 0.1 % refused, of 10000 reads in the last hour"]
        );
    }

    #[test]
    fn the_broken_come_first() {
        let reads = |kept, missed| Shares { kept, missed, waited: 0, refused: 0 };
        let mut all = [(Some(true), reads(90, 10)), (None, reads(10, 0)), (Some(false), reads(1, 0))];
        all.sort_by_key(|(kept, reads)| std::cmp::Reverse(brokenness(*kept, reads)));
        assert_eq!(all.map(|(kept, _)| kept), [Some(false), Some(true), None]);
    }

    #[test]
    fn waits_are_shares_the_largest_first() {
        let w = Waits { by_layer_us: [("cores".into(), 750), ("device".into(), 250)].into(), ..Waits::default() };
        assert_eq!(waits(&w), [("time", "cores 75.0 %, device 25.0 % (last one to two minutes)".to_string())]);
    }
}
