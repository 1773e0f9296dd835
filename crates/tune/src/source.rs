//! Observations from what systems already report: Prometheus histograms, and OpenTelemetry traces.

use crate::profile::Observation;
use crate::record::BadRecord;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Cumulative buckets of one histogram: `(upper bound in seconds, count)`, ascending, the last bound infinite.
type Buckets = Vec<(f64, f64)>;

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

/// What was counted between two readings of the same buckets, as times in milliseconds: each bucket's executions are
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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Export {
    #[serde(default)]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans {
    #[serde(default)]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Deserialize)]
struct ScopeSpans {
    #[serde(default)]
    spans: Vec<Span>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Span {
    trace_id: String,
    name: String,
    start_time_unix_nano: Nanos,
    end_time_unix_nano: Nanos,
}

/// 64-bit numbers are strings in protobuf's JSON, and some exporters write numbers.
#[derive(Deserialize)]
#[serde(untagged)]
enum Nanos {
    Text(String),
    Number(u64),
}

impl Nanos {
    fn get(&self) -> Option<u64> {
        match self {
            Nanos::Text(t) => t.parse().ok(),
            Nanos::Number(n) => Some(*n),
        }
    }
}

/// Spans of an OTLP/JSON export (one object, or one a line, as the collector's file exporter writes): each span is an
/// execution of the component of its name, each trace a request.
///
/// # Errors
/// With the line, if it isn't such an export, or a span ends before it starts.
pub fn otlp_spans(text: &str) -> Result<BTreeMap<String, Vec<Observation>>, BadRecord> {
    let mut requests: BTreeMap<String, u64> = BTreeMap::new();
    let mut run: BTreeMap<String, Vec<Observation>> = BTreeMap::new();
    let stream = serde_json::Deserializer::from_str(text).into_iter::<Export>();
    for export in stream {
        let export = export.map_err(|e| BadRecord(format!("line {}: {e}", e.line())))?;
        let scopes = export.resource_spans.iter().flat_map(|r| &r.scope_spans);
        for span in scopes.flat_map(|s| &s.spans) {
            let times = span.start_time_unix_nano.get().zip(span.end_time_unix_nano.get());
            let Some(nanos) = times.and_then(|(from, to)| to.checked_sub(from)) else {
                return Err(BadRecord(format!(
                    "a span `{}` of trace {} ends before it starts",
                    span.name, span.trace_id
                )));
            };
            let next = requests.len() as u64;
            let request = *requests.entry(span.trace_id.clone()).or_insert(next);
            let observation = Observation { request, value: nanos as f64 / 1e6, weight: 1.0 };
            run.entry(span.name.clone()).or_default().push(observation);
        }
    }
    if run.is_empty() {
        return Err(BadRecord("there are no spans".into()));
    }
    Ok(run)
}

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

    #[test]
    fn spans_are_executions_and_traces_requests() {
        let span = |t: &str, name: &str, from: u64, to: u64| {
            format!(
                "{{\"traceId\":\"{t}\",\"name\":\"{name}\",\"startTimeUnixNano\":\"{from}\",\"endTimeUnixNano\":{to}}}"
            )
        };
        let export = |spans: &[String]| {
            format!("{{\"resourceSpans\":[{{\"scopeSpans\":[{{\"spans\":[{}]}}]}}]}}\n", spans.join(","))
        };
        let t = export(&[span("aa", "disk", 0, 2_000_000), span("bb", "disk", 5, 1_000_005)])
            + &export(&[span("aa", "cache", 0, 500_000)]);
        let run = otlp_spans(&t).unwrap();
        assert_eq!((run["disk"][0].value, run["disk"][1].request, run["cache"][0].request), (2.0, 1, 0));
        assert!(otlp_spans(&export(&[span("a", "x", 5, 1)])).unwrap_err().0.contains("ends before it starts"));
        assert!(otlp_spans("{\"resourceSpans\":[").unwrap_err().0.starts_with("line 1"));
        assert!(otlp_spans("{}").unwrap_err().0.contains("no spans"));
    }
}
