//! Plots as SVG text: distributions as step curves, with axes, units and a legend.

use crate::micros;
use plimsoll_base::LatencyHistogram;
use std::fmt::Write as _;

/// Scale of the share of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Shares {
    /// 0 to 100 %.
    Linear,
    /// By nines: equal room for 0 to 90 % and for 90 to 99 %, so that the tail can be read.
    Nines,
}

/// Scale of the measured quantity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Scale {
    /// Evenly, from zero.
    Linear,
    /// By powers of ten.
    Log,
}

/// One distribution: ascending values, each with the share of requests at most that large.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// `(value, share)`, both ascending; shares in 0..=1.
    pub points: Vec<(f64, f64)>,
    /// Drawn dashed: what is given or published, as against ours.
    pub is_reference: bool,
}

impl Curve {
    /// The distribution of a histogram, in milliseconds.
    pub fn of_histogram(name: &str, h: &LatencyHistogram) -> Curve {
        let mut sum = 0;
        let point = |(upper, n): (plimsoll_base::Span, u64)| {
            sum += n;
            (micros(upper.min(h.max())) / 1e3, sum as f64 / h.count() as f64)
        };
        Curve { name: name.to_string(), points: h.buckets().map(point).collect(), is_reference: false }
    }

    /// The distribution of some values.
    pub fn of_values(name: &str, mut values: Vec<f64>) -> Curve {
        values.sort_by(f64::total_cmp);
        let n = values.len() as f64;
        let points = values.iter().enumerate().map(|(i, &v)| (v, (i + 1) as f64 / n)).collect();
        Curve { name: name.to_string(), points, is_reference: false }
    }

    /// The same with few enough points to print and to keep: those whose share or value differs by a few pixels, with the digits that show.
    #[must_use]
    pub fn thinned(mut self) -> Curve {
        let mut kept: Vec<(f64, f64)> = Vec::new();
        let last = self.points.len().saturating_sub(1);
        for (i, &(v, s)) in self.points.iter().enumerate() {
            let differs = kept.last().is_none_or(|&(kv, ks)| {
                nines(s) - nines(ks) > 0.03 || s - ks > 0.005 || (v - kv).abs() > 0.05 * kv.abs().max(1e-12)
            });
            if differs || i == last {
                kept.push((v, s));
            }
        }
        self.points = kept.into_iter().map(|(v, s)| (significant(v, 5), (s * 1e7).round() / 1e7)).collect();
        self
    }
}

/// `v` rounded to `digits` significant ones.
fn significant(v: f64, digits: usize) -> f64 {
    format!("{v:.*e}", digits - 1).parse().unwrap_or(v)
}

/// A figure.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Plot {
    /// Above it.
    pub title: String,
    /// Under the horizontal axis, with the unit.
    pub x_label: String,
    /// Beside the vertical axis, with the unit.
    pub y_label: String,
    /// Horizontal scale.
    pub scale: Scale,
    /// Vertical scale.
    pub shares: Shares,
    /// Curves.
    pub curves: Vec<Curve>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 50.0;
/// Colours that differ for colour-blind readers too (Okabe and Ito), the darkest first.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];
/// Line style of a curve that isn't ours.
const DASHED: &str = " stroke-dasharray=\"5 4\"";
/// A legend's row, and in it an entry's sample of the line, the room behind an entry, and a character of the font, at most.
const LEGEND_ROW: f64 = 18.0;
const LEGEND_LINE: f64 = 30.0;
const LEGEND_GAP: f64 = 18.0;
const CHARACTER: f64 = 6.8;
/// The share at which a tail plot ends.
const NINES_MAX: f64 = 4.0;
/// The same as a share.
const SHARE_MAX: f64 = 0.9999;

fn nines(share: f64) -> f64 {
    (-(1.0 - share).max(1e-12).log10()).clamp(0.0, NINES_MAX)
}

/// Maps values to the picture.
struct Axes<'a> {
    plot: &'a Plot,
    low: f64,
    high: f64,
}

impl Axes<'_> {
    fn x(&self, v: f64) -> f64 {
        let part = match self.plot.scale {
            Scale::Linear => (v - self.low) / (self.high - self.low),
            Scale::Log => (v.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        LEFT + part.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, share: f64) -> f64 {
        let part = match self.plot.shares {
            Shares::Linear => share,
            Shares::Nines => nines(share) / NINES_MAX,
        };
        HEIGHT - BOTTOM - part.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
    }

    fn x_ticks(&self) -> Vec<f64> {
        match self.plot.scale {
            Scale::Log => {
                let (from, to) = (self.low.log10().ceil() as i32, self.high.log10().floor() as i32);
                let few = to - from < 2;
                let steps: &[f64] = if few { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let all = (from - 1..=to).flat_map(|e| steps.iter().map(move |s| s * 10f64.powi(e)));
                all.filter(|t| (self.low * 0.999..=self.high * 1.001).contains(t)).collect()
            }
            Scale::Linear => {
                let rough = (self.high - self.low) / 8.0;
                let unit = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * unit).into_iter().find(|&s| s >= rough);
                let step = step.unwrap_or(10.0 * unit);
                let first = (self.low / step).ceil() as i64;
                (first..).map(|i| i as f64 * step).take_while(|&t| t <= self.high * 1.0001).collect()
            }
        }
    }

    fn y_ticks(&self) -> Vec<(f64, String)> {
        let ticks: &[f64] = match self.plot.shares {
            Shares::Linear => &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            Shares::Nines => &[0.0, 0.5, 0.9, 0.99, 0.999, 0.9999],
        };
        ticks.iter().map(|&t| (t, format!("{}", (t * 1e6).round() / 1e4))).collect()
    }
}

/// Text as it may stand in SVG and HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A tick's label without needless digits.
fn shown(v: f64) -> String {
    if v == 0.0 {
        return "0".into();
    }
    if !(1e-4..1e7).contains(&v.abs()) { format!("{v:e}") } else { format!("{}", (v * 1e6).round() / 1e6) }
}

impl Plot {
    /// A plot of response times in milliseconds whose tail can be read.
    pub fn of_times(title: &str, curves: Vec<Curve>) -> Plot {
        Plot {
            title: title.to_string(),
            x_label: "response time, ms".into(),
            y_label: "requests at most that slow, %".into(),
            scale: Scale::Log,
            shares: Shares::Nines,
            curves,
        }
    }

    fn axes(&self) -> Axes<'_> {
        let drawn = |&&(v, s): &&(f64, f64)| {
            v.is_finite()
                && (self.scale == Scale::Linear || v > 0.0)
                && (self.shares == Shares::Linear || s <= SHARE_MAX)
        };
        let values = || self.curves.iter().flat_map(|c| c.points.iter()).filter(drawn).map(|p| p.0);
        let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
        let (low, high) = match self.scale {
            _ if low > high => (1.0, 10.0),
            Scale::Linear => (low.min(0.0), high),
            Scale::Log => (low * 0.9, high * 1.1),
        };
        Axes { plot: self, low, high: if high > low { high } else { low + 1.0 } }
    }

    /// As one `<svg>` element, without references to anything outside.
    pub fn to_svg(&self) -> String {
        let axes = self.axes();
        let legend = self.legend_rows();
        let height = HEIGHT + legend.len() as f64 * LEGEND_ROW;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
             font-family=\"system-ui,sans-serif\" font-size=\"12\" role=\"img\" aria-label=\"{}\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"20\" font-size=\"14\" font-weight=\"600\">{}</text>\n",
            escaped(&self.title),
            escaped(&self.title)
        );
        self.draw_axes(&axes, &mut svg);
        for (i, curve) in self.curves.iter().enumerate() {
            draw_curve(&axes, curve, COLOURS[i % COLOURS.len()], &mut svg);
        }
        self.draw_legend(&legend, &mut svg);
        svg + "</svg>\n"
    }

    fn draw_axes(&self, axes: &Axes<'_>, svg: &mut String) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let mut line = |s: String| writeln!(svg, "{s}").expect("strings take text");
        for t in axes.x_ticks() {
            let x = axes.x(t);
            line(format!("<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#e3e3e3\"/>"));
            line(format!("<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>", bottom + 17.0, shown(t)));
        }
        for (t, label) in axes.y_ticks() {
            let y = axes.y(t);
            line(format!("<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#e3e3e3\"/>"));
            line(format!("<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", LEFT - 6.0, y + 4.0));
        }
        line(format!("<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"#333\"/>"));
        let middle = (LEFT + right) / 2.0;
        line(format!(
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 12.0,
            escaped(&self.x_label)
        ));
        let half = (TOP + bottom) / 2.0;
        line(format!(
            "<text x=\"16\" y=\"{half}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {half})\">{}</text>",
            escaped(&self.y_label)
        ));
    }

    /// The legend's entries in rows as wide as the plot: left edge of each.
    fn legend_rows(&self) -> Vec<Vec<(f64, &Curve)>> {
        let mut rows: Vec<Vec<(f64, &Curve)>> = Vec::new();
        let mut x = f64::INFINITY;
        for c in &self.curves {
            let width = c.name.chars().count() as f64 * CHARACTER + LEGEND_LINE + LEGEND_GAP;
            if x + width - LEGEND_GAP > WIDTH - RIGHT {
                rows.push(Vec::new());
                x = LEFT;
            }
            rows.last_mut().expect("just begun").push((x, c));
            x += width;
        }
        rows
    }

    /// Below the axis: inside the plot it would lie over curves, whichever corner it's in.
    fn draw_legend(&self, rows: &[Vec<(f64, &Curve)>], svg: &mut String) {
        let mut line = |s: String| writeln!(svg, "{s}").expect("strings take text");
        let mut colours = COLOURS.iter().cycle();
        for (i, row) in rows.iter().enumerate() {
            let y = HEIGHT + 8.0 + i as f64 * LEGEND_ROW;
            for ((x, c), colour) in row.iter().zip(&mut colours) {
                let dash = if c.is_reference { DASHED } else { "" };
                line(format!("<path d=\"M{x:.1} {:.1}h24\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>", y - 4.0));
                line(format!("<text x=\"{:.1}\" y=\"{y:.1}\">{}</text>", x + LEGEND_LINE, escaped(&c.name)));
            }
        }
    }
}

fn draw_curve(axes: &Axes<'_>, curve: &Curve, colour: &str, svg: &mut String) {
    let mut path = String::new();
    let mut before = 0.0;
    for &(v, share) in &curve.points {
        let x = axes.x(v);
        if path.is_empty() {
            write!(path, "M{x:.1} {:.1}", axes.y(before)).expect("strings take text");
        } else {
            write!(path, "H{x:.1}").expect("strings take text");
        }
        write!(path, "V{:.1}", axes.y(share)).expect("strings take text");
        before = share;
        if axes.plot.shares == Shares::Nines && share > SHARE_MAX {
            break; // the rest lies above the plot
        }
    }
    let dash = if curve.is_reference { DASHED } else { "" };
    writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"{dash}/>")
        .expect("strings take text");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_is_one_closed_element_and_escapes_names() {
        let mut plot = Plot::of_times("a < b", vec![Curve::of_values("x & y", vec![1.0, 10.0, 100.0])]);
        let svg = plot.to_svg();
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(
            svg.contains("a &lt; b") && svg.contains("x &amp; y") && svg.contains(">99.9<") && svg.contains(">10<")
        );
        plot.curves.clear();
        assert!(!plot.to_svg().contains("NaN"), "an empty plot has axes all the same");
    }

    #[test]
    fn the_legend_lies_outside_of_the_plot() {
        let named = |i: usize| Curve::of_values(&format!("a curve with a long name, number {i}"), vec![1.0, 2.0]);
        let plot = Plot::of_times("t", (0..5).map(named).collect());
        let rows = plot.legend_rows();
        assert_eq!(rows.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
        let svg = plot.to_svg();
        assert!(svg.contains("height=\"434\""), "three rows below 380");
        // Every text of the legend is below the axis' label, and as many colours as curves are used twice.
        for (i, colour) in COLOURS[..5].iter().enumerate() {
            assert!(svg.contains(&format!("number {i}</text>")));
            assert_eq!(svg.matches(colour).count(), 2);
        }
        let ys =
            svg.lines().filter(|l| l.contains("a long name")).map(|l| l.split('"').nth(3).unwrap().parse().unwrap());
        assert!(ys.into_iter().all(|y: f64| y > HEIGHT - 12.0));
    }

    #[test]
    fn thinning_keeps_ends_and_shape() {
        let c = Curve::of_values("v", (1..=100_000).map(f64::from).collect()).thinned();
        assert!(c.points.len() < 500, "{}", c.points.len());
        assert_eq!((c.points[0].0, *c.points.last().unwrap()), (1.0, (100_000.0, 1.0)));
        let median = c.points.iter().find(|p| p.1 >= 0.5).unwrap().0;
        assert!((median / 50_000.0 - 1.0).abs() < 0.03, "{median}");
    }
}
