//! The chart: both sides beside each other, a block of bars for each tenant; or a line a second where there is no terminal.
//!
//! A bar is a stretch of time, and all stretches of a run fill the width: the chart grows from left to right. Both sides of a
//! tenant have one scale. It holds without colours: bars have heights, and the promise is a line of its own.

use super::record::{Figures, Record, Side, Tenant};
use super::{DEADLINE, OBJECTIVE};
use plimsoll_base::Span;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span as Text};
use ratatui::widgets::Paragraph;
use std::time::Duration;

/// Content of the screen.
pub struct View<'a> {
    /// Seconds of the run.
    pub seconds: u32,
    /// The measurements.
    pub record: &'a Record,
    /// Addresses of the nodes' dashboards.
    pub dashboards: Side<Vec<String>>,
}

/// Columns left of the bars: the axis.
const AXIS: usize = 7;
/// Bars' heights by eighths of a row.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Above the scale.
const BEYOND: char = '▲';
const PROMISE: char = '┄';

/// A tenant's promise, where it has one.
pub fn bound(tenant: Tenant) -> Option<Span> {
    match tenant {
        Tenant::Database => Some(OBJECTIVE),
        Tenant::Web => Some(DEADLINE),
        Tenant::Neighbour => None,
    }
}

/// Value of a bar: p99 in ms, of the neighbour MB/s. `None` where nothing ended.
fn height(tenant: Tenant, f: &Figures, seconds: f64) -> Option<f64> {
    match tenant {
        Tenant::Neighbour => Some(f.bytes as f64 / 1e6 / seconds),
        _ => f.percentile_ms(99.0),
    }
}

/// The least of 1, 2, 5, 10, … that isn't below.
fn round_up(v: f64) -> f64 {
    let unit = 10f64.powf(v.max(1e-3).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|m| m * unit).into_iter().find(|s| *s >= v * 0.999).unwrap_or(10.0 * unit)
}

/// The top of a scale: most bars fit, and the promise is well inside.
fn top(tenant: Tenant, bars: &Side<Vec<Option<f64>>>) -> f64 {
    let mut all: Vec<f64> = bars.without.iter().chain(&bars.with).flatten().copied().collect();
    all.sort_by(f64::total_cmp);
    let most = all.get(all.len().saturating_sub(1) * 95 / 100).copied().unwrap_or(0.0);
    let least = bound(tenant).map_or(1.0, |b| 2.5 * b.as_millis_f64());
    round_up(most.max(least))
}

/// The bars of one side: rows of characters, the highest first.
fn rows(bars: &[Option<f64>], top: f64, height: usize, promise: Option<f64>) -> Vec<String> {
    let eighths = |v: f64| (v / top * (8 * height) as f64).round() as usize;
    let line_at = promise.map(|p| eighths(p).saturating_sub(1) / 8);
    let row = |r: usize| {
        let cell = |bar: &Option<f64>| {
            let full = bar.map_or(0, |v| eighths(v).max(usize::from(v > 0.0)));
            match full.saturating_sub(8 * r).min(8) {
                _ if r + 1 == height && full > 8 * height => BEYOND,
                0 if line_at == Some(r) => PROMISE,
                part => EIGHTHS[part],
            }
        };
        bars.iter().map(cell).collect::<String>()
    };
    (0..height).rev().map(row).collect()
}

/// A time in ms with three digits: `0.41ms`, `16.3ms`, `128ms`.
pub fn ms(v: Option<f64>) -> String {
    match v {
        None => "-".into(),
        Some(v) if v < 10.0 => format!("{v:.2}ms"),
        Some(v) if v < 100.0 => format!("{v:.1}ms"),
        Some(v) => format!("{v:.0}ms"),
    }
}

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, view: &View<'_>, elapsed: Duration) {
    let second = (elapsed.as_secs() as u32).min(view.seconds);
    let all = [Constraint::Length(2), Constraint::Min(3), Constraint::Length(2)];
    let [head, body, foot] = Layout::vertical(all).areas(frame.area());
    let halves = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).spacing(1).split(body);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let title = format!("plimsoll demo  {second} of {} s  the same load twice, now", view.seconds);
    let titles = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).spacing(1).split(head);
    frame.render_widget(Paragraph::new(vec![Line::raw(""), Line::styled("WITHOUT PROMISES", bold)]), titles[0]);
    frame.render_widget(Paragraph::new(vec![Line::raw(""), Line::styled("WITH PROMISES", bold)]), titles[1]);
    frame.render_widget(Paragraph::new(title), Rect { height: 1.min(head.height), ..head });
    for (i, tenant) in Tenant::ALL.into_iter().enumerate() {
        let width = u32::from(halves[0].width.min(halves[1].width)).saturating_sub(AXIS as u32).max(1);
        let figures = |with: bool| bars(view, with, tenant, width, second);
        let both = Side { without: figures(false), with: figures(true) };
        let top = top(tenant, &both);
        for (with, half) in [(false, halves[0]), (true, halves[1])] {
            let third = Layout::vertical([Constraint::Fill(1); 3]).split(half)[i];
            // The last five seconds: one second has too few requests for a p99.
            let last = view.record.of(with).between(tenant, second.saturating_sub(5), second);
            let title = now(tenant, &last, f64::from(second.clamp(1, 5)), with);
            block(frame, third, tenant, &title, both.of(with), top);
        }
    }
    let boards = |with: bool| view.dashboards.of(with).join(" ");
    let dim = Style::new().fg(Color::DarkGray);
    let foot_lines = vec![
        Line::styled(format!("dashboards without: {}", boards(false)), dim),
        Line::styled(format!("      with: {}   q end", boards(true)), dim),
    ];
    frame.render_widget(Paragraph::new(foot_lines), foot);
}

/// The bars of a tenant: `width` for the whole run, each of one second at least; only complete ones.
fn bars(view: &View<'_>, with: bool, tenant: Tenant, width: u32, now: u32) -> Vec<Option<f64>> {
    let begin = |bar: u32| (u64::from(bar) * u64::from(view.seconds) / u64::from(width)) as u32;
    let stretches = (0..width).map(|bar| (begin(bar), begin(bar + 1).max(begin(bar) + 1)));
    let height = |(from, to): (u32, u32)| {
        let f = view.record.of(with).between(tenant, from, to);
        height(tenant, &f, f64::from(to - from))
    };
    stretches.take_while(|(_, to)| *to <= now).map(height).collect()
}

/// A tenant's title and bars.
fn block(frame: &mut Frame<'_>, area: Rect, tenant: Tenant, title: &str, bars: &[Option<f64>], top: f64) {
    if area.height < 2 {
        return;
    }
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = vec![Line::from(vec![Text::styled(tenant.name(), bold), Text::raw(title.to_string())])];
    let height = usize::from(area.height) - 1;
    let promise = bound(tenant).map(|b| b.as_millis_f64());
    let colour = |bar: &Option<f64>| match (bar, promise) {
        (Some(v), Some(p)) if *v > p => Color::Red,
        (Some(_), Some(_)) => Color::Green,
        _ => Color::Cyan,
    };
    let unit = if promise.is_some() { "ms" } else { "MB/s" };
    let rows = rows(bars, top, height, promise);
    for (r, row) in rows.iter().enumerate() {
        let label = match r {
            0 => format!("{top}{unit}"),
            r if r + 1 == rows.len() => "0".into(),
            _ => String::new(),
        };
        let mut texts = vec![Text::raw(format!("{label:>w$} ", w = AXIS - 1))];
        texts.extend(row.chars().zip(bars).map(|(c, bar)| Text::styled(c.to_string(), Style::new().fg(colour(bar)))));
        lines.push(Line::from(texts));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// Figures of the last seconds, in a title.
fn now(tenant: Tenant, f: &Figures, seconds: f64, with: bool) -> String {
    let times = || format!(" p99 {} p50 {}", ms(f.percentile_ms(99.0)), ms(f.percentile_ms(50.0)));
    match tenant {
        Tenant::Database => format!("{} {:.0} tx/s", times(), f.transactions as f64 / seconds),
        Tenant::Web if with => format!("{} {:.0} busy/s", times(), f.busy as f64 / seconds),
        Tenant::Web => times(),
        Tenant::Neighbour => format!(" {:.1} MB/s", f.bytes as f64 / 1e6 / seconds),
    }
}

/// Begins the lines.
pub fn head(view: &View<'_>) -> String {
    let boards = |with: bool| view.dashboards.of(with).join(" ");
    format!(
        "the same load twice, without promises | with; dashboards without: {}, with: {}\n{:>5}  {:<29}  {:<29}  {:<19}  BUSY/S\n",
        boards(false),
        boards(true),
        "SEC",
        "DATABASE P99, TX/S",
        "WEB P99, READS/S",
        "NEIGHBOUR MB/S"
    )
}

/// A second as a line.
pub fn line(view: &View<'_>, second: u32) -> String {
    let of = |with: bool, tenant| view.record.of(with).between(tenant, second, second + 1);
    let both = |text: &dyn Fn(bool) -> String| format!("{:>13} | {:<13}", text(false), text(true));
    let times = |tenant, count: fn(&Figures) -> u64| {
        both(&|with| {
            let f = of(with, tenant);
            format!("{} {}", ms(f.percentile_ms(99.0)), count(&f))
        })
    };
    let large = |with| format!("{:.1}", of(with, Tenant::Neighbour).bytes as f64 / 1e6);
    let text = format!(
        "{:>5}  {}  {}  {:>8} | {:<8}  {}",
        second + 1,
        times(Tenant::Database, |f| f.transactions),
        times(Tenant::Web, |f| f.latency.count()),
        large(false),
        large(true),
        of(true, Tenant::Web).busy
    );
    text.trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::super::record::Recorder;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::sync::Arc;
    use std::time::Instant;

    /// A minute, of which 40 s have passed: without promises everything takes 20 ms, with promises 2 ms.
    fn drawn(width: u16, height: u16) -> Vec<String> {
        let record = Side::both(|| Arc::new(Recorder::new(Instant::now(), 60)));
        for tenant in Tenant::ALL {
            record.without.filled(tenant, 40, Span::from_millis(20));
            record.with.filled(tenant, 40, Span::from_millis(2));
        }
        let dashboards = Side::both(|| vec!["http://127.0.0.1:40001/".into(), "http://127.0.0.1:40002/".into()]);
        let view = View { seconds: 60, record: &record, dashboards };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &view, Duration::from_secs(40))).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol().to_string()).collect::<String>();
        (0..height).map(row).collect()
    }

    #[test]
    fn a_small_terminal_has_everything() {
        let rows = drawn(80, 24);
        let text = rows.join("\n");
        for part in [
            "40 of 60 s",
            "WITHOUT PROMISES",
            "WITH PROMISES",
            "p99 20.0ms",
            "p99 2.00ms",
            "tx/s",
            "busy/s",
            "MB/s",
            ":40001/",
            ":40002/   q end",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        // The left side's bars are high, the right side's low, and the promise's line is above these only.
        let database = rows.iter().take_while(|r| !r.starts_with("web"));
        let bars: Vec<&String> = database.filter(|r| r.contains('█') || r.contains(PROMISE)).collect();
        assert!(bars.iter().any(|r| r.contains(PROMISE)), "{text}");
        let left = |r: &String| r.chars().take(39).filter(|c| *c == '█').count();
        let right = |r: &String| r.chars().skip(41).filter(|c| *c == '█').count();
        let (left, right): (usize, usize) = (bars.iter().map(|r| left(r)).sum(), bars.iter().map(|r| right(r)).sum());
        assert!(left > 3 * right, "{left} {right}\n{text}");
    }

    #[test]
    fn no_size_is_too_small_to_draw() {
        for (width, height) in [(1, 1), (10, 3), (20, 8), (40, 12), (200, 60)] {
            drawn(width, height);
        }
    }

    #[test]
    fn what_is_beyond_the_scale_is_marked() {
        assert_eq!(rows(&[Some(1.0), Some(30.0), None], 10.0, 2, Some(4.0)), [" ▲ ", "▂█┄"]);
    }

    #[test]
    fn scales_are_round() {
        let found: Vec<f64> = [0.3, 1.0, 1.1, 16.3, 128.0, 501.0].into_iter().map(round_up).collect();
        assert_eq!(found, [0.5, 1.0, 2.0, 20.0, 200.0, 1000.0]);
    }
}
