//! Observations from what systems already report as Prometheus histograms; OpenTelemetry's are in [`crate::otlp`].

use crate::profile::Observation;
use crate::record::BadRecord;
use std::collections::BTreeMap;

/// Cumulative buckets of one histogram: `(upper bound in seconds, count)`, ascending, the last bound infinite.
pub type Buckets = Vec<(f64, f64)>;

/// Sums the buckets of `metric` over all its series that have the given labels.
///
/// # Errors
/// If no such histogram is in the text.
pub fn prometheus_buckets(text: &str, metric: &str, labels: &[(&str, &str)]) -> Result<Buckets, BadRecord> {
    let start = format!("{metric}_bucket{{");
    let mut buckets: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for line in text.lines().filter(|l| l.starts_with(&start)) {
        let Some((inside, count)) = line[start.len()..].rsplit_once('}') else { continue };
        let has = |(name, value): &(&str, &str)| inside.split(',').any(|l| l.trim() == format!("{name}=\"{value}\""));
        if !labels.iter().all(has) {
            continue;
        }
        let le = inside.split(',').find_map(|l| l.trim().strip_prefix("le=\"")?.strip_suffix('"'));
        let bound = le.and_then(|t| if t == "+Inf" { Some(f64::INFINITY) } else { t.parse::<f64>().ok() });
        let count = count.trim().split(' ').next().and_then(|c| c.parse::<f64>().ok());
        if let (Some(bound), Some(count)) = (bound, count) {
            buckets.entry(bound.to_bits()).or_insert((bound, 0.0)).1 += count;
        }
    }
    if buckets.is_empty() {
        let labels: Vec<String> = labels.iter().map(|(n, v)| format!("{n}=\"{v}\"")).collect();
        return Err(BadRecord(format!(
            "there is no histogram {metric}{{{}}}: see what the endpoint lists",
            labels.join(",")
        )));
    }
    // Positive doubles sort as their bits do.
    Ok(buckets.into_values().collect())
}

/// Returns the executions between two readings of the same buckets, as times in milliseconds: each bucket's executions are
/// spread evenly over it in [`PER_BUCKET`] values; those beyond the last bound count at twice that bound.
///
/// # Errors
/// If the counts went down (the process restarted in between), or nothing was counted.
pub fn between(before: &Buckets, after: &Buckets) -> Result<Vec<Observation>, BadRecord> {
    let earlier = |bound: f64| before.iter().find(|b| b.0 == bound).map_or(0.0, |b| b.1);
    let (mut low, mut sum) = (0.0, 0.0);
    let mut observations = Vec::new();
    for &(bound, count) in after {
        let now = count - earlier(bound);
        let here = now - sum;
        if here < 0.0 {
            return Err(BadRecord("the histogram's counts went down: was the process restarted meanwhile?".into()));
        }
        let high = if bound.is_finite() { bound } else { 2.0 * low };
        for k in 0..PER_BUCKET {
            let share = (f64::from(k) + 0.5) / f64::from(PER_BUCKET);
            let value = 1e3 * (low + (high - low) * share);
            if here > 0.0 {
                observations.push(Observation { request: 0, value, weight: here / f64::from(PER_BUCKET) });
            }
        }
        (low, sum) = (high, now);
    }
    if observations.is_empty() {
        return Err(BadRecord("the histogram counted nothing meanwhile: is there load?".into()));
    }
    Ok(observations)
}

/// Values that stand for a bucket.
pub const PER_BUCKET: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::times;

    fn text(counts: [u32; 3]) -> String {
        let line = |le: &str, n: u32| format!("x_seconds_bucket{{pool=\"a\",op=\"read\",le=\"{le}\"}} {n}\n");
        let mut t = "# TYPE x_seconds histogram\n".to_string();
        ["0.001", "0.01", "+Inf"].iter().zip(counts).for_each(|(le, n)| t += &line(le, n));
        t + "x_seconds_bucket{pool=\"a\",op=\"write\",le=\"0.001\"} 99\n"
    }

    #[test]
    fn a_histogram_is_what_was_counted_between_two_readings() {
        let read = |c| prometheus_buckets(&text(c), "x_seconds", &[("op", "read")]).unwrap();
        let o = between(&read([10, 10, 10]), &read([20, 100, 110])).unwrap();
        let cdf = times("x", &o).unwrap();
        assert!((cdf.at(1.0) - 0.1).abs() < 1e-9 && (cdf.at(10.0) - 0.9).abs() < 1e-9, "{cdf:?}");
        assert!(cdf.max_ms() < 20.0);
        assert!(between(&read([20, 100, 110]), &read([10, 10, 10])).unwrap_err().0.contains("went down"));
        assert!(between(&read([1, 2, 3]), &read([1, 2, 3])).unwrap_err().0.contains("is there load"));
        assert!(prometheus_buckets(&text([1, 2, 3]), "y", &[]).unwrap_err().0.contains("no histogram y"));
    }
}
