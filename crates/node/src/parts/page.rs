//! Prometheus' text format, version 0.0.4, as it grows.

use crate::view::Summary;
use plimsoll_base::Span;
use std::fmt::Write;

/// Upper bounds of every histogram's buckets: 10 us to 60 s, two or three a decade.
const BUCKETS: [(Span, &str); 21] = [
    (Span::from_micros(10), "0.00001"),
    (Span::from_micros(25), "0.000025"),
    (Span::from_micros(50), "0.00005"),
    (Span::from_micros(100), "0.0001"),
    (Span::from_micros(250), "0.00025"),
    (Span::from_micros(500), "0.0005"),
    (Span::from_millis(1), "0.001"),
    (Span::from_micros(2500), "0.0025"),
    (Span::from_millis(5), "0.005"),
    (Span::from_millis(10), "0.01"),
    (Span::from_millis(25), "0.025"),
    (Span::from_millis(50), "0.05"),
    (Span::from_millis(100), "0.1"),
    (Span::from_millis(250), "0.25"),
    (Span::from_millis(500), "0.5"),
    (Span::from_secs(1), "1"),
    (Span::from_millis(2500), "2.5"),
    (Span::from_secs(5), "5"),
    (Span::from_secs(10), "10"),
    (Span::from_secs(30), "30"),
    (Span::from_secs(60), "60"),
];

/// The text of the exposition as it grows.
#[derive(Default)]
pub struct Page(String);

/// A metric of a `T`: its name, its help, and its value.
pub type Family<T> = (&'static str, &'static str, fn(&T) -> f64);

/// The type of a metric, by its name.
fn kind_of(name: &str) -> &'static str {
    if name.ends_with("_total") { "counter" } else { "gauge" }
}

impl Page {
    /// The text.
    pub fn into_text(self) -> String {
        self.0
    }

    /// Begins a family.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("a string takes all");
    }

    /// Samples of several families, each of all of `of`. The type of a family is a counter if its name ends with `_total`, else a gauge.
    pub fn families<T>(&mut self, families: &[Family<T>], of: &[(Vec<(&str, &str)>, &T)]) {
        for (name, help, value) in families {
            self.family(name, kind_of(name), help);
            for (labels, one) in of {
                self.sample(name, labels, value(one));
            }
        }
    }

    /// A sample of the family begun last.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            self.0.push(if i == 0 { '{' } else { ',' });
            self.0.push_str(label);
            self.0.push_str("=\"");
            for c in text.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    other => self.0.push(other),
                }
            }
            self.0.push('"');
        }
        self.0.push_str(if labels.is_empty() { " " } else { "} " });
        writeln!(self.0, "{value}").expect("a string takes all");
    }

    /// A histogram's buckets, sum and count; `zeroes` more values were zero and aren't in `h`.
    pub fn histogram(&mut self, name: &str, labels: &[(&str, &str)], h: &Summary, zeroes: u64) {
        let mut with_le = labels.to_vec();
        with_le.push(("le", ""));
        let last = with_le.len() - 1;
        let bucket = format!("{name}_bucket");
        let mut recorded = h.buckets().iter().peekable();
        let mut so_far = zeroes;
        for (bound, text) in BUCKETS {
            while let Some((_, n)) = recorded.next_if(|(upper, _)| *upper <= bound) {
                so_far += n;
            }
            with_le[last].1 = text;
            self.sample(&bucket, &with_le, so_far);
        }
        let count = h.count() + zeroes;
        with_le[last].1 = "+Inf";
        self.sample(&bucket, &with_le, count);
        self.sample(&format!("{name}_sum"), labels, h.sum().as_secs_f64());
        self.sample(&format!("{name}_count"), labels, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::LatencyHistogram;

    #[test]
    fn buckets_count_all_up_to_their_bound() {
        let mut h = LatencyHistogram::new();
        [9, 60, 60, 2_000_000, 90_000_000].into_iter().for_each(|us| h.record(Span::from_micros(us)));
        let mut page = Page::default();
        page.histogram("x", &[("a", "b")], &Summary::from(&h), 2);
        let count = |le: &str| {
            let start = format!("x_bucket{{a=\"b\",le=\"{le}\"}} ");
            page.0.lines().find_map(|l| l.strip_prefix(&start)).unwrap().parse::<u64>().unwrap()
        };
        let counts = ["0.00001", "0.00005", "0.0001", "1", "2.5", "60", "+Inf"].map(count);
        assert_eq!(counts, [3, 3, 5, 5, 6, 6, 7]);
        assert!(page.0.ends_with("x_sum{a=\"b\"} 92.000129\nx_count{a=\"b\"} 7\n"), "{}", page.0);
        assert_eq!(page.0.lines().count(), BUCKETS.len() + 3);
    }

    #[test]
    fn bucket_bounds_are_what_they_say() {
        for (bound, text) in BUCKETS {
            assert_eq!(text.parse::<f64>().unwrap(), bound.as_secs_f64());
        }
    }

    #[test]
    fn label_texts_are_escaped() {
        let mut page = Page::default();
        page.sample("x", &[("a", "q\"b\\n\n")], 1);
        assert_eq!(page.0, "x{a=\"q\\\"b\\\\n\\n\"} 1\n");
    }
}
