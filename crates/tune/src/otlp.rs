//! Observations from OpenTelemetry: traces and histograms, in OTLP's JSON.

use crate::profile::Observation;
use crate::record::BadRecord;
use crate::source::{Buckets, between};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Export {
    #[serde(default)]
    resource_spans: Vec<ResourceSpans>,
    #[serde(default)]
    resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceMetrics {
    #[serde(default)]
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Deserialize)]
struct ScopeMetrics {
    #[serde(default)]
    metrics: Vec<Metric>,
}

#[derive(Deserialize)]
struct Metric {
    name: String,
    #[serde(default)]
    unit: String,
    histogram: Option<Histogram>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Histogram {
    aggregation_temporality: serde_json::Value,
    #[serde(default)]
    data_points: Vec<DataPoint>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DataPoint {
    #[serde(default)]
    attributes: serde_json::Value,
    time_unix_nano: Nanos,
    bucket_counts: Vec<Nanos>,
    explicit_bounds: Vec<f64>,
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

/// An OTLP/JSON export (one object, or several after each other, as the collector's file exporter writes). Of traces, each span
/// is an execution of the component of its name, each trace a request. Of histograms, each metric is a component: what
/// was counted in its delta points, or, of cumulative ones, between the first and the last export. Names that `is_node` doesn't
/// know are left alone: what else a system exports is none of the tuner's business.
///
/// # Errors
/// With the line, if it isn't such an export; there is nothing of a node in it; a node's span ends before it starts, its histogram
/// contradicts itself or counted nothing.
pub fn otlp(text: &str, is_node: &dyn Fn(&str) -> bool) -> Result<BTreeMap<String, Vec<Observation>>, BadRecord> {
    let mut requests: BTreeMap<String, u64> = BTreeMap::new();
    let mut run: BTreeMap<String, Vec<Observation>> = BTreeMap::new();
    let mut counted: BTreeMap<String, Series> = BTreeMap::new();
    let mut others: BTreeSet<String> = BTreeSet::new();
    let mut is_wanted = |name: &str| {
        let is_wanted = is_node(name);
        if !is_wanted && others.len() < NAMES_TOLD {
            others.insert(name.to_string());
        }
        is_wanted
    };
    let stream = serde_json::Deserializer::from_str(text).into_iter::<Export>();
    for export in stream {
        let export = export.map_err(|e| BadRecord(format!("line {}: {e}", e.line())))?;
        let scopes = export.resource_spans.iter().flat_map(|r| &r.scope_spans);
        for span in scopes.flat_map(|s| &s.spans).filter(|s| is_wanted(&s.name)) {
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
        let scopes = export.resource_metrics.iter().flat_map(|r| &r.scope_metrics);
        for metric in scopes.flat_map(|s| &s.metrics) {
            if let Some(h) = metric.histogram.as_ref().filter(|_| is_wanted(&metric.name)) {
                let series = counted.entry(metric.name.clone()).or_default();
                h.data_points.iter().try_for_each(|p| series.add(metric, h, p))?;
            }
        }
    }
    for (name, series) in counted {
        let observations = series.observations().map_err(|e| BadRecord(format!("histogram `{name}`: {e}")))?;
        run.insert(name, observations);
    }
    if run.is_empty() {
        let others: Vec<String> = others.into_iter().collect();
        return Err(BadRecord(match others.is_empty() {
            true => "there are no spans, and no histograms".into(),
            false => format!("no span or histogram is a node of the graph: there are {}", others.join(", ")),
        }));
    }
    Ok(run)
}

/// Names of what is exported that an error lists.
const NAMES_TOLD: usize = 12;

/// Counts of one metric.
#[derive(Default)]
struct Series {
    /// Points that each stand for what came since the last one.
    deltas: Vec<Buckets>,
    /// By attributes: the earliest and the latest of those that count from the process's start.
    cumulative: BTreeMap<String, [(u64, Buckets); 2]>,
}

impl Series {
    fn add(&mut self, metric: &Metric, histogram: &Histogram, point: &DataPoint) -> Result<(), BadRecord> {
        let bad = |what: &str| BadRecord(format!("histogram `{}`: {what}", metric.name));
        let seconds = match metric.unit.as_str() {
            "s" => 1.0,
            "ms" | "" => 1e-3,
            "us" => 1e-6,
            "ns" => 1e-9,
            other => return Err(bad(&format!("its unit `{other}` is no time: s, ms, us or ns is needed"))),
        };
        let (bounds, counts) = (&point.explicit_bounds, &point.bucket_counts);
        if counts.len() != bounds.len() + 1
            || !bounds.is_sorted_by(|a, b| a < b)
            || bounds.first().is_some_and(|b| *b < 0.0)
        {
            return Err(bad("its buckets don't ascend, or aren't one more than its bounds"));
        }
        let mut sum = 0.0;
        let mut buckets = Buckets::new();
        for (i, count) in counts.iter().enumerate() {
            sum += count.get().ok_or_else(|| bad("a bucket's count is no number"))? as f64;
            buckets.push((bounds.get(i).map_or(f64::INFINITY, |b| b * seconds), sum));
        }
        let temporality = histogram.aggregation_temporality.to_string();
        if temporality.contains('1') || temporality.contains("DELTA") {
            self.deltas.push(buckets);
            return Ok(());
        }
        let at = point.time_unix_nano.get().ok_or_else(|| bad("a point has no time"))?;
        let known = self.cumulative.entry(point.attributes.to_string());
        let [first, last] = known.or_insert_with(|| [(at, buckets.clone()), (at, buckets.clone())]);
        if at < first.0 {
            *first = (at, buckets);
        } else if at > last.0 {
            *last = (at, buckets);
        }
        Ok(())
    }

    fn observations(&self) -> Result<Vec<Observation>, BadRecord> {
        let mut all = Vec::new();
        let counts = |b: &Buckets| b.last().is_some_and(|l| l.1 > 0.0);
        for buckets in self.deltas.iter().filter(|b| counts(b)) {
            all.extend(between(&Buckets::new(), buckets)?);
        }
        for [first, last] in self.cumulative.values() {
            if first.0 == last.0 {
                return Err(BadRecord("it counts from its process's start: export it before and after".into()));
            }
            let is_still = first.1.last().map(|b| b.1) == last.1.last().map(|b| b.1);
            if !is_still {
                all.extend(between(&first.1, &last.1)?);
            }
        }
        if all.is_empty() {
            return Err(BadRecord("it counted nothing meanwhile: is there load?".into()));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::times;

    fn otlp(text: &str) -> Result<BTreeMap<String, Vec<Observation>>, BadRecord> {
        super::otlp(text, &|name| ["disk", "cache", "x"].contains(&name))
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
        let run = otlp(&t).unwrap();
        assert_eq!((run["disk"][0].value, run["disk"][1].request, run["cache"][0].request), (2.0, 1, 0));
        assert!(otlp(&export(&[span("a", "x", 5, 1)])).unwrap_err().0.contains("ends before it starts"));
        assert!(otlp("{\"resourceSpans\":[").unwrap_err().0.starts_with("line 1"));
        assert!(otlp("{}").unwrap_err().0.contains("no spans"));
    }

    fn histogram(temporality: &str, at: u64, counts: [u32; 3]) -> String {
        format!(
            "{{\"resourceMetrics\":[{{\"scopeMetrics\":[{{\"metrics\":[{{\"name\":\"disk\",\"unit\":\"ms\",\"histogram\":{{\"aggregationTemporality\":{temporality},\
             \"dataPoints\":[{{\"timeUnixNano\":\"{at}\",\"bucketCounts\":[\"{}\",{},\"{}\"],\"explicitBounds\":[1,10]}}]}}}}]}}]}}]}}\n",
            counts[0], counts[1], counts[2]
        )
    }

    #[test]
    fn histograms_are_what_was_counted() {
        let shares = |text: &str| {
            let cdf = times("disk", &otlp(text).unwrap()["disk"]).unwrap();
            [cdf.at(1.0), cdf.at(10.0)].map(|s| (s * 100.0).round())
        };
        assert_eq!(shares(&histogram("1", 5, [10, 80, 10])), [10.0, 90.0]);
        let delta = "\"AGGREGATION_TEMPORALITY_DELTA\"";
        assert_eq!(shares(&(histogram(delta, 5, [10, 0, 0]) + &histogram(delta, 6, [0, 10, 0]))), [50.0, 100.0]);
        let twice = histogram("2", 5, [1, 1, 1]) + &histogram("2", 9, [11, 81, 11]);
        assert_eq!(shares(&twice), [10.0, 90.0]);
        let told = |text: &str| otlp(text).unwrap_err().0;
        assert!(told(&histogram("2", 5, [1, 1, 1])).contains("before and after"));
        assert!(told(&(histogram("2", 5, [1, 1, 1]) + &histogram("2", 6, [1, 1, 1]))).contains("is there load"));
        assert!(told(&(histogram("2", 5, [9, 1, 1]) + &histogram("2", 6, [1, 1, 20]))).contains("went down"));
        assert!(told(&histogram("1", 5, [1, 1, 1]).replace("[1,10]", "[10,1]")).contains("don't ascend"));
        let strange = histogram("1", 5, [1, 1, 1]).replace("\"ms\"", "\"By\"");
        assert!(told(&strange).contains("is no time"));
        // What is no node of the graph is left alone, however strange.
        let other = strange.replace("disk", "body.size");
        assert_eq!(shares(&(histogram("1", 5, [10, 80, 10]) + &other)), [10.0, 90.0]);
        assert!(told(&other).contains("no span or histogram is a node of the graph: there are body.size"));
    }
}
