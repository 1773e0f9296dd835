//! Objective for a distribution: a goal, and bounds (OT-M5, equations 5.1 and 5.2).

use std::fmt;
use std::str::FromStr;

/// One figure of a distribution.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Point {
    /// The mean.
    Mean,
    /// The time that this share of the executions keep, 0 < share < 1 (`p99` is 0.99).
    Share(f64),
}

/// Goal of the search.
#[derive(Clone, PartialEq, Debug)]
pub enum Goal {
    /// The least sum of these points, each times its positive weight.
    Least(Vec<(Point, f64)>),
    /// The least mean squared error against these `(share, ms)` points of a target CDF, ascending.
    Target(Vec<(f64, f64)>),
}

/// An upper bound.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bound {
    /// Of which figure.
    pub of: Point,
    /// In milliseconds.
    pub at_most_ms: f64,
}

/// A goal under bounds.
#[derive(Clone, PartialEq, Debug)]
pub struct Objective {
    /// Goal.
    pub goal: Goal,
    /// Bounds that must hold.
    pub bounds: Vec<Bound>,
}

/// Text that is no goal, bound or target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadObjective(pub String);

impl fmt::Display for BadObjective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for BadObjective {}

fn bad(what: String) -> BadObjective {
    BadObjective(what)
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Point::Mean => f.write_str("mean"),
            Point::Share(s) => write!(f, "p{}", (s * 1e8).round() / 1e6),
        }
    }
}

impl FromStr for Point {
    type Err = BadObjective;
    fn from_str(text: &str) -> Result<Point, BadObjective> {
        let text = text.trim();
        match text {
            "mean" | "average" | "avg" => return Ok(Point::Mean),
            "median" => return Ok(Point::Share(0.5)),
            _ => {}
        }
        let percent = text.strip_prefix('p').and_then(|p| p.parse::<f64>().ok()).filter(|p| *p > 0.0 && *p < 100.0);
        percent.map(|p| Point::Share(p / 100.0)).ok_or_else(|| {
            bad(format!(
                "`{text}` is no point of a distribution: use mean, median, or p and a percentage below 100 (p99.9)"
            ))
        })
    }
}

impl Point {
    /// This figure of a distribution.
    pub fn of(self, cdf: &crate::cdf::Cdf) -> f64 {
        match self {
            Point::Mean => cdf.mean_ms(),
            Point::Share(s) => cdf.quantile(s),
        }
    }
}

impl FromStr for Goal {
    type Err = BadObjective;
    /// `p99`, `mean`, `2*p50 + 0.5*p99`.
    fn from_str(text: &str) -> Result<Goal, BadObjective> {
        let term = |t: &str| -> Result<(Point, f64), BadObjective> {
            let Some((weight, point)) = t.split_once('*') else { return Ok((t.parse()?, 1.0)) };
            let w = weight.trim().parse::<f64>().ok().filter(|w| w.is_finite() && *w > 0.0);
            let w = w.ok_or_else(|| bad(format!("`{}` is no weight: a positive number is needed", weight.trim())))?;
            Ok((point.parse()?, w))
        };
        text.split('+').map(term).collect::<Result<Vec<_>, _>>().map(Goal::Least)
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::Least(terms) => {
                for (i, (p, w)) in terms.iter().enumerate() {
                    let plus = if i > 0 { " + " } else { "" };
                    if *w == 1.0 { write!(f, "{plus}{p}")? } else { write!(f, "{plus}{w}*{p}")? }
                }
                Ok(())
            }
            Goal::Target(points) => write!(f, "a target of {} points", points.len()),
        }
    }
}

/// Milliseconds from `10ms`, `1.5s`, `85us`.
///
/// # Errors
/// If it's no time.
pub fn millis(text: &str) -> Result<f64, BadObjective> {
    let span: plimsoll_base::Span = text.trim().parse().map_err(|e| bad(format!("{e}")))?;
    Ok(span.as_nanos() as f64 / 1e6)
}

impl FromStr for Bound {
    type Err = BadObjective;
    /// `p50 <= 10ms`.
    fn from_str(text: &str) -> Result<Bound, BadObjective> {
        let (point, time) =
            text.split_once("<=").ok_or_else(|| bad(format!("`{text}` is no bound: write it as p50 <= 10ms")))?;
        let bound = Bound { of: point.parse()?, at_most_ms: millis(time)? };
        if bound.at_most_ms <= 0.0 {
            return Err(bad(format!("`{text}`: nothing takes no time at all")));
        }
        Ok(bound)
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} <= {}ms", self.of, self.at_most_ms)
    }
}

/// A target CDF: lines of `percent,ms`, a header allowed, both ascending.
///
/// # Errors
/// With the line: what isn't a pair, a percentage outside 0..100, or goes down.
pub fn target(text: &str) -> Result<Vec<(f64, f64)>, BadObjective> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (n, line) in text.lines().enumerate().map(|(i, l)| (i + 1, l.trim())) {
        if line.is_empty() || line.starts_with('#') || (points.is_empty() && line.starts_with(char::is_alphabetic)) {
            continue;
        }
        let pair = line.split_once(',').and_then(|(p, t)| Some((p.trim().parse().ok()?, t.trim().parse().ok()?)));
        let Some((percent, ms)) = pair else {
            return Err(bad(format!("{n}: `{line}` isn't `percent,ms`")));
        };
        checked_target(&mut points, percent, ms).map_err(|e| bad(format!("{n}: {e}")))?;
    }
    if points.is_empty() {
        return Err(bad("1: a target needs at least one line `percent,ms`".into()));
    }
    Ok(points)
}

/// Adds a point to a target.
///
/// # Errors
/// If it doesn't lie above and beyond the one before.
pub fn checked_target(points: &mut Vec<(f64, f64)>, percent: f64, ms: f64) -> Result<(), BadObjective> {
    if !(percent > 0.0 && percent <= 100.0 && ms >= 0.0 && ms.is_finite()) {
        return Err(bad(format!("{percent} %, {ms} ms: a percentage above 0 and up to 100, and a time, are needed")));
    }
    if points.last().is_some_and(|&(p, t)| percent / 100.0 <= p || ms < t) {
        return Err(bad(format!("an impossible target: {percent} % at {ms} ms doesn't lie above the point before it")));
    }
    points.push((percent / 100.0, ms));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_and_bounds_read_as_they_print() {
        for text in ["p99", "mean", "2*p50 + 0.5*p99.9 + mean"] {
            assert_eq!(text.parse::<Goal>().unwrap().to_string(), text);
        }
        assert_eq!("p50 <= 10ms".parse::<Bound>().unwrap().to_string(), "p50 <= 10ms");
        assert_eq!("mean<=1.5s".parse::<Bound>().unwrap().at_most_ms, 1500.0);
        for (text, says) in [("p100", "no point"), ("x", "no point"), ("-1*p5", "no weight"), ("", "no point")] {
            assert!(text.parse::<Goal>().unwrap_err().to_string().contains(says), "{text}");
        }
        for text in ["p50 < 10ms", "p50 <= 10", "p50 <= 0ms"] {
            assert!(text.parse::<Bound>().is_err(), "{text}");
        }
    }

    #[test]
    fn targets_go_up() {
        assert_eq!(target("percent,ms\n50,1\n99,10.5\n").unwrap(), [(0.5, 1.0), (0.99, 10.5)]);
        for (text, says) in [
            ("50,10\n90,5\n", "2: an impossible target"),
            ("50;10\n", "1: `50;10` isn't"),
            ("120,10\n", "1: 120 %"),
            ("percent,ms\n", "1: a target needs"),
        ] {
            let e = target(text).unwrap_err().to_string();
            assert!(e.starts_with(says), "{e}");
        }
    }
}
