//! A strict reader of Prometheus' text format 0.0.4.

use std::collections::{BTreeMap, BTreeSet};

/// Labels and their texts.
pub type Labels = Vec<(String, String)>;

/// A family: its kind, and its samples by name and labels.
#[derive(Default)]
pub struct Family {
    pub kind: String,
    pub samples: Vec<(String, Labels, f64)>,
}

/// Reads a page; panics at whatever a scraper could stumble over.
pub fn parse(page: &str) -> BTreeMap<String, Family> {
    assert!(page.ends_with('\n'), "the last line has no end");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut seen = BTreeSet::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect(line);
            assert!(is_name(name) && !help.is_empty(), "{line}");
            assert!(families.insert(name.into(), Family::default()).is_none(), "{name} comes twice");
            current = name.to_string();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert_eq!(name, current, "a TYPE follows its HELP");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "only counters end in _total: {name}");
            families.get_mut(name).unwrap().kind = kind.to_string();
        } else {
            let (name, labels, value) = sample(line);
            let family = families.get_mut(&current).expect(line);
            let suffixes: &[&str] = if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            let belongs = suffixes.iter().any(|s| name.strip_suffix(s) == Some(&current));
            assert!(belongs, "{line} stands under {current}");
            assert!(seen.insert((name.clone(), labels.clone())), "twice: {line}");
            assert!(family.kind == "gauge" || value >= 0.0, "{line}");
            family.samples.push((name, labels, value));
        }
    }
    families.iter().filter(|(_, f)| f.kind == "histogram").for_each(|(name, f)| check_histogram(name, f));
    families
}

fn is_name(text: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.starts_with(first) && text.chars().all(|c| first(c) || c.is_ascii_digit())
}

fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).expect(line);
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = Vec::new();
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            let (label, after) = inside.split_once("=\"").expect(line);
            assert!(is_name(label), "{line}");
            let (text, after) = unescape(after, line);
            labels.push((label.to_string(), text));
            match after.strip_prefix(',') {
                Some(more) => inside = more,
                None => break rest = after.strip_prefix('}').expect(line),
            }
        }
    }
    let value = rest.strip_prefix(' ').expect(line);
    (name.to_string(), labels, value.parse().unwrap_or_else(|_| panic!("{line}")))
}

/// The text up to the closing quote, and what is behind it.
fn unescape<'a>(text: &'a str, line: &str) -> (String, &'a str) {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return (out, &text[i + 1..]),
            '\\' => match chars.next().expect(line).1 {
                'n' => out.push('\n'),
                other @ ('\\' | '"') => out.push(other),
                other => panic!("\\{other} in {line}"),
            },
            other => out.push(other),
        }
    }
    panic!("no closing quote in {line}")
}

fn check_histogram(name: &str, f: &Family) {
    let mut series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    let mut rest = BTreeMap::new();
    for (sample, labels, value) in &f.samples {
        if sample.ends_with("_bucket") {
            let (le, labels): (Vec<_>, Vec<_>) = labels.iter().cloned().partition(|(l, _)| l == "le");
            let bound = if le[0].1 == "+Inf" { f64::INFINITY } else { le[0].1.parse().unwrap() };
            series.entry(labels).or_default().push((bound, *value));
        } else {
            rest.insert((sample.clone(), labels.clone()), *value);
        }
    }
    assert_eq!(rest.len(), 2 * series.len(), "{name}: each series has a sum and a count");
    for (labels, buckets) in series {
        assert!(buckets.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1), "{name} {labels:?}: {buckets:?}");
        let count = rest[&(format!("{name}_count"), labels.clone())];
        assert_eq!(buckets.last().unwrap(), &(f64::INFINITY, count), "{name} {labels:?}");
        let sum = rest[&(format!("{name}_sum"), labels.clone())];
        assert!(count > 0.0 || sum == 0.0, "{name} {labels:?}: {sum} of nothing");
    }
}
